// What a layer does to samples, and to what is sent back: the same for steps and for predictions.

#ifndef NATURAL_LANGEVIN_LAYER_H
#define NATURAL_LANGEVIN_LAYER_H

#include "activation.h"
#include "convolution.h"

// Rows of D, or of Z, of a layer's own units.
INLINE int64_t own_rows(const Layer *l) { return l->kind == APPEND ? l->inputs : 0; }

static void append(const Layer *l, const real *bias, const real *a, real *z, int64_t stride,
                   int64_t from, int64_t to) {
    for (int64_t k = 0; k < l->inputs; ++k)
        memcpy(z + k * stride + from, a + k * stride + from, (to - from) * sizeof(real));
    for (int64_t k = 0; k < l->out; ++k)
        for (int64_t n = from; n < to; ++n) z[(l->inputs + k) * stride + n] = bias[k];
}

// Z of the batch's vectors v0 ... v1, before the activation.
static void layer_forward(const Layer *l, const real *w, const real *bias, const real *a, real *z,
                          int64_t stride, int64_t v0, int64_t v1) {
    if (l->kind == LINEAR)
        forward_product(w, bias, l->in, l->out, a, z, stride, v0, v1);
    else if (l->kind == CONVOLUTION)
        convolve(l, w, bias, a, z, stride, v0, v1);
    else if (l->kind == APPEND)
        append(l, bias, a, z, stride, v0 * LANES, v1 * LANES);
    else
        pool(l, a, z, stride, v0 * LANES, v1 * LANES);
}

// E = dl/da of its inputs a, from D = dl/dz.
static void layer_backward(const Layer *l, const real *w, const real *a, const real *d, real *e,
                           int64_t stride, int64_t v0, int64_t v1, real *pack) {
    if (l->kind == LINEAR)
        backward_product(w, l->in, l->out, d, e, stride, v0, v1, pack);
    else if (l->kind == CONVOLUTION)
        convolve_back(l, w, d, e, stride, v0, v1);
    else if (l->kind == APPEND)
        for (int64_t k = 0; k < l->inputs; ++k)
            memcpy(e + k * stride + v0 * LANES, d + k * stride + v0 * LANES,
                   (v1 - v0) * LANES * sizeof(real));
    else
        pool_back(l, a, d, e, stride, v0 * LANES, v1 * LANES);
}

#endif
