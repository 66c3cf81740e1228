// Minibatches: the permutation of data/streams.py, and its rows laid out for the products.

#ifndef NATURAL_LANGEVIN_MINIBATCH_H
#define NATURAL_LANGEVIN_MINIBATCH_H

#include "noise.h"
#include "products.h"

// Positions 0 ... count sorted by random 32-bit words, ties in their order: order[r] is the row that
// comes r-th. `pairs` has room for 2 count. Radix sort by the words' first bits, since words are
// uniform; the few that agree in these are put right as neighbours.
static void permutation(uint64_t *pairs, int64_t count, Key key, int32_t *order) {
    const int bits = count < 4096 ? 8 : 11;
    uint64_t *from = pairs, *to = pairs + count;
    for (int64_t i = 0; i < count; ++i)  // the reference sorts signed words
        from[i] = (uint64_t)(random_bits((uint32_t)i, key) ^ 0x80000000u) << 32 | (uint32_t)i;
    for (int shift = 32 - 2 * bits; shift < 32; shift += bits) {
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

// A few rows of `width` numbers become columns from ... of a (width, stride).
static void as_columns(const real *const *rows, int64_t width, real *a, int64_t stride) {
    for (int64_t i = 0; i < width; ++i)
        for (int64_t j = 0; j < LANES; ++j) a[i * stride + j] = rows[j][i];
}

// Numbers from one row of a block of `width` columns to the next: odd cache lines, so that rows do
// not compete.
INLINE int64_t block_row(int64_t width) {
    const int64_t line = 64 / sizeof(real);
    return ((least(OUTER_WIDTH, width) + line - 1) / line | 1) * line;
}

// Where the block begins whose first column is number `column`, a multiple of OUTER_WIDTH.
INLINE int64_t block_at(int64_t column, int64_t batch) {
    return column / OUTER_WIDTH * batch * block_row(OUTER_WIDTH);
}

// Columns of a (width, stride) become rows of blocks of OUTER_WIDTH columns (block, batch, column).
static void as_blocks(const real *a, int64_t width, int64_t stride, int64_t from, int64_t to,
                      int64_t batch, real *blocks) {
    for (int64_t b = 0; b < width; b += OUTER_WIDTH) {
        const int64_t here = least(OUTER_WIDTH, width - b), apart = block_row(width - b);
        real *const block = blocks + block_at(b, batch);
        for (int64_t n = from; n < to; n += 8) {
            const int64_t several = least(8, to - n);
            for (int64_t i = 0; i < here; ++i)
                for (int64_t j = 0; j < several; ++j)
                    block[(n + j) * apart + i] = a[(b + i) * stride + n + j];
        }
    }
}

#endif
