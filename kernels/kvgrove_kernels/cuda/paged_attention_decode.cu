// paged_attention_decode: attention of one new token of each sequence over KV that stays in its blocks.
//
//     out[b][h] = sum over t of softmax over t (scale * <q[b][h], K[t][h / group]>) * V[t][h / group],  t < context[b]
//
// Shapes and units, in elements. query and out are [batch][kv_heads * group][HEAD_DIM] of QUERY; keys and
// values are one plane each, [slot][token][kv_head][HEAD_DIM] of KV; key_scales and value_scales
// [slot][kv_head] of fp32, null unless KV is a code; block_table [batch][table_width] of slots; context
// [batch] in tokens. A token whose slot is out of range is left out. A sequence of no tokens gets zeros.
// Everything starts at a multiple of 16 bytes.
//
// Floor, for each KV element: its bytes read once, `group` fp32 multiply-adds (one for each query head that
// shares it) and one operation to make it fp32. At 2 bytes and group 4 an H200 has 2.4 T elements/s to read and
// needs 12 T of its 29 T operations/s for them: bound by memory. From group 8 on, or with one-byte codes from
// group 4 on, arithmetic comes close: there tensor cores would be the way on.
//
// Launch shape. The context is cut into splits, so that one long sequence still fills the device; 128 threads
// for each (split, kv_head x tile of GROUP query heads, sequence) read each KV element once for all heads of
// the tile. A warp works alone until the end: LANES lanes hold a row (8 elements, 16 bytes of a 2-byte type,
// each), UNROLL rows of K and as many of V are in flight in each lane, and the next K is asked for before V
// is used: 4 warps x 32 lanes x 4 to 8 loads x 16 bytes are 8 to 16 KiB for each block of threads. There is
// no barrier in the loop. Dot products are summed by a butterfly that halves the number of sums at each step,
// so that 4 tokens x 4 heads cost 15 exchanges and not 64, and each exponential is taken once. combine_splits
// adds the splits up: one block of threads for each query head, a thread for each element.
//
// Compiled for KVG_KV, KVG_QUERY, KVG_HEAD_DIM, KVG_BLOCK_SIZE, KVG_GROUP (query heads in a tile, 1 to 8).
#include <numbers.cuh>
#include <warp.cuh>

constexpr int KV = KVG_KV;
constexpr int QUERY = KVG_QUERY;
constexpr int HEAD_DIM = KVG_HEAD_DIM;
constexpr int BLOCK_SIZE = KVG_BLOCK_SIZE;
constexpr int GROUP = KVG_GROUP;
__host__ __device__ constexpr int log2_of(int value) { return value > 1 ? 1 + log2_of(value / 2) : 0; }
__host__ __device__ constexpr int twos_in(int value) { return value % 2 ? 0 : 1 + twos_in(value / 2); }
__host__ __device__ constexpr int lanes_for(int octets) {
    int lanes = 4;  // no fewer, so that tokens can be told apart by lane in the butterfly
    while (lanes < octets) lanes *= 2;
    return lanes;
}

constexpr int WARPS = 4;
constexpr int OCTETS = HEAD_DIM / 8;
constexpr int LANES = lanes_for(OCTETS);
constexpr int ROWS = 32 / LANES;  // tokens side by side in a warp
constexpr int UNROLL = GROUP > 4 ? 2 : 4;
constexpr int STEP = WARPS * ROWS * UNROLL;
constexpr int SUMS = UNROLL * GROUP;  // sum n = token * GROUP + head
constexpr int HALVINGS = twos_in(SUMS) < log2_of(LANES) ? twos_in(SUMS) : log2_of(LANES);
constexpr int HELD = SUMS >> HALVINGS;  // sums that a lane is left with
constexpr int CHUNK_SHIFT = log2_of(LANES) - HALVINGS;
constexpr bool QUANTISED = KV >= INT8;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float NOTHING = -1e30f;  // the maximum of no scores: finite, so that differences of it are numbers

// The butterfly: after it, lane l holds sums chunk * HELD .. of its row, chunk = (l % LANES) >> CHUNK_SHIFT.
template <int COUNT, int OFFSET>
__device__ __forceinline__ void share_sums(float* sums, u32 lane) {
    if constexpr (OFFSET > 0 && COUNT % 2 == 0) {
        const bool upper = lane & OFFSET;
#pragma unroll
        for (int n = 0; n < COUNT / 2; ++n) {
            const float give = upper ? sums[n] : sums[n + COUNT / 2];
            const float keep = upper ? sums[n + COUNT / 2] : sums[n];
            sums[n] = keep + __shfl_xor_sync(WHOLE_WARP, give, OFFSET);
        }
        share_sums<COUNT / 2, OFFSET / 2>(sums, lane);
    } else if constexpr (OFFSET > 0) {
#pragma unroll
        for (int n = 0; n < COUNT; ++n) sums[n] += __shfl_xor_sync(WHOLE_WARP, sums[n], OFFSET);
        share_sums<COUNT, OFFSET / 2>(sums, lane);
    }
}

// Sum `n` out of the lane of the same row that holds it.
__device__ __forceinline__ float sum_from_holder(const float (&held)[HELD], int n, u32 lane) {
    return __shfl_sync(WHOLE_WARP, held[n % HELD], (lane & ~(LANES - 1u)) | (n / HELD) << CHUNK_SHIFT);
}

template <class Combine>
__device__ __forceinline__ float over_tokens(float value, Combine combine) {
#pragma unroll
    for (int step = 0; step < log2_of(UNROLL); ++step) {
        value = combine(value, __shfl_xor_sync(WHOLE_WARP, value, LANES / 2 >> step));
    }
#pragma unroll
    for (int offset = LANES; offset < 32; offset *= 2) value = combine(value, __shfl_xor_sync(WHOLE_WARP, value, offset));
    return value;
}

// UNROLL tokens of one lane's row: where they lie and, for codes, their scales.
struct Tokens {
    i64 row[UNROLL];  // row of K and of V, or -1
    float key_scale[UNROLL], value_scale[UNROLL];
};

struct Context {
    const i32* table;
    i64 slots;
    i32 table_width, end, kv_heads, kv_head;
    const float *key_scales, *value_scales;
};

__device__ __forceinline__ void find_tokens(const Context& context, i32 first, Tokens& tokens) {
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const i32 token = first + u * WARPS * ROWS;
        const i32 entry = token / BLOCK_SIZE;
        const bool inside = token < context.end && entry < context.table_width;
        const i64 slot = inside ? context.table[entry] : -1;
        const bool known = slot >= 0 && slot < context.slots;
        tokens.row[u] = known ? (slot * BLOCK_SIZE + token % BLOCK_SIZE) * context.kv_heads + context.kv_head : -1;
        if constexpr (QUANTISED) {
            const i64 scale = slot * context.kv_heads + context.kv_head;
            tokens.key_scale[u] = known ? context.key_scales[scale] : 0.0f;
            tokens.value_scale[u] = known ? context.value_scales[scale] : 0.0f;
        }
    }
}

// Rows that are not there become zeros: memory past the context may hold anything, and 0 * NaN is NaN.
__device__ __forceinline__ void load_rows(const u8* plane, const Tokens& tokens, int octet, Octet<KV> (&rows)[UNROLL]) {
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const bool wanted = tokens.row[u] >= 0 && octet < OCTETS;
        rows[u] = wanted ? load_octet<KV>(plane, tokens.row[u] * OCTETS + octet) : zero_octet<KV>();
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
attend_split(const u8* query, const u8* keys, const u8* values, const float* key_scales, const float* value_scales,
             const i32* block_table, const i32* context_lengths, i64 slots, i32 table_width, i32 kv_heads, i32 group,
             i32 split_tokens, float scale, float* sums_out, float2* weights_out) {
    const u32 lane = threadIdx.x % 32;
    const u32 warp = threadIdx.x / 32;
    const int octet = lane % LANES;
    const i32 tiles = (group + GROUP - 1) / GROUP;
    const i32 kv_head = blockIdx.y / tiles;
    const i32 first_head = (blockIdx.y - kv_head * tiles) * GROUP;  // within the group
    const i64 query_row = (static_cast<i64>(blockIdx.z) * kv_heads + kv_head) * group + first_head;
    const i32 begin = blockIdx.x * split_tokens;
    const i32 length = context_lengths[blockIdx.z];
    const i32 end = begin + split_tokens < length ? begin + split_tokens : length;
    const Context context = {block_table + static_cast<i64>(blockIdx.z) * table_width, slots, table_width, end,
                             kv_heads, kv_head, key_scales, value_scales};

    float q[GROUP][8];
#pragma unroll
    for (int h = 0; h < GROUP; ++h) {
        const bool wanted = first_head + h < group && octet < OCTETS;
        decode<QUERY>(wanted ? load_octet<QUERY>(query, (query_row + h) * OCTETS + octet) : zero_octet<QUERY>(), q[h]);
#pragma unroll
        for (int i = 0; i < 8; ++i) q[h][i] *= scale * LOG2_E;
    }

    float sum[GROUP][8] = {};
    float maximum[HELD], weight[HELD];
#pragma unroll
    for (int r = 0; r < HELD; ++r) maximum[r] = NOTHING, weight[r] = 0.0f;

    Tokens tokens;
    Octet<KV> k[UNROLL], v[UNROLL];
    const i32 mine = begin + warp * ROWS + lane / LANES;
    find_tokens(context, mine, tokens);
    load_rows(keys, tokens, octet, k);
    for (i32 step = begin; step < end; step += STEP) {
        load_rows(values, tokens, octet, v);
        float scores[SUMS];
        u32 present = 0;  // bit u: token u is there. A word, since an array indexed by lane would lie in local memory
        float value_scale[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            float row[8];
            decode<KV>(k[u], row);
            present |= static_cast<u32>(tokens.row[u] >= 0) << u;
            value_scale[u] = QUANTISED ? tokens.value_scale[u] : 1.0f;
#pragma unroll
            for (int h = 0; h < GROUP; ++h) {
                float dot = q[h][0] * row[0];
#pragma unroll
                for (int i = 1; i < 8; ++i) dot += q[h][i] * row[i];
                scores[u * GROUP + h] = QUANTISED ? dot * tokens.key_scale[u] : dot;
            }
        }
        find_tokens(context, mine + (step - begin) + STEP, tokens);
        load_rows(keys, tokens, octet, k);

        share_sums<SUMS, LANES / 2>(scores, lane);
        const int chunk = octet >> CHUNK_SHIFT;
        float held[HELD], risen[HELD];
        bool rises = false;
#pragma unroll
        for (int r = 0; r < HELD; ++r) {
            const bool counts = present >> (chunk * HELD + r) / GROUP & 1u;
            held[r] = counts ? scores[r] : NOTHING;
            risen[r] = fmaxf(maximum[r], over_tokens(held[r], [](float a, float b) { return fmaxf(a, b); }));
            rises |= risen[r] > maximum[r];
        }
        if (__any_sync(WHOLE_WARP, rises)) {
            float shrink[HELD];
#pragma unroll
            for (int r = 0; r < HELD; ++r) {
                shrink[r] = fast_exp2(maximum[r] - risen[r]);
                weight[r] *= shrink[r];
                maximum[r] = risen[r];
            }
#pragma unroll
            for (int h = 0; h < GROUP; ++h) {
                const float by = sum_from_holder(shrink, h, lane);
#pragma unroll
                for (int i = 0; i < 8; ++i) sum[h][i] *= by;
            }
        }
#pragma unroll
        for (int r = 0; r < HELD; ++r) {
            held[r] = held[r] == NOTHING ? 0.0f : fast_exp2(held[r] - maximum[r]);
            weight[r] += held[r];
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            float row[8];
            decode<KV>(v[u], row);
#pragma unroll
            for (int h = 0; h < GROUP; ++h) {
                const float p = sum_from_holder(held, u * GROUP + h, lane) * value_scale[u];
#pragma unroll
                for (int i = 0; i < 8; ++i) sum[h][i] += p * row[i];
            }
        }
    }

    // Rows of a warp share one maximum; warps do not.
    __shared__ float warp_sum_of[WARPS][GROUP][HEAD_DIM];
    __shared__ float2 warp_weight[WARPS][GROUP];  // (maximum, weight)
#pragma unroll
    for (int r = 0; r < HELD; ++r) weight[r] = over_tokens(weight[r], [](float a, float b) { return a + b; });
#pragma unroll
    for (int h = 0; h < GROUP; ++h) {
        const float highest = sum_from_holder(maximum, h, lane);
        const float total = sum_from_holder(weight, h, lane);
        if (lane == 0) warp_weight[warp][h] = make_float2(highest, total);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float value = sum[h][i];
#pragma unroll
            for (int offset = LANES; offset < 32; offset *= 2) value += __shfl_xor_sync(WHOLE_WARP, value, offset);
            if (lane < OCTETS) warp_sum_of[warp][h][8 * octet + i] = value;
        }
    }
    __syncthreads();
    for (int element = threadIdx.x; element < GROUP * HEAD_DIM; element += WARPS * 32) {
        const int h = element / HEAD_DIM;
        if (first_head + h >= group) break;
        float highest = NOTHING, total = 0.0f, value = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) highest = fmaxf(highest, warp_weight[w][h].x);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float share = fast_exp2(warp_weight[w][h].x - highest);
            total += share * warp_weight[w][h].y;
            value += share * warp_sum_of[w][h][element % HEAD_DIM];
        }
        const i64 split = (query_row + h) * gridDim.x + blockIdx.x;
        sums_out[split * HEAD_DIM + element % HEAD_DIM] = value;
        if (element % HEAD_DIM == 0) weights_out[split] = make_float2(highest, total);
    }
}

extern "C" __global__ void __launch_bounds__(256)
combine_splits(const float* sums, const float2* weights, i32 splits, u8* out) {
    const i64 row = blockIdx.x;
    const int element = threadIdx.x;
    if (element >= HEAD_DIM) return;
    float highest = NOTHING, total = 0.0f, value = 0.0f;
    for (i32 split = 0; split < splits; ++split) highest = fmaxf(highest, weights[row * splits + split].x);
    for (i32 split = 0; split < splits; ++split) {
        const float2 part = weights[row * splits + split];
        const float share = fast_exp2(part.x - highest);
        total += share * part.y;
        value += share * sums[(row * splits + split) * HEAD_DIM + element];
    }
    store_element<QUERY>(out, row * HEAD_DIM + element, total > 0.0f ? value / total : 0.0f);
}
