"""Whether a request can be served here and how: every check between its arrival and the cache (DESIGN section 5).

Pure: takes the plan in force and the models, gives the task to place, or the refusal. Asked anew each time that a
request is placed: after a wait it is judged by the rules of that moment (I2, I3).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvgrove_daemon.admission import Admission, Verdict, admit
from kvgrove_daemon.model_host import HostedModel
from kvgrove_daemon.namespaces import HostedNamespace, PlanTable
from kvgrove_daemon.prompts import check_tokens
from kvgrove_daemon.refusals import Refusal
from kvgrove_daemon.sampling_bounds import check_alternatives, usable
from kvgrove_protocol.chain import Span
from kvgrove_protocol.data import Generate, Sampling
from kvgrove_protocol.errors import KvgroveError
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Caller
from kvgrove_protocol.reasons import MissReason


@dataclass(frozen=True, repr=False)
class Task:
    """A prompt to compute and continue that may be served. Has no ``repr``: it holds prompt tokens (I12)."""

    namespace: HostedNamespace
    model: HostedModel
    cold: MissReason | None
    """Why the cache may not be used; None: it may."""
    caller: Caller
    party: str | None
    """Whose flights it may lead and wait for (`cache.flights`)."""
    fence: Fence | None
    tokens: bytes
    spans: Sequence[Span]
    prompt_tokens: int
    sampling: Sampling
    max_new_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    prompt_logprobs: int | None = None


def judge(
    request: Generate, table: PlanTable, models: Mapping[bytes, HostedModel], *, lease_valid: bool
) -> Task | Refusal:
    """``models`` by generation; ``lease_valid``: whether this node holds a freshness lease for the namespace now."""
    admission = admit(request, table, lease_valid=lease_valid)
    namespace = admission.namespace
    if admission.verdict is Verdict.REFUSE or namespace is None:
        return Refusal(admission.code, admission.message, retryable=admission.retryable)
    model = models.get(request.generation)
    if model is None:
        return Refusal("not_ready", "the model is still loading here", retryable=True)
    try:
        count = check_tokens(request.tokens, request.spans, model.runner.shape.vocab_size)
        sampling = usable(request.sampling)
        check_alternatives("prompt_logprobs", request.prompt_logprobs)
    except KvgroveError as error:
        return Refusal(error.code, error.message)
    if count >= model.max_model_len:
        too_long = f"{count} prompt tokens; the model takes fewer than {model.max_model_len}"
        return Refusal("context_length_exceeded", too_long)
    return Task(
        namespace=namespace,
        model=model,
        cold=_why_cold(admission, request),
        caller=request.caller,
        party=request.caller.tenant or None,
        fence=request.fence,
        tokens=request.tokens,
        spans=request.spans,
        prompt_tokens=count,
        sampling=sampling,
        max_new_tokens=min(request.max_new_tokens, model.max_model_len - count),
        stop_token_ids=frozenset(request.stop_token_ids),
        prompt_logprobs=request.prompt_logprobs,
    )


def _why_cold(admission: Admission, request: Generate) -> MissReason | None:
    if admission.verdict is not Verdict.WARM:
        return admission.reason or MissReason.CACHE_ERROR
    return MissReason.BYPASSED if request.prompt_logprobs is not None else None


def is_fresh(task: Task, table: PlanTable, *, lease_valid: bool) -> bool:
    """Whether what was computed or loaded for ``task`` may be stored under the plan in force (I3)."""
    namespace = table.namespaces.get(task.namespace.plan.uid)
    return (
        lease_valid
        and namespace is not None
        and namespace.under(task.model.generation) is not None
        and namespace.plan.fence == task.fence
    )
