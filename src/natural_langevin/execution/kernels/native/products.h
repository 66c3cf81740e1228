// Matrix products of a layer, for matrices that lie feature by feature: A (in, batch), D (out, batch).
//
//     forward   Z = W A + b          backward   E = W^T D
//     moments   D A^T,  (D^2) (A^2)^T,  (D^2) A^T       summed over the batch
//
// Tiles are held in registers; the compiler gets vectors of fixed size and loops of known length.
// Moments have two forms: rows of A and D against each other ("inner", for narrow layers), or row by
// row of the batch ("outer", for wide ones), which skips the samples whose D is zero, as half of
// them are behind a ReLU.

#ifndef NATURAL_LANGEVIN_PRODUCTS_H
#define NATURAL_LANGEVIN_PRODUCTS_H

#include "elementary.h"

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define FORWARD_VECTORS 5
#define INNER_UNITS 2
#define OUTER_VECTORS 8
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#define FORWARD_VECTORS 3
#define INNER_UNITS 1
#define OUTER_VECTORS 4
#else
#define VECTOR_BYTES 16
#define FORWARD_VECTORS 5
#define INNER_UNITS 2
#define OUTER_VECTORS 8
#endif

#define LANES ((int64_t)(VECTOR_BYTES / sizeof(real)))
#define OUTER_WIDTH (OUTER_VECTORS * LANES)
#define DEPTH 256  // of a block that stays in the first-level cache
#define ROWS 32

typedef real vector __attribute__((vector_size(VECTOR_BYTES)));
typedef real unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));

INLINE vector load(const real *p) { return *(const unaligned *)p; }
INLINE void store(real *p, vector v) { *(unaligned *)p = v; }

// By halves: one lane after the other, each addition would wait for the one before.
INLINE real lane_sum(vector v) {
    typedef real part __attribute__((vector_size(16)));
    part parts[VECTOR_BYTES / 16];
    memcpy(parts, &v, sizeof v);
#pragma GCC unroll 8
    for (int half = VECTOR_BYTES / 32; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int k = 0; k < half; ++k) parts[k] += parts[k + half];
#ifdef DOUBLE
    return parts[0][0] + parts[0][1];
#else
    return (parts[0][0] + parts[0][2]) + (parts[0][1] + parts[0][3]);
#endif
}

// Z[m][v] (+)= sum_d w[m * row + d * deep] a[d][v] for 4 or fewer m and a few vectors v.
INLINE void tile(int rows, int vectors, int64_t depth, const real *w, int64_t row, int64_t deep,
                 const real *a, real *z, int64_t stride, const real *begin, int add) {
    vector sum[4][FORWARD_VECTORS];
#pragma GCC unroll 8
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v)
            sum[m][v] = add ? load(z + m * stride + v * LANES)
                            : (vector){0} + (begin ? begin[m] : (real)0);
    for (int64_t d = 0; d < depth; ++d) {
        vector in[FORWARD_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) in[v] = load(a + d * stride + v * LANES);
#pragma GCC unroll 8
        for (int m = 0; m < rows; ++m) {
            const real factor = w[m * row + d * deep];
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v) sum[m][v] += in[v] * factor;
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) store(z + m * stride + v * LANES, sum[m][v]);
}

#define TILE_CASE(R, V) \
    case (R)*8 + (V): tile(R, V, depth, w, row, deep, a, z, stride, begin, add); break;
#if FORWARD_VECTORS == 5
#define TILE_CASES(R) TILE_CASE(R, 1) TILE_CASE(R, 2) TILE_CASE(R, 3) TILE_CASE(R, 4) TILE_CASE(R, 5)
#else
#define TILE_CASES(R) TILE_CASE(R, 1) TILE_CASE(R, 2) TILE_CASE(R, 3)
#endif
#define TILE_SWITCH switch (rows * 8 + vectors) { TILE_CASES(1) TILE_CASES(4) }

static void forward_tile(int64_t rows, int64_t vectors, int64_t depth, const real *w, int64_t row,
                         const real *a, real *z, int64_t stride, const real *begin, int add) {
    const int64_t deep = 1;
    TILE_SWITCH
}

static void backward_tile(int64_t rows, int64_t vectors, int64_t depth, const real *w,
                          int64_t deep, const real *a, real *z, int64_t stride, int add) {
    const int64_t row = 1;
    const real *begin = 0;
    TILE_SWITCH
}

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// Numbers from one row of a batch's matrix to the next: odd cache lines, so that rows do not compete.
INLINE int64_t row_stride(int64_t batch) {
    const int64_t line = 64 / sizeof(real), lanes = (batch + LANES - 1) / LANES * LANES;
    return ((lanes + line - 1) / line | 1) * line;
}

// A tile of `many` where so many are left, otherwise of one: few sizes are few functions to compile.
INLINE int64_t several(int64_t many, int64_t left) { return left >= many ? many : 1; }

// Vectors [from, to) in pieces of nearly one size: where piece number k begins.
INLINE int64_t pieces(int64_t from, int64_t to) {
    return (to - from + FORWARD_VECTORS - 1) / FORWARD_VECTORS;
}

// Z = W A + b for the batch's vectors from ... to.
static void forward_product(const real *w, const real *bias, int64_t in, int64_t out, const real *a,
                            real *z, int64_t stride, int64_t from, int64_t to) {
    const int64_t parts = pieces(from, to);
    for (int64_t i = 0; i < in; i += DEPTH)
        for (int64_t k = 0; k < out; k += ROWS)
            for (int64_t p = 0; p < parts; ++p) {
                const int64_t v0 = from + p * (to - from) / parts;
                const int64_t v1 = from + (p + 1) * (to - from) / parts;
                const int64_t last = least(k + ROWS, out);
                for (int64_t m = k, rows; m < last; m += rows)
                    forward_tile(rows = several(4, last - m), v1 - v0, least(DEPTH, in - i), w + m * in + i,
                                 in, a + i * stride + v0 * LANES, z + m * stride + v0 * LANES,
                                 stride, bias ? bias + m : 0, i > 0);
            }
}

// E = W^T D; `pack` holds ROWS columns of W, DEPTH rows at a time, where W has more.
static void backward_product(const real *w, int64_t in, int64_t out, const real *d, real *e,
                             int64_t stride, int64_t from, int64_t to, real *pack) {
    const int64_t parts = pieces(from, to);
    for (int64_t i = 0; i < in; i += ROWS)
        for (int64_t k = 0; k < out; k += DEPTH) {
            const int64_t width = least(ROWS, in - i), depth = least(DEPTH, out - k);
            const int narrow = in <= ROWS;
            const real *const columns = narrow ? w + k * in : pack;
            for (int64_t r = 0; r < depth && !narrow; ++r)
                memcpy(pack + r * ROWS, w + (k + r) * in + i, width * sizeof(real));
            for (int64_t p = 0; p < parts; ++p) {
                const int64_t v0 = from + p * (to - from) / parts;
                const int64_t v1 = from + (p + 1) * (to - from) / parts;
                for (int64_t m = 0, rows; m < width; m += rows)
                    backward_tile(rows = several(4, width - m), v1 - v0, depth, columns + m,
                                  narrow ? in : ROWS, d + k * stride + v0 * LANES,
                                  e + (i + m) * stride + v0 * LANES, stride, k > 0);
            }
        }
}

// Which products a step needs; MOMENTS: second and cross without the gradient.
enum { GRADIENT, SECOND, SECOND_AND_CROSS, MOMENTS };

typedef struct {
    real *gradient, *second, *cross;  // rows of units, `width` apart
    int64_t width;
} Sums;

// A few units against a few inputs, over the whole batch; `at`: where their sums begin. `s` by address: a
// copy of it is read before its parts are written, which takes as long as a tile of a narrow layer.
INLINE void inner_tile(int units, int inputs, int need, const real *d, const real *dd, const real *a,
                       const real *aa, int64_t stride, int64_t vectors, const Sums *s, int64_t at) {
    vector g[4][4], q[4][4], c[4][4];
#pragma GCC unroll 8
    for (int k = 0; k < units; ++k)
#pragma GCC unroll 8
        for (int i = 0; i < inputs; ++i) g[k][i] = q[k][i] = c[k][i] = (vector){0};
    for (int64_t v = 0; v < vectors; ++v) {
        vector x[4], xx[4];
#pragma GCC unroll 8
        for (int i = 0; i < inputs; ++i) {
            x[i] = load(a + i * stride + v * LANES);
            if (need >= SECOND) xx[i] = load(aa + i * stride + v * LANES);
        }
#pragma GCC unroll 8
        for (int k = 0; k < units; ++k) {
            const vector delta = load(d + k * stride + v * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < inputs; ++i) g[k][i] += delta * x[i];
            if (need >= SECOND) {
                const vector square = load(dd + k * stride + v * LANES);
#pragma GCC unroll 8
                for (int i = 0; i < inputs; ++i) {
                    q[k][i] += square * xx[i];
                    if (need >= SECOND_AND_CROSS) c[k][i] += square * x[i];
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int k = 0; k < units; ++k)
#pragma GCC unroll 8
        for (int i = 0; i < inputs; ++i) {
            const int64_t here = at + k * s->width + i;
            s->gradient[here] = lane_sum(g[k][i]);
            if (need >= SECOND) s->second[here] = lane_sum(q[k][i]);
            if (need >= SECOND_AND_CROSS) s->cross[here] = lane_sum(c[k][i]);
        }
}

#define INNER_CASE(K, I, N) \
    case ((K)*8 + (I)) * 4 + (N): inner_tile(K, I, N, d, dd, a, aa, stride, vectors, s, at); break;
#define INNER_INPUTS(K, N) INNER_CASE(K, 1, N) INNER_CASE(K, 2, N) INNER_CASE(K, 4, N)

static void inner_case(int64_t units, int64_t inputs, int need, const real *d, const real *dd,
                       const real *a, const real *aa, int64_t stride, int64_t vectors,
                       const Sums *s, int64_t at) {
    switch ((units * 8 + inputs) * 4 + need) {
        INNER_INPUTS(1, GRADIENT) INNER_INPUTS(1, SECOND) INNER_INPUTS(1, SECOND_AND_CROSS)
        INNER_INPUTS(2, GRADIENT)
#if INNER_UNITS == 2
        INNER_INPUTS(2, SECOND) INNER_INPUTS(2, SECOND_AND_CROSS)
#endif
    }
}

// Sums for `units` rows of D against all rows of A.
static void inner_products(int64_t units, int64_t in, int need, const real *d, const real *dd,
                           const real *a, const real *aa, int64_t stride, int64_t vectors, Sums s) {
    const int64_t together = need == GRADIENT ? 2 : INNER_UNITS;
    for (int64_t k = 0; k < units; k += together)
        for (int64_t i = 0, inputs; i < in; i += inputs) {
            inputs = in - i >= 4 ? 4 : several(2, in - i);
            inner_case(least(together, units - k), inputs, need, d + k * stride, dd + k * stride,
                       a + i * stride, aa + i * stride, stride, vectors, &s, k * s.width + i);
        }
}

// Outer form: inputs lie in blocks of OUTER_WIDTH columns, a sample in a row.

INLINE int64_t padded(int64_t in) { return (in + OUTER_WIDTH - 1) / OUTER_WIDTH * OUTER_WIDTH; }

// Units whose sums are formed together: they should stay in the second-level cache.
INLINE int64_t chunk_of(int64_t in) { return most(8, least(64, 24576 / in)); }

// Input i of sample n is a[i * feature + n * sample].
static void as_blocks(const real *a, int64_t width, int64_t feature, int64_t sample, int64_t from,
                      int64_t to, int64_t batch, real *blocks) {
    for (int64_t b = 0; b < width; b += OUTER_WIDTH)
        for (int64_t n = from; n < to; n += 8)
            for (int64_t i = b; i < least(b + OUTER_WIDTH, width); ++i) {
                real *const into = blocks + b * batch + n * OUTER_WIDTH + i - b;
                for (int64_t j = 0; j < least(8, to - n); ++j)
                    into[j * OUTER_WIDTH] = a[i * feature + (n + j) * sample];
            }
}

// Where the rows of samples at which a unit's D is not zero lie in a block. There is room for one more
// than the batch has.
typedef struct {
    int64_t count;
    int32_t *row;
    real *delta;
} Active;

// Those of some units; D of unit u and sample n is d[u * unit + n * sample], and is multiplied by
// `scale`.
static void list_active(const real *d, int64_t unit, int64_t sample, int64_t units, int64_t batch,
                        real scale, Active *active) {
    for (int64_t u = 0; u < units; ++u, d += unit, ++active) {
        int64_t count = 0;
        for (int64_t n = 0; n < batch; ++n) {
            const real delta = d[n * sample] * scale;
            active->row[count] = (int32_t)(n * OUTER_WIDTH);
            active->delta[count] = delta;
            count += delta != 0;
        }
        active->row[count] = 0, active->delta[count] = 0;
        active->count = count;
    }
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("no-schedule-insns")  // loads moved early would push sums out of registers
#endif

// `a`: a block. Where the next row lies is known before this one's products begin: they would wait for
// it. The square of delta x is that of a product that is there already: rows of x alone stay in the cache.
INLINE void outer_tile(int vectors, int need, Active u, const real *a, Sums s) {
    vector g[OUTER_VECTORS], q[OUTER_VECTORS], c[OUTER_VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) g[v] = q[v] = c[v] = (vector){0};
    const real *row = a + u.row[0];
    real delta = u.delta[0];
    for (int64_t n = 0; n < u.count; ++n) {
        const real *const next = a + u.row[n + 1];
        const real then = u.delta[n + 1];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) {
            const vector own = load(row + v * LANES) * delta;
            if (need != MOMENTS) g[v] += own;
            if (need >= SECOND) q[v] += own * own;
            if (need >= SECOND_AND_CROSS) c[v] += own * delta;
        }
        row = next, delta = then;
    }
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
        if (need != MOMENTS) store(s.gradient + v * LANES, g[v]);
        if (need >= SECOND) store(s.second + v * LANES, q[v]);
        if (need >= SECOND_AND_CROSS) store(s.cross + v * LANES, c[v]);
    }
}

#define OUTER_CASE(V, N) case (V)*4 + (N): outer_tile(V, N, u, a, s); break;
#define OUTER_NEEDS(V) \
    OUTER_CASE(V, GRADIENT) OUTER_CASE(V, SECOND) OUTER_CASE(V, SECOND_AND_CROSS) OUTER_CASE(V, MOMENTS)

// One unit against one block of A; sums are written in whole vectors.
static void outer_product(int64_t vectors, int need, Active u, const real *a, Sums s) {
    while (vectors > 0) {
        const int64_t tile = vectors >= OUTER_VECTORS ? OUTER_VECTORS
                             : vectors >= 4           ? 4
                                                      : several(2, vectors);
        switch (tile * 4 + need) {
            OUTER_NEEDS(1) OUTER_NEEDS(2) OUTER_NEEDS(4)
#if OUTER_VECTORS > 4
            OUTER_NEEDS(OUTER_VECTORS)
#endif
        }
        const int64_t done = tile * LANES;
        vectors -= tile, a += done, s.gradient += done, s.second += done, s.cross += done;
    }
}

// Units whose active samples are listed against all blocks of A; their sums lie padded(in) apart.
static void outer_products(int64_t units, int64_t in, int64_t batch, int need, const Active *active,
                           const real *blocks, Sums s) {
    for (int64_t i = 0; i < in; i += OUTER_WIDTH) {
        const int64_t vectors = (least(OUTER_WIDTH, in - i) + LANES - 1) / LANES;
        for (int64_t u = 0; u < units; ++u) {
            const int64_t at = u * padded(in) + i;
            const Sums here = {s.gradient + at, s.second + at, s.cross + at, s.width};
            outer_product(vectors, need, active[u], blocks + i * batch, here);
        }
    }
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

// A few rows of `width` numbers become columns from ... of a (width, stride).
static void as_columns(const real *const *rows, int64_t width, real *a, int64_t stride) {
    for (int64_t i = 0; i < width; ++i)
        for (int64_t j = 0; j < LANES; ++j) a[i * stride + j] = rows[j][i];
}

#endif
