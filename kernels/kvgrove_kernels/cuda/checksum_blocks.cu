// checksum_blocks: one 64-bit digest for each block, equal to the one that the host computes.
//
// Definition, all modulo 2^64. The fragments of a block, in the order of planes, are each padded with zeros
// to whole tiles of 128 words of 32 bits; t numbers the tiles of all planes, w[t][j] are their words
// (little-endian):
//     digest = mix(block bytes + sum over t of M^t * sum over j of w[t][j] * key[j]),
// key[j] = mix(j + 1) | 1, M = 0x9E3779B97F4A7C15, mix = the finaliser of splitmix64. Keys and M are odd, so
// that any change within one word changes the digest; other damage escapes with a chance of about 2^-32. It
// is no defence against somebody who chooses the damage: that is what the AEAD of the disk tier is for.
//
// Shapes and units. The pool holds `planes` x `slots` fragments of `fragment_bytes` bytes, plane_stride bytes
// apart; `ids` are `blocks` slots; partial is [block][plane], digests [block]. An id outside 0..slots-1 gets
// the digest 0, which is nobody's but by a chance of 2^-64.
//
// Floor: fragment_bytes read per fragment; for each 16 bytes eleven 32-bit multiply-adds, a quarter of what
// an H200 does in the time that it takes to read them: bound by memory.
//
// Launch shape. One warp for each (block, plane), eight to a block of threads, no shared memory and no
// barrier: each lane holds the four keys of its place in a tile for good, so that a tile costs one 16-byte
// load of each lane, and neighbouring lanes read neighbouring bytes. Sums commute modulo 2^64, so any order
// gives the same bits. A second, tiny launch adds the planes.
#include <reading.cuh>
#include <warp.cuh>

constexpr int WARPS = 8;
constexpr int TILE_BYTES = 512;
constexpr u64 TILE_FACTOR = 0x9E3779B97F4A7C15ull;

__device__ __forceinline__ u64 mix(u64 value) {
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ value >> 27) * 0x94D049BB133111EBull;
    return value ^ value >> 31;
}

__device__ __forceinline__ u64 power(u64 base, u64 exponent) {
    u64 result = 1;
    for (; exponent; exponent >>= 1, base *= base) {
        if (exponent & 1) result *= base;
    }
    return result;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
checksum_fragments(const u8* pool, const i32* ids, i64 slots, i64 plane_stride, i64 fragment_bytes, u32 blocks,
                   u32 planes, u64* partial) {
    const u32 block = blockIdx.x * WARPS + threadIdx.x / 32;
    const u32 plane = blockIdx.y;
    if (block >= blocks) return;  // whole warps only
    const u32 lane = threadIdx.x % 32;
    const i64 slot = ids[block];
    if (slot < 0 || slot >= slots) return;  // the second launch looks at the id again
    u64 key[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) key[k] = mix(4 * lane + k + 1) | 1;

    const u8* begin = pool + plane * plane_stride + slot * fragment_bytes;
    const u8* end = begin + fragment_bytes;
    const i64 tiles = (fragment_bytes + TILE_BYTES - 1) / TILE_BYTES;
    u64 sum = 0;
#pragma unroll 4
    for (i64 tile = tiles - 1; tile >= 0; --tile) {
        const uint4 word = word_at<false>(begin + tile * TILE_BYTES + 16 * lane, end);
        sum = sum * TILE_FACTOR + word.x * key[0] + word.y * key[1] + word.z * key[2] + word.w * key[3];
    }
    sum = warp_sum(sum);
    if (lane == 0) {
        partial[static_cast<u64>(block) * planes + plane] = sum * power(TILE_FACTOR, static_cast<u64>(plane) * tiles);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
checksum_digests(const u64* partial, const i32* ids, i64 slots, i64 fragment_bytes, u32 blocks, u32 planes,
                 u64* digests) {
    const u32 block = blockIdx.x * WARPS + threadIdx.x / 32;
    if (block >= blocks) return;
    const u32 lane = threadIdx.x % 32;
    const bool known = ids[block] >= 0 && ids[block] < slots;
    u64 sum = 0;
    for (u32 plane = lane; known && plane < planes; plane += 32) {
        sum += partial[static_cast<u64>(block) * planes + plane];
    }
    sum = warp_sum(sum);
    if (lane == 0) digests[block] = known ? mix(sum + static_cast<u64>(planes) * fragment_bytes) : 0;
}
