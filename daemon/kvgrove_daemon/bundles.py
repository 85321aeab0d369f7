"""Tokenizer bundles, chunk by chunk, for gateways that have no weights."""

from kvgrove_protocol.data import BUNDLE_CHUNK_BYTES, BundleChunk, BundleRequest


def bundle_chunk(request: BundleRequest, bundle: bytes | None) -> BundleChunk:
    """The chunk asked for. No bundle, or a chunk beyond its end, answers ``chunks`` 0: not here."""
    chunks = 0 if bundle is None else max(1, -(-len(bundle) // BUNDLE_CHUNK_BYTES))
    if bundle is None or not 0 <= request.chunk < chunks:
        return BundleChunk(digest=request.digest, chunk=request.chunk, chunks=0)
    start = request.chunk * BUNDLE_CHUNK_BYTES
    body = bundle[start : start + BUNDLE_CHUNK_BYTES]
    return BundleChunk(digest=request.digest, chunk=request.chunk, chunks=chunks, body=body)
