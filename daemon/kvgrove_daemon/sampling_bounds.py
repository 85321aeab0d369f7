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


def usable(sampling: Sampling) -> Sampling:
    """``sampling``, with equal meaning and within float32; raises Malformed naming the field that makes no sense."""
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise Malformed("sampling.temperature", "a finite number from 0 on is needed")
    if not 0 < sampling.top_p <= 1:
        raise Malformed("sampling.top_p", "a number above 0 and up to 1 is needed")
    if sampling.top_logprobs is not None and not 0 <= sampling.top_logprobs <= MAX_TOP_LOGPROBS:
        raise Malformed("sampling.top_logprobs", f"0 to {MAX_TOP_LOGPROBS} are given")
    return msgspec.structs.replace(
        sampling,
        temperature=0.0 if sampling.temperature < LEAST_TEMPERATURE else sampling.temperature,
        top_p=max(sampling.top_p, LEAST_TOP_P),
    )
