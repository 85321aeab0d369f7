"""Messages between gateways and nodes (ZeroMQ DEALER -> ROUTER, one msgpack frame each).

A link opens with ClientHello / ServerHello; nothing else is answered before. Replies to a request are streamed:
``Started``, ``PromptLogprobs`` where they were asked for, any number of ``Token``, then ``Done`` or ``Error``. Keys
never travel with a request as facts: the node computes them from tokens and spans.
"""

import msgspec

from kvgrove_protocol.chain import Span
from kvgrove_protocol.codec import OLDEST_SUPPORTED_VERSION, PROTOCOL_VERSION, Codec
from kvgrove_protocol.events import EventBatch, SnapshotChunk
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Caller
from kvgrove_protocol.reasons import MissReason


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is chosen. ``temperature`` 0 is greedy; ``seed`` makes a request repeatable by itself."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Choose among so many of the likeliest tokens; 0: among all."""
    seed: int | None = None
    presence_penalty: float = 0.0
    """Taken once from the logit of each token that the answer holds already."""
    frequency_penalty: float = 0.0
    """Taken as often as the answer holds the token."""
    top_logprobs: int | None = None
    """None: no log probabilities. 0..20: that many alternatives beside the chosen token."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """``reused`` + the sum of ``missed`` = ``prompt`` (I10). ``missed`` by MissReason, positive counts only."""

    prompt: int
    reused: int
    completion: int
    missed: dict[MissReason, int]


# -- gateway -> node ---------------------------------------------------------------------------------------------------


class ClientHello(_Message, frozen=True, kw_only=True, tag="client_hello"):
    member: str
    boot: str
    oldest_version: int = OLDEST_SUPPORTED_VERSION
    newest_version: int = PROTOCOL_VERSION


class Generate(_Message, frozen=True, kw_only=True, tag="generate"):
    """One prompt to answer. ``tokens``: little-endian uint32. ``spans`` tile them."""

    request_id: str
    namespace_uid: str
    generation: bytes
    fence: Fence | None
    """None: the gateway holds no lease. Served cold and not stored."""
    caller: Caller
    tokens: bytes
    spans: list[Span]
    sampling: Sampling
    max_new_tokens: int
    stop_token_ids: list[int] = []
    traceparent: str = ""
    prompt_logprobs: int | None = None
    """Log probabilities of the prompt's own tokens, with that many alternatives (0..20). The prompt is then computed
    from its first token on: a reused block has none (COR-11)."""


class Explain(_Message, frozen=True, kw_only=True, tag="explain"):
    """Ask what ``request`` would reuse here if it were sent now, and why not the rest. Nothing is computed or stored.

    Answered by `Explained`, or by `Error` where the request would be refused. A node that does not know the message
    drops it: whoever asks bounds the wait.
    """

    request: Generate


class Cancel(_Message, frozen=True, kw_only=True, tag="cancel"):
    """The caller has gone: free the node within one prefill chunk or decode step. Unknown ids are a no-op."""

    request_id: str


class Subscribe(_Message, frozen=True, kw_only=True, tag="subscribe"):
    """Send a snapshot of residency, then every later EventBatch. Repeating it is how a gap is healed.

    With ``boot``: only the batches after ``after``, if the node is that boot and still has them all.
    """

    boot: str = ""
    after: int = -1


class Unsubscribe(_Message, frozen=True, kw_only=True, tag="unsubscribe"):
    pass


class BundleRequest(_Message, frozen=True, kw_only=True, tag="bundle_request"):
    """Ask for the tokenizer bundle (tokenizer files and chat template) with this digest."""

    digest: bytes
    chunk: int = 0


class Ping(_Message, frozen=True, kw_only=True, tag="ping"):
    nonce: int = 0


# -- node -> gateway ---------------------------------------------------------------------------------------------------


class ServerHello(_Message, frozen=True, kw_only=True, tag="server_hello"):
    member: str
    boot: str
    version: int


class Started(_Message, frozen=True, kw_only=True, tag="started"):
    """The request was admitted and waits for its first step: what is reused from where, and why the rest is not."""

    request_id: str
    reused: int
    tier: str
    missed: dict[MissReason, int]


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    token_id: int
    logprob: float
    top: list[tuple[int, float]] = []


class Token(_Message, frozen=True, kw_only=True, tag="token"):
    """One or more tokens, in order. ``logprobs`` is as long as ``token_ids`` where they were asked for, else empty."""

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] = []


class PromptLogprobs(_Message, frozen=True, kw_only=True, tag="prompt_logprobs"):
    """Of the prompt's tokens in order, from the second on (nothing precedes the first), before any ``Token``."""

    request_id: str
    logprobs: list[TokenLogprob]


class Done(_Message, frozen=True, kw_only=True, tag="done"):
    request_id: str
    finish_reason: str
    """``stop`` (a stop token), ``length`` (max_new_tokens or the model's context)."""
    usage: Usage


class Error(_Message, frozen=True, kw_only=True, tag="error"):
    """The request ends here. ``retryable`` means: elsewhere, later, or resolved anew."""

    request_id: str
    code: str
    message: str
    retryable: bool = False


class ExplainedRange(msgspec.Struct, frozen=True, array_like=True):
    """Prompt tokens ``start`` (inclusive) to ``end`` (exclusive): reused from ``tier``, or computed for ``reason``."""

    start: int
    end: int
    tier: str = ""
    reason: MissReason | None = None


class Explained(_Message, frozen=True, kw_only=True, tag="explained"):
    """``ranges`` tile the prompt, in order: each has a tier or a reason (I10)."""

    request_id: str
    ranges: list[ExplainedRange]


class BundleChunk(_Message, frozen=True, kw_only=True, tag="bundle_chunk"):
    """Part ``chunk`` of ``chunks`` of a bundle; ``chunks`` 0 means: not here."""

    digest: bytes
    chunk: int
    chunks: int
    body: bytes = b""


class Pong(_Message, frozen=True, kw_only=True, tag="pong"):
    nonce: int = 0


BUNDLE_CHUNK_BYTES = 1 << 20

ToNode = ClientHello | Generate | Explain | Cancel | Subscribe | Unsubscribe | BundleRequest | Ping
ToGateway = (
    ServerHello
    | Started
    | PromptLogprobs
    | Token
    | Done
    | Error
    | Explained
    | BundleChunk
    | Pong
    | EventBatch
    | SnapshotChunk
)

TO_NODE: Codec[ToNode] = Codec(ToNode)
TO_GATEWAY: Codec[ToGateway] = Codec(ToGateway)
