// wipe_blocks: overwrites blocks with zeros, then reads them back: the evidence of an erase.
//
// Shapes and units. The pool holds `planes` x `slots` fragments of `fragment_bytes` bytes, plane_stride bytes
// apart; `ids` are `blocks` slots. residue is [block]: how many bytes of the block were not zero when read
// back. An id outside 0..slots-1 is not written, and all of its bytes are counted as residue: what was not
// wiped is never reported as wiped.
//
// Floor: fragment_bytes written by the first launch, fragment_bytes read by the second; one comparison for
// each 16 bytes.
//
// Launch shape. Two launches on one stream, so that every store has reached memory that the whole device sees
// before the first load; loads bypass the first-level cache, since a line that it kept would witness nothing.
// wipe_fragments: 256 threads for each fragment, 16-byte stores. count_residue: one warp for each (block,
// plane), as in checksum_blocks.cu.
#include <reading.cuh>
#include <warp.cuh>

constexpr int WIPERS = 256;
constexpr int WARPS = 8;

extern "C" __global__ void __launch_bounds__(WIPERS)
wipe_fragments(u8* pool, const i32* ids, i64 slots, i64 plane_stride, i64 fragment_bytes) {
    const i64 slot = ids[blockIdx.x];
    if (slot < 0 || slot >= slots) return;
    u8* begin = pool + blockIdx.y * plane_stride + slot * fragment_bytes;
    const i64 lead = static_cast<i64>(-reinterpret_cast<u64>(begin) & 15);
    const i64 head = lead < fragment_bytes ? lead : fragment_bytes;
    const i64 words = (fragment_bytes - head) / 16;
    for (i64 at = threadIdx.x; at < head; at += WIPERS) begin[at] = 0;
    uint4* body = reinterpret_cast<uint4*>(begin + head);
    for (i64 at = threadIdx.x; at < words; at += WIPERS) body[at] = make_uint4(0, 0, 0, 0);
    for (i64 at = head + 16 * words + threadIdx.x; at < fragment_bytes; at += WIPERS) begin[at] = 0;
}

__device__ __forceinline__ u32 nonzero_bytes(u32 word) {
    u32 count = 0;
#pragma unroll
    for (int shift = 0; shift < 32; shift += 8) count += (word >> shift & 0xFFu) != 0;
    return count;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
count_residue(const u8* pool, const i32* ids, i64 slots, i64 plane_stride, i64 fragment_bytes, u32 blocks, u32 planes,
              u64* partial) {
    const u32 block = blockIdx.x * WARPS + threadIdx.x / 32;
    if (block >= blocks) return;  // whole warps only
    const u32 lane = threadIdx.x % 32;
    const i64 slot = ids[block];
    const bool known = slot >= 0 && slot < slots;
    u64 count = 0;
    if (known) {
        const u8* begin = pool + blockIdx.y * plane_stride + slot * fragment_bytes;
        const u8* end = begin + fragment_bytes;
        for (const u8* at = begin + 16 * lane; at < end; at += 512) {
            const uint4 word = word_at<true>(at, end);
            if (word.x | word.y | word.z | word.w) {
                count += nonzero_bytes(word.x) + nonzero_bytes(word.y) + nonzero_bytes(word.z) + nonzero_bytes(word.w);
            }
        }
    }
    count = warp_sum(count);
    if (lane == 0) {
        partial[static_cast<u64>(block) * planes + blockIdx.y] = known ? count : static_cast<u64>(fragment_bytes);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
sum_residue(const u64* partial, u32 blocks, u32 planes, u64* residue) {
    const u32 block = blockIdx.x * WARPS + threadIdx.x / 32;
    if (block >= blocks) return;
    const u32 lane = threadIdx.x % 32;
    u64 count = 0;
    for (u32 plane = lane; plane < planes; plane += 32) count += partial[static_cast<u64>(block) * planes + plane];
    count = warp_sum(count);
    if (lane == 0) residue[block] = count;
}
