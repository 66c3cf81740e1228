// Whole Langevin steps of a chain of layers and activations, many steps per call.
//
// A chain is advanced by one thread at a time, or by a team of threads where there are fewer chains
// than threads. A team shares a step in two parts: everybody takes some of the samples forward and
// backward, then some of the units, whose sums over the batch become their update.

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "forward.h"
#include "layer.h"
#include "likelihood.h"
#include "linear.h"
#include "sums.h"
#include "unit.h"

// A chain whose step takes fewer multiplications than this goes by one thread: a team's members wait
// for each other four times a step, and for long where other programs want their cores.
#define SHARED_FROM 250000

// The steps of a call are handed out in so many pieces per thread: none waits long for another, also
// where chains do not divide by threads, or other programs want a core.
#define PIECES 8

// Whether a layer's sums over the batch are formed row by row: where they have many inputs (fewer
// with moments, which share the rows), and units enough to pay for the inputs in another order.
INLINE int row_by_row(const Layer *l, int moments) { return l->in >= (moments ? 48 : 128) && l->out >= 8; }

// What a layer leaves behind on its way forward and backward.
typedef struct {
    real *a, *aa;     // inputs and their squares: (inputs, stride)
    real *blocks;     // the inputs sample by sample, of a wide layer
    real *z, *slope;  // outputs, and f'(z) where it is kept: (outputs, stride)
    real *d, *dd;     // dl/dz, and its square; of a convolution its sum over positions: (out, stride)
    real *f;          // dl/dz of drawn labels, to which dd then belongs
} Pass;

typedef struct {
    atomic_int waiting, round;
} Barrier;

// One chain, on its way.
typedef struct {
    const Run *run;
    const Layer *layers;
    Pass *passes;
    int64_t chain, members, stride, vectors, first;  // first: the lowest layer that is trained
    int64_t *epoch, own_epoch, *rows;  // epoch: that of `order`
    int32_t *order;
    uint64_t *pairs;
    real *numbers;          // row of priors whose precision is worked out anew: (layer, 2, 4)
    real *loss, *largest, *total;
    double *parts;          // (member, 2): losses, squared residuals
    real variance;
    Barrier barrier;
} Team;

// One thread's own memory.
typedef struct {
    real *pack, *v, *d, *n;
    real *block, *gram, *scaled;  // of the unit-wise metric
    float *draws;
    real *sums[3];
    float *noise, *bias_noise;
    Active *active;
} Scratch;

// Carves arrays out of the workspace; with no workspace, only counts.
typedef struct {
    char *base;
    int64_t used;
} Arena;

static void *carve(Arena *arena, int64_t count, int64_t size) {
    char *const here = arena->base ? arena->base + arena->used : 0;
    arena->used += (count * size + 127) / 64 * 64;
    return here;
}

#define CARVE(ARENA, TYPE, COUNT) ((TYPE *)carve(ARENA, COUNT, sizeof(TYPE)))

INLINE int trained(const Layer *l) { return l->trainable[WEIGHT] || l->trainable[BIAS]; }

// A layer's values, with the row of zeros that the patches of a convolution reach over the edge.
static real *carve_values(Arena *arena, int64_t features, int64_t stride) {
    real *const values = CARVE(arena, real, (features + 1) * stride);
    if (arena->base) memset(values + features * stride, 0, stride * sizeof(real));
    return values;
}

static int needs_moments(const Run *run) { return run->metric >= DIAGONAL; }

static void carve_team(Arena *arena, Team *t, const Run *run, const Layer *layers) {
    memset(t, 0, sizeof *t);
    t->run = run, t->layers = layers;
    t->vectors = (run->batch + LANES - 1) / LANES, t->stride = row_stride(run->batch);
    t->passes = CARVE(arena, Pass, run->layers);
    t->order = CARVE(arena, int32_t, run->orders ? 0 : run->num_rows);
    t->pairs = CARVE(arena, uint64_t, 2 * run->num_rows);
    t->rows = CARVE(arena, int64_t, t->stride);
    t->numbers = CARVE(arena, real, run->layers * 2 * PRIOR_NUMBERS);
    t->loss = CARVE(arena, real, t->stride);
    t->largest = CARVE(arena, real, t->stride);
    t->total = CARVE(arena, real, t->stride);
    t->parts = CARVE(arena, double, 2 * run->threads);
    while (t->first < run->layers - 1 && !trained(layers + t->first)) ++t->first;
    real *a = carve_values(arena, layers[0].inputs, t->stride);
    for (int64_t k = 0; k < run->layers; ++k) {
        const Layer *l = layers + k;
        const int64_t in = l->in * t->stride, out = l->outputs * t->stride;
        const int linear = l->kind == LINEAR && run->metric != UNIT, moments = needs_moments(run);
        const int wide = linear && row_by_row(l, moments);
        Pass pass = {.a = a};
        if (linear && !wide && moments) pass.aa = CARVE(arena, real, in);
        if (wide) pass.blocks = CARVE(arena, real, padded(l->in) * run->batch);
        pass.z = carve_values(arena, l->outputs, t->stride);
        if (keeps_slope(l->activation)) pass.slope = CARVE(arena, real, out);
        pass.d = CARVE(arena, real, out);
        if (moments) pass.dd = CARVE(arena, real, l->out * t->stride);
        if (moments && run->model_targets) pass.f = CARVE(arena, real, out);
        a = pass.z;
        if (arena->base) t->passes[k] = pass;
    }
}

static void carve_scratch(Arena *arena, Scratch *s, const Run *run, const Layer *layers) {
    int64_t widest = 0, sums = 0, units = 0;
    for (int64_t k = 0; k < run->layers; ++k) {
        const int64_t chunk = chunk_of(layers[k].in);
        widest = most(widest, layers[k].in);
        sums = most(sums, chunk * padded(layers[k].in));
        units = most(units, chunk);
    }
    s->pack = CARVE(arena, real, DEPTH * ROWS);
    const int64_t moved = most(widest + 1, TOGETHER_WEIGHTS);
    s->v = CARVE(arena, real, moved);
    s->d = CARVE(arena, real, moved);
    s->n = CARVE(arena, real, moved);
    if (run->metric == UNIT) {
        s->block = CARVE(arena, real, (widest + 1) * (widest + 1));
        s->gram = CARVE(arena, real, widest * widest);
        s->scaled = CARVE(arena, real, widest * row_stride(run->batch));
    }
    if (run->model_targets)
        s->draws = CARVE(arena, float, run->batch * layers[run->layers - 1].outputs + 512);
    for (int k = 0; k < 3; ++k) s->sums[k] = CARVE(arena, real, sums);
    s->noise = CARVE(arena, float, sums + 512);
    s->bias_noise = CARVE(arena, float, units + 512);
    s->active = CARVE(arena, Active, units);
    for (int64_t u = 0; u < units; ++u) {
        int32_t *const row = CARVE(arena, int32_t, run->batch + 1);
        real *const delta = CARVE(arena, real, run->batch + 1);
        if (arena->base) s->active[u] = (Active){0, row, delta};
    }
}

// Waits for the whole team.
static void meet(Team *t) {
    if (t->members == 1) return;
    const int round = atomic_load_explicit(&t->barrier.round, memory_order_acquire);
    if (atomic_fetch_add(&t->barrier.waiting, 1) == t->members - 1) {
        atomic_store(&t->barrier.waiting, 0);
        atomic_store_explicit(&t->barrier.round, round + 1, memory_order_release);
        return;
    }
    for (int64_t spins = 0; atomic_load_explicit(&t->barrier.round, memory_order_acquire) == round;)
        if (++spins > 4096) sched_yield();  // somebody else needs this core
}

// Whether every step of a call has the same rows: a batch of all rows has no order to draw.
INLINE int same_rows(const Run *run) { return !run->shuffled || run->batch == run->num_rows; }

// Which data row every sample of this step's minibatch is; lanes past its end repeat the last one.
static void choose_rows(Team *t, int64_t step) {
    const Run *run = t->run;
    if (same_rows(run)) {
        const int64_t *const own = run->rows ? run->rows + t->chain * run->batch : 0;
        for (int64_t n = 0; n < run->batch; ++n) t->rows[n] = own ? own[n] : n;
    } else {
        const int64_t per_epoch = run->num_rows / run->batch, epoch = step / per_epoch;
        if (epoch != *t->epoch) {
            const Key key = stream_key(run->data_origin[t->chain], epoch);
            permutation(t->pairs, run->num_rows, key, t->order);
            *t->epoch = epoch;
        }
        const int64_t *const own = run->rows ? run->rows + t->chain * run->num_rows : 0;
        const int32_t *const order = t->order + step % per_epoch * run->batch;
        for (int64_t n = 0; n < run->batch; ++n) t->rows[n] = own ? own[order[n]] : order[n];
    }
    for (int64_t n = run->batch; n < t->vectors * LANES; ++n) t->rows[n] = t->rows[run->batch - 1];
}

// A normal-inverse-gamma prior pulls like a Gaussian of precision (alpha + d/2) / (beta + S/2).
static void settle_priors(Team *t, int64_t member) {
    for (int64_t k = 0; k < 2 * t->run->layers; ++k) {
        const Layer *l = t->layers + k / 2;
        const int tensor = k % 2;
        if (k % t->members != member || !l->trainable[tensor]) continue;
        const real *const given = l->prior_numbers[tensor] + t->chain * PRIOR_NUMBERS;
        real *const number = t->numbers + k * PRIOR_NUMBERS;
        for (int j = 0; j < PRIOR_NUMBERS; ++j) number[j] = given[j];
        if (l->prior[tensor] != NORMAL_INVERSE_GAMMA) continue;
        const int64_t count = tensor == WEIGHT ? l->in * l->out : l->out;
        const real *restrict theta = l->theta[tensor] + t->chain * count;
        const real *restrict each = l->centre[tensor];
        if (each) each += t->chain * count;
        const real centre = given[1];
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; ++i) {
            const double x = theta[i] - (each ? each[i] : centre);
            sum += x * x;
        }
        number[0] = (real)((given[2] + 0.5 * count) / (given[3] + 0.5 * sum));
    }
}

static const real *parameters(const Team *t, const Layer *l, int tensor) {
    if (!l->theta[tensor]) return 0;
    const int64_t count = tensor == WEIGHT ? l->in * l->out : l->out;
    return l->theta[tensor] + (l->trainable[tensor] ? t->chain * count : 0);
}

static void squares_of(const real *restrict x, real *restrict xx, int64_t rows, int64_t stride,
                       int64_t from, int64_t to) {
    for (int64_t k = 0; k < rows; ++k)
        for (int64_t n = k * stride + from; n < k * stride + to; ++n) xx[n] = x[n] * x[n];
}

// The inputs of layer k, as its moments want them.
static void keep_inputs(Team *t, int64_t k, int moments, int64_t from, int64_t to) {
    const Layer *l = t->layers + k;
    Pass *p = t->passes + k;
    if (!l->trainable[WEIGHT]) return;
    if (p->blocks && row_by_row(l, moments))
        as_blocks(p->a, l->in, t->stride, 1, from, least(to, t->run->batch), t->run->batch, p->blocks);
    else if (moments && p->aa)
        squares_of(p->a, p->aa, l->in, t->stride, from, to);
}

static void gather(Team *t, int64_t from, int64_t to) {
    const int64_t width = t->layers[0].inputs;
    for (int64_t n = from; n < to; n += LANES) {
        const real *rows[LANES];
        for (int64_t j = 0; j < LANES; ++j) rows[j] = t->run->x + t->rows[n + j] * width;
        as_columns(rows, width, t->passes[0].a + n, t->stride);
    }
}

// Inverted dropout behind hidden layer k, the draws of dynamics/dropout.py.
static void drop_units(Team *t, int64_t k, int64_t step, int64_t from, int64_t to) {
    const Run *run = t->run;
    const int64_t out = t->layers[k].out;
    const real keep = 1 - run->dropout[t->chain];
    const Key key = stream_key(run->mask_origin[t->chain], step);
    uint32_t first = 0;
    for (int64_t j = 0; j < k; ++j) first += (uint32_t)(run->batch * t->layers[j].out);
    for (int64_t o = 0; o < out; ++o) {
        real *restrict z = t->passes[k].z + o * t->stride;
        for (int64_t n = from; n < to; ++n) {
            const uint32_t place = first + (uint32_t)n * (uint32_t)out + (uint32_t)o;
            z[n] = (real)open_unit(random_bits(place, key)) <= keep ? z[n] / keep : 0;
        }
    }
}

// dl/dz of the last layer, in `d` or in `f`, goes down to the lowest layer that is trained.
static void send_back(Team *t, int drawn, int64_t v0, int64_t v1, real *pack) {
    const int64_t last = t->run->layers - 1, stride = t->stride, batch = t->run->batch;
    const int64_t from = v0 * LANES, to = v1 * LANES;
    for (int64_t k = last; k >= t->first && from < to; --k) {
        const Layer *l = t->layers + k;
        const Pass *p = t->passes + k;
        real *const d = drawn ? p->f : p->d;
        if (k < last) {
            const Pass *above = p + 1;
            layer_backward(l + 1, parameters(t, l + 1, WEIGHT), above->a, drawn ? above->f : above->d,
                           d, stride, v0, v1, pack);
        } else {
            for (int64_t o = 0; o < l->outputs; ++o)
                for (int64_t n = most(from, batch); n < to; ++n) d[o * stride + n] = 0;
        }
        differentiate(l->activation, d + from, p->z + from, offset(p->slope, from), l->outputs, stride,
                      to - from);
        const int dropped = t->run->mask_origin && k < last && l->activation != IDENTITY;
        for (int64_t o = 0; o < l->outputs && dropped; ++o)  // it is 0, where ReLU has no slope
            for (int64_t n = o * stride + from; n < o * stride + to; ++n)
                d[n] /= 1 - t->run->dropout[t->chain];
    }
}

// One member's samples through the network and back. `gathered`: whether its inputs are there since
// another step; `moments`: whether squares are needed.
static void evaluate(Team *t, int64_t member, Scratch *s, int64_t step, int gathered, int moments,
                     int back) {
    const Run *run = t->run;
    const int64_t v0 = t->vectors * member / t->members;
    const int64_t v1 = t->vectors * (member + 1) / t->members;
    const int64_t from = v0 * LANES, to = v1 * LANES, stride = t->stride, last = run->layers - 1;
    if (!gathered) gather(t, from, to);
    for (int64_t k = 0; k <= last && from < to; ++k) {
        const Layer *l = t->layers + k;
        const Pass *p = t->passes + k;
        if (back) keep_inputs(t, k, moments, from, to);
        layer_forward(l, parameters(t, l, WEIGHT), parameters(t, l, BIAS), p->a, p->z, stride, v0, v1);
        activate(l, p->z + from, offset(p->slope, from), l->outputs, stride, to - from);
        if (run->mask_origin && k < last) drop_units(t, k, step, from, to);
    }
    const Pass *p = t->passes + last;
    const int64_t outputs = t->layers[last].outputs;
    Outputs o = {.z = p->z, .d = p->d, .loss = t->loss, .largest = t->largest, .total = t->total,
                 .outputs = outputs, .stride = stride, .from = from, .to = least(to, run->batch),
                 .rows = t->rows, .variance = (real)run->variance};
    if (run->own && from < to) {
        const double u = (double)p->z[(outputs - 1) * stride + from];
        o.outputs = outputs - 1, o.own = p->d + (outputs - 1) * stride;
        o.variance = (real)exp(run->likelihood == NEGATIVE_BINOMIAL ? u : 2 * u);
    }
    if (run->learned_variance) {
        o.before = run->learned_variance[t->chain];
        t->parts[2 * member + 1] = squared_residuals(run, &o);
        meet(t);
        double sum = 0;
        for (int64_t m = 0; m < t->members; ++m) sum += t->parts[2 * m + 1];
        const real mean = (real)(sum / ((double)run->batch * outputs));
        const real rate = 1 / sqrt_((real)(step + 1));
        o.variance = mix(o.before, mean < (real)1e-12 ? (real)1e-12 : mean, rate);
        if (member == 0) t->variance = o.variance;
    }
    t->parts[2 * member] = losses(run, &o);
    if (!back) return;
    send_back(t, 0, v0, v1, s->pack);
    if (!moments) return;
    if (run->model_targets) {
        o.d = p->f;
        drawn_gradients(run, &o, stream_key(run->label_origin[t->chain], step), s->draws);
        send_back(t, 1, v0, v1, s->pack);
    }
    for (int64_t k = t->first; k <= last; ++k) {
        const Layer *l = t->layers + k;
        p = t->passes + k;
        if (l->kind == LINEAR || l->kind == APPEND)
            squares_of((p->f ? p->f : p->d) + own_rows(l) * stride, p->dd, l->out, stride, from, to);
        if (l->kind == CONVOLUTION) over_positions(l, p->f ? p->f : p->d, p->dd, stride, from, to);
    }
}

static Tensor tensor_of(const Team *t, int64_t k, int tensor) {
    const Layer *l = t->layers + k;
    const int64_t at = t->chain * (tensor == WEIGHT ? l->in * l->out : l->out);
    return (Tensor){
        .theta = l->theta[tensor] + at,
        .mean = offset(l->mean[tensor], at),
        .momentum = offset(l->momentum[tensor], at),
        .second = offset(l->second[tensor], at),
        .damping = l->damping[tensor][t->chain],
        .prior = t->numbers + (2 * k + tensor) * PRIOR_NUMBERS,
        .kind = l->prior[tensor],
        .centre = l->centre[tensor] ? l->centre[tensor] + at : 0,
    };
}

// Where the sums of a layer's units lie: one after the other, but for those that are written in blocks.
static Sums sums_at(const Team *t, int64_t k, int need, const Scratch *s) {
    const Layer *l = t->layers + k;
    const int blocks = t->passes[k].blocks && row_by_row(l, need);
    return (Sums){s->sums[0], s->sums[1], s->sums[2], blocks ? padded(l->in) : l->in};
}

// The sums over the batch of `units` units of a layer, from `unit` on.
static void sums_of(const Team *t, int64_t k, int64_t unit, int64_t units, int need, Scratch *s) {
    const Layer *l = t->layers + k;
    const Pass *p = t->passes + k;
    const int64_t at = unit * t->stride, batch = t->run->batch;
    const Sums sums = sums_at(t, k, need, s);
    if (l->kind == CONVOLUTION) {
        const real *const d = p->d + at * l->positions, *const f = offset(p->f, at * l->positions);
        const real *const total = need ? p->dd + at : p->d;
        if (f && need >= SECOND) {  // as below
            convolution_sums(l, units, need, f, total, p->a, t->stride, t->vectors, sums);
            need = GRADIENT;
        }
        convolution_sums(l, units, need, d, total, p->a, t->stride, t->vectors, sums);
        return;
    }
    if (!p->blocks || !row_by_row(l, need)) {
        inner_products(units, l->in, need, p->d + at, need ? p->dd + at : p->d, p->a,
                       need ? p->aa : p->a, t->stride, t->vectors, sums);
        return;
    }
    if (p->f && need >= SECOND) {  // moments of drawn labels, then the gradient of the data's own
        list_active(p->f + at, t->stride, 1, units, batch, 1, s->active);
        outer_products(units, l->in, batch, need, s->active, p->blocks, sums);
        need = GRADIENT;
    }
    list_active(p->d + at, t->stride, 1, units, batch, 1, s->active);
    outer_products(units, l->in, batch, need, s->active, p->blocks, sums);
}

// The sums over the batch of a unit's bias: the gradient's, and (`second` not NULL) the square's.
static void bias_sums(const Team *t, int64_t k, int64_t unit, real *gradient, real *second) {
    const Pass *p = t->passes + k;
    const int64_t stride = t->stride, positions = t->layers[k].positions;
    for (int64_t j = 0; j < positions; ++j)
        *gradient += row_sum(p->d + (own_rows(t->layers + k) + unit * positions + j) * stride,
                             t->vectors);
    if (!second) return;
    const real *const row = p->dd + unit * stride;
    *second = t->layers[k].kind == CONVOLUTION ? square_sum(row, t->vectors) : row_sum(row, t->vectors);
}

// The units from ... to of layer k.
static void update_units(Team *t, int64_t k, int64_t from, int64_t to, const Rates *r, Key key,
                         Scratch *s) {
    const Layer *l = t->layers + k;
    const Pass *p = t->passes + k;
    Tensor weight = {0}, bias = {0};
    if (l->trainable[WEIGHT]) weight = tensor_of(t, k, WEIGHT);
    if (l->trainable[BIAS]) bias = tensor_of(t, k, BIAS);
    real *const cross = offset(l->cross, t->chain * l->in * l->out);
    const int moments = needs_moments(t->run) && r->gamma > 0;
    const int unitwise = t->run->metric == UNIT && l->kind != APPEND;
    const int need = !moments || unitwise ? GRADIENT : cross ? SECOND_AND_CROSS : SECOND;
    const Sums sums = sums_at(t, k, need, s);
    const int64_t chunk = chunk_of(l->in), width = sums.width;
    const int64_t together = unitwise || width != l->in ? 1 : moved_together(l->in);
    for (int64_t unit = from; unit < to; unit += chunk) {
        const int64_t units = least(chunk, to - unit), at = unit * t->stride;
        const float *z = s->noise, *z_bias = s->bias_noise;
        if (r->noise == 0) {
            memset(s->noise, 0, units * l->in * sizeof(float));
            memset(s->bias_noise, 0, units * sizeof(float));
        } else {
            if (l->trainable[WEIGHT])
                z = normals(s->noise, (uint32_t)(l->start[WEIGHT] + unit * l->in), units * l->in, key);
            if (l->trainable[BIAS])
                z_bias = normals(s->bias_noise, (uint32_t)(l->start[BIAS] + unit), units, key);
        }
        if (l->trainable[WEIGHT]) sums_of(t, k, unit, units, need, s);
        for (int64_t u = 0, some; u < units; u += some) {
            some = least(together, units - u);
            real gradient[TOGETHER_UNITS] = {0}, second[TOGETHER_UNITS] = {0};
            for (int64_t j = 0; j < some && l->trainable[BIAS]; ++j)
                bias_sums(t, k, unit + u + j, gradient + j, moments ? second + j : 0);
            const Sums own = {sums.gradient + u * width, sums.second + u * width,
                              sums.cross + u * width, width};
            const Sums of_bias = {gradient, second, 0, 1};
            if (unitwise) {
                const int64_t size = l->in + l->trainable[BIAS];
                const UnitInputs inputs = {p->a, p->dd + at + u * t->stride, l->in, t->stride,
                                           t->vectors};
                update_block(r, unit + u, &inputs, &weight, l->trainable[BIAS] ? &bias : 0,
                             l->blocks + (t->chain * l->out + unit + u) * size * size,
                             own.gradient, gradient, z + u * l->in, z_bias + u, s->v, s->d, s->n,
                             s->block, s->gram, s->scaled);
                continue;
            }
            update_some(r, unit + u, some, l->in, l->trainable[WEIGHT] ? &weight : 0,
                        l->trainable[BIAS] ? &bias : 0, cross, &own, &of_bias, z + u * l->in,
                        z_bias + u, s->v, s->d, s->n);
        }
    }
}

static Rates rates_of(const Team *t, int64_t s) {
    const Run *run = t->run;
    const int64_t chain = t->chain, row = s * run->step_stride;
    const real eta = run->step_size[row + chain], friction = run->friction ? run->friction[chain] : 1;
    const real gamma = run->decay[row];
    const real keep = 1 - friction, share = run->baoab ? (1 - keep * keep) / 2 : friction;
    return (Rates){
        .eta = eta,
        .noise = sqrt_(2 * share * eta * run->temperature[chain] / run->num_data[chain]),
        .gamma = gamma,
        .mu = run->mean_rate ? run->mean_rate[row] : 0,
        .share = 1 / (real)run->batch,
        .moments = 1 / (real)run->batch,
        .per_data = 1 / run->num_data[chain],
        .keep = keep,
        .baoab = (int)run->baoab,
        .metric = run->metric,
        .use = gamma <= 0 ? STANDING : run->fresh || run->start + s == 0 ? NEW : OLD,
    };
}

// Steps from ... to of this call, of one chain; every member of its team calls this.
static void advance(Team *t, int64_t member, Scratch *s, int64_t from, int64_t to) {
    const Run *run = t->run;
    if (member == 0) {
        t->own_epoch = -1, t->epoch = &t->own_epoch;
        if (run->orders) {
            t->order = run->orders + t->chain * run->num_rows;
            t->epoch = run->epochs + t->chain;
        }
        choose_rows(t, run->start + from);
    }
    meet(t);
    int gathered = 0;
    for (int64_t k = from; k < to; ++k) {
        const int64_t step = run->start + k;
        const int stopped = run->diverged[t->chain] >= 0, final = k == run->count - 1;
        const Rates r = rates_of(t, k);
        if (!stopped || final) {
            if (!stopped) settle_priors(t, member);
            evaluate(t, member, s, step, gathered, needs_moments(run) && r.gamma > 0, !stopped);
            gathered = same_rows(run);
        }
        meet(t);
        double sum = 0;
        for (int64_t m = 0; m < t->members; ++m) sum += t->parts[2 * m];
        const real loss = (real)(sum / run->batch);
        const int moves = !stopped && isfinite((float)loss);  // also of doubles: see still_running
        const Key key = stream_key(run->noise_origin[t->chain], step);
        for (int64_t l = t->first; l < run->layers && moves; ++l) {
            const int64_t out = t->layers[l].out;
            if (trained(t->layers + l))
                update_units(t, l, out * member / t->members, out * (member + 1) / t->members, &r,
                             key, s);
        }
        meet(t);
        if (member == 0) {
            if (final) run->loss[t->chain] = loss;
            if (moves && run->learned_variance) run->learned_variance[t->chain] = t->variance;
            if (!stopped && !moves) run->diverged[t->chain] = step;
            if (k + 1 < to && !same_rows(run)) choose_rows(t, step + 1);
        }
        meet(t);
    }
}

// The threads of one call. Whole chains are advanced piece by piece, all chains by a piece and then
// by the next; chains that are left over, in common.
typedef struct {
    const Run *run;
    Team *teams, *common;
    Scratch *scratch;
    atomic_llong next;
    atomic_llong *done;  // (chain): pieces
    atomic_int threads;  // 0 until it is known how many could be started
    int shared;          // whether chains that are left over are worth a team
} Crew;

typedef struct {
    Crew *crew;
    int64_t number;
    pthread_t thread;
} Worker;

static void *work(void *argument) {
    Worker *const w = argument;
    Crew *const crew = w->crew;
    const Run *run = crew->run;
    Scratch *const scratch = crew->scratch + w->number;
    const uint64_t mode = flush_small();
    while (!atomic_load(&crew->threads)) sched_yield();
    const int64_t threads = crew->threads, left_over = run->chains % threads;
    const int in_common = crew->shared && (run->chains < threads || run->count == 1);
    const int64_t alone = run->chains - (in_common ? left_over : 0);
    int64_t pieces = 1;
    if (alone && threads > 1 && (run->orders || !run->shuffled))
        pieces = least(run->count, (PIECES * threads + alone - 1) / alone);
    Team *const own = crew->teams + w->number;
    for (int64_t task; (task = atomic_fetch_add(&crew->next, 1)) < alone * pieces;) {
        const int64_t piece = task / alone, chain = task % alone;
        while (atomic_load(crew->done + chain) < piece) sched_yield();
        own->chain = chain, own->members = 1;
        advance(own, 0, scratch, run->count * piece / pieces, run->count * (piece + 1) / pieces);
        atomic_fetch_add(crew->done + chain, 1);
    }
    for (int64_t chain = alone; chain < run->chains; ++chain) {
        if (w->number == 0) crew->common->chain = chain;  // read behind the barrier below
        meet(crew->common);
        advance(crew->common, w->number, scratch, 0, run->count);
        meet(crew->common);
    }
    set_rounding_mode(mode);
    return 0;
}

static void prepare(Arena *arena, Crew *crew, const Run *run, const Layer *layers) {
    crew->run = run;
    crew->teams = CARVE(arena, Team, run->threads + 1);
    crew->scratch = CARVE(arena, Scratch, run->threads);
    crew->done = CARVE(arena, atomic_llong, run->chains);
    for (int64_t k = 0; k < run->chains && arena->base; ++k) atomic_init(crew->done + k, 0);
    for (int64_t k = 0; k <= run->threads; ++k) {
        Team unused;
        carve_team(arena, arena->base ? crew->teams + k : &unused, run, layers);
    }
    for (int64_t k = 0; k < run->threads; ++k) {
        Scratch unused;
        carve_scratch(arena, arena->base ? crew->scratch + k : &unused, run, layers);
    }
    crew->common = crew->teams + run->threads;
    double work = 0;
    for (int64_t k = 0; k < run->layers; ++k)
        work += (double)layers[k].in * layers[k].outputs;
    crew->shared = work * run->batch >= SHARED_FROM;
}

int64_t workspace_bytes(const Run *run, const Layer *layers) {
    Arena arena = {0, 0};
    Crew crew;
    prepare(&arena, &crew, run, layers);
    return arena.used + 128;
}

// All chains through `count` steps.
void run_steps(const Run *run, const Layer *layers) {
    Arena arena = {(char *)(((uintptr_t)run->workspace + 63) / 64 * 64), 0};
    Crew crew = {0};
    prepare(&arena, &crew, run, layers);
    Worker workers[run->threads];
    for (int64_t k = 0; k < run->threads; ++k) workers[k] = (Worker){&crew, k, 0};
    int64_t started = 1;
    const int64_t useful = crew.shared ? run->threads : least(run->threads, run->chains);
    while (started < useful &&
           !pthread_create(&workers[started].thread, 0, work, workers + started))
        ++started;
    crew.common->members = started;
    atomic_store(&crew.threads, (int)started);
    work(workers);
    for (int64_t k = 1; k < started; ++k) pthread_join(workers[k].thread, 0);
}

// Of what Python hands over (layout.py).
int64_t layout_bytes(int64_t which) {
    return (const int64_t[]){sizeof(Run), sizeof(Layer), sizeof(LinearUpdate), sizeof(SampleSums)}[which];
}
int64_t real_bytes(void) { return sizeof(real); }

// The draws themselves, for tests.
void draw_normals(int64_t origin, int64_t step, int64_t first, int64_t count, float *room, float *out) {
    memcpy(out, normals(room, (uint32_t)first, count, stream_key(origin, step)), count * sizeof(float));
}

// The normals of a stream by its key, for general steps (see build.py).
void key_normals(int64_t first_word, int64_t second_word, int64_t first, int64_t count, float *room, float *out) {
    const Key key = {(uint32_t)first_word, (uint32_t)second_word};
    memcpy(out, normals(room, (uint32_t)first, count, key), count * sizeof(float));
}
