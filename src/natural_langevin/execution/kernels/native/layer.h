// What a layer does to samples, and to what is sent back: the same for steps and for predictions.

#ifndef NATURAL_LANGEVIN_LAYER_H
#define NATURAL_LANGEVIN_LAYER_H

#include "activation.h"
#include "products.h"
#ifdef PLACES
#include "convolution.h"
#include "pool.h"
#else  // nobody asks
#define convolve(...)
#define convolve_back(...)
#define over_positions(...)
#define convolution_sums(...)
#define pool(...)
#define pool_back(...)
#endif

// Z of the batch's vectors v0 ... v1, before the activation.
static void layer_forward(const Layer *l, const real *w, const real *bias, const real *a, real *z,
                          int64_t stride, int64_t v0, int64_t v1) {
    if (l->kind == LINEAR)
        forward_product(w, bias, l->in, l->out, a, z, stride, v0, v1);
    else if (l->kind == CONVOLUTION)
        convolve(l, w, bias, a, z, stride, v0, v1);
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
    else
        pool_back(l, a, d, e, stride, v0 * LANES, v1 * LANES);
}

#endif
