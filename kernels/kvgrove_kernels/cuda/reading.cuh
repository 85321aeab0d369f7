// Sixteen bytes of a fragment, wherever it starts and ends.
#pragma once
#include <platform.cuh>

// The word at `at`; bytes past `end` read as zero, and no byte outside [at, end) is touched. FRESH: past the
// first-level cache.
template <bool FRESH>
__device__ __forceinline__ uint4 word_at(const u8* at, const u8* end) {
    if (reinterpret_cast<u64>(at) % 16 == 0 && at + 16 <= end) {
        const uint4* word = reinterpret_cast<const uint4*>(at);
        return FRESH ? load_fresh(word) : load_once(word);
    }
    u32 words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        if (at + i < end) words[i / 4] |= static_cast<u32>(load_fresh(at + i)) << (8 * (i % 4));
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}
