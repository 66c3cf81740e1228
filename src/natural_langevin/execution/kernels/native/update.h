// What a step does with the sums of a unit: metric, drift, noise, update and running mean.
//
// Formulas: see preconditioners/ and priors/. A unit is a row of the weight and its bias. All loops
// are plain, over rows that lie in the first-level cache.

#ifndef NATURAL_LANGEVIN_UPDATE_H
#define NATURAL_LANGEVIN_UPDATE_H

#include "products.h"

// What one chain's step needs besides its sums.
typedef struct {
    real eta, noise;   // eta, sqrt(2 h eta T / N), h the integrator's share of noise
    real gamma, mu;
    real share;        // 1 / B, of the gradient's sum ...
    real moments;      // ... and of those of the statistics
    real per_data;     // 1 / (beta N)
    real keep;         // 1 - friction: of the momentum
    int baoab;         // positions move by half a step before and after the noise
    int64_t metric;
    int use;           // which metric moves the parameters
} Rates;

enum { STANDING, OLD, NEW };  // gamma = 0; gamma > 0 and the metric before or after this batch

INLINE real mix(real old, real now, real rate) { return (1 - rate) * old + rate * now; }

// v = G / B - 1 / (beta N) d ln alpha; `each`: the prior's means, NULL where all are number[1].
static void add_prior(int64_t kind, const real *number, const real *restrict each, const Rates *r,
                      const real *restrict sum, const real *restrict theta, real *restrict v,
                      int64_t count) {
    const real share = r->share, per_data = r->per_data, first = number[0], centre = number[1];
    switch (kind) {
    case FLAT:
        for (int64_t i = 0; i < count; ++i) v[i] = sum[i] * share;
        break;
    case STUDENT_T: {  // (nu + 1) t / (nu s^2 + t^2), t = theta - centre
        const real power = number[2];
        for (int64_t i = 0; i < count; ++i) {
            const real t = theta[i] - (each ? each[i] : centre);
            v[i] = sum[i] * share + per_data * power * t / (first + t * t);
        }
        break;
    }
    case TWO_GAUSSIANS: {  // the share of the first from the ratio of the two densities
        const real other = number[2], ratio = number[3];
        for (int64_t i = 0; i < count; ++i) {
            const real t = theta[i] - (each ? each[i] : centre);
            const real part = sigmoid_(ratio - (real)0.5 * t * t * (first - other));
            v[i] = sum[i] * share + per_data * t * (part * first + (1 - part) * other);
        }
        break;
    }
    case LAPLACE:
        for (int64_t i = 0; i < count; ++i) {
            const real t = theta[i] - (each ? each[i] : centre);
            const real sign = t > 0 ? 1 : t < 0 ? -1 : 0;
            v[i] = sum[i] * share + per_data * first * sign;
        }
        break;
    case POSITIVE: {  // of e^u: d ln alpha = n0 - n1 w / (1 + n3 w), w = e^(n2 u); see settings.py
        const real power = number[2], more = number[3];
        for (int64_t i = 0; i < count; ++i) {
            const real w = exp_(power * theta[i]);
            v[i] = sum[i] * share - per_data * (first - centre * w / (1 + more * w));
        }
        break;
    }
    default:  // Gaussian, or one whose precision has been worked out
        for (int64_t i = 0; i < count; ++i)
            v[i] = sum[i] * share + per_data * first * (theta[i] - (each ? each[i] : centre));
    }
}

// n = noise A z and d = n - eta A A^T v for a diagonal A; J moves towards the batch's own.
INLINE void diagonal_move(int rmsprop, int use, const Rates *r, real damping,
                          const real *restrict batch, real *restrict j, const real *restrict v,
                          const float *restrict z, real *restrict d, real *restrict n, int64_t count) {
    const real gamma = r->gamma, eta = r->eta, noise = r->noise;
    const real share = rmsprop ? r->share : r->moments;
    for (int64_t i = 0; i < count; ++i) {
        real used = j[i];
        if (use != STANDING) {
            const real mean = batch[i] * share;
            const real now = mix(used, rmsprop ? mean * mean : mean, gamma);
            j[i] = now;
            if (use == NEW) used = now;
        }
        real a = rsqrt_(used + damping);
        if (rmsprop) a = sqrt_(a);
        n[i] = a * noise * (real)z[i];
        d[i] = n[i] - eta * a * a * v[i];
    }
}

// Weights of units that are moved together, at most, and units: what lies in the first-level cache.
#define TOGETHER_WEIGHTS 512
#define TOGETHER_UNITS 64

// Units of so many inputs that are moved together: loops over few inputs are hardly ever vectors.
INLINE int64_t moved_together(int64_t in) { return most(1, least(TOGETHER_UNITS, TOGETHER_WEIGHTS / in)); }

INLINE real sum_of(const real *x, int64_t count) {
    vector sum = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) sum += load(x + i);
    real rest = i ? lane_sum(sum) : 0;
    for (; i < count; ++i) rest += x[i];
    return rest;
}

// The weights of units with bias, of `in` each; adds to d_bias and n_bias what they give the bias. In
// three stages, as normals are made: one chain of operations over all of it waits for itself.
// `several`: whether there may be more than one unit, which have corners and v_bias of their own.
INLINE void quasi_move(int use, int several, const Rates *r, real damping, const real *corner,
                       const real *v_bias, const real *restrict batch_second,
                       const real *restrict batch_cross, real *restrict second,
                       real *restrict cross, const real *restrict v, const float *restrict z,
                       real *restrict d, real *restrict n, real *d_bias, real *n_bias,
                       int64_t units, int64_t in) {
    const real gamma = r->gamma, share = r->moments, eta = r->eta, noise = r->noise;
    const int64_t count = several ? units * in : in;
    const real only_corner = *corner, only_v = *v_bias;
    real corners[TOGETHER_WEIGHTS], above[TOGETHER_WEIGHTS];  // of several: each weight's own
    for (int64_t u = 0; u < units && several; ++u)
        for (int64_t i = u * in; i < (u + 1) * in; ++i) corners[i] = corner[u], above[i] = v_bias[u];
    real row_sum = 0, row_noise = 0;
    for (int64_t i = 0; i < count; ++i) {
        real j = second[i], c = cross[i];
        if (use != STANDING) {
            const real j_now = mix(j, batch_second[i] * share, gamma);
            const real c_now = mix(c, batch_cross[i] * share, gamma);
            second[i] = j_now, cross[i] = c_now;
            if (use == NEW) j = j_now, c = c_now;
        }
        const real first = several ? corners[i] : only_corner, scaled = first * c;
        const real schur = j - scaled * scaled;
        d[i] = (schur < 0 ? 0 : schur) + damping;
        n[i] = -first * scaled;
    }
    for (int64_t i = 0; i < count; ++i) d[i] = rsqrt_(d[i]);
#pragma omp simd reduction(+ : row_sum, row_noise)
    for (int64_t i = 0; i < count; ++i) {
        const real diagonal = d[i], row = n[i] * diagonal;
        const real fresh = noise * (real)z[i];
        const real change = fresh - eta * (row * (several ? above[i] : only_v) + diagonal * v[i]);
        d[i] = diagonal * change;
        n[i] = diagonal * fresh;
        if (several) {
            corners[i] = row * change, above[i] = row * fresh;
        } else {
            row_sum += row * change;
            row_noise += row * fresh;
        }
    }
    if (!several) *d_bias += row_sum, *n_bias += row_noise;
    for (int64_t u = 0; u < units && several; ++u) {
        d_bias[u] += sum_of(corners + u * in, in);
        n_bias[u] += sum_of(above + u * in, in);
    }
}

static void move_diagonal(const Rates *r, real damping, const Sums *s, real *j, const real *v,
                          const float *z, real *d, real *n, int64_t count) {
    switch (r->metric * 4 + r->use) {
    case RMSPROP * 4 + STANDING:
        diagonal_move(1, STANDING, r, damping, s->gradient, j, v, z, d, n, count);
        break;
    case RMSPROP * 4 + OLD:
        diagonal_move(1, OLD, r, damping, s->gradient, j, v, z, d, n, count);
        break;
    case RMSPROP * 4 + NEW:
        diagonal_move(1, NEW, r, damping, s->gradient, j, v, z, d, n, count);
        break;
    case DIAGONAL * 4 + STANDING:
    case QUASI_DIAGONAL * 4 + STANDING:
    case UNIT * 4 + STANDING:  // of a parameter that has no units
        diagonal_move(0, STANDING, r, damping, s->second, j, v, z, d, n, count);
        break;
    case DIAGONAL * 4 + OLD:
    case QUASI_DIAGONAL * 4 + OLD:
    case UNIT * 4 + OLD:
        diagonal_move(0, OLD, r, damping, s->second, j, v, z, d, n, count);
        break;
    case DIAGONAL * 4 + NEW:
    case QUASI_DIAGONAL * 4 + NEW:
    case UNIT * 4 + NEW:
        diagonal_move(0, NEW, r, damping, s->second, j, v, z, d, n, count);
        break;
    default: {
        const real eta = r->eta, noise = r->noise;
        for (int64_t i = 0; i < count; ++i) {
            n[i] = noise * (real)z[i];
            d[i] = n[i] - eta * v[i];
        }
    }
    }
}

static void move_quasi(const Rates *r, real damping, const real *corner, const real *v_bias,
                       const Sums *s, real *second, real *cross, const real *v, const float *z,
                       real *d, real *n, real *d_bias, real *n_bias, int64_t units, int64_t in) {
#define QUASI_CASE(USE, SEVERAL)                                                                   \
    case USE * 2 + SEVERAL:                                                                        \
        quasi_move(USE, SEVERAL, r, damping, corner, v_bias, s->second, s->cross, second, cross, v, \
                   z, d, n, d_bias, n_bias, units, in);                                            \
        break;
    switch (r->use * 2 + (in <= TOGETHER_WEIGHTS)) {
        QUASI_CASE(STANDING, 0) QUASI_CASE(OLD, 0) QUASI_CASE(NEW, 0)
        QUASI_CASE(STANDING, 1) QUASI_CASE(OLD, 1) QUASI_CASE(NEW, 1)
    }
}

// theta += d (or the momentum, d added to it), and the running mean. n is the noise within d.
static void apply(const Rates *r, const real *restrict d, const real *restrict n,
                  real *restrict theta, real *restrict momentum, real *restrict mean,
                  int64_t count) {
    const real keep = r->keep, mu = r->mu;
    if (momentum && r->baoab)
        for (int64_t i = 0; i < count; ++i) {
            const real kicked = momentum[i] + (d[i] - n[i]);
            momentum[i] = keep * kicked + n[i];
            theta[i] += (kicked + momentum[i]) / 2;
        }
    else if (momentum)
        for (int64_t i = 0; i < count; ++i) {
            momentum[i] = keep * momentum[i] + d[i];
            theta[i] += momentum[i];
        }
    else
        for (int64_t i = 0; i < count; ++i) theta[i] += d[i];
    if (mean)
        for (int64_t i = 0; i < count; ++i) mean[i] = mix(mean[i], theta[i], mu);
}

// Where the tensors of one chain lie, and their settings; `at` is a unit's first element.
typedef struct {
    real *theta, *mean, *momentum, *second;
    real damping;
    const real *prior;
    int64_t kind;  // of the prior
    const real *centre;  // its means, NULL: one for all
} Tensor;

INLINE real *offset(real *p, int64_t by) { return p ? p + by : 0; }
INLINE const real *means_at(const Tensor *t, int64_t at) { return t->centre ? t->centre + at : 0; }

static void apply_at(const Rates *r, const real *d, const real *n, Tensor t, int64_t at,
                     int64_t count) {
    apply(r, d, n, t.theta + at, offset(t.momentum, at), offset(t.mean, at), count);
}

// Units from `unit` on: their weights' sums `s`, which lie `in` apart, their biases' `b` (each NULL
// where frozen or missing). v, d and n have room for their weights.
static void update_some(const Rates *r, int64_t unit, int64_t units, int64_t in,
                        const Tensor *weight, const Tensor *bias, real *cross, const Sums *s,
                        const Sums *b, const float *z, const float *z_bias, real *v, real *d,
                        real *n) {
    const int64_t at = unit * in, count = units * in;
    if (weight)
        add_prior(weight->kind, weight->prior, means_at(weight, at), r, s->gradient,
                  weight->theta + at, v, count);
    if (!bias) {
        move_diagonal(r, weight->damping, s, offset(weight->second, at), v, z, d, n, count);
        apply_at(r, d, n, *weight, at, count);
        return;
    }
    real v_bias[TOGETHER_UNITS], d_bias[TOGETHER_UNITS], n_bias[TOGETHER_UNITS], corner[TOGETHER_UNITS];
    add_prior(bias->kind, bias->prior, means_at(bias, unit), r, b->gradient, bias->theta + unit,
              v_bias, units);
    const int quasi = weight && cross;
    for (int64_t u = 0; u < units && quasi; ++u) corner[u] = bias->second[unit + u];
    move_diagonal(r, bias->damping, b, offset(bias->second, unit), v_bias, z_bias, d_bias, n_bias,
                  units);
    if (quasi) {
        for (int64_t u = 0; u < units; ++u)
            corner[u] = rsqrt_((r->use == NEW ? bias->second[unit + u] : corner[u]) + bias->damping);
        move_quasi(r, weight->damping, corner, v_bias, s, weight->second + at, cross + at, v, z, d,
                   n, d_bias, n_bias, units, in);
        apply_at(r, d, n, *weight, at, count);
    } else if (weight) {
        move_diagonal(r, weight->damping, s, offset(weight->second, at), v, z, d, n, count);
        apply_at(r, d, n, *weight, at, count);
    }
    apply_at(r, d_bias, n_bias, *bias, unit, units);
}

#endif
