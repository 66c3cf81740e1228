// Outputs alone, of many networks: what predictions are made of.

#ifndef NATURAL_LANGEVIN_FORWARD_H
#define NATURAL_LANGEVIN_FORWARD_H

#include <pthread.h>
#include <stdatomic.h>

#include "layer.h"
#include "noise.h"

// Samples that go through a network together.
#define SPAN (4 * FORWARD_VECTORS * LANES)

typedef struct {
    const Run *run;      // chains: networks, batch: samples
    const Layer *layers;
    int64_t own, parts;  // own: whether every network has samples of its own
    real *out;           // (network, sample, output)
    int64_t each;        // numbers of a thread's own memory
    atomic_llong next, threads;
} Forward;

// Of a thread's own memory: two layers' values, each with a row of zeros, and a row of slopes.
static int64_t forward_numbers(const Run *run, const Layer *layers) {
    int64_t widest = layers[0].inputs;
    for (int64_t k = 0; k < run->layers; ++k)
        if (layers[k].outputs > widest) widest = layers[k].outputs;
    return (2 * (widest + 1) + 1) * SPAN;
}

// Samples first ... first + SPAN of one network.
static void forward_part(const Forward *f, int64_t network, int64_t first, real *memory) {
    const Run *run = f->run;
    const int64_t count = least(SPAN, run->batch - first), width = f->layers[0].inputs;
    const int64_t vectors = (count + LANES - 1) / LANES, half = (f->each - SPAN) / 2;
    const real *const x = run->x + (f->own ? network * run->batch : 0) * width;
    real *a = memory, *z = memory + half, *const slope = memory + 2 * half;
    for (int64_t n = 0; n < vectors * LANES; n += LANES) {
        const real *rows[LANES];
        for (int64_t j = 0; j < LANES; ++j) rows[j] = x + least(first + n + j, run->batch - 1) * width;
        as_columns(rows, width, a + n, SPAN);
    }
    const Layer *l = f->layers;
    for (int64_t k = 0; k < run->layers; ++k, ++l) {
        const real *const w = l->theta[WEIGHT], *const b = l->theta[BIAS];
        memset(a + l->inputs * SPAN, 0, SPAN * sizeof(real));
        layer_forward(l, w && l->trainable[WEIGHT] ? w + network * l->in * l->out : w,
                      b && l->trainable[BIAS] ? b + network * l->out : b, a, z, SPAN, 0, vectors);
        for (int64_t o = 0; o < l->outputs; ++o) activate(l, z + o * SPAN, slope, 1, SPAN, vectors * LANES);
        real *const other = a;
        a = z, z = other;
    }
    const int64_t outputs = l[-1].outputs;
    real *out = f->out + (network * run->batch + first) * outputs;
    for (int64_t n = 0; n < count; ++n)
        for (int64_t o = 0; o < outputs; ++o) *out++ = a[o * SPAN + n];
}

static void *forward_work(void *argument) {
    Forward *const f = argument;
    real *const memory = (real *)f->run->workspace + atomic_fetch_add(&f->threads, 1) * f->each;
    const uint64_t mode = flush_small();
    for (int64_t task; (task = atomic_fetch_add(&f->next, 1)) < f->run->chains * f->parts;)
        forward_part(f, task / f->parts, task % f->parts * SPAN, memory);
    set_rounding_mode(mode);
    return 0;
}

int64_t forward_bytes(const Run *run, const Layer *layers) {
    return run->threads * forward_numbers(run, layers) * sizeof(real);
}

// Every network's outputs.
void network_outputs(const Run *run, const Layer *layers, int64_t own, real *out) {
    Forward f = {.run = run, .layers = layers, .own = own, .out = out,
                 .parts = (run->batch + SPAN - 1) / SPAN, .each = forward_numbers(run, layers)};
    const int64_t useful = least(run->threads, run->chains * f.parts);
    pthread_t threads[run->threads];
    int64_t started = 0;
    while (started < useful - 1 && !pthread_create(threads + started, 0, forward_work, &f)) ++started;
    forward_work(&f);
    for (int64_t k = 0; k < started; ++k) pthread_join(threads[k], 0);
}

#endif
