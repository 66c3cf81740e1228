// Convolutions: a linear map of the patch around every position. A channel is a unit.
//
//     Z_kp = sum_i W_ki A_t(p,i) + b_k        t: which feature is input i of a patch at position p
//     G_nki = sum_p D_nkp A_n,t(p,i)          one sample's gradient; moments are those of G_n
//
// Samples lie side by side as everywhere, so that a patch is a list of rows and is never copied. A
// patch reaches over the edge into feature number `inputs`, whose row is zero.

#ifndef NATURAL_LANGEVIN_CONVOLUTION_H
#define NATURAL_LANGEVIN_CONVOLUTION_H

#include "products.h"

#if defined(__AVX__) && !defined(__AVX512F__)
#define PATCH_UNITS 2
#else
#define PATCH_UNITS 4
#endif

// Z for a few channels at one position.
INLINE void patch_forward(int rows, int vectors, const Layer *l, const int32_t *patch, const real *w,
                          const real *bias, const real *a, real *z, int64_t stride) {
    vector sum[4][FORWARD_VECTORS];
#pragma GCC unroll 8
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) sum[m][v] = (vector){0} + (bias ? bias[m] : (real)0);
    for (int64_t i = 0; i < l->in; ++i) {
        const real *const row = a + patch[i] * stride;
        vector in[FORWARD_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) in[v] = load(row + v * LANES);
#pragma GCC unroll 8
        for (int m = 0; m < rows; ++m) {
            const real factor = w[m * l->in + i];
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v) sum[m][v] += in[v] * factor;
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v)
            store(z + m * l->positions * stride + v * LANES, sum[m][v]);
}

// A few inputs of one patch get what all channels send back.
INLINE void patch_backward(int rows, int vectors, const Layer *l, const int32_t *patch,
                           const real *w, const real *d, real *e, int64_t stride) {
    vector sum[4][FORWARD_VECTORS];
#pragma GCC unroll 8
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) sum[m][v] = (vector){0};
    for (int64_t k = 0; k < l->out; ++k) {
        const real *const row = d + k * l->positions * stride;
        vector delta[FORWARD_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) delta[v] = load(row + v * LANES);
#pragma GCC unroll 8
        for (int m = 0; m < rows; ++m) {
            const real factor = w[k * l->in + m];
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v) sum[m][v] += delta[v] * factor;
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < rows; ++m) {
        if (patch[m] == l->inputs) continue;
        real *const row = e + patch[m] * stride;
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) store(row + v * LANES, load(row + v * LANES) + sum[m][v]);
    }
}

#define PATCH_CASE(R, V) \
    case (R)*8 + (V): PATCH(R, V); break;
#if FORWARD_VECTORS == 5
#define PATCH_CASES(R) PATCH_CASE(R, 1) PATCH_CASE(R, 2) PATCH_CASE(R, 3) PATCH_CASE(R, 4) PATCH_CASE(R, 5)
#else
#define PATCH_CASES(R) PATCH_CASE(R, 1) PATCH_CASE(R, 2) PATCH_CASE(R, 3)
#endif

static void convolve(const Layer *l, const real *w, const real *bias, const real *a, real *z,
                     int64_t stride, int64_t from, int64_t to) {
    const int64_t parts = pieces(from, to);
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t v0 = from + part * (to - from) / parts;
        const int64_t vectors = from + (part + 1) * (to - from) / parts - v0;
        for (int64_t p = 0; p < l->positions; ++p)
            for (int64_t k = 0, rows; k < l->out; k += rows) {
                rows = several(4, l->out - k);
#define PATCH(R, V)                                                                              \
    patch_forward(R, V, l, l->table + p * l->in, w + k * l->in, bias ? bias + k : 0, a + v0 * LANES, \
                  z + (k * l->positions + p) * stride + v0 * LANES, stride)
                switch (rows * 8 + vectors) { PATCH_CASES(1) PATCH_CASES(4) }
#undef PATCH
            }
    }
}

// E, of all inputs, from D.
static void convolve_back(const Layer *l, const real *w, const real *d, real *e, int64_t stride,
                          int64_t from, int64_t to) {
    const int64_t parts = pieces(from, to);
    for (int64_t i = 0; i < l->inputs; ++i)
        memset(e + i * stride + from * LANES, 0, (to - from) * LANES * sizeof(real));
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t v0 = from + part * (to - from) / parts;
        const int64_t vectors = from + (part + 1) * (to - from) / parts - v0;
        for (int64_t p = 0; p < l->positions; ++p)
            for (int64_t i = 0, rows; i < l->in; i += rows) {
                rows = several(4, l->in - i);
#define PATCH(R, V)                                                                             \
    patch_backward(R, V, l, l->table + p * l->in + i, w + i, d + p * stride + v0 * LANES, e + v0 * LANES, \
                   stride)
                switch (rows * 8 + vectors) { PATCH_CASES(1) PATCH_CASES(4) }
#undef PATCH
            }
    }
}

// What every sample sends to a channel's bias: the sum of D over positions.
static void over_positions(const Layer *l, const real *d, real *total, int64_t stride, int64_t from,
                           int64_t to) {
    for (int64_t k = 0; k < l->out; ++k) {
        real *restrict sum = total + k * stride;
        memset(sum + from, 0, (to - from) * sizeof(real));
        for (int64_t p = 0; p < l->positions; ++p) {
            const real *restrict row = d + (k * l->positions + p) * stride;
            for (int64_t n = from; n < to; ++n) sum[n] += row[n];
        }
    }
}

// A few channels against a few inputs of their patches. G_n is complete before it is squared, so
// that `need` matters once in every row of positions and is not worth functions of its own.
INLINE void patch_moments(int units, int inputs, int need, const Layer *l, const int32_t *table,
                          const real *d, const real *total, const real *a, int64_t stride,
                          int64_t vectors, Sums s) {
    vector g[4][4], q[4][4], c[4][4];
    const int64_t positions = l->positions;
#pragma GCC unroll 8
    for (int k = 0; k < units; ++k)
#pragma GCC unroll 8
        for (int i = 0; i < inputs; ++i) g[k][i] = q[k][i] = c[k][i] = (vector){0};
    for (int64_t v = 0; v < vectors; ++v) {
        vector one[4][4];
#pragma GCC unroll 8
        for (int k = 0; k < units; ++k)
#pragma GCC unroll 8
            for (int i = 0; i < inputs; ++i) one[k][i] = (vector){0};
        for (int64_t p = 0; p < positions; ++p) {
            vector x[4];
#pragma GCC unroll 8
            for (int i = 0; i < inputs; ++i) x[i] = load(a + table[p * l->in + i] * stride + v * LANES);
#pragma GCC unroll 8
            for (int k = 0; k < units; ++k) {
                const vector delta = load(d + (k * positions + p) * stride + v * LANES);
#pragma GCC unroll 8
                for (int i = 0; i < inputs; ++i) one[k][i] += delta * x[i];
            }
        }
#pragma GCC unroll 8
        for (int k = 0; k < units; ++k)
#pragma GCC unroll 8
            for (int i = 0; i < inputs; ++i) {
                g[k][i] += one[k][i];
                if (need >= SECOND) q[k][i] += one[k][i] * one[k][i];
                if (need >= SECOND_AND_CROSS)
                    c[k][i] += one[k][i] * load(total + k * stride + v * LANES);
            }
    }
#pragma GCC unroll 8
    for (int k = 0; k < units; ++k)
#pragma GCC unroll 8
        for (int i = 0; i < inputs; ++i) {
            s.gradient[k * s.width + i] = lane_sum(g[k][i]);
            if (need >= SECOND) s.second[k * s.width + i] = lane_sum(q[k][i]);
            if (need >= SECOND_AND_CROSS) s.cross[k * s.width + i] = lane_sum(c[k][i]);
        }
}

#define MOMENT_CASE(K, I)                                                                \
    case (K)*8 + (I):                                                                    \
        patch_moments(K, I, need, l, l->table + i, d + k * l->positions * stride,        \
                      total + k * stride, a, stride, vectors, here);                     \
        break;

// Sums for `units` channels, whose D and sums over positions these are.
static void convolution_sums(const Layer *l, int64_t units, int need, const real *d,
                             const real *total, const real *a, int64_t stride, int64_t vectors, Sums s) {
    for (int64_t k = 0, some; k < units; k += some) {
        some = several(PATCH_UNITS, units - k);
        for (int64_t i = 0, inputs; i < l->in; i += inputs) {
            inputs = several(4, l->in - i);
            const int64_t at = k * s.width + i;
            const Sums here = {s.gradient + at, s.second + at, s.cross + at, s.width};
            switch (some * 8 + inputs) {
                MOMENT_CASE(1, 1) MOMENT_CASE(1, 4)
                MOMENT_CASE(PATCH_UNITS, 1) MOMENT_CASE(PATCH_UNITS, 4)
            }
        }
    }
}

// Pools: every output is the largest, or the mean, of the features that its row of the table lists.
// Feature number `inputs` stands for none.

// Samples that are pooled together.
#define POOLED 128

static void largest_of(const Layer *l, const int32_t *members, const real *a, int64_t stride,
                       int64_t count, real *restrict best) {
    for (int64_t n = 0; n < count; ++n) best[n] = -(real)INFINITY;
    for (int64_t i = 0; i < l->in; ++i) {
        if (members[i] == l->inputs) continue;
        const real *restrict x = a + members[i] * stride;
        for (int64_t n = 0; n < count; ++n) best[n] = x[n] > best[n] || x[n] != x[n] ? x[n] : best[n];
    }
}

static void pool(const Layer *l, const real *a, real *z, int64_t stride, int64_t from, int64_t to) {
    for (int64_t k = 0; k < l->out; ++k) {
        const int32_t *const members = l->table + k * l->in;
        real *restrict out = z + k * stride + from;
        if (l->kind == MAX_POOL) {
            largest_of(l, members, a + from, stride, to - from, out);
            continue;
        }
        for (int64_t n = 0; n < to - from; ++n) out[n] = 0;
        for (int64_t i = 0; i < l->in; ++i) {
            const real *restrict x = a + members[i] * stride + from;
            for (int64_t n = 0; n < to - from; ++n) out[n] += x[n];
        }
        for (int64_t n = 0; n < to - from; ++n) out[n] *= (real)l->share;
    }
}

// E, of all inputs, from D: to the first of the largest, or to all in equal shares.
static void pool_back(const Layer *l, const real *a, const real *d, real *e, int64_t stride,
                      int64_t from, int64_t to) {
    for (int64_t i = 0; i < l->inputs; ++i)
        memset(e + i * stride + from, 0, (to - from) * sizeof(real));
    for (int64_t at = from; at < to; at += POOLED) {
        const int64_t count = least(POOLED, to - at);
        for (int64_t k = 0; k < l->out; ++k) {
            const int32_t *const members = l->table + k * l->in;
            const real *restrict sent = d + k * stride + at;
            real best[POOLED], left[POOLED];
            if (l->kind == MAX_POOL) largest_of(l, members, a + at, stride, count, best);
            const real share = l->kind == MAX_POOL ? 1 : (real)l->share;
            for (int64_t n = 0; n < count; ++n) left[n] = sent[n] * share;
            for (int64_t i = 0; i < l->in; ++i) {
                if (members[i] == l->inputs) continue;
                const real *restrict x = a + members[i] * stride + at;
                real *restrict to_input = e + members[i] * stride + at;
                if (l->kind != MAX_POOL) {
                    for (int64_t n = 0; n < count; ++n) to_input[n] += left[n];
                    continue;
                }
                for (int64_t n = 0; n < count; ++n) {
                    const int here = x[n] == best[n];
                    to_input[n] += here ? left[n] : 0;
                    left[n] = here ? 0 : left[n];
                }
            }
        }
    }
}

#endif
