// The update of the units of one weight from sums that others have formed: for networks whose passes
// the engine does not know, but whose updates it does. One unit at a time, as in the engine.

#ifndef NATURAL_LANGEVIN_LINEAR_H
#define NATURAL_LANGEVIN_LINEAR_H

#include <pthread.h>
#include <stdlib.h>

#include "flush.h"
#include "noise.h"
#include "update.h"

// What Python hands over (execution/kernels/cpu_linear.py), all fields eight bytes wide.
typedef struct {
    int64_t chains, out, in, threads;
    int64_t start[2];                         // of weight and bias in the noise stream
    int64_t metric, adapts, fresh, baoab;
    double share;                             // 1 / B; 1 where sums are means already
    int64_t width;                            // from one unit's row of statistics to the next
    const real *gradient;                     // (chain, out, in)
    const real *squares, *products;           // the rows of both statistics; NULL: there are none
    const real *bias_gradient, *bias_square;  // (chain, out)
    real *theta[2], *mean[2], *momentum[2], *second[2], *cross;  // NULL where there is none
    const real *prior;    // (chain, 4): 1 / (beta variance) and mean, of weight and bias
    const real *damping;  // (chain, 2)
    const real *numbers;  // (chain, 7): eta, noise, gamma, mu, 1 / N, whether it moves, kept momentum
    const int32_t *keys;  // (chain, 2)
} LinearUpdate;

typedef struct {
    const LinearUpdate *update;
    int64_t from, to;  // units, counted through all chains
    int failed;
    pthread_t thread;
} LinearPart;

static Tensor linear_tensor(const LinearUpdate *l, int which, int64_t chain, int64_t size) {
    const int64_t at = chain * size;
    const Tensor found = {l->theta[which] + at, offset(l->mean[which], at),
                          offset(l->momentum[which], at), offset(l->second[which], at),
                          l->damping[2 * chain + which], l->prior + 4 * chain + 2 * which, GAUSSIAN,
                          0};
    return found;
}

// `z`, `z_bias`: the unit's normals.
static void linear_unit(const LinearUpdate *l, int64_t chain, int64_t unit, const float *z,
                        const float *z_bias, real *v, real *d, real *n) {
    const real *number = l->numbers + 7 * chain;
    const Rates rates = {number[0], number[1], number[2], number[3], (real)l->share, number[4],
                         number[6], (int)l->baoab, l->metric,
                         !l->adapts ? STANDING : l->fresh ? NEW : OLD};
    const int64_t row = chain * l->out + unit;
    const Sums sums = {(real *)l->gradient + row * l->in,
                       offset((real *)l->squares, row * l->width),
                       offset((real *)l->products, row * l->width), l->width};
    const Tensor weight = linear_tensor(l, WEIGHT, chain, l->out * l->in);
    if (!l->theta[BIAS]) {
        update_unit(&rates, unit, l->in, &weight, 0, 0, &sums, 0, z, 0, v, d, n);
        return;
    }
    const Tensor bias = linear_tensor(l, BIAS, chain, l->out);
    real *const square = l->bias_square ? (real *)l->bias_square + row : 0;
    const Sums of_bias = {(real *)l->bias_gradient + row, square, 0, 1};
    update_unit(&rates, unit, l->in, &weight, &bias, offset(l->cross, chain * l->out * l->in), &sums,
                &of_bias, z, z_bias, v, d, n);
}

// Normals come in blocks of 32: units with few weights have theirs made together.
#define LINEAR_TOGETHER 512

static void *linear_part(void *argument) {
    LinearPart *const part = argument;
    const LinearUpdate *const l = part->update;
    const int64_t together = l->in < LINEAR_TOGETHER ? LINEAR_TOGETHER / l->in : 1;
    float *const room = malloc((together * l->in + together + 2 * 544) * sizeof(float));
    real *const work = malloc(3 * l->in * sizeof(real));
    part->failed = !room || !work;
    const uint64_t mode = flush_small();
    int64_t k = part->from;
    while (k < part->to && !part->failed) {
        const int64_t chain = k / l->out, unit = k % l->out;
        const int64_t count = least(together, least(part->to - k, l->out - unit));
        k += count;
        if (l->numbers[7 * chain + 5] <= 0) continue;  // a stopped chain stands still
        const Key key = {(uint32_t)l->keys[2 * chain], (uint32_t)l->keys[2 * chain + 1]};
        const float *const z =
            normals(room, (uint32_t)(l->start[WEIGHT] + unit * l->in), count * l->in, key);
        const float *const z_bias =
            l->theta[BIAS] ? normals(room + together * l->in + 544,
                                     (uint32_t)(l->start[BIAS] + unit), count, key)
                           : 0;
        for (int64_t i = 0; i < count; ++i)
            linear_unit(l, chain, unit + i, z + i * l->in, z_bias + (z_bias ? i : 0), work,
                        work + l->in, work + 2 * l->in);
    }
    set_rounding_mode(mode);
    free(room);
    free(work);
    return 0;
}

// Weights of a thread, at least: starting one takes as long as some ten thousand.
#define LINEAR_SHARE 100000

// Writes the layer's new state over the old one; 0, or 1 where there was no memory.
int64_t linear_update(const LinearUpdate *l) {
    const int64_t units = l->chains * l->out;
    int64_t count = least(l->threads, units * l->in / LINEAR_SHARE);
    count = count < 1 ? 1 : count;
    LinearPart parts[count];
    for (int64_t k = 0; k < count; ++k)
        parts[k] = (LinearPart){l, k * units / count, (k + 1) * units / count, 0, 0};
    int64_t started = 1, failed = 0;
    while (started < count &&
           !pthread_create(&parts[started].thread, 0, linear_part, parts + started))
        ++started;
    for (int64_t k = started; k < count; ++k) linear_part(parts + k);  // no thread could be had
    linear_part(parts);
    for (int64_t k = 1; k < started; ++k) pthread_join(parts[k].thread, 0);
    for (int64_t k = 0; k < count; ++k) failed |= parts[k].failed;
    return failed;
}

int64_t linear_bytes(void) { return sizeof(LinearUpdate); }

#endif
