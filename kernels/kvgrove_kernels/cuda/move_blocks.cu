// move_blocks: copies blocks between two places, each a paged pool, a contiguous run or a block-major mirror.
//
// gather_blocks, scatter_blocks and both directions of copy_blocks are this kernel with other strides and
// ids.
//
// Shapes and units. A place holds `planes` x `slots` fragments of `fragment_bytes` bytes; the fragment of
// block b in plane p starts at b * block_stride + p * plane_stride bytes. Block i of the call is src_ids[i]
// on one side and dst_ids[i] on the other; a null list of ids means i itself. An id outside 0..slots-1 is
// skipped. The two places do not overlap. Starts and sizes may be any: where both sides can be brought to 16
// bytes together they are, else to 4, 2 or 1.
//
// Floor: fragment_bytes read and fragment_bytes written per fragment, no arithmetic: the copy bandwidth of
// the memory, or of PCIe where one side is pinned host memory.
//
// Launch shape. 256 threads take tiles of 16 KiB of one fragment, four 16-byte loads of each thread in flight
// before the first store: with four or more blocks of threads on a multiprocessor that is more than the 30
// KiB in flight that hide the latency of HBM3e. Tiles are handed out in a grid-stride loop over a few blocks
// of threads for each multiprocessor, so that small fragments do not pay the start of a block of threads
// each.
#include <platform.cuh>

constexpr int THREADS = 256;
constexpr i64 TILE_BYTES = 16384;
constexpr int IN_FLIGHT = 4;

// Neighbouring threads move neighbouring words; what is loaded in one turn is stored in the same turn.
template <class Word>
__device__ __forceinline__ void copy_words(u8* target, const u8* source, i64 words) {
    Word* to = reinterpret_cast<Word*>(target);
    const Word* from = reinterpret_cast<const Word*>(source);
    for (i64 first = threadIdx.x; first < words; first += IN_FLIGHT * THREADS) {
        Word held[IN_FLIGHT];
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; ++k) {
            if (first + k * THREADS < words) held[k] = from[first + k * THREADS];
        }
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; ++k) {
            if (first + k * THREADS < words) to[first + k * THREADS] = held[k];
        }
    }
}

// A head of single bytes up to the target's alignment, words, a tail of single bytes.
template <class Word>
__device__ __forceinline__ void copy_aligned(u8* target, const u8* source, i64 bytes) {
    const i64 lead = static_cast<i64>(-reinterpret_cast<u64>(target) & (sizeof(Word) - 1));
    const i64 head = lead < bytes ? lead : bytes;
    const i64 words = (bytes - head) / static_cast<i64>(sizeof(Word));
    const i64 tail = head + words * static_cast<i64>(sizeof(Word));
    for (i64 at = threadIdx.x; at < head; at += THREADS) target[at] = source[at];
    copy_words<Word>(target + head, source + head, words);
    for (i64 at = tail + threadIdx.x; at < bytes; at += THREADS) target[at] = source[at];
}

extern "C" __global__ void __launch_bounds__(THREADS)
move_blocks(const u8* src, const i32* src_ids, i64 src_slots, i64 src_block_stride, i64 src_plane_stride, u8* dst,
            const i32* dst_ids, i64 dst_slots, i64 dst_block_stride, i64 dst_plane_stride, u32 blocks, u32 planes,
            i64 fragment_bytes) {
    const u32 tiles = static_cast<u32>((fragment_bytes + TILE_BYTES - 1) / TILE_BYTES);
    const u32 units = planes * blocks * tiles;  // the caller sees to it that this fits
    for (u32 unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const u32 fragment = unit / tiles;
        const u32 plane = fragment / blocks;
        const u32 block = fragment - plane * blocks;
        const i64 from = src_ids ? static_cast<i64>(src_ids[block]) : block;
        const i64 to = dst_ids ? static_cast<i64>(dst_ids[block]) : block;
        if (from < 0 || from >= src_slots || to < 0 || to >= dst_slots) continue;
        const i64 start = static_cast<i64>(unit - fragment * tiles) * TILE_BYTES;
        const i64 left = fragment_bytes - start;
        const i64 bytes = left < TILE_BYTES ? left : TILE_BYTES;
        const u8* source = src + from * src_block_stride + plane * src_plane_stride + start;
        u8* target = dst + to * dst_block_stride + plane * dst_plane_stride + start;
        const u64 apart = reinterpret_cast<u64>(source) ^ reinterpret_cast<u64>(target);
        if (apart % 16 == 0) {
            copy_aligned<uint4>(target, source, bytes);
        } else if (apart % 4 == 0) {
            copy_aligned<u32>(target, source, bytes);
        } else if (apart % 2 == 0) {
            copy_aligned<u16>(target, source, bytes);
        } else {
            copy_aligned<u8>(target, source, bytes);
        }
    }
}
