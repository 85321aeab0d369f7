// rope_shift: turns the keys of blocks to where their tokens have moved: RoPE is a rotation, so that moving a
// token by `delta` positions is one more rotation, by delta * frequency, of each pair of elements.
//
// Pairs are (j, j + ROTARY / 2) of a row (INTERLEAVED 0, as Llama) or (2j, 2j + 1) (INTERLEAVED 1, as GPT-J);
// elements from ROTARY on are left alone. Values V and scalings of attention are not touched: both are the
// same at every position.
//
// Shapes and units. The pool is [layer][K, V][slot][token][head][HEAD_DIM] of POOL, changed in place; `ids`
// are `blocks` slots, deltas[block] positions. turns[j] = frequency of pair j in turns for each position
// (radians / 2 pi), fp64: fp32 angles would be off by 0.006 rad at position 100,000. table is [block][ROTARY
// / 2] of (cos, sin), filled by rope_table. An id outside 0..slots-1 is skipped; one given twice is turned
// once or twice, so the host refuses it.
//
// Floor, for each element of K that is rotated: its bytes read and written; three fp32 operations: bound by
// memory.
//
// Launch shape. 256 threads for each (block, layer) walk the fragment of keys; each takes as many pairs as
// divide half a rotary row, up to eight (16 bytes from each half, for 2-byte types), four of them in flight.
// The table of a block is a few hundred bytes, which stay in the first-level cache.
//
// Compiled for KVG_POOL, KVG_HEAD_DIM, KVG_ROTARY, KVG_INTERLEAVED, KVG_BLOCK_SIZE.
#include <numbers.cuh>

constexpr int POOL = KVG_POOL;
constexpr int HEAD_DIM = KVG_HEAD_DIM;
constexpr int ROTARY = KVG_ROTARY;
constexpr int INTERLEAVED = KVG_INTERLEAVED;
constexpr int BLOCK_SIZE = KVG_BLOCK_SIZE;
constexpr int THREADS = 256;
constexpr int HALF = ROTARY / 2;
constexpr int SPAN = INTERLEAVED ? ROTARY : HALF;  // elements that one thread's share must divide
constexpr bool BY_OCTETS = SPAN % 8 == 0;
constexpr int PAIRS = !BY_OCTETS ? 1 : INTERLEAVED ? 4 : 8;
constexpr int SHARES = HALF / PAIRS;  // for each row

extern "C" __global__ void __launch_bounds__(THREADS)
rope_table(const i32* deltas, const double* turns, u32 blocks, float2* table) {
    const u32 entry = blockIdx.x * THREADS + threadIdx.x;
    if (entry >= blocks * HALF) return;
    const double angle = deltas[entry / HALF] * turns[entry % HALF];
    double sine, cosine;
    sincospi(2.0 * (angle - rint(angle)), &sine, &cosine);
    table[entry] = make_float2(static_cast<float>(cosine), static_cast<float>(sine));
}

__device__ __forceinline__ void turn(float& first, float& second, float2 by) {
    const float before = first;
    first = before * by.x - second * by.y;
    second = second * by.x + before * by.y;
}

extern "C" __global__ void __launch_bounds__(THREADS)
rope_shift(u8* pool, const i32* ids, i64 slots, const float2* table, u32 heads) {
    const i64 slot = ids[blockIdx.x];
    if (slot < 0 || slot >= slots) return;
    const float2* by = table + blockIdx.x * HALF;
    const i64 rows_before = (2 * static_cast<i64>(blockIdx.y) * slots + slot) * BLOCK_SIZE * heads;
    const i32 shares = static_cast<i32>(BLOCK_SIZE * heads) * SHARES;
#pragma unroll 4
    for (i32 share = threadIdx.x; share < shares; share += THREADS) {
        const i64 row = (rows_before + share / SHARES) * HEAD_DIM;
        const i32 part = share % SHARES;
        if constexpr (!BY_OCTETS) {
            const i64 first_at = row + (INTERLEAVED ? 2 * part : part);
            const i64 second_at = INTERLEAVED ? first_at + 1 : first_at + HALF;
            float first = load_element<POOL>(pool, first_at);
            float second = load_element<POOL>(pool, second_at);
            turn(first, second, by[part]);
            store_element<POOL>(pool, first_at, first);
            store_element<POOL>(pool, second_at, second);
        } else if constexpr (INTERLEAVED) {
            const i64 at = row / 8 + part;
            float values[8];
            decode<POOL>(load_octet<POOL>(pool, at), values);
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) turn(values[2 * pair], values[2 * pair + 1], by[4 * part + pair]);
            store_octet<POOL>(pool, at, encode<POOL>(values));
        } else {
            const i64 at = row / 8 + part;
            float first[8], second[8];
            decode<POOL>(load_octet<POOL>(pool, at), first);
            decode<POOL>(load_octet<POOL>(pool, at + HALF / 8), second);
#pragma unroll
            for (int pair = 0; pair < 8; ++pair) turn(first[pair], second[pair], by[8 * part + pair]);
            store_octet<POOL>(pool, at, encode<POOL>(first));
            store_octet<POOL>(pool, at + HALF / 8, encode<POOL>(second));
        }
    }
}
