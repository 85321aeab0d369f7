// What the kernels need of the machine, as PTX where CUDA C++ has no portable word for it.
//
// The host test bed has a header of the same name: kernels include <platform.cuh> and name nothing else of
// the machine but CUDA's own built-ins (threadIdx, __syncthreads, __shfl_sync and the like).
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

// cvt of e4m3 exists from sm_89 on; before that numbers.cuh does it in integer arithmetic, to the same bits.
#if __CUDA_ARCH__ >= 890
#define KVG_NATIVE_E4M3 1
#else
#define KVG_NATIVE_E4M3 0
#endif

__device__ __forceinline__ float float_of_half(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ u16 half_of_float(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ __forceinline__ u16 bfloat16_of_float(float value) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

#if KVG_NATIVE_E4M3
// Two values at once: `low` in the lower byte.
__device__ __forceinline__ u16 e4m3x2_of_floats(float low, float high) {
    u16 bits;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
    return bits;
}

__device__ __forceinline__ float2 floats_of_e4m3x2(u16 bits) {
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(bits));
    return make_float2(float_of_half(static_cast<u16>(halves)), float_of_half(static_cast<u16>(halves >> 16)));
}
#endif

// 2^x to within 2 ulp: a softmax needs no more, and the exact function costs several times as much.
__device__ __forceinline__ float fast_exp2(float x) {
    float value;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}

// KV is read once: it shall not push what is read often out of the first-level cache.
__device__ __forceinline__ uint4 load_once(const uint4* address) { return __ldcs(address); }
__device__ __forceinline__ uint2 load_once(const uint2* address) { return __ldcs(address); }
__device__ __forceinline__ u32 load_once(const u32* address) { return __ldcs(address); }

// Never from the first-level cache: what another kernel or device left in memory.
__device__ __forceinline__ uint4 load_fresh(const uint4* address) { return __ldcv(address); }
__device__ __forceinline__ u8 load_fresh(const u8* address) { return __ldcv(address); }
