"""The prompts of each namespace that are asked most, and which of them the generation that comes is to be warmed by.

Held in the memory of this node only, never reported: they are what callers said (I12). Bounded in number and bytes
(I11); what is used least goes first. A prompt that continues another takes its place and its uses.

Tokens mean the same only where tokenizer and template are the same, so only then does a generation inherit any. It
inherits them once, when it is first planned, so that what is to be warm does not move with traffic; and each of them
only for as long as its caller may still use the namespace and the documents in it (I2). Belongs to the core thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvgrove_daemon.admission import may_reuse
from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.subjects import Subject
from kvgrove_daemon.judging import Task
from kvgrove_daemon.namespaces import HostedNamespace, PlanTable
from kvgrove_daemon.warmup import Served, WarmTarget, cut_spans
from kvgrove_protocol.chain import TOKEN_BYTES, Span
from kvgrove_protocol.control import ModelPlan
from kvgrove_protocol.identity import Caller

MAX_CHAINS = 4_096
MAX_BYTES = 64 << 20


@dataclass(frozen=True, repr=False)
class HotChain:
    """A prompt that was asked. Has no ``repr``: it holds prompt tokens (I12)."""

    chain: Chain
    caller: Caller
    spans: Sequence[Span]


@dataclass(repr=False)
class _Entry:
    hot: HotChain
    uses: int


class HotChains:
    """``note`` what is asked, ``targets`` for the plan in force, ``forget`` what is erased."""

    def __init__(self, *, max_chains: int = MAX_CHAINS, max_bytes: int = MAX_BYTES) -> None:
        self._max_chains, self._max_bytes = max_chains, max_bytes
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        """Last key of the prompt -> it; the longest unused first."""
        self._bytes = 0
        self._inherited: dict[Served, list[HotChain]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, task: Task, chain: Chain, prompt_tokens: int) -> None:
        """``task`` was answered; ``chain`` begins with its prompt."""
        blocks = prompt_tokens // chain.block_size
        if not blocks or not _is_stable(task.namespace, task.caller):
            return
        uses = 1
        for key in chain.keys[:blocks]:
            if key in self._entries:
                uses += self._take_out(key).uses
        self._entries[chain.keys[blocks - 1]] = _Entry(HotChain(chain, task.caller, task.spans), uses)
        self._bytes += len(chain.tokens)
        while len(self._entries) > self._max_chains or self._bytes > self._max_bytes:
            self._take_out(next(iter(self._entries)))

    def _take_out(self, key: bytes) -> _Entry:
        entry = self._entries.pop(key)
        self._bytes -= len(entry.hot.chain.tokens)
        return entry

    def forget(self, subject: Subject) -> int:
        """Give up what ``subject`` means, inherited or not; answers how many prompts that were."""
        gone = [key for key, entry in self._entries.items() if subject.means(entry.hot.chain)]
        for key in gone:
            self._take_out(key)
        for served, chains in self._inherited.items():
            self._inherited[served] = [hot for hot in chains if not subject.means(hot.chain)]
        return len(gone)

    # -- for the generation that comes ---------------------------------------------------------------------------------

    def targets(self, table: PlanTable) -> list[WarmTarget]:
        """What is inherited under the plan in force, hottest first."""
        coming = {served: namespace for namespace in table.namespaces.values() for served in _coming(namespace)}
        self._inherited = {
            served: self._inherited[served] if served in self._inherited else self._hottest(namespace)
            for served, namespace in coming.items()
        }
        return [
            target
            for served, hot in self._inherited.items()
            for target in _targets(coming[served], served[1], table.models, hot)
        ]

    def _hottest(self, namespace: HostedNamespace) -> list[HotChain]:
        realm = namespace.realm
        if realm is None:
            return []
        root = realm.shared_realm()
        found = [entry for entry in self._entries.values() if entry.hot.chain.root == root]
        found.sort(key=lambda entry: entry.uses, reverse=True)
        return [entry.hot for entry in found[: namespace.plan.warm_chains]]


def _coming(namespace: HostedNamespace) -> Iterator[Served]:
    """The generation that is on its way, where it reads tokens as the one that serves does."""
    if not namespace.plan.warm_chains or namespace.model is None or not namespace.others:
        return
    coming = namespace.others[0]
    if _reading(coming) is not None and _reading(coming) == _reading(namespace.model):
        yield namespace.plan.uid, coming.generation


def _reading(model: ModelPlan) -> tuple[str, str] | None:
    return None if model.inputs is None else (model.inputs.tokenizer, model.inputs.chat_template)


def _targets(
    namespace: HostedNamespace, generation: bytes, models: Mapping[str, ModelPlan], chains: Sequence[HotChain]
) -> Iterator[WarmTarget]:
    inputs = next((model.inputs for model in models.values() if model.generation == generation), None)
    if inputs is None:
        return
    for number, hot in enumerate(chains):
        spans_end = hot.spans[-1].end if hot.spans else 0
        blocks = spans_end // inputs.block_size
        if not blocks or not may_reuse(namespace, hot.caller, hot.spans):
            continue
        whole = blocks * inputs.block_size
        yield WarmTarget(
            namespace_uid=namespace.plan.uid,
            generation=generation,
            fence=namespace.plan.fence,
            prefix=f"#{number}",
            coming=False,
            tokens=hot.chain.tokens[: whole * TOKEN_BYTES],
            spans=cut_spans(hot.spans, whole),
            blocks=blocks,
            caller=hot.caller,
        )


def _is_stable(namespace: HostedNamespace, caller: Caller) -> bool:
    """Whether the caller has a realm to come back to: a throw-away one is nobody's twice."""
    realm, isolation = namespace.realm, namespace.plan.isolation
    if realm is None:
        return False
    one = realm.private_realm(isolation, caller, throwaway=lambda: b"one")
    return one == realm.private_realm(isolation, caller, throwaway=lambda: b"other")
