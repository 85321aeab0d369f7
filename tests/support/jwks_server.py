"""A real issuer on loopback: it serves its keys over HTTP and signs tokens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def new_key(algorithm: str) -> PrivateKey:
    if algorithm.startswith(("RS", "PS")):
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return ec.generate_private_key(ec.SECP256R1()) if algorithm == "ES256" else ed25519.Ed25519PrivateKey.generate()


def public_jwk(key: PrivateKey, kid: str | None, **fields: Any) -> dict[str, Any]:
    kinds: dict[type, Any] = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
    kind = next((kinds[each] for each in kinds if isinstance(key, each)), OKPAlgorithm)
    jwk: dict[str, Any] = kind.to_jwk(key.public_key(), as_dict=True)
    jwk.pop("key_ops", None)
    return jwk | ({} if kid is None else {"kid": kid}) | fields


class Issuer:
    """``body`` and ``status`` are what the server answers; ``fetches`` counts."""

    def __init__(self) -> None:
        self.body = b'{"keys": []}'
        self.status = 200
        self.fetches = 0
        self.keys: dict[str, tuple[PrivateKey, str]] = {}
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetches += 1
                self.send_response(issuer.status)
                self.send_header("Content-Length", str(len(issuer.body)))
                if issuer.status == 302:
                    self.send_header("Location", "/elsewhere")
                self.end_headers()
                self.wfile.write(issuer.body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/jwks.json"

    def publish(self, *kids: str) -> None:
        """Serve the public keys of ``kids``, and no others."""
        keys = [public_jwk(self.keys[kid][0], kid) for kid in kids]
        self.body = json.dumps({"keys": keys}).encode()

    def make(self, kid: str, algorithm: str = "ES256") -> None:
        self.keys[kid] = (new_key(algorithm), algorithm)

    def sign(self, kid: str, claims: dict[str, Any], **header: Any) -> str:
        key, algorithm = self.keys[kid]
        return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": kid} | header)


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    thread = threading.Thread(target=issuer.server.serve_forever, kwargs={"poll_interval": 0.02}, name="issuer")
    thread.start()
    try:
        yield issuer
    finally:
        issuer.server.shutdown()
        issuer.server.server_close()
        thread.join()
