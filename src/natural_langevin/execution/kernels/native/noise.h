// The random numbers of random.py, from the same addresses.

#ifndef NATURAL_LANGEVIN_NOISE_H
#define NATURAL_LANGEVIN_NOISE_H

#include "elementary.h"

INLINE uint64_t mix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// Key of the stream that starts at `origin`, at this step.
INLINE Key stream_key(int64_t origin, int64_t step) {
    const uint64_t z = mix64((uint64_t)origin + ((uint64_t)step + 1) * 0x9E3779B97F4A7C15u);
    const Key key = {(uint32_t)z, (uint32_t)(z >> 32)};
    return key;
}

// Blocks of normals that are made together where there are so many.
#define TOGETHER 8

// `together` blocks of 32 normals from number `base` on. Each stage is a short chain of operations
// over many numbers, which keeps a processor busier than one long chain over a few.
INLINE void normal_blocks(const uint32_t together, float *out, uint32_t base, Key key) {
    float radius[16 * TOGETHER];
    uint32_t angle[16 * TOGETHER];
    for (uint32_t b = 0; b < together; ++b)
        for (uint32_t k = 0; k < 16; ++k) {
            radius[16 * b + k] = open_unit(random_bits(base + 32 * b + k, key));
            angle[16 * b + k] = random_bits(base + 32 * b + 16 + k, key);
        }
    for (uint32_t k = 0; k < 16 * together; ++k) {
        const float squared = -2.0f * log_positive(radius[k]);
        radius[k] = sqrtf(squared > 0.0f ? squared : 0.0f);
    }
    for (uint32_t b = 0; b < together; ++b)
        for (uint32_t k = 0; k < 16; ++k)
            out[32 * b + k] = radius[16 * b + k] * cos_turns(angle[16 * b + k]);
    for (uint32_t b = 0; b < together; ++b)
        for (uint32_t k = 0; k < 16; ++k)
            out[32 * b + 16 + k] = radius[16 * b + k] * cos_turns(angle[16 * b + k] - (1u << 30));
}

// Standard normals number `first` ... `first` + `count` of a stream. They are made in blocks of 32,
// the halves of which form pairs, so the answer begins inside `out`, which has room for 512 more.
static const float *normals(float *out, uint32_t first, int64_t count, Key key) {
    const uint32_t skip = first % 32;
    const int64_t blocks = (skip + count + 31) / 32;
    int64_t block = 0;
    for (; block + TOGETHER <= blocks; block += TOGETHER)
        normal_blocks(TOGETHER, out + 32 * block, first - skip + 32 * (uint32_t)block, key);
    for (; block + 2 <= blocks; block += 2)
        normal_blocks(2, out + 32 * block, first - skip + 32 * (uint32_t)block, key);
    if (block < blocks)
        normal_blocks(1, out + 32 * block, first - skip + 32 * (uint32_t)block, key);
    return out + skip;
}

// Positions 0 ... count sorted by random 32-bit words, ties in their order: order[r] is the row that
// comes r-th. `pairs` has room for 2 count. Radix sort by the words' first bits, since words are
// uniform; the few that agree in these are put right as neighbours.
static void permutation(uint64_t *pairs, int64_t count, Key key, int32_t *order) {
    int bits = 5;
    while (bits < 11 && count > (int64_t)1 << bits) ++bits;
    const int passes = count > (int64_t)1 << bits ? 2 : 1;
    uint64_t *from = pairs, *to = pairs + count;
    for (int64_t i = 0; i < count; ++i)  // the reference sorts signed words
        from[i] = (uint64_t)(random_bits((uint32_t)i, key) ^ 0x80000000u) << 32 | (uint32_t)i;
    for (int shift = 32 - passes * bits; shift < 32; shift += bits) {
        int64_t place[1 << 11];
        const uint64_t mask = ((uint64_t)1 << bits) - 1;
        memset(place, 0, sizeof(int64_t) << bits);
        for (int64_t i = 0; i < count; ++i) ++place[from[i] >> (32 + shift) & mask];
        int64_t before = 0;
        for (uint64_t d = 0; d <= mask; ++d) {
            const int64_t here = place[d];
            place[d] = before;
            before += here;
        }
        for (int64_t i = 0; i < count; ++i) to[place[from[i] >> (32 + shift) & mask]++] = from[i];
        uint64_t *const other = from;
        from = to, to = other;
    }
    for (int64_t i = 1; i < count; ++i) {
        const uint64_t here = from[i];
        int64_t k = i;
        for (; k > 0 && from[k - 1] > here; --k) from[k] = from[k - 1];
        from[k] = here;
    }
    for (int64_t i = 0; i < count; ++i) order[i] = (int32_t)(from[i] & 0xFFFFFFFFu);
}

#endif
