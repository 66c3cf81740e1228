// Likelihoods: from outputs Z (output, batch) to every sample's loss and its gradient D = dl/dZ.

#ifndef NATURAL_LANGEVIN_LIKELIHOOD_H
#define NATURAL_LANGEVIN_LIKELIHOOD_H

#include "noise.h"

// Samples from ... to of a minibatch, whose data are at `rows`.
typedef struct {
    const real *z;
    real *d, *loss, *largest, *total;  // (output, stride), and three rows of the batch
    int64_t outputs, stride, from, to;
    const int64_t *rows;
    real variance, before;  // before: a learned one, at the step's beginning
    real *own;  // dl/du of a logarithm u of the width, or dispersion, that is sampled; NULL: none
} Outputs;

#define SAMPLES for (int64_t n = o->from; n < o->to; ++n)

// The class of a row, read once: labels are the caller's memory, which may change during a run. One
// that does not exist is noted, and counts as class 0 until the call ends.
INLINE int64_t class_of(const Run *run, int64_t row, int64_t classes) {
    const int64_t label = *(const volatile int64_t *)(run->classes + row);
    if (label >= 0 && label < classes) return label;
    __atomic_store_n(run->wrong_row, row, __ATOMIC_RELAXED);
    return 0;
}

// D becomes the probabilities, the loss logsumexp(Z).
static void softmax(const Outputs *o) {
    real *restrict largest = o->largest, *restrict total = o->total;
    SAMPLES largest[n] = o->z[n], total[n] = 0;
    for (int64_t k = 1; k < o->outputs; ++k) {
        const real *restrict z = o->z + k * o->stride;
        SAMPLES largest[n] = z[n] > largest[n] ? z[n] : largest[n];
    }
    for (int64_t k = 0; k < o->outputs; ++k) {
        const real *restrict z = o->z + k * o->stride;
        real *restrict d = o->d + k * o->stride;
        SAMPLES {
            d[n] = exp_(z[n] - largest[n]);
            total[n] += d[n];
        }
    }
    real *restrict loss = o->loss;
    SAMPLES {
        loss[n] = log_(total[n]) + largest[n];
        total[n] = 1 / total[n];
    }
    for (int64_t k = 0; k < o->outputs; ++k) {
        real *restrict d = o->d + k * o->stride;
        SAMPLES d[n] *= total[n];
    }
}

static void categorical(const Run *run, const Outputs *o) {
    softmax(o);
    SAMPLES {
        const int64_t at = class_of(run, o->rows[n], o->outputs) * o->stride + n;
        o->loss[n] -= o->z[at];
        o->d[at] -= 1;
    }
}

// Of target k, whose noise is as large as the scale says.
INLINE real per_scale(const Run *run, int64_t k) { return run->per_scale ? run->per_scale[k] : 1; }

// Losses that are sums over outputs, each with its own target.
#define EACH_OUTPUT(LOSS, GRADIENT)                                             \
    SAMPLES o->loss[n] = 0;                                                     \
    for (int64_t k = 0; k < o->outputs; ++k) {                                  \
        const real *restrict z = o->z + k * o->stride;                          \
        real *restrict d = o->d + k * o->stride, *restrict loss = o->loss;      \
        real *restrict target = o->total;                                       \
        SAMPLES target[n] = run->y[o->rows[n] * run->targets + k];              \
        const real unit = per_scale(run, k);                                    \
        (void)unit;                                                             \
        SAMPLES {                                                               \
            const real f = z[n], y = target[n];                                 \
            loss[n] += (LOSS);                                                  \
            d[n] = (GRADIENT);                                                  \
        }                                                                       \
    }

static void bernoulli(const Run *run, const Outputs *o) {
    EACH_OUTPUT(softplus_(f) - y * f, sigmoid_(f) - y)
}

static void normal(const Run *run, const Outputs *o) {
    const real precision = 1 / o->variance;
    const real constant = (real)(0.5 * log(6.283185307179586477 * (double)o->variance));
    EACH_OUTPUT((real)0.5 * ((y - f) * unit) * ((y - f) * unit) * precision + constant,
                (f - y) * unit * precision * unit)
}

// (df + 1)/2 ln(1 + r^2 / (df scale^2)) and what does not depend on r = y - f.
static void student(const Run *run, const Outputs *o) {
    const double df = run->df, half = 0.5 * (df + 1);
    const real power = (real)half, spread = (real)(df * (double)o->variance), precision = 1 / spread;
    const real constant = (real)(lgamma(0.5 * df) - lgamma(half)
                                 + 0.5 * log(3.14159265358979323846 * df * (double)o->variance));
    EACH_OUTPUT(power * log_(1 + ((y - f) * unit) * ((y - f) * unit) * precision) + constant,
                2 * power * (f - y) * unit / (spread + ((y - f) * unit) * ((y - f) * unit)) * unit)
}

// The force is that of a rate of at most 30 (y + 1): see the class Poisson.
static void poisson(const Run *run, const Outputs *o) {
    EACH_OUTPUT(exp_(f) - y * f, (exp_(f) < 30 * (y + 1) ? exp_(f) : 30 * (y + 1)) - y)
}

// Two outputs per target: the means, then the logarithms of the variances.
static void heteroscedastic(const Run *run, const Outputs *o) {
    const real shift = o->own ? log_(o->variance) : 0;
    SAMPLES o->loss[n] = 0;
    for (int64_t k = 0; k < run->targets; ++k) {
        const int64_t second = (k + run->targets) * o->stride;
        const real *restrict mean = o->z + k * o->stride, *restrict log_variance = o->z + second;
        real *restrict d_mean = o->d + k * o->stride, *restrict d_log = o->d + second;
        real *restrict loss = o->loss, *restrict target = o->total;
        SAMPLES target[n] = run->y[o->rows[n] * run->targets + k];
        SAMPLES {
            const real ln_v = log_variance[n] + shift;
            const real r = target[n] - mean[n], precision = exp_(-ln_v);
            const real square = r * r * precision;
            loss[n] += (real)0.5 * (square + ln_v + (real)1.8378770664093454836);
            d_mean[n] = -r * precision;
            d_log[n] = (real)0.5 * (1 - square);
        }
    }
}

// Three outputs per target: logits of more than 0, then means of ln y, and u, which gives their
// variance v: sqrt(1 + 2u) for u > 0, (1 - u/2)^-2 for u < 0.
// Targets are ln y, of 0 NONE; ln y as a term of the loss is an offset.
#define NONE ((real)-1e30)
static void hurdle(const Run *run, const Outputs *o) {
    SAMPLES o->loss[n] = 0;
    for (int64_t k = 0; k < run->targets; ++k) {
        const int64_t second = (k + run->targets) * o->stride;
        const int64_t third = (k + 2 * run->targets) * o->stride;
        const real *restrict logit = o->z + k * o->stride, *restrict mean = o->z + second;
        const real *restrict noise = o->z + third;
        real *restrict d = o->d + k * o->stride, *restrict d_mean = o->d + second;
        real *restrict d_noise = o->d + third, *restrict loss = o->loss, *restrict target = o->total;
        SAMPLES target[n] = run->y[o->rows[n] * run->targets + k];
        SAMPLES {
            const int there = target[n] > NONE;
            const real f = logit[n], r = there ? target[n] - mean[n] : 0;
            const real u = noise[n], level = 1 + (u > 0 ? 2 * u : (real)-0.5 * u);
            const real precision = u > 0 ? 1 / sqrt_(level) : level * level;
            const real log_variance = (u > 0 ? (real)0.5 : -2) * log_(level);
            const real square = r * r * precision;
            const real amount = (real)0.5 * (square + log_variance + (real)1.8378770664093454836);
            loss[n] += softplus_(f) + (there ? amount - f : 0);
            d[n] = sigmoid_(f) - (real)there;
            d_mean[n] = -r * precision;
            d_noise[n] = there ? (real)0.5 * (1 - square) / level : 0;
        }
    }
}

// ln Gamma(r + y) - ln Gamma(r) for a count y, and its derivative by r: eight factors as they are,
// and beyond them Stirling's series, whose next term is below 1e-10 from 8 on.
static double log_rising(double r, int64_t y, double *derivative) {
    double product = 1, sum = 0;
    const int64_t first = y < 8 ? y : 8;
    for (int64_t j = 0; j < first; ++j) product *= r + j, sum += 1 / (r + j);
    *derivative = sum;
    if (y <= 8) return log(product);
    // x ln x of both ends together: for a large r their difference alone is of any size.
    const double from = r + 8, more = y - 8., ratio = log1p(more / from);
    double found = log(product) + (r + y - 0.5) * ratio + more * (log(from) - 1);
    *derivative += ratio;
    for (int sign = -1; sign < 2; sign += 2) {
        const double i = 1 / (sign > 0 ? r + y : from), ii = i * i;
        found += sign * i * (1 / 12. - ii * (1 / 360. - ii * (1 / 1260. - ii / 1680)));
        *derivative -= sign * (i / 2 + ii * (1 / 12. - ii * (1 / 120. - ii * (1 / 252. - ii / 240))));
    }
    return found;
}

// Two outputs per target: ln of the means m, then ln of the dispersions a = 1/r, where a is not known.
// With s = ln(m/r) the loss is r softplus(s) + y softplus(-s) - ln Gamma(r + y)/Gamma(r), and ln y! as
// an offset.
static void negative_binomial(const Run *run, const Outputs *o) {
    SAMPLES o->loss[n] = 0;
    if (o->own) SAMPLES o->own[n] = 0;
    for (int64_t k = 0; k < run->targets; ++k) {
        const int64_t second = (k + run->targets) * o->stride;
        const int known = o->outputs == run->targets;
        const real *log_mean = o->z + k * o->stride, *log_a = known ? 0 : o->z + second;
        real *d_mean = o->d + k * o->stride, *d_a = known ? 0 : o->d + second;
        SAMPLES {
            const double y = run->y[o->rows[n] * run->targets + k];
            const double ln_a = known ? log((double)o->variance) : (double)log_a[n], r = exp(-ln_a);
            const double s = (double)log_mean[n] + ln_a, less = exp(-fabs(s));
            const double above = log1p(less) + (s > 0 ? s : 0), below = above - s;
            const double p = s > 0 ? 1 / (1 + less) : less / (1 + less);
            double slope;
            const double rising = log_rising(r, (int64_t)y, &slope);
            const double by_s = r * p - y * (1 - p);
            o->loss[n] += (real)(r * above + y * below - rising);
            d_mean[n] = (real)by_s;
            if (!known) d_a[n] = (real)(by_s - r * (above - slope));
            if (o->own) o->own[n] += (real)(by_s - r * (above - slope));
        }
    }
}

// P(y <= k) = sigmoid(c_k), where c_0 = -(K - 2)/2 - f and c_k = c_{k-1} + g_k: the outputs are f
// and, where there are more, ln g_1 ... ln g_{K-2}; otherwise all gaps g are 1.
static void ordinal(const Run *run, const Outputs *o) {
    const int64_t last = (int64_t)o->variance - 1;  // the highest level
    for (int64_t k = 1; k < o->outputs; ++k)
        SAMPLES o->d[k * o->stride + n] = 0;
    SAMPLES {
        const int64_t level = class_of(run, o->rows[n], last + 1);
        const real *z = o->z + n;
        real *d = o->d + n, below = 0, above = -(real)0.5 * (real)(last - 1) - z[0], gap = 0;
        for (int64_t k = 1; k <= level && k < last; ++k) {
            gap = o->outputs > 1 ? exp_(z[k * o->stride]) : 1;
            below = above;
            above += gap;
        }
        if (level == last) below = above;
        // The level lies between the cutpoints below and above.
        const real by_above = level < last ? -sigmoid_(-above) : 0;
        const real by_below = level > 0 ? sigmoid_(below) : 0;
        o->loss[n] = (level < last ? softplus_(-above) : 0) + (level > 0 ? softplus_(below) : 0);
        d[0] = -by_above - by_below;
        if (level > 0 && level < last) o->loss[n] -= (real)log(-expm1(-(double)gap));
        for (int64_t k = 1; k <= level && k < last && o->outputs > 1; ++k)
            d[k * o->stride] = exp_(z[k * o->stride]) * (by_above + by_below);
        if (level > 0 && level < last && o->outputs > 1)
            d[level * o->stride] = gap * (by_above - (real)(1 / expm1((double)gap)));
    }
}

// Student's t by Bailey's polar method, from the draws `place` and `place + count` of a stream.
static double student_draw(const Run *run, int64_t place, int64_t count, Key key) {
    const double u = open_unit(random_bits((uint32_t)place, key));
    const double v = open_unit(random_bits((uint32_t)(place + count), key));
    const double squared = run->df * (pow(u, -2 / run->df) - 1);
    return sqrt(squared > 0 ? squared : 0) * cos(6.283185307179586477 * v);
}

// Gradients at labels drawn from the model, for the Fisher matrix proper. `draws` has room for the
// normals of these samples. The labels of a sample are addressed by its place in the minibatch.
static void drawn_gradients(const Run *run, const Outputs *o, Key key, float *draws) {
    const int64_t per_sample = run->likelihood == HETEROSCEDASTIC ? run->targets : o->outputs;
    const int normal_noise = run->likelihood == NORMAL || run->likelihood == HETEROSCEDASTIC;
    const float *z = draws;
    if (normal_noise)
        z = normals(draws, (uint32_t)(o->from * per_sample), (o->to - o->from) * per_sample, key);
    if (run->likelihood == CATEGORICAL) softmax(o);
    SAMPLES {
        const float u = open_unit(random_bits((uint32_t)n, key));
        real below = 0, *const d = o->d + n;
        int64_t label = 0;
        if (run->likelihood == CATEGORICAL) {
            for (int64_t k = 0; k < o->outputs - 1; ++k) {
                below += d[k * o->stride];
                label += below < (real)u;
            }
            d[label * o->stride] -= 1;
            continue;
        }
        for (int64_t k = 0; k < per_sample; ++k) {
            const int64_t place = n * per_sample + k, at = k * o->stride;
            const real normal = normal_noise ? (real)z[place - o->from * per_sample] : 0;
            if (run->likelihood == BERNOULLI) {
                const real p = sigmoid_(o->z[at + n]);
                d[at] = p - ((real)open_unit(random_bits((uint32_t)place, key)) <= p);
            } else if (run->likelihood == NORMAL) {
                d[at] = -normal / sqrt_(o->variance) * per_scale(run, k);
            } else if (run->likelihood == STUDENT) {
                const double t = student_draw(run, place, run->batch * per_sample, key);
                const double steep = (run->df + 1) * t / (run->df + t * t);
                d[at] = (real)(-steep * per_scale(run, k) / sqrt((double)o->variance));
            } else {
                const int64_t second = (k + run->targets) * o->stride;
                d[at] = -normal * exp_((real)-0.5 * o->z[second + n]);
                d[second] = (real)0.5 * (1 - normal * normal);
            }
        }
    }
}

// The sum of squared residuals, for a variance that is learned. STUDENT weighs them by the expected
// precision of each, one step of expectation-maximisation.
static double squared_residuals(const Run *run, const Outputs *o) {
    const int student = run->likelihood == STUDENT;
    double sum = 0, df = run->df;
    for (int64_t k = 0; k < o->outputs; ++k) {
        const real unit = per_scale(run, k);
        SAMPLES {
            const real r = (run->y[o->rows[n] * run->targets + k] - o->z[k * o->stride + n]) * unit;
            const double square = (double)r * r;
            sum += student ? square * (df + 1) / (df + square / o->before) : square;
        }
    }
    return sum;
}

// With a width s = e^u the loss of a residual r is l(r / s) + u: dl/du = 1 + r dl/df of every target.
static void by_width(const Run *run, const Outputs *o) {
    SAMPLES o->own[n] = 0;
    for (int64_t k = 0; k < run->targets; ++k) {
        const real *restrict f = o->z + k * o->stride, *restrict d = o->d + k * o->stride;
        SAMPLES o->own[n] += 1 + (run->y[o->rows[n] * run->targets + k] - f[n]) * d[n];
    }
}

// Losses and their gradients; returns the sum of the losses.
static double losses(const Run *run, const Outputs *o) {
    switch (run->likelihood) {
    case CATEGORICAL: categorical(run, o); break;
    case BERNOULLI: bernoulli(run, o); break;
    case NORMAL: normal(run, o); break;
    case HETEROSCEDASTIC: heteroscedastic(run, o); break;
    case POISSON: poisson(run, o); break;
    case NEGATIVE_BINOMIAL: negative_binomial(run, o); break;
    case ORDINAL: ordinal(run, o); break;
    case STUDENT: student(run, o); break;
    case HURDLE: hurdle(run, o); break;
    }
    if (o->own && run->likelihood != NEGATIVE_BINOMIAL) by_width(run, o);
    if (run->weight) {
        SAMPLES o->total[n] = run->weight[o->rows[n]];
        SAMPLES o->loss[n] *= o->total[n];
        for (int64_t k = 0; k < o->outputs; ++k)
            SAMPLES o->d[k * o->stride + n] *= o->total[n];
    }
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    SAMPLES sum += o->loss[n];
    if (run->offset) SAMPLES sum += run->offset[o->rows[n]];
    return sum;
}

#endif
