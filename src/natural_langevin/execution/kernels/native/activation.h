// Activations, row by row, and their derivatives.

#ifndef NATURAL_LANGEVIN_ACTIVATION_H
#define NATURAL_LANGEVIN_ACTIVATION_H

#include "elementary.h"

// Whether f'(z) must be kept from the forward pass; elsewhere it follows from f(z).
INLINE int keeps_slope(int64_t kind) { return kind == LEAKY_RELU || kind >= GELU; }

#define EACH                                     \
    for (int64_t row = 0; row < rows; ++row)     \
        for (int64_t n = row * stride; n < row * stride + count; ++n)

// `count` numbers of every row of z become f(z), and those of slope f'(z) where it is kept: all rows by
// one call, which gets its constants ready once.
static void activate(const Layer *l, real *restrict z, real *restrict slope, int64_t rows,
                     int64_t stride, int64_t count) {
    const real first = (real)l->parameter[0], second = (real)l->parameter[1];
    switch (l->activation) {
    case RELU:
        EACH z[n] = z[n] < 0 ? 0 : z[n];  // NaN stays
        break;
    case LEAKY_RELU:
        EACH {
            slope[n] = z[n] > 0 ? 1 : first;
            z[n] = z[n] * slope[n];
        }
        break;
    case TANH:
        EACH z[n] = tanh_(z[n]);
        break;
    case SIGMOID:
        EACH z[n] = sigmoid_(z[n]);
        break;
    case GELU:
        EACH {
            const real x = z[n], gauss = exp_((real)-0.5 * x * x);
            const real below = normal_cdf(x, gauss);
            slope[n] = below + x * gauss * (real)0.39894228040143267794;
            z[n] = x * below;
        }
        break;
    case GELU_TANH:
        EACH {
            const real x = z[n], c = (real)0.79788456080286535588, k = (real)0.044715;
            const real t = tanh_(c * (x + k * x * x * x));
            slope[n] = (real)0.5 * (1 + t + x * (1 - t * t) * c * (1 + 3 * k * x * x));
            z[n] = (real)0.5 * x * (1 + t);
        }
        break;
    case SILU:
        EACH {
            const real x = z[n], s = sigmoid_(x);
            slope[n] = s * (1 + x * (1 - s));
            z[n] = x * s;
        }
        break;
    case SOFTPLUS:
        EACH {
            const real x = z[n] * first;
            const real smooth = softplus_(x) / first, s = sigmoid_(x);
            slope[n] = x > second ? 1 : s;
            z[n] = x > second ? z[n] : smooth;
        }
        break;
    case ELU:  // and CELU: of its height and its width below zero
        EACH {
            const real x = z[n], below = exp_((x < 0 ? x : 0) / second);
            slope[n] = x > 0 ? 1 : first / second * below;
            z[n] = x > 0 || x != x ? x : first * (below - 1);  // NaN stays
        }
        break;
    case SELU:
        EACH {
            const real scale = (real)1.0507009873554804934, height = (real)1.7580993408473768599;
            const real x = z[n], below = height * exp_(x < 0 ? x : 0);
            slope[n] = x > 0 ? scale : below;
            z[n] = x > 0 || x != x ? scale * x : below - height;
        }
        break;
    case MISH:
        EACH {
            const real x = z[n], t = tanh_(softplus_(x));
            slope[n] = t + x * (1 - t * t) * sigmoid_(x);
            z[n] = x * t;
        }
        break;
    case HARDTANH:  // and ReLU6; NaN stays
        EACH {
            slope[n] = z[n] > first && z[n] < second;
            z[n] = z[n] < first ? first : z[n] > second ? second : z[n];
        }
        break;
    }
}

// e = dl/df becomes dl/dz, given f(z).
static void differentiate(int64_t kind, real *restrict e, const real *restrict f,
                          const real *restrict slope, int64_t rows, int64_t stride,
                          int64_t count) {
    switch (kind) {
    case IDENTITY:
        break;
    case RELU:
        EACH e[n] = f[n] > 0 ? e[n] : 0;
        break;
    case TANH:
        EACH e[n] *= 1 - f[n] * f[n];
        break;
    case SIGMOID:
        EACH e[n] *= f[n] * (1 - f[n]);
        break;
    default:
        EACH e[n] *= slope[n];
    }
}

#endif
