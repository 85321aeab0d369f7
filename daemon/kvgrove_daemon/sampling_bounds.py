"""How a request wants its tokens chosen, made safe to compute with.

A node does not trust its peers' numbers: one that makes no sense ends its own request, and one too small for float32
is replaced by what it means. Otherwise a single request would fail every sequence that it is batched with.
"""

import math

import msgspec

from kvgrove_protocol.data import Sampling
from kvgrove_protocol.errors import Malformed

LEAST_TEMPERATURE = 1e-5
"""Below, the distribution is the arg max in all but name, and logits divided by it leave float32."""
LEAST_TOP_P = 1e-6
"""Below, the nucleus is the likeliest token alone; much smaller ones round to zero, and the nucleus to nothing."""
MAX_TOP_LOGPROBS = 20
MAX_PENALTY = 2.0


def usable(sampling: Sampling) -> Sampling:
    """``sampling``, with equal meaning and within float32; raises Malformed naming the field that makes no sense."""
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise Malformed("sampling.temperature", "a finite number from 0 on is needed")
    if not 0 < sampling.top_p <= 1:
        raise Malformed("sampling.top_p", "a number above 0 and up to 1 is needed")
    if sampling.top_k < 0:
        raise Malformed("sampling.top_k", "a number from 0 on is needed")
    for name in ("presence_penalty", "frequency_penalty"):
        if not abs(getattr(sampling, name)) <= MAX_PENALTY:  # NaN is not either
            raise Malformed(f"sampling.{name}", f"a number from {-MAX_PENALTY} to {MAX_PENALTY} is needed")
    check_alternatives("sampling.top_logprobs", sampling.top_logprobs)
    return msgspec.structs.replace(
        sampling,
        temperature=0.0 if sampling.temperature < LEAST_TEMPERATURE else sampling.temperature,
        top_p=max(sampling.top_p, LEAST_TOP_P),
    )


def check_alternatives(field: str, count: int | None) -> None:
    """Raises Malformed for a number of alternatives that is not given."""
    if count is not None and not 0 <= count <= MAX_TOP_LOGPROBS:
        raise Malformed(field, f"0 to {MAX_TOP_LOGPROBS} are given")
