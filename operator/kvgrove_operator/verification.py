"""Whether a receipt is by the member that it names. Pure."""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kvgrove_protocol.control import Hello
from kvgrove_protocol.receipts import Receipt, signed_bytes


def genuine(receipt: Receipt, hello: Hello) -> bool:
    """Whether the member and boot of ``hello`` signed ``receipt``, for itself, with the key that it said is its own."""
    if (receipt.member, receipt.boot) != (hello.member, hello.boot):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(hello.public_key).verify(receipt.signature, signed_bytes(receipt))
    except (InvalidSignature, ValueError):  # ValueError: no public key of 32 bytes
        return False
    return True
