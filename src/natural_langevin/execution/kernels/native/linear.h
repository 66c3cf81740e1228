// The update of one linear layer from sums that the BLAS has formed: for networks whose passes the
// engine does not know, but whose layers' updates it does. One unit at a time, as in the engine.

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
    double share;                             // 1 / B
    const real *gradient, *statistics;        // (chain, out, in); (chain, out, [second, cross])
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

static void linear_unit(const LinearUpdate *l, int64_t chain, int64_t unit, float *room,
                        float *bias_room, real *v, real *d, real *n) {
    const real *number = l->numbers + 7 * chain;
    if (number[5] <= 0) return;  // a stopped chain stands still
    const Rates rates = {number[0], number[1], number[2], number[3], (real)l->share, number[4],
                         number[6], (int)l->baoab, l->metric,
                         !l->adapts ? STANDING : l->fresh ? NEW : OLD};
    const Key key = {(uint32_t)l->keys[2 * chain], (uint32_t)l->keys[2 * chain + 1]};
    const int64_t row = chain * l->out + unit, width = l->cross ? 2 * l->in : l->in;
    real *const moments = (real *)l->statistics + (l->statistics ? row * width : 0);
    const Sums sums = {(real *)l->gradient + row * l->in, moments, moments + l->in, width};
    const Tensor weight = linear_tensor(l, WEIGHT, chain, l->out * l->in);
    const float *z = normals(room, (uint32_t)(l->start[WEIGHT] + unit * l->in), l->in, key);
    if (!l->theta[BIAS]) {
        update_unit(&rates, unit, l->in, &weight, 0, 0, &sums, 0, z, 0, v, d, n);
        return;
    }
    const Tensor bias = linear_tensor(l, BIAS, chain, l->out);
    const float *z_bias = normals(bias_room, (uint32_t)(l->start[BIAS] + unit), 1, key);
    real *const square = l->bias_square ? (real *)l->bias_square + row : 0;
    const Sums of_bias = {(real *)l->bias_gradient + row, square, 0, 1};
    update_unit(&rates, unit, l->in, &weight, &bias, offset(l->cross, chain * l->out * l->in), &sums,
                &of_bias, z, z_bias, v, d, n);
}

static void *linear_part(void *argument) {
    LinearPart *const part = argument;
    const LinearUpdate *const l = part->update;
    float *const room = malloc((l->in + 2 * 544) * sizeof(float));
    real *const work = malloc(3 * l->in * sizeof(real));
    part->failed = !room || !work;
    const uint64_t mode = flush_small();
    for (int64_t k = part->from; k < part->to && !part->failed; ++k)
        linear_unit(l, k / l->out, k % l->out, room + 544, room, work, work + l->in,
                    work + 2 * l->in);
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
