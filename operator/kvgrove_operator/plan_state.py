"""What a planner must remember: durable before the plan that rests on it is sent.

Counters only rise, and what they name is never named again; so a planner that forgot would make old blocks readable.
The state holds the namespaces' secrets: keep it as one keeps keys.
"""

from enum import StrEnum
from typing import Protocol

import msgspec

from kvgrove_operator.rollout.facts import RolloutState
from kvgrove_protocol.control import ErasurePlan, ModelPlan
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import GenerationInputs, Purge
from kvgrove_protocol.receipts import SignedReceipt


class Mint(Protocol):
    """Where fresh randomness comes from; injected, so that planning stays pure."""

    def nonce(self) -> bytes:
        """16 random bytes."""

    def secret(self) -> bytes:
        """32 random bytes."""


class _State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class DocumentEntry(_State, frozen=True, kw_only=True):
    """One document as it is planned now."""

    version: str
    digest: bytes
    scopes: tuple[str, ...] = ()
    epoch: int


class ComingEntry(_State, frozen=True, kw_only=True):
    """The next version of a document, until it is warm or its time is up."""

    entry: DocumentEntry
    """With the epoch that is reserved for it."""
    deadline: float
    """Unix seconds."""


class Stage(StrEnum):
    """How far an erasure is: see `erasures`."""

    WAITING = "waiting"
    CURRENT = "current"
    DONE = "done"


class Proof(_State, frozen=True, kw_only=True):
    """How the recorded holders of a namespace stand to one of its erasures."""

    confirmed: int = 0
    """Gave a receipt that proves it."""
    gone: int = 0
    """Over, with every lease they had: without the former secret their disk is noise."""
    pending: int = 0
    receipts: tuple[SignedReceipt, ...] = ()
    """The newest of each holder that gave one, whatever its outcome."""

    @property
    def complete(self) -> bool:
        return self.pending == 0


class ErasureState(_State, frozen=True, kw_only=True):
    """One erasure of part of a namespace."""

    name: str
    """Of the entry that asked for it. For the status only: members are told the id."""
    plan: ErasurePlan
    stage: Stage
    generation: bytes = b""
    """What was computed under it, where the planner gave the generation up; empty: declared."""
    proof: Proof | None = None
    """Set once it is DONE."""


class PrefixEntry(_State, frozen=True, kw_only=True):
    """One prefix as it is planned now."""

    version: str
    digest: bytes
    documents: tuple[str, ...] = ()


class NamespaceState(_State, frozen=True, kw_only=True):
    """One namespace, by UID."""

    name: str
    """``<k8s namespace>/<name>``."""
    purge: Purge
    purge_epoch: int
    """``spec.purge.epoch`` for which the purge was minted."""
    policy_version: int
    document_revision: int
    """Rises with each change of a declared text."""
    documents: dict[str, DocumentEntry] = {}
    coming: dict[str, ComingEntry] = {}
    """Next versions that are being warmed while the older ones are in force."""
    document_epoch: int = 0
    """The highest epoch that any version was ever given."""
    prefixes: dict[str, PrefixEntry] = {}
    access_revision: int
    """Rises with each change of who may use the namespace."""
    access: bytes
    """Digest of who may use it."""
    aliases: tuple[str, ...] = ()
    model: str = ""
    """The ModelVersion that serves; empty while none ever did."""
    rollout: RolloutState | None = None
    """None: written by a release that moved between models without one."""
    secret: bytes
    """Empty once destroyed."""
    former_secret: bytes = b""
    """What the disk was wrapped under before the rewrap that is under way; empty once destroyed."""
    pseudonym_key: bytes = b""
    """Stays the same while the namespace lives; empty once destroyed."""
    erasures: tuple[ErasureState, ...] = ()
    erasure_epoch: int = 0
    """The highest that any erasure was ever given."""

    @property
    def fence(self) -> Fence:
        return Fence(purge=self.purge.counter, documents=self.document_revision, access=self.access_revision)


class ModelState(_State, frozen=True, kw_only=True):
    """One ModelVersion, by name: the plan for it, and what its generation was computed from once it was named."""

    plan: ModelPlan
    inputs: GenerationInputs | None = None


class PlanState(_State, frozen=True, kw_only=True):
    namespaces: dict[str, NamespaceState] = {}
    removed: dict[str, NamespaceState] = {}
    """Deleted, and not yet erased everywhere; kept so that one that returns goes on above its old counters."""
    models: dict[str, ModelState] = {}
