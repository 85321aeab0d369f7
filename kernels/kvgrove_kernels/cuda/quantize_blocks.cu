// quantize_blocks, dequantize_blocks: KV blocks to and from int8, fp8-e4m3 or int4 with one scale for each
// (block, head).
//
// scale = largest |x| of the head's piece of the block / largest code (127, 448, 7); code = round(x / scale),
// ties to even. A piece whose scale would be below 2^-126 becomes zeros with scale 0. Error: at most scale /
// 2 for int8 and int4 (1/254, 1/14 of the largest), for e4m3 at most |x| / 16, or scale / 1024 near zero.
// int4 is stored as code + 8, the even element in the low half. Inputs are finite.
//
// Shapes and units, in elements. The pool is [plane][slot][token][head][HEAD_DIM] of POOL; codes and scales
// are [plane][code slot][token][head][HEAD_DIM] of CODE and [plane][code slot][head] of fp32. Block i of the
// call is ids[i] in the pool and code_ids[i] (i itself where null) among the codes. An id out of range is
// skipped. Pool and codes start at multiples of 16 bytes.
//
// Floor, for each element: its bytes in the pool and in the code, one read, the other written; about four
// fp32 operations: bound by memory.
//
// Launch shape. quantize: 128 threads for each (head, block, plane), heads fastest, so that the blocks of
// threads that run together read the same rows of memory. A piece of 32 tokens x 128 elements is four octets
// for each thread: they stay in registers between finding the largest and rounding, and memory is read once;
// only pieces of more than MOST_KEPT octets for each thread read the rest again. dequantize: 256 threads for each
// (block, plane) over the fragment in memory order.
//
// Compiled for KVG_POOL, KVG_CODE, KVG_HEAD_DIM, KVG_BLOCK_SIZE.
#include <numbers.cuh>
#include <warp.cuh>

constexpr int POOL = KVG_POOL;
constexpr int CODE = KVG_CODE;
constexpr int HEAD_DIM = KVG_HEAD_DIM;
constexpr int BLOCK_SIZE = KVG_BLOCK_SIZE;
constexpr int ROW_OCTETS = HEAD_DIM / 8;
constexpr int PIECE_OCTETS = BLOCK_SIZE * ROW_OCTETS;
constexpr int THREADS = 128;
constexpr int PER_THREAD = (PIECE_OCTETS + THREADS - 1) / THREADS;
constexpr int MOST_KEPT = bits_of(POOL) == 32 ? 4 : 8;  // 32 registers
constexpr int KEPT = PER_THREAD < MOST_KEPT ? PER_THREAD : MOST_KEPT;
constexpr int FILLERS = 256;
constexpr float SMALLEST_SCALE = 0x1p-126f;  // below it, 1 / scale is no fp32 number

// Where octet `octet` of a head's piece lies in a plane, in octets.
__device__ __forceinline__ i64 place(i64 slot, u32 heads, u32 head, int octet) {
    const i64 row = (slot * BLOCK_SIZE + octet / ROW_OCTETS) * heads + head;
    return row * ROW_OCTETS + octet % ROW_OCTETS;
}

__device__ __forceinline__ float largest(const Octet<POOL>& octet, float so_far) {
    float values[8];
    decode<POOL>(octet, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) so_far = fmaxf(so_far, fabsf(values[i]));
    return so_far;
}

__device__ __forceinline__ Octet<CODE> coded(const Octet<POOL>& octet, float inverse) {
    float values[8];
    decode<POOL>(octet, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] *= inverse;
    return encode<CODE>(values);
}

extern "C" __global__ void __launch_bounds__(THREADS)
quantize_blocks(const u8* pool, const i32* ids, i64 slots, u8* codes, float* scales, const i32* code_ids,
                i64 code_slots, u32 heads) {
    __shared__ float warp_largest[THREADS / 32];
    const u32 block = blockIdx.x / heads;
    const u32 head = blockIdx.x - block * heads;
    const i64 plane = blockIdx.y;
    const i64 slot = ids[block];
    const i64 code_slot = code_ids ? static_cast<i64>(code_ids[block]) : block;
    if (slot < 0 || slot >= slots || code_slot < 0 || code_slot >= code_slots) return;  // all threads alike
    const i64 from = plane * slots + slot;
    const i64 to = plane * code_slots + code_slot;

    Octet<POOL> kept[KEPT];
    float magnitude = 0.0f;
#pragma unroll
    for (int k = 0; k < KEPT; ++k) {
        const int octet = threadIdx.x + k * THREADS;
        kept[k] = octet < PIECE_OCTETS ? load_octet<POOL>(pool, place(from, heads, head, octet)) : zero_octet<POOL>();
        magnitude = largest(kept[k], magnitude);
    }
    for (int octet = threadIdx.x + KEPT * THREADS; octet < PIECE_OCTETS; octet += THREADS) {
        magnitude = largest(load_octet<POOL>(pool, place(from, heads, head, octet)), magnitude);
    }
    magnitude = warp_max(magnitude);
    if (threadIdx.x % 32 == 0) warp_largest[threadIdx.x / 32] = magnitude;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; ++warp) magnitude = fmaxf(magnitude, warp_largest[warp]);

    float scale = magnitude / largest_code(CODE);
    if (scale < SMALLEST_SCALE) scale = 0.0f;
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
#pragma unroll
    for (int k = 0; k < KEPT; ++k) {
        const int octet = threadIdx.x + k * THREADS;
        if (octet < PIECE_OCTETS) store_octet<CODE>(codes, place(to, heads, head, octet), coded(kept[k], inverse));
    }
    for (int octet = threadIdx.x + KEPT * THREADS; octet < PIECE_OCTETS; octet += THREADS) {
        const Octet<POOL> again = load_octet<POOL>(pool, place(from, heads, head, octet));
        store_octet<CODE>(codes, place(to, heads, head, octet), coded(again, inverse));
    }
    if (threadIdx.x == 0) scales[to * heads + head] = scale;
}

extern "C" __global__ void __launch_bounds__(FILLERS)
dequantize_blocks(const u8* codes, const float* scales, const i32* code_ids, i64 code_slots, u8* pool, const i32* ids,
                  i64 slots, u32 heads) {
    const u32 block = blockIdx.x;
    const i64 plane = blockIdx.y;
    const i64 slot = ids[block];
    const i64 code_slot = code_ids ? static_cast<i64>(code_ids[block]) : block;
    if (slot < 0 || slot >= slots || code_slot < 0 || code_slot >= code_slots) return;
    const i64 from = plane * code_slots + code_slot;
    const i64 to = plane * slots + slot;
    const i32 octets = static_cast<i32>(PIECE_OCTETS * heads);
#pragma unroll 4
    for (i32 octet = threadIdx.x; octet < octets; octet += FILLERS) {
        const u32 head = static_cast<u32>(octet / ROW_OCTETS) % heads;
        const float scale = scales[from * heads + head];
        float values[8];
        decode<CODE>(load_octet<CODE>(codes, from * octets + octet), values);
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] *= scale;
        store_octet<POOL>(pool, to * octets + octet, encode<POOL>(values));
    }
}
