"""Proves before a node serves that what separates callers reaches the cache, and refuses to start if it does not.

Role: five requests that differ in nothing but the caller must be five misses, and the same five again five hits
(ISO-07); the same for each version that an older block must not outlive (I3). They go the way that requests go: a
planned namespace, `cached_prompt`, `chain_of`, match, build, commit, over a store of its own that has no memory.
A node that skipped it would answer all the same, and tell one caller's text to another: so it fails closed.
Pure: nothing is read or written outside. Must not know: models, sockets, plans in force.
"""

from collections.abc import Callable, Sequence
from itertools import count

from msgspec import structs

from kvgrove_daemon.cache.runs import RunAllocator
from kvgrove_daemon.cache.store import BlockStore, NoRoom
from kvgrove_daemon.namespaces import HostedNamespace
from kvgrove_daemon.prompts import cached_prompt, chain_of
from kvgrove_prompt.prompt import pack_tokens
from kvgrove_protocol.chain import DocumentRef, Span, SpanKind
from kvgrove_protocol.control import ModelPlan, NamespacePlan
from kvgrove_protocol.errors import Terminal
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Caller, GenerationInputs, Isolation, Purge, generation

BLOCK = 4
SHARED = 2
"""Blocks of a declared prefix, and then so many of a document."""
PRIVATE = 3
TOKENS = pack_tokens(range((2 * SHARED + PRIVATE) * BLOCK + 1))
ALL = (2 * SHARED + PRIVATE) * BLOCK

CALLERS = (
    Caller(tenant="a", user="1", scopes=("x",), session="p"),
    Caller(tenant="b", user="1", scopes=("x",), session="p"),
    Caller(tenant="a", user="2", scopes=("x",), session="p"),
    Caller(tenant="a", user="1", scopes=("y",), session="p"),
    Caller(tenant="a", user="1", scopes=("x",), session="q"),
)
"""Each differs from the first in one field."""
REALMS: dict[Isolation, tuple[int, ...]] = {
    Isolation.PUBLIC: (0, 0, 0, 0, 0),
    Isolation.TENANT: (0, 1, 0, 0, 0),
    Isolation.SCOPE: (0, 1, 0, 3, 0),
    Isolation.USER: (0, 1, 2, 0, 0),
    Isolation.SESSION: (0, 1, 2, 0, 4),
}
"""For each level and caller: the first of `CALLERS` that it shares private text with."""

State = tuple[NamespacePlan, ModelPlan, int]
"""A namespace, its model, and the epoch of the document that the prompt names."""


class SelfTestFailed(Terminal):
    """This build of the daemon mixes up callers or versions: nothing of it may serve."""

    code = "isolation_self_test_failed"

    def __init__(self, what: str, reused: int, right: int) -> None:
        super().__init__(
            f"start-up self-test, {what}: {reused} tokens were reused where {right} are right; this build of the "
            "daemon would mix up callers or versions: install another one"
        )


def prove_isolation() -> None:
    """Raises SelfTestFailed. Takes milliseconds."""
    for level, firsts in REALMS.items():
        _prove_callers(level, firsts)
    _prove_versions()


def _prove_callers(level: Isolation, firsts: Sequence[int]) -> None:
    ask = _requests()
    state = _states(level)["as it was"]
    seen: set[int] = set()
    for at, (caller, first) in enumerate(zip(CALLERS, firsts, strict=True)):
        declared = 2 * SHARED * BLOCK if seen else 0
        _expect(f"{level.value}, caller {at}", ask(state, caller), ALL if first in seen else declared)
        seen.add(first)
    for at, caller in enumerate(CALLERS):
        _expect(f"{level.value}, caller {at} again", ask(state, caller), ALL)
    nobody = Caller()
    right = ALL if level is Isolation.PUBLIC else 2 * SHARED * BLOCK
    for time in ("", " again"):
        _expect(f"{level.value}, a caller without a name{time}", ask(state, nobody), right)


def _prove_versions() -> None:
    ask = _requests()
    states = _states(Isolation.TENANT)
    for name, state in states.items():
        # Another document's version leaves the prefix before it as it was; all other versions root another chain.
        _expect(name, ask(state, CALLERS[0]), SHARED * BLOCK if name == "another document epoch" else 0)
    for name, state in states.items():
        _expect(f"{name}, again", ask(state, CALLERS[0]), ALL)


def _states(level: Isolation) -> dict[str, State]:
    namespace = NamespacePlan(
        uid="u",
        name="n",
        model="m",
        purge=Purge(1, b"n" * 16),
        fence=Fence(1, 1, 1),
        lease_seconds=1.0,
        isolation=level,
    )
    inputs = GenerationInputs(weights="w", tokenizer="t", chat_template="c", kv_dtype="float32", block_size=BLOCK)
    adapted = structs.replace(inputs, adapter="sha256:1")
    model, other = (
        ModelPlan(name="m", path="", block_size=BLOCK, inputs=each, generation=generation(each), pool_bytes={})
        for each in (inputs, adapted)
    )
    return {
        "as it was": (namespace, model, 1),
        "another document epoch": (namespace, model, 2),
        "another purge counter": (structs.replace(namespace, purge=Purge(2, b"n" * 16)), model, 1),
        "another purge nonce": (structs.replace(namespace, purge=Purge(1, b"m" * 16)), model, 1),
        "another access policy": (structs.replace(namespace, policy_version=namespace.policy_version + 1), model, 1),
        "another namespace": (structs.replace(namespace, uid="v"), model, 1),
        "another adapter": (namespace, other, 1),
    }


def _requests() -> Callable[[State, Caller], int]:
    """A way to send the prompt over an empty store; answers how many tokens were reused, and stores the rest."""
    store = BlockStore(RunAllocator(256), block_size=BLOCK, block_bytes=1)
    numbers = count()

    def ask(state: State, caller: Caller) -> int:
        namespace, model, epoch = state
        middle, private = SHARED * BLOCK, 2 * SHARED * BLOCK
        spans = [
            Span(SpanKind.PREFIX, 0, middle, name="p"),
            Span(SpanKind.DOCUMENT, middle, private, document=DocumentRef("d", b"d" * 32, epoch)),
            Span(SpanKind.PRIVATE, private, ALL + 1),
        ]
        prompt = cached_prompt(
            HostedNamespace(namespace, model, {}),
            caller,
            TOKENS,
            spans,
            block_size=BLOCK,
            throwaway=lambda: next(numbers).to_bytes(32, "big"),
        )
        chain = chain_of(store, prompt, TOKENS)
        match = store.match(chain)
        build = store.begin(match)
        if isinstance(build, NoRoom):
            raise SelfTestFailed("no room in an empty store", 0, ALL)
        with build:
            build.commit(len(chain.keys), lambda: True)
        return match.reused_tokens

    return ask


def _expect(what: str, reused: int, right: int) -> None:
    if reused != right:
        raise SelfTestFailed(what, reused, right)
