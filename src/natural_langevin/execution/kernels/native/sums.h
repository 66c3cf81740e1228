// Sums over samples of per-sample gradients, for networks whose passes are torch's: of a linear map at
// several positions of a sample, and of a convolution, whose patches a table lists (convolution.h).
//
//     sum_n G_n^2,    sum_n G_n,    sum_n b_n G_n         G_n = sum_p D_np A_np^T
//
// No G_n is written. A tile of it, some rows of vectors, is held in registers until all positions of a
// sample are in, and then added to the sums. Vectors are of neighbours in memory: of a linear map inputs,
// of a convolution units, whose rows are what a patch has.

#ifndef NATURAL_LANGEVIN_SUMS_H
#define NATURAL_LANGEVIN_SUMS_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "products.h"

#if defined(__AVX__) && !defined(__AVX512F__)
#define SUM_ROWS 6
#else
#define SUM_ROWS 12
#endif
#define SUM_VECTORS 2
#define SUM_WIDTH (SUM_VECTORS * LANES)
// Rows of a piece of work: their sums stay in the cache.
#define SUM_BLOCK 72

// What Python hands over (execution/kernels/cpu_sums.py), all fields eight bytes wide.
typedef struct {
    int64_t chains, batch, out, in, inputs, positions;
    int64_t apart;          // numbers between the inputs of two chains; 0: all have the same
    const real *a, *delta;  // (chain, batch, inputs), (chain, batch, position, out)
    const real *bias;       // b: (chain, batch, out), NULL: none
    // Of a convolution, whose delta is (chain, batch, out, position): which of the inputs a patch has,
    // (position, in); number `inputs` is zero. Of a linear map, whose inputs are (position, in), NULL.
    const int32_t *table;
    real *sums[3];  // (chain, out, in)
} SampleSums;

// A few rows of one sample's G, added to its sums, (sum, row, lane). A row's numbers lie at d, d_row apart,
// or where the table says.
INLINE void tile_sums(int rows, int64_t positions, const real *d, int64_t d_row, const int32_t *table,
                      const real *x, int64_t x_row, const real *bias, real *sums, int64_t apart) {
    vector g[SUM_ROWS][SUM_VECTORS];
    const int patches = table != 0;
#pragma GCC unroll 16
    for (int k = 0; k < rows; ++k)
#pragma GCC unroll 2
        for (int v = 0; v < SUM_VECTORS; ++v) g[k][v] = (vector){0};
    for (int64_t p = 0; p < positions; ++p, x += x_row) {
        vector in[SUM_VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < SUM_VECTORS; ++v) in[v] = load(x + v * LANES);
#pragma GCC unroll 16
        for (int k = 0; k < rows; ++k)
#pragma GCC unroll 2
            for (int v = 0; v < SUM_VECTORS; ++v) g[k][v] += in[v] * d[patches ? table[k] : k];
        if (patches)
            table += d_row;
        else
            d += d_row;
    }
#pragma GCC unroll 16
    for (int k = 0; k < rows; ++k)
#pragma GCC unroll 2
        for (int v = 0; v < SUM_VECTORS; ++v) {
            real *const at = sums + k * SUM_WIDTH + v * LANES;
            const vector one = g[k][v];
            store(at, load(at) + one * one);
            store(at + apart, load(at + apart) + one);
            if (!bias) continue;
            const vector b = patches ? load(bias + v * LANES) : (vector){0} + bias[k];
            store(at + 2 * apart, load(at + 2 * apart) + one * b);
        }
}

static void block_sums(int64_t rows, int64_t positions, const real *d, int64_t d_row, const int32_t *table,
                       const real *x, int64_t x_row, const real *bias, real *sums) {
    const int64_t apart = SUM_BLOCK * SUM_WIDTH;
    for (int64_t k = 0, some; k < rows; k += some) {
        some = several(SUM_ROWS, rows - k);
        real *const own = sums + k * SUM_WIDTH;
        const real *const b = bias && !table ? bias + k : bias;
        if (table && some > 1)
            tile_sums(SUM_ROWS, positions, d, d_row, table + k, x, x_row, b, own, apart);
        else if (table)
            tile_sums(1, positions, d, d_row, table + k, x, x_row, b, own, apart);
        else if (some > 1)
            tile_sums(SUM_ROWS, positions, d + k, d_row, 0, x, x_row, b, own, apart);
        else
            tile_sums(1, positions, d + k, d_row, 0, x, x_row, b, own, apart);
    }
}

// Pieces of work: blocks of rows and of vectors.
typedef struct {
    int64_t chain, row, rows, lane, lanes;
} Piece;

INLINE int64_t parts(int64_t count, int64_t size) { return (count + size - 1) / size; }

static int64_t sums_pieces(const SampleSums *s) {
    const int64_t rows = s->table ? s->in : s->out, lanes = s->table ? s->out : s->in;
    return s->chains * parts(rows, SUM_BLOCK) * parts(lanes, SUM_WIDTH);
}

static Piece sums_piece(const SampleSums *s, int64_t number) {
    const int64_t rows = s->table ? s->in : s->out, lanes = s->table ? s->out : s->in;
    const int64_t across = parts(lanes, SUM_WIDTH), down = parts(rows, SUM_BLOCK);
    const int64_t row = number / across % down * SUM_BLOCK, lane = number % across * SUM_WIDTH;
    return (Piece){number / across / down, row, least(SUM_BLOCK, rows - row), lane,
                   least(SUM_WIDTH, lanes - lane)};
}

// A thread's own memory: sums, what vectors are made of, and a bias's.
static int64_t sums_room(const SampleSums *s) {
    return (3 * SUM_BLOCK + s->positions + 1) * SUM_WIDTH;
}

// Numbers of a sample as a convolution reads it, with the zero behind them.
INLINE int64_t sample_size(const SampleSums *s) { return s->inputs + 1; }

// A linear map: inputs as they lie, or where they are few with zeros behind.
static void map_sums(const SampleSums *s, Piece piece, real *room) {
    const int64_t T = s->positions, whole = piece.lanes == SUM_WIDTH, first = piece.chain * s->batch;
    real *const packed = room + 3 * SUM_BLOCK * SUM_WIDTH;
    if (!whole) memset(packed, 0, T * SUM_WIDTH * sizeof(real));
    for (int64_t n = 0; n < s->batch; ++n) {
        const real *const x = s->a + piece.chain * s->apart + n * s->inputs + piece.lane;
        for (int64_t p = 0; p < T && !whole; ++p)
            memcpy(packed + p * SUM_WIDTH, x + p * s->in, piece.lanes * sizeof(real));
        block_sums(piece.rows, T, s->delta + (first + n) * T * s->out + piece.row, s->out, 0,
                   whole ? x : packed, whole ? s->in : SUM_WIDTH,
                   s->bias ? s->bias + (first + n) * s->out + piece.row : 0, room);
    }
}

// A convolution, from its padded samples `a`: units side by side.
static void patch_sums(const SampleSums *s, Piece piece, const real *a, real *room) {
    const int64_t T = s->positions, first = piece.chain * s->batch;
    real *const packed = room + 3 * SUM_BLOCK * SUM_WIDTH, *const bias = packed + T * SUM_WIDTH;
    memset(packed, 0, (T + 1) * SUM_WIDTH * sizeof(real));
    for (int64_t n = 0; n < s->batch; ++n) {
        const real *const delta = s->delta + ((first + n) * s->out + piece.lane) * T;
        for (int64_t u = 0; u < piece.lanes; ++u)
            for (int64_t p = 0; p < T; ++p) packed[p * SUM_WIDTH + u] = delta[u * T + p];
        if (s->bias)
            memcpy(bias, s->bias + (first + n) * s->out + piece.lane, piece.lanes * sizeof(real));
        block_sums(piece.rows, T, a + n * sample_size(s), s->in, s->table + piece.row, packed, SUM_WIDTH,
                   s->bias ? bias : 0, room);
    }
}

static void write_sums(const SampleSums *s, Piece piece, const real *room) {
    const int64_t step = s->table ? s->in : 1, row = s->table ? 1 : s->in;  // of lanes and of rows
    const int64_t at = piece.chain * s->out * s->in + piece.row * row + piece.lane * step;
    for (int j = 0; j < 3; ++j, room += SUM_BLOCK * SUM_WIDTH)
        for (int64_t k = 0; k < piece.rows && s->sums[j]; ++k)
            for (int64_t v = 0; v < piece.lanes; ++v)
                s->sums[j][at + k * row + v * step] = room[k * SUM_WIDTH + v];
}

// Threads take pieces until none is left.
typedef struct {
    const SampleSums *s;
    int64_t samples, pieces;  // how many there are; samples: to be padded
    real *padded, *rooms;     // rooms: of every thread
    atomic_llong room, sample, ready, piece;
} SumsCrew;

static void *sums_work(void *argument) {
    SumsCrew *const crew = argument;
    const SampleSums *const s = crew->s;
    const uint64_t mode = flush_small();
    for (int64_t n; (n = atomic_fetch_add(&crew->sample, 1)) < crew->samples;) {
        real *const own = crew->padded + n * sample_size(s);
        memcpy(own, s->a + n * s->inputs, s->inputs * sizeof(real));
        own[s->inputs] = 0;
        atomic_fetch_add(&crew->ready, 1);
    }
    while (atomic_load(&crew->ready) < crew->samples) sched_yield();
    real *const room = crew->rooms + sums_room(s) * atomic_fetch_add(&crew->room, 1);
    for (int64_t number; (number = atomic_fetch_add(&crew->piece, 1)) < crew->pieces;) {
        const Piece piece = sums_piece(s, number);
        memset(room, 0, 3 * SUM_BLOCK * SUM_WIDTH * sizeof(real));
        if (s->table)
            patch_sums(s, piece, crew->padded + (s->apart ? piece.chain : 0) * s->batch * sample_size(s), room);
        else
            map_sums(s, piece, room);
        write_sums(s, piece, room);
    }
    set_rounding_mode(mode);
    return 0;
}

// Products that a thread does in the time it takes to start one, and some more.
#define SUMS_SHARE 4000000

// 0, or 1 where there was no memory.
int64_t sample_sums(const SampleSums *s, int64_t threads) {
    const double products = (double)s->chains * s->batch * s->positions * s->out * s->in;
    SumsCrew crew = {.s = s, .pieces = sums_pieces(s)};
    if (s->table) crew.samples = (s->apart ? s->chains : 1) * s->batch;
    threads = most(1, least(least(threads, crew.pieces), (int64_t)(products / SUMS_SHARE)));
    crew.rooms = malloc((threads * sums_room(s) + crew.samples * sample_size(s)) * sizeof(real));
    if (!crew.rooms) return 1;
    crew.padded = crew.rooms + threads * sums_room(s);
    pthread_t others[threads];
    int64_t started = 1;
    while (started < threads && !pthread_create(others + started, 0, sums_work, &crew)) ++started;
    sums_work(&crew);
    for (int64_t k = 1; k < started; ++k) pthread_join(others[k], 0);
    free(crew.rooms);
    return 0;
}

int64_t sums_bytes(void) { return sizeof(SampleSums); }

#endif
