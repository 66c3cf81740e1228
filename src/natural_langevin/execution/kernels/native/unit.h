// The unit-wise metric: every unit's whole block J_k over bias and weights, and its Cholesky factor.
//
//     J_k = mean_n delta_nk^2 (1, a_n) (1, a_n)^T,     J_k + diag eps = L L^T,     A = L^{-T}

#ifndef NATURAL_LANGEVIN_UNIT_H
#define NATURAL_LANGEVIN_UNIT_H

#include "update.h"

// The inputs a (in, stride) of a unit, and its squared output gradients.
typedef struct {
    const real *a, *squares;
    int64_t in, stride, vectors;
} UnitInputs;

static real row_sum(const real *row, int64_t vectors) {
    vector sum[4] = {{0}};  // four: one addition need not wait for the last
    int64_t v = 0;
    for (; v + 4 <= vectors; v += 4)
        for (int k = 0; k < 4; ++k) sum[k] += load(row + (v + k) * LANES);
    for (; v < vectors; ++v) sum[0] += load(row + v * LANES);
    return lane_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static real square_sum(const real *row, int64_t vectors) {
    vector sum = {0};
    for (int64_t v = 0; v < vectors; ++v) sum += load(row + v * LANES) * load(row + v * LANES);
    return lane_sum(sum);
}

// J moves towards the batch's own block; `scaled` holds delta^2 a, `gram` their products with a.
static void move_block(const Rates *r, const UnitInputs *u, int bias, real *j, real *scaled,
                       real *gram) {
    const int64_t in = u->in, size = in + bias;
    for (int64_t i = 0; i < in; ++i)
        for (int64_t v = 0; v < u->vectors; ++v) {
            const int64_t at = i * u->stride + v * LANES;
            store(scaled + at, load(u->a + at) * load(u->squares + v * LANES));
        }
    for (int64_t i = 0; i < in; i += 2) {  // below the diagonal, and a little above
        const Sums rows = {gram + i * in, gram, gram, in};
        inner_products(least(2, in - i), least(i + 2, in), GRADIENT, scaled + i * u->stride, scaled,
                       u->a, u->a, u->stride, u->vectors, rows);
    }
    for (int64_t i = 0; i < in; ++i)
        for (int64_t k = 0; k <= i; ++k) {
            real *const here = j + (i + bias) * size + k + bias;
            *here = mix(*here, gram[i * in + k] * r->share, r->gamma);
            j[(k + bias) * size + i + bias] = *here;
        }
    if (!bias) return;
    j[0] = mix(j[0], row_sum(u->squares, u->vectors) * r->share, r->gamma);
    for (int64_t i = 0; i < in; ++i) {
        const real cross = row_sum(scaled + i * u->stride, u->vectors) * r->share;
        j[i + 1] = j[(i + 1) * size] = mix(j[i + 1], cross, r->gamma);
    }
}

// The lower triangle of `m` becomes L.
static void cholesky(real *m, int64_t size) {
    for (int64_t i = 0; i < size; ++i) {
        real *restrict row = m + i * size;
        for (int64_t k = 0; k <= i; ++k) {
            const real *restrict other = m + k * size;
            real sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t j = 0; j < k; ++j) sum += row[j] * other[j];
            row[k] = k == i ? sqrt_(row[k] - sum) : (row[k] - sum) / other[k];
        }
    }
}

static void solve_lower(const real *l, int64_t size, real *x) {  // x <- L^{-1} x
    for (int64_t i = 0; i < size; ++i) {
        const real *restrict row = l + i * size;
        real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < i; ++j) sum += row[j] * x[j];
        x[i] = (x[i] - sum) / row[i];
    }
}

static void solve_upper(const real *l, int64_t size, real *restrict x) {  // x <- L^{-T} x
    for (int64_t i = size - 1; i >= 0; --i) {
        const real *restrict row = l + i * size;
        x[i] /= row[i];
        for (int64_t j = 0; j < i; ++j) x[j] -= row[j] * x[i];
    }
}

// One unit; v, d and n have room for bias and weights, `l` and `gram` for a block.
static void update_block(const Rates *r, int64_t unit, const UnitInputs *u, const Tensor *weight,
                         const Tensor *bias, real *j, const real *gradient, const real *of_bias,
                         const float *z, const float *z_bias, real *v, real *d, real *n, real *l,
                         real *gram, real *scaled) {
    const int with = bias != 0;
    const int64_t in = u->in, size = in + with, bytes = size * size * sizeof(real);
    add_prior(weight->kind, weight->prior, means_at(weight, unit * in), r, gradient,
              weight->theta + unit * in, v + with, in);
    if (bias)
        add_prior(bias->kind, bias->prior, means_at(bias, unit), r, of_bias, bias->theta + unit, v,
                  1);
    if (r->use != NEW) memcpy(l, j, bytes);
    if (r->use != STANDING) move_block(r, u, with, j, scaled, gram);
    if (r->use == NEW) memcpy(l, j, bytes);
    for (int64_t i = 0; i < size; ++i)
        l[i * size + i] += with && i == 0 ? bias->damping : weight->damping;
    cholesky(l, size);
    solve_lower(l, size, v);
    for (int64_t i = 0; i < size; ++i) {
        n[i] = r->noise * (real)(i < with ? *z_bias : z[i - with]);
        d[i] = n[i] - r->eta * v[i];
    }
    solve_upper(l, size, d);
    if (r->baoab) solve_upper(l, size, n);
    apply_at(r, d + with, n + with, *weight, unit * in, in);
    if (bias) apply_at(r, d, n, *bias, unit, 1);
}

#endif
