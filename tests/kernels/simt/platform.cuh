// The kernels' <platform.cuh> on the host: CUDA's words, done by simt.hpp, so that the very same sources run
// here.
//
// Not covered: races that real hardware alone has, atomics' order, asynchronous copies, tensor cores, and the
// native e4m3 conversions (the integer ones, which sm_80 uses, run instead).
#pragma once
#include <cmath>
#include <cstring>

#include "simt.hpp"

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
// In a section of its own, so that the launcher can fill it with noise before every block of threads.
#define __shared__ static __attribute__((section("simt_shared")))
#define __syncthreads() simt::sync_threads(__LINE__)
#define KVG_NATIVE_E4M3 0

#define threadIdx simt::thread_index
#define blockIdx simt::block_index
#define gridDim simt::grid_size

struct alignas(8) uint2 {
    u32 x, y;
};
struct alignas(16) uint4 {
    u32 x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

template <class To, class From>
inline To simt_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

inline float __uint_as_float(u32 bits) { return simt_bits<float>(bits); }
inline u32 __float_as_uint(float value) { return simt_bits<u32>(value); }
inline u32 __byte_perm(u32 low, u32 high, u32 selector) {
    const u64 bytes = static_cast<u64>(high) << 32 | low;
    u32 word = 0;
    for (int i = 0; i < 4; ++i) word |= static_cast<u32>(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xFF) << (8 * i);
    return word;
}

template <class T>
inline T __shfl_xor_sync(u32 mask, T value, int lanes) {
    return simt::exchange(mask, value, [=](u32 lane) { return lane ^ lanes; });
}
template <class T>
inline T __shfl_sync(u32 mask, T value, int from) {
    return simt::exchange(mask, value, [=](u32) { return from; });
}
inline bool __any_sync(u32 mask, bool value) { return simt::any(mask, value); }

inline void sincospi(double x, double* sine, double* cosine) {
    *sine = std::sin(M_PI * x);
    *cosine = std::cos(M_PI * x);
}

inline float float_of_half(u16 bits) { return static_cast<float>(simt_bits<_Float16>(bits)); }
inline u16 half_of_float(float value) { return simt_bits<u16>(static_cast<_Float16>(value)); }
inline u16 bfloat16_of_float(float value) {
    const u32 bits = __float_as_uint(value);
    if (value != value) return 0x7FFF;
    return static_cast<u16>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline float fast_exp2(float x) { return std::exp2(x); }

template <class Word>
inline Word load_once(const Word* address) {
    return *address;
}
template <class Word>
inline Word load_fresh(const Word* address) {
    return *address;
}
