// The update of the units of one weight, for networks whose passes the engine does not know, but
// whose updates it does: from a gradient and statistics that others have formed, or from the inputs and
// output gradients of a linear layer, whose sums never leave the cache. Some units at a time, as in the
// engine.

#ifndef NATURAL_LANGEVIN_LINEAR_H
#define NATURAL_LANGEVIN_LINEAR_H


#include "noise.h"
#include "threads.h"
#include "update.h"

// What Python hands over (layout.py), all fields eight bytes wide.
typedef struct {
    int64_t chains, out, in;
    int64_t start[2];                         // of weight and bias in the noise stream
    int64_t metric, adapts, fresh, baoab;
    double share;                             // of the gradient's sums; 1 where they are means already
    const real *gradient;                     // (chain, out, in)
    const real *squares, *products;           // (chain, out, in); NULL: there are none
    const real *bias_gradient, *bias_square;  // (chain, out)
    // The layer's call, NULL: all sums are given. A gradient that is given is not formed.
    int64_t batch;
    double scale;                    // delta times this: means of products are then their sums
    const real *a, *delta, *fisher;  // (chain, batch, in or out); fisher: of statistics, NULL: delta
    real *theta[2], *mean[2], *momentum[2], *second[2], *cross;  // NULL where there is none
    const real *prior;    // (chain, 4): 1 / (beta variance) and mean, of weight and bias
    const real *damping;  // (chain, 2)
    const real *numbers;  // (chain, 7): eta, noise, gamma, mu, 1 / N, whether it moves, kept momentum
    const int32_t *keys;  // (chain, 2)
} LinearUpdate;

static Tensor linear_tensor(const LinearUpdate *l, int which, int64_t chain, int64_t size) {
    const int64_t at = chain * size;
    const Tensor found = {l->theta[which] + at, offset(l->mean[which], at),
                          offset(l->momentum[which], at), offset(l->second[which], at),
                          l->damping[2 * chain + which], l->prior + 4 * chain + 2 * which, GAUSSIAN,
                          0};
    return found;
}

// One thread's own memory; what follows the normals is for sums that are formed here.
typedef struct {
    int64_t together;  // units
    float *normals;
    real *v, *d, *n;   // (in)
    real *sums[3];     // (together, padded(in)): gradient, second, cross
    real *bias[2];     // (together): the bias's gradient and second
    Active *active;
} LinearRoom;

static int linear_forms(const LinearUpdate *l) { return l->a && (l->adapts || !l->gradient); }

// Numbers of a chain's inputs, as their sums are formed.
static int64_t linear_inputs(const LinearUpdate *l) { return padded(l->in) * l->batch; }

// Lays out the room of a layer from `base` on, NULL: nowhere; how many bytes it has.
static int64_t linear_room(const LinearUpdate *l, char *base, LinearRoom *r) {
    const int forms = linear_forms(l);
    r->together = chunk_of(l->in);
    const int64_t k = r->together, sums = forms ? k * padded(l->in) : 0, some = forms ? k : 0;
    const int64_t active = forms ? l->batch + 1 : 0, normals = k * l->in + k + 2 * 544;
    const int64_t bytes = (3 * l->in + 3 * sums + 2 * some) * sizeof(real) + normals * sizeof(float) +
                          some * (sizeof(Active) + active * (sizeof(real) + sizeof(int32_t)));
    if (!base) return bytes + 64;
    char *at = base;
    r->active = (Active *)at, at += some * sizeof(Active);
    real *numbers = (real *)at;
    r->v = numbers, r->d = r->v + l->in, r->n = r->d + l->in, numbers += 3 * l->in;
    for (int j = 0; j < 3; ++j, numbers += sums) r->sums[j] = numbers;
    for (int j = 0; j < 2; ++j, numbers += some) r->bias[j] = numbers;
    for (int64_t u = 0; u < some; ++u, numbers += active) r->active[u].delta = numbers;
    r->normals = (float *)numbers;
    int32_t *rows = (int32_t *)(r->normals + normals);
    for (int64_t u = 0; u < some; ++u, rows += active) r->active[u].row = rows;
    return bytes + 64;
}

// The sums of `units` units from a layer's call.
static void linear_sums(const LinearUpdate *l, const real *inputs, int64_t chain, int64_t unit,
                        int64_t units, LinearRoom *r) {
    const int moments = l->adapts && l->metric >= DIAGONAL, apart = moments && l->fisher;
    const Sums sums = {r->sums[0], r->sums[1], r->sums[2], padded(l->in)};
    for (int drawn = apart; drawn >= 0; --drawn) {  // the statistics' own gradients, then the data's
        const int need = drawn || (moments && !apart && l->gradient)    ? MOMENTS
                         : apart || !moments                            ? GRADIENT
                         : l->cross                                     ? SECOND_AND_CROSS
                                                                        : SECOND;
        if (need == GRADIENT && l->gradient) continue;
        const real *const delta = (drawn ? l->fisher : l->delta) + chain * l->batch * l->out;
        list_active(delta + unit, 1, l->out, units, l->batch, (real)l->scale, r->active);
        outer_products(units, l->in, l->batch, need, r->active, inputs, sums);
        for (int64_t u = 0; u < units; ++u) {
            real sum = 0, squares = 0;
            for (int64_t n = 0; n < r->active[u].count; ++n) {
                const real delta = r->active[u].delta[n];
                sum += delta, squares += delta * delta;
            }
            if (need != MOMENTS) r->bias[0][u] = sum;
            if (need != GRADIENT) r->bias[1][u] = squares;
        }
    }
}

// Unit number `u` of those from `first` on; `z`, `z_bias`: its normals.
static void linear_unit(const LinearUpdate *l, int64_t chain, int64_t first, int64_t u, const float *z,
                        const float *z_bias, const LinearRoom *r) {
    const real *number = l->numbers + 7 * chain;
    const Rates rates = {number[0], number[1], number[2], number[3], (real)l->share, 1, number[4],
                         number[6], (int)l->baoab, l->metric,
                         !l->adapts ? STANDING : l->fresh ? NEW : OLD};
    const int64_t unit = first + u, row = chain * l->out + unit, own = u * padded(l->in);
    const int formed = l->a && l->adapts;
    const Sums sums = {l->gradient ? (real *)l->gradient + row * l->in : r->sums[0] + own,
                       formed ? r->sums[1] + own : offset((real *)l->squares, row * l->in),
                       formed ? r->sums[2] + own : offset((real *)l->products, row * l->in), l->in};
    const Tensor weight = linear_tensor(l, WEIGHT, chain, l->out * l->in);
    if (!l->theta[BIAS]) {
        update_some(&rates, unit, 1, l->in, &weight, 0, 0, &sums, 0, z, 0, r->v, r->d, r->n);
        return;
    }
    const Tensor bias = linear_tensor(l, BIAS, chain, l->out);
    real *const square = formed ? r->bias[1] + u : offset((real *)l->bias_square, row);
    const Sums of_bias = {l->gradient ? (real *)l->bias_gradient + row : r->bias[0] + u, square, 0, 1};
    update_some(&rates, unit, 1, l->in, &weight, &bias, offset(l->cross, chain * l->out * l->in), &sums,
                &of_bias, z, z_bias, r->v, r->d, r->n);
}

// `count` units from number `unit` on.
static void linear_units(const LinearUpdate *l, const real *inputs, int64_t chain, int64_t unit,
                         int64_t count, LinearRoom *r) {
    if (l->numbers[7 * chain + 5] <= 0) return;  // a stopped chain stands still
    const Key key = {(uint32_t)l->keys[2 * chain], (uint32_t)l->keys[2 * chain + 1]};
    const float *const z = normals(r->normals, (uint32_t)(l->start[WEIGHT] + unit * l->in), count * l->in, key);
    const float *const z_bias =
        l->theta[BIAS] ? normals(r->normals + r->together * l->in + 544, (uint32_t)(l->start[BIAS] + unit),
                                 count, key)
                       : 0;
    if (inputs) linear_sums(l, inputs + chain * linear_inputs(l), chain, unit, count, r);
    for (int64_t u = 0; u < count; ++u)
        linear_unit(l, chain, unit, u, z + u * l->in, z_bias + (z_bias ? u : 0), r);
}

// Some layers' updates. Threads take pieces, as many units as one forms at once, until none is left:
// where other programs want a core, nobody waits for the thread that had it.
typedef struct {
    const LinearUpdate *const *layers;
    int64_t count, pieces, bytes;  // bytes: of a thread's room
    real **inputs;                 // `a` as sums are formed, by layer; NULL: none are
    char *rooms;
    atomic_llong room, input, ready, piece;
} LinearCrew;

// Pieces of a chain.
INLINE int64_t pieces_of(const LinearUpdate *l, const LinearRoom *r) {
    return (l->out + r->together - 1) / r->together;
}

static void prepare_inputs(const LinearUpdate *l, real *inputs) {
    for (int64_t c = 0; c < l->chains && inputs; ++c)
        as_blocks(l->a + c * l->batch * l->in, l->in, 1, l->in, 0, l->batch, l->batch,
                  inputs + c * linear_inputs(l));
}

static void linear_work(void *argument) {
    LinearCrew *const crew = argument;
    const uint64_t mode = flush_small();
    for (int64_t k; (k = atomic_fetch_add(&crew->input, 1)) < crew->count;) {
        prepare_inputs(crew->layers[k], crew->inputs[k]);
        atomic_fetch_add(&crew->ready, 1);
    }
    while (atomic_load(&crew->ready) < crew->count) sched_yield();
    LinearRoom r;
    char *const room = crew->rooms + crew->bytes * atomic_fetch_add(&crew->room, 1);
    int64_t layer = -1, before = 0, each = 0, here = 0;  // pieces: before the layer, of a chain, of it
    for (int64_t piece; (piece = atomic_fetch_add(&crew->piece, 1)) < crew->pieces;) {
        while (piece >= before + here) {
            before += here, ++layer;
            linear_room(crew->layers[layer], room, &r);
            each = pieces_of(crew->layers[layer], &r);
            here = each * crew->layers[layer]->chains;
        }
        const LinearUpdate *const l = crew->layers[layer];
        const int64_t chain = (piece - before) / each, unit = (piece - before) % each * r.together;
        linear_units(l, crew->inputs[layer], chain, unit, least(r.together, l->out - unit), &r);
    }
    set_rounding_mode(mode);
}

// Weights that are worth other threads: all of them, as torch keeps as many as were asked for last.
#define LINEAR_SHARED 200000

// Writes the layers' new states over the old ones; 0, or 1 where there was no memory.
int64_t linear_update(const LinearUpdate *const *layers, int64_t count, int64_t threads) {
    int64_t weights = 0, bytes = 0, numbers = 0;
    real *inputs[count];
    LinearCrew crew = {.layers = layers, .count = count, .inputs = inputs};
    for (int64_t k = 0; k < count; ++k) {
        const LinearUpdate *const l = layers[k];
        weights += l->chains * l->out * l->in;
        numbers += linear_forms(l) ? (l->chains * linear_inputs(l) + 15) / 16 * 16 : 0;
        LinearRoom r;
        bytes = most(bytes, (linear_room(l, 0, &r) + 63) / 64 * 64);
        crew.pieces += l->chains * pieces_of(l, &r);
    }
    threads = weights < LINEAR_SHARED ? 1 : threads;
    char *const memory = aligned_alloc(64, numbers * sizeof(real) + threads * bytes);
    if (!memory) return 1;
    crew.bytes = bytes, crew.rooms = memory + numbers * sizeof(real);
    real *at = (real *)memory;
    for (int64_t k = 0; k < count; ++k) {
        inputs[k] = linear_forms(layers[k]) ? at : 0;
        if (inputs[k]) at += (layers[k]->chains * linear_inputs(layers[k]) + 15) / 16 * 16;
    }
    in_parallel(linear_work, &crew, threads);
    free(memory);
    return 0;
}

#endif
