// Sums over the 32 lanes of a warp, all of which must call.
#pragma once
#include <platform.cuh>

constexpr u32 WHOLE_WARP = 0xFFFFFFFFu;

__device__ __forceinline__ u64 warp_sum(u64 value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(WHOLE_WARP, value, offset);
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(WHOLE_WARP, value, offset));
    return value;
}
