"""Tokenizer bundles: everything that turns messages into tokens, as one blob known by its digest.

A gateway needs no weights: it fetches the bundle from any daemon by digest. Packing is deterministic: equal files give
equal bytes in every process. The tokenizer and the chat template have digests of their own, because either can change
alone and both are part of a generation (COR-16).
Knows files and bytes; what they mean is `tokenizer`'s and `template`'s business.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from kvgrove_prompt.errors import TokenizerUnsupported
from kvgrove_protocol.canonical import digest
from kvgrove_protocol.errors import Malformed

MAX_BUNDLE_BYTES = 128 << 20
"""About four times the largest published tokenizer.json."""

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""What chat templates may refer to by name, as transformers passes them."""

_FORMAT = 1


class AddedTokenSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A token that tokenizer_config.json adds; only used where tokenizer.json does not have it."""

    id: int
    content: str
    special: bool = False
    normalized: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed blob. ``tokenizer_json`` is the file as it is."""

    format: int
    tokenizer_json: bytes
    named_tokens: dict[str, str]
    added_tokens: list[AddedTokenSpec]
    eos_ids: list[int]
    chat_template: str | None


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(Bundle)


def pack(tokenizer_dir: Path, chat_template: str | None = None) -> bytes:
    """Read a model's tokenizer files into a bundle.

    ``chat_template``: overrides the model's own; None takes it from the directory, which may have none (completions
    still work). Raises TokenizerUnsupported naming the file that is missing or damaged.
    """
    tokenizer_file = tokenizer_dir / "tokenizer.json"
    if not tokenizer_file.is_file():
        raise TokenizerUnsupported(
            f"{tokenizer_dir} holds no tokenizer.json: save the model's fast tokenizer there "
            "(AutoTokenizer.from_pretrained(...).save_pretrained(...))",
            field="tokenizer.json",
        )
    config = _read_json(tokenizer_dir / "tokenizer_config.json")
    specials = _read_json(tokenizer_dir / "special_tokens_map.json")
    generation = _read_json(tokenizer_dir / "generation_config.json")
    template = chat_template if chat_template is not None else _own_template(tokenizer_dir, config)
    bundle = Bundle(
        format=_FORMAT,
        tokenizer_json=tokenizer_file.read_bytes(),
        named_tokens=_named_tokens(specials | config),
        added_tokens=_added_tokens(config.get("added_tokens_decoder") or {}),
        eos_ids=_eos_ids(generation.get("eos_token_id")),
        chat_template=template,
    )
    packed = _encoder.encode(bundle)
    if len(packed) > MAX_BUNDLE_BYTES:
        raise TokenizerUnsupported(
            f"the tokenizer in {tokenizer_dir} takes {len(packed)} bytes, at most {MAX_BUNDLE_BYTES} are carried",
            field="tokenizer.json",
        )
    return packed


def unpack(packed: bytes) -> Bundle:
    """Parse a bundle; raises Malformed if it is none, or one of another format."""
    if len(packed) > MAX_BUNDLE_BYTES:
        raise Malformed("bundle", f"{len(packed)} bytes, at most {MAX_BUNDLE_BYTES} are taken")
    try:
        bundle = _decoder.decode(packed)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed("bundle", str(error)) from None
    if bundle.format != _FORMAT:
        raise Malformed("bundle.format", f"is {bundle.format}, this side reads {_FORMAT}")
    return bundle


def bundle_digest(packed: bytes) -> bytes:
    """SHA-256 (32 bytes) of the blob: the name it is fetched by."""
    return hashlib.sha256(packed).digest()


def tokenizer_digest(packed: bytes) -> str:
    """``sha256:<hex>`` of all that decides which tokens a text becomes; the chat template is not in it."""
    bundle = unpack(packed)
    content = digest(
        "tokenizer",
        {
            "tokenizer_json": bundle.tokenizer_json,
            "named_tokens": bundle.named_tokens,
            "added_tokens": [msgspec.to_builtins(token) for token in bundle.added_tokens],
        },
    )
    return f"sha256:{content.hex()}"


def chat_template_digest(packed: bytes) -> str:
    """``sha256:<hex>`` of the chat template; a model without one has a digest too."""
    return f"sha256:{digest('chat-template', unpack(packed).chat_template).hex()}"


def _read_json(path: Path) -> dict[str, Any]:
    """The object in ``path``; empty where the file is absent."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise TokenizerUnsupported(f"{path} is not JSON: {error}", field=path.name) from None
    if not isinstance(content, dict):
        raise TokenizerUnsupported(f"{path} does not hold a JSON object", field=path.name)
    return content


def _own_template(directory: Path, config: dict[str, Any]) -> str | None:
    """The model's template where transformers looks for it: its own file first, then tokenizer_config.json."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):  # named templates: [{"name": ..., "template": ...}]
        found = next((entry.get("template") for entry in found if entry.get("name") == "default"), None)
    if found is not None and not isinstance(found, str):
        raise TokenizerUnsupported("tokenizer_config.json: chat_template is no text", field="chat_template")
    return found


def _named_tokens(fields: dict[str, Any]) -> dict[str, str]:
    named: dict[str, str] = {}
    for name in NAMED_TOKENS:
        token = fields.get(name)
        if isinstance(token, dict):  # a serialised AddedToken
            token = token.get("content")
        if isinstance(token, str):
            named[name] = token
    return named


def _added_tokens(decoder: dict[str, dict[str, Any]]) -> list[AddedTokenSpec]:
    try:
        tokens = [
            msgspec.convert({"id": int(token_id)} | fields, AddedTokenSpec) for token_id, fields in decoder.items()
        ]
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise TokenizerUnsupported(
            f"tokenizer_config.json: added_tokens_decoder: {error}", field="added_tokens_decoder"
        ) from None
    return sorted(tokens, key=lambda token: token.id)


def _eos_ids(value: Any) -> list[int]:
    ids = value if isinstance(value, list) else [value]
    return sorted({token_id for token_id in ids if isinstance(token_id, int)})
