"""Whether a request may use the cache: pure checks, in one place, before every hit and reference (I2, I3).

The order matters: what is refused outright comes first, then what is served cold, then what may hit. Access is the
namespace's *current* rule, not the one of when a block was stored. Its tenants say who is served at all; its scopes
say who shares its cache and its texts. A caller without them is answered, cold, as `scope_denied`: before anything is
looked up, so that neither reason nor time depends on what is resident.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kvgrove_daemon.namespaces import HostedNamespace, PlanTable
from kvgrove_protocol.chain import Span
from kvgrove_protocol.data import Generate
from kvgrove_protocol.fence import Freshness
from kvgrove_protocol.identity import Caller
from kvgrove_protocol.reasons import MissReason


class Verdict(Enum):
    WARM = "warm"
    """Match, and store what is computed."""
    COLD = "cold"
    """Compute everything, store nothing."""
    REFUSE = "refuse"


@dataclass(frozen=True)
class Admission:
    verdict: Verdict
    reason: MissReason | None = None
    """Why cold."""
    code: str = ""
    """Why refused: the error code for the gateway."""
    message: str = ""
    retryable: bool = False
    namespace: HostedNamespace | None = None


def _refuse(code: str, message: str, *, retryable: bool = False) -> Admission:
    return Admission(Verdict.REFUSE, code=code, message=message, retryable=retryable)


def serves(namespace: HostedNamespace, caller: Caller) -> bool:
    """Whether the namespace's current rule lets ``caller`` use it at all."""
    return namespace.plan.tenants is None or caller.tenant in namespace.plan.tenants


def shares_with(namespace: HostedNamespace, caller: Caller) -> bool:
    """Whether ``caller`` holds every scope that its cache and its texts ask for now."""
    return set(namespace.plan.scopes) <= set(caller.scopes)


def _reference_problem(namespace: HostedNamespace, caller: Caller, span: Span) -> Admission | None:
    reference = span.document
    if reference is None:
        return None
    document = namespace.documents.get(reference.id) if shares_with(namespace, caller) else None
    if document is None or not set(document.scopes) <= set(caller.scopes):
        # One answer for both, so that nobody learns which documents exist.
        return _refuse("document_not_found", "no such document, or not for this caller")
    if (document.body, document.epoch) != (reference.digest, reference.epoch):
        return _refuse("stale_fence", "a referenced document has another version: resolve it anew", retryable=True)
    return None


def may_reuse(namespace: HostedNamespace, caller: Caller, spans: Sequence[Span]) -> bool:
    """Whether ``caller`` might ask a prompt of these spans now, and be answered warm."""
    if namespace.plan.suspended or not serves(namespace, caller) or not shares_with(namespace, caller):
        return False
    return all(_reference_problem(namespace, caller, span) is None for span in spans)


def admit(request: Generate, table: PlanTable, *, lease_valid: bool) -> Admission:
    """Judge ``request`` against the plan in force.

    ``lease_valid``: whether this node holds a freshness lease for the namespace at this moment.
    """
    namespace = table.namespaces.get(request.namespace_uid)
    if namespace is None or next(namespace.served(), None) is None:
        return _refuse("not_ready", "this node does not serve the namespace (yet)", retryable=True)
    namespace = namespace.under(request.generation)
    if namespace is None:
        return _refuse("stale_fence", "the namespace is on another generation: resolve it anew", retryable=True)
    if not serves(namespace, request.caller):
        return _refuse("forbidden", "the namespace's access rule does not admit this caller")
    if request.fence is None and any(span.document is not None for span in request.spans):
        # A gateway without a lease cannot know which version of a document is current.
        return _refuse("freshness_lease_expired", "documents need a gateway with a freshness lease", retryable=True)
    freshness = None if request.fence is None else request.fence.against(namespace.plan.fence)
    if freshness is Freshness.OLDER:
        return _refuse("stale_fence", "the namespace has moved on: resolve the request anew", retryable=True)
    if freshness is None or not lease_valid:
        if namespace.plan.fail_closed:
            return _refuse(
                "freshness_lease_expired", "no valid freshness lease, and the namespace fails closed", retryable=True
            )
        return Admission(Verdict.COLD, MissReason.CONTROL_PLANE_LOST, namespace=namespace)
    if freshness is Freshness.NEWER:
        return Admission(Verdict.COLD, MissReason.FENCE_NEWER, namespace=namespace)
    for span in request.spans:
        if (problem := _reference_problem(namespace, request.caller, span)) is not None:
            return problem
    if not shares_with(namespace, request.caller):
        return Admission(Verdict.COLD, MissReason.SCOPE_DENIED, namespace=namespace)
    if namespace.plan.suspended:
        return Admission(Verdict.COLD, MissReason.SUSPENDED, namespace=namespace)
    return Admission(Verdict.WARM, namespace=namespace)
