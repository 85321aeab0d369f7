"""What a fleet says about itself: one document, written whole and atomically, read by people and scripts.

Counts, names, digests and addresses only: no prompt text, token ids, keys or secrets (I12). Whoever reads it is never
in the way of who writes it.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from kvgrove_cli.durable import write_atomically
from kvgrove_cli.errors import FleetProblem
from kvgrove_protocol.receipts import SignedReceipt

VERSION = 1


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    pass


class InvalidationStatus(_Part, frozen=True, kw_only=True):
    """The newest invalidation of a namespace, by members that were recorded when it was issued."""

    confirmed: int
    expired: int
    gone: int
    pending: int

    @property
    def complete(self) -> bool:
        return self.pending == 0


class ErasureStatus(_Part, frozen=True, kw_only=True):
    """The erase of part of a namespace, or of one that was removed."""

    name: str
    """Of the entry in ``spec.privacy.erasures``; empty: the whole namespace."""
    id: str
    """As receipts give it."""
    state: str
    """Waiting (unreadable, and sealed after the one before it), UnderWay or Verified."""
    confirmed: int
    """Members that proved it by a receipt."""
    pending: int
    gone: int
    """Members that are over with all their leases: what they left on a disk opens with a destroyed secret only."""
    places: dict[str, int]
    """What was erased, over all members, by place."""
    faults: list[str]
    """Why members that are pending cannot complete it."""
    receipts: list[SignedReceipt]
    """As they came, each with the public key that it was checked with."""


class RemovedStatus(_Part, frozen=True, kw_only=True):
    """A namespace that is gone and of which something may be left."""

    name: str
    uid: str
    erasure: ErasureStatus


class RolloutStatus(_Part, frozen=True, kw_only=True):
    """How far the move to the declared generation is."""

    phase: str
    """As in ``status.rollout.phase`` of the resource."""
    step: int = 0
    """From 1; 0: none."""
    steps: int = 0
    weight: int = 0
    """Percent of new conversations that the candidate takes."""
    candidate: str = ""
    """The ModelVersion that comes, or goes; empty: none."""
    candidate_generation: str = ""
    """First 12 digits: what spec.rollout.approvedGeneration may name."""
    previous: str = ""
    """The ModelVersion that a revert goes back to at once; empty: its window is over."""
    reason: str = ""
    message: str = ""
    warm_ready: int = 0
    warm_wanted: int = 0
    """Blocks of the candidate's warm set, over all nodes."""
    failures: int = 0
    inconclusive: int = 0
    not_measured: int = 0


class NamespaceStatus(_Part, frozen=True, kw_only=True):
    name: str
    uid: str
    phase: str
    """Pending, Warming, Ready, RollingOut, Degraded or Suspended; `message` says why it is not Ready."""
    model: str
    """The ModelVersion that answers now; empty: none yet."""
    generation: str
    """First 12 digits of its generation; empty: none yet."""
    prefixes: list[str]
    """Names that requests may give as ``kvgrove.prefix``."""
    fence: tuple[int, int, int]
    """Purge, document and access revision that every member should enforce."""
    warm_ready: int
    warm_wanted: int
    """Blocks of the declared prefixes, over all nodes."""
    invalidation: InvalidationStatus
    invalidation_complete: bool
    message: str
    erasures: list[ErasureStatus] = []
    rollout: RolloutStatus = RolloutStatus(phase="Pending")


class ModelStatus(_Part, frozen=True, kw_only=True):
    name: str
    state: str
    """Pending, Loading, Ready, Failed or Mismatch."""
    generation: str
    weights: str
    tokenizer: str
    chat_template: str
    """Digests as the nodes found them; empty until they agree."""
    nodes_ready: int
    nodes: int
    message: str


class MemberStatus(_Part, frozen=True, kw_only=True):
    name: str
    role: str
    state: str
    """State of its process: running, waiting (for the next start), failed or stopped."""
    connected: bool
    """Whether its link to the planner is up."""
    address: str
    """Data socket of a daemon, base URL of a gateway."""
    boot: str
    applied: str
    """Revision of the plan that it has applied, ``term.n``."""
    pid: int | None
    restarts: int
    message: str
    kv_events: str = ""
    """ZeroMQ endpoint of a daemon's KV events; empty: it exports none."""
    kv_events_replay: str = ""
    metrics: str = ""
    """Address of a daemon's Prometheus endpoint; a gateway's is ``/metrics`` of its own address."""


class Problem(_Part, frozen=True, kw_only=True):
    object: str
    """What it is about: a kind and name, a file, or a member."""
    reason: str
    message: str


class FleetStatus(_Part, frozen=True, kw_only=True):
    version: int = VERSION
    pid: int
    revision: str
    """Of the newest plan, ``term.n``."""
    ready: bool
    """Every member is up and applies the newest plan, every namespace is Ready or Suspended, no problem is open."""
    namespaces: list[NamespaceStatus]
    models: list[ModelStatus]
    members: list[MemberStatus]
    problems: list[Problem]
    removed: list[RemovedStatus] = []

    def namespace(self, name: str) -> NamespaceStatus:
        """Raises KeyError for a name that is not planned."""
        return {namespace.name: namespace for namespace in self.namespaces}[name]

    def member(self, name: str) -> MemberStatus:
        return {member.name: member for member in self.members}[name]

    def model(self, name: str) -> ModelStatus:
        return {model.name: model for model in self.models}[name]


def write(path: Path, status: FleetStatus) -> None:
    write_atomically(path, msgspec.json.format(msgspec.json.encode(status), indent=2) + b"\n")


def read(path: Path) -> FleetStatus:
    """Raises FleetProblem where no fleet has written a status there, or not one that this version reads."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=FleetStatus)
    except FileNotFoundError:
        raise FleetProblem(f"{path}: no fleet has run here; start one with `kvgrove up`, or pass --state-dir") from None
    except OSError as error:
        raise FleetProblem(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FleetProblem(f"{path}: not a status of this version: {error}") from None


def as_table(status: FleetStatus) -> str:
    """For people: a table of each kind, and the open problems."""
    sections = [
        f"revision {status.revision}, {'ready' if status.ready else 'not ready'}, supervisor {status.pid}",
        columns(
            ("NAMESPACE", "PHASE", "MODEL", "GENERATION", "FENCE", "WARM", "INVALIDATION", "MESSAGE"),
            [
                (
                    n.name,
                    n.phase,
                    n.model,
                    n.generation,
                    "/".join(map(str, n.fence)),
                    f"{n.warm_ready}/{n.warm_wanted}",
                    _invalidation(n),
                    n.message,
                )
                for n in status.namespaces
            ],
        ),
        columns(
            ("MODEL", "STATE", "GENERATION", "NODES", "MESSAGE"),
            [(m.name, m.state, m.generation, f"{m.nodes_ready}/{m.nodes}", m.message) for m in status.models],
        ),
        columns(
            ("MEMBER", "ROLE", "STATE", "LINK", "PLAN", "ADDRESS", "PID", "RESTARTS", "MESSAGE"),
            [
                (
                    m.name,
                    m.role,
                    m.state,
                    "up" if m.connected else "down",
                    m.applied,
                    m.address,
                    str(m.pid or ""),
                    str(m.restarts),
                    m.message,
                )
                for m in status.members
            ],
        ),
    ]
    moving = [n for n in status.namespaces if n.rollout.candidate or n.rollout.previous]
    if moving:
        sections.append(
            columns(
                ("ROLLOUT", "PHASE", "FROM", "TO", "WEIGHT", "STEP", "WARM", "ANALYSIS", "PREVIOUS"),
                map(_rollout, moving),
            )
        )
    erasures = [(n.name, each) for n in status.namespaces for each in n.erasures]
    erasures += [(removed.name, removed.erasure) for removed in status.removed]
    if erasures:
        sections.append(
            columns(
                ("ERASURE", "NAMESPACE", "STATE", "MEMBERS", "ERASED", "FAULTS"),
                [
                    (
                        each.name or "(all of it)",
                        name,
                        each.state,
                        _counts(("confirmed", each.confirmed), ("gone", each.gone), ("pending", each.pending)),
                        ", ".join(f"{place} {count}" for place, count in each.places.items()),
                        ", ".join(each.faults),
                    )
                    for name, each in erasures
                ],
            )
        )
    if status.problems:
        sections.append("\n".join(f"problem: {p.object}: {p.reason}: {p.message}" for p in status.problems))
    return "\n\n".join(sections)


def columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned text columns, each as wide as its longest cell."""
    lines = [tuple(head), *(tuple(cell or "-" for cell in row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _rollout(namespace: NamespaceStatus) -> Sequence[str]:
    found = namespace.rollout
    analysis = _counts(
        ("failed", found.failures), ("inconclusive", found.inconclusive), ("not measured", found.not_measured)
    )
    return (
        namespace.name,
        found.phase,
        namespace.model if found.candidate else "",
        found.candidate,
        f"{found.weight} %" if found.candidate else "",
        f"{found.step}/{found.steps}" if found.step else "",
        f"{found.warm_ready}/{found.warm_wanted}" if found.candidate else "",
        analysis,
        found.previous,
    )


def _invalidation(namespace: NamespaceStatus) -> str:
    found = namespace.invalidation
    counts = _counts(
        ("confirmed", found.confirmed), ("expired", found.expired), ("gone", found.gone), ("pending", found.pending)
    )
    return ("complete" if namespace.invalidation_complete else "open") + (f" ({counts})" if counts else "")


def _counts(*counted: tuple[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counted if count)
