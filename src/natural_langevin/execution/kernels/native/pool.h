// Pools: every output is the largest, or the mean, of the features that its row of the table lists.
// Feature number `inputs` stands for none.

#ifndef NATURAL_LANGEVIN_POOL_H
#define NATURAL_LANGEVIN_POOL_H

#include <math.h>

#include "products.h"

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
