// What the bytes of a KV pool mean: eight elements of any storage type to and from fp32.
//
// Eight, because every head_dim is a multiple of eight: an octet never straddles two heads, and is one
// 16-byte access for the 2-byte types. Codes are unscaled here: scales belong to (block, head) and are
// applied by the kernels.
#pragma once
#include <platform.cuh>

enum Kind { FLOAT32, FLOAT16, BFLOAT16, INT8, E4M3, INT4 };

__host__ __device__ constexpr int bits_of(int kind) {
    return kind == FLOAT32 ? 32 : kind == INT4 ? 4 : kind == INT8 || kind == E4M3 ? 8 : 16;
}

// The largest code of each lossy type: scale = largest magnitude / this.
__host__ __device__ constexpr float largest_code(int kind) {
    return kind == INT8 ? 127.0f : kind == E4M3 ? 448.0f : 7.0f;
}

__device__ __forceinline__ float float_of_bfloat16(u32 bits) { return __uint_as_float(bits << 16); }

// Adding the integer to the mantissa of 2^23 and taking 2^23 away again: one logic and one add operation,
// where the conversion instruction runs at a quarter of their rate.
__device__ __forceinline__ float float_of_small(u32 value, float bias) {
    return __uint_as_float(0x4B000000u | value) - (8388608.0f + bias);
}

#if !KVG_NATIVE_E4M3
__device__ __forceinline__ float float_of_e4m3(u32 code) {
    // Exponent and mantissa put where fp32 has them, then the bias corrected: exact for subnormals too.
    return __uint_as_float((code & 0x7Fu) << 20 | (code & 0x80u) << 24) * 0x1p120f;
}

__device__ __forceinline__ u32 e4m3_of_float(float value) {
    const u32 bits = __float_as_uint(value);
    const u32 magnitude = bits & 0x7FFFFFFFu;
    const float absolute = fminf(__uint_as_float(magnitude), 448.0f);
    u32 code;
    if (absolute < 0x1p-6f) {
        code = static_cast<u32>(rintf(absolute * 0x1p9f));  // subnormal: steps of 2^-9; 8 is the smallest normal
    } else {
        const u32 clamped = __float_as_uint(absolute);
        code = ((clamped + 0x7FFFFu + (clamped >> 20 & 1u)) >> 20) - (120u << 3);  // nearest, ties to even
    }
    return code | (bits >> 24 & 0x80u);
}
#endif

// The memory of eight elements, as the widest words that hold it.
template <int KIND>
struct Octet;

template <>
struct Octet<FLOAT32> {
    uint4 low, high;
};
template <>
struct Octet<FLOAT16> {
    uint4 word;
};
template <>
struct Octet<BFLOAT16> {
    uint4 word;
};
template <>
struct Octet<INT8> {
    uint2 word;
};
template <>
struct Octet<E4M3> {
    uint2 word;
};
template <>
struct Octet<INT4> {
    u32 word;
};

template <int KIND>
__device__ __forceinline__ Octet<KIND> zero_octet() {
    Octet<KIND> octet = {};
    // int4 is stored with an offset of 8, so that every nibble of a zero is 8.
    if constexpr (KIND == INT4) octet.word = 0x88888888u;
    return octet;
}

// `index` counts octets from `base`, which lies on an octet's own alignment (16 bytes at most).
template <int KIND>
__device__ __forceinline__ Octet<KIND> load_octet(const void* base, i64 index) {
    Octet<KIND> octet;
    if constexpr (KIND == FLOAT32) {
        const uint4* words = static_cast<const uint4*>(base) + 2 * index;
        octet.low = load_once(words);
        octet.high = load_once(words + 1);
    } else {
        octet.word = load_once(static_cast<const decltype(octet.word)*>(base) + index);
    }
    return octet;
}

template <int KIND>
__device__ __forceinline__ void store_octet(void* base, i64 index, const Octet<KIND>& octet) {
    if constexpr (KIND == FLOAT32) {
        uint4* words = static_cast<uint4*>(base) + 2 * index;
        words[0] = octet.low;
        words[1] = octet.high;
    } else {
        static_cast<decltype(octet.word)*>(base)[index] = octet.word;
    }
}

template <int KIND>
__device__ __forceinline__ void decode_pair(u32 word, float& low, float& high) {
    if constexpr (KIND == FLOAT16) {
        low = float_of_half(static_cast<u16>(word));
        high = float_of_half(static_cast<u16>(word >> 16));
    } else {
        low = float_of_bfloat16(word & 0xFFFFu);
        high = __uint_as_float(word & 0xFFFF0000u);
    }
}

template <int KIND>
__device__ __forceinline__ void decode_four(u32 word, float* values) {
    if constexpr (KIND == INT8) {
        const u32 biased = word ^ 0x80808080u;  // two's complement to 0..255
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            values[i] = __uint_as_float(__byte_perm(biased, 0x4B000000u, 0x7540 + i)) - (8388608.0f + 128.0f);
        }
    } else {
#if KVG_NATIVE_E4M3
        const float2 low = floats_of_e4m3x2(static_cast<u16>(word));
        const float2 high = floats_of_e4m3x2(static_cast<u16>(word >> 16));
        values[0] = low.x, values[1] = low.y, values[2] = high.x, values[3] = high.y;
#else
#pragma unroll
        for (int i = 0; i < 4; ++i) values[i] = float_of_e4m3(word >> (8 * i) & 0xFFu);
#endif
    }
}

template <int KIND>
__device__ __forceinline__ void decode(const Octet<KIND>& octet, float (&values)[8]) {
    if constexpr (KIND == FLOAT32) {
        values[0] = __uint_as_float(octet.low.x), values[1] = __uint_as_float(octet.low.y);
        values[2] = __uint_as_float(octet.low.z), values[3] = __uint_as_float(octet.low.w);
        values[4] = __uint_as_float(octet.high.x), values[5] = __uint_as_float(octet.high.y);
        values[6] = __uint_as_float(octet.high.z), values[7] = __uint_as_float(octet.high.w);
    } else if constexpr (KIND == INT4) {
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = float_of_small(octet.word >> (4 * i) & 0xFu, 8.0f);
    } else if constexpr (KIND == INT8 || KIND == E4M3) {
        decode_four<KIND>(octet.word.x, values);
        decode_four<KIND>(octet.word.y, values + 4);
    } else {
        decode_pair<KIND>(octet.word.x, values[0], values[1]);
        decode_pair<KIND>(octet.word.y, values[2], values[3]);
        decode_pair<KIND>(octet.word.z, values[4], values[5]);
        decode_pair<KIND>(octet.word.w, values[6], values[7]);
    }
}

template <int KIND>
__device__ __forceinline__ u32 encode_pair(float low, float high) {
    if constexpr (KIND == FLOAT16) return half_of_float(low) | static_cast<u32>(half_of_float(high)) << 16;
    return bfloat16_of_float(low) | static_cast<u32>(bfloat16_of_float(high)) << 16;
}

// Nearest whole number, ties to even, within what a symmetric code can say.
__device__ __forceinline__ i32 rounded_code(float value, float largest) {
    return static_cast<i32>(rintf(fminf(fmaxf(value, -largest), largest)));
}

template <int KIND>
__device__ __forceinline__ u32 encode_four(const float* values) {
    u32 word = 0;
    if constexpr (KIND == INT8) {
#pragma unroll
        for (int i = 0; i < 4; ++i) word |= (static_cast<u32>(rounded_code(values[i], 127.0f)) & 0xFFu) << (8 * i);
    } else {
#if KVG_NATIVE_E4M3
        word = e4m3x2_of_floats(values[0], values[1]) | static_cast<u32>(e4m3x2_of_floats(values[2], values[3])) << 16;
#else
#pragma unroll
        for (int i = 0; i < 4; ++i) word |= e4m3_of_float(values[i]) << (8 * i);
#endif
    }
    return word;
}

template <int KIND>
__device__ __forceinline__ Octet<KIND> encode(const float (&values)[8]) {
    Octet<KIND> octet;
    if constexpr (KIND == FLOAT32) {
        octet.low = make_uint4(__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]),
                               __float_as_uint(values[3]));
        octet.high = make_uint4(__float_as_uint(values[4]), __float_as_uint(values[5]), __float_as_uint(values[6]),
                                __float_as_uint(values[7]));
    } else if constexpr (KIND == INT4) {
        octet.word = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) octet.word |= static_cast<u32>(rounded_code(values[i], 7.0f) + 8) << (4 * i);
    } else if constexpr (KIND == INT8 || KIND == E4M3) {
        octet.word = make_uint2(encode_four<KIND>(values), encode_four<KIND>(values + 4));
    } else {
        octet.word = make_uint4(encode_pair<KIND>(values[0], values[1]), encode_pair<KIND>(values[2], values[3]),
                                encode_pair<KIND>(values[4], values[5]), encode_pair<KIND>(values[6], values[7]));
    }
    return octet;
}

// One element, for the places where a row is cut finer than an octet.
template <int KIND>
__device__ __forceinline__ float load_element(const void* base, i64 index) {
    if constexpr (KIND == FLOAT32) return static_cast<const float*>(base)[index];
    const u16 bits = static_cast<const u16*>(base)[index];
    return KIND == FLOAT16 ? float_of_half(bits) : float_of_bfloat16(bits);
}

template <int KIND>
__device__ __forceinline__ void store_element(void* base, i64 index, float value) {
    if constexpr (KIND == FLOAT32) {
        static_cast<float*>(base)[index] = value;
    } else {
        static_cast<u16*>(base)[index] = KIND == FLOAT16 ? half_of_float(value) : bfloat16_of_float(value);
    }
}
