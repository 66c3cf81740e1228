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


#include "products.h"
#include "threads.h"

#if defined(__AVX__) && !defined(__AVX512F__)
#define SUM_ROWS 6
#else
#define SUM_ROWS 12
#endif
#define SUM_VECTORS 2
// Rows of a piece of work, at most: their sums stay in the cache. Of a convolution, whose every piece
// puts its vectors side by side, more.
#define SUM_BLOCK 72
#define PATCH_BLOCK 288

// What Python hands over (layout.py), all fields eight bytes wide.
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

// A few rows of one sample's G, as a tile needs them.
typedef struct {
    int64_t positions;
    const real *d;         // the rows' numbers, d_row apart from position to position ...
    int64_t d_row;
    const int32_t *table;  // ... or where the table says
    const real *x;         // vectors
    int64_t x_row;
    const real *bias;      // b of the lanes, or of the rows; NULL: none
    int bias_of_rows;
    real *sums;            // (sum, row, lane)
    int64_t apart;         // from sum to sum
} Rows;

// They are added to their sums.
INLINE void tile_sums(int rows, int vectors, int patches, const Rows *r, int64_t row) {
    vector g[SUM_ROWS][SUM_VECTORS];
#pragma GCC unroll 16
    for (int k = 0; k < rows; ++k)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) g[k][v] = (vector){0};
    const real *x = r->x, *d = patches ? r->d : r->d + row;
    const int32_t *table = patches ? r->table + row : 0;
    const int64_t positions = r->positions, x_row = r->x_row, d_row = r->d_row;
    for (int64_t p = 0; p < positions; ++p, x += x_row) {
        vector in[SUM_VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) in[v] = load(x + v * LANES);
#pragma GCC unroll 16
        for (int k = 0; k < rows; ++k)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; ++v) g[k][v] += in[v] * d[patches ? table[k] : k];
        if (patches)
            table += d_row;
        else
            d += d_row;
    }
    real *sums = r->sums + row * vectors * LANES;
    const real *const bias = r->bias;
    const int64_t apart = r->apart, of_rows = r->bias_of_rows;
#pragma GCC unroll 16
    for (int k = 0; k < rows; ++k)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v, sums += LANES) {
            const vector one = g[k][v];
            store(sums, load(sums) + one * one);
            store(sums + apart, load(sums + apart) + one);
            if (!bias) continue;
            const vector b = of_rows ? (vector){0} + bias[row + k] : load(bias + v * LANES);
            store(sums + 2 * apart, load(sums + 2 * apart) + one * b);
        }
}

// Tiles of few sizes: each is a function to compile.
#define SUMS_OF(R) \
    case R: \
        if (vectors == 1 && patches) tile_sums(R, 1, 1, r, row); \
        if (vectors == 1 && !patches) tile_sums(R, 1, 0, r, row); \
        if (vectors == 2 && patches) tile_sums(R, 2, 1, r, row); \
        if (vectors == 2 && !patches) tile_sums(R, 2, 0, r, row); \
        break;

static void block_sums(const Rows *r, int64_t rows, int64_t vectors) {
    const int patches = r->table != 0;
    for (int64_t row = 0, some; row < rows; row += some) {
        const int64_t left = rows - row;
        some = left >= SUM_ROWS ? SUM_ROWS : left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        switch (some) {
#if SUM_ROWS == 12
            SUMS_OF(12) SUMS_OF(8)
#else
            SUMS_OF(6)
#endif
            SUMS_OF(4) SUMS_OF(2) SUMS_OF(1)
        }
    }
}

INLINE int64_t parts(int64_t count, int64_t size) { return (count + size - 1) / size; }

// How the work is cut: vectors are of units or of inputs, rows are the other ones. The same sums
// whatever the cut is.
typedef struct {
    int of_units;
    int64_t rows, lanes;            // there are
    int64_t vectors, width, block;  // of a piece: vectors, their lanes, and rows
} Cut;

// Lanes that so many fill, some of them with nothing.
INLINE int64_t sum_lanes(int64_t count) {
    const int64_t width = count > LANES ? SUM_VECTORS * LANES : LANES;
    return parts(count, width) * width;
}

static Cut sums_cut(const SampleSums *s, int64_t threads) {
    Cut c;
    c.of_units = s->table || sum_lanes(s->out) * s->in < sum_lanes(s->in) * s->out;
    c.rows = c.of_units ? s->in : s->out, c.lanes = c.of_units ? s->out : s->in;
    c.vectors = c.lanes > LANES ? SUM_VECTORS : 1, c.width = c.vectors * LANES;
    const int64_t others = s->chains * parts(c.lanes, c.width);
    const int64_t blocks = most(parts(c.rows, s->table ? PATCH_BLOCK : SUM_BLOCK), parts(threads, others));
    c.block = parts(parts(c.rows, blocks), SUM_ROWS) * SUM_ROWS;
    return c;
}

static int64_t sums_pieces(const SampleSums *s, const Cut *c) {
    return s->chains * parts(c->rows, c->block) * parts(c->lanes, c->width);
}

// A piece of work: some rows and some lanes.
typedef struct {
    int64_t chain, row, rows, lane, lanes;
} Piece;

static Piece sums_piece(const Cut *c, int64_t number) {
    const int64_t across = parts(c->lanes, c->width), down = parts(c->rows, c->block);
    const int64_t row = number / across % down * c->block, lane = number % across * c->width;
    return (Piece){number / across / down, row, least(c->block, c->rows - row), lane,
                   least(c->width, c->lanes - lane)};
}

// A thread's own memory: sums, what vectors are made of, and a bias's.
static int64_t sums_room(const SampleSums *s, const Cut *c) {
    return (3 * c->block + s->positions + 1) * c->width;
}

// Numbers of a sample as a convolution reads it, with the zero behind them.
INLINE int64_t sample_size(const SampleSums *s) { return s->inputs + 1; }

typedef real four __attribute__((vector_size(4 * sizeof(real))));
typedef real four_anywhere __attribute__((vector_size(4 * sizeof(real)), aligned(sizeof(real)), may_alias));

// (lane, position) as (position, lane), four by four.
static void side_by_side(const real *from, int64_t lanes, int64_t positions, int64_t width, real *to) {
    const int64_t most_lanes = lanes / 4 * 4, most_positions = positions / 4 * 4;
    for (int64_t p = 0; p < most_positions; p += 4)
        for (int64_t u = 0; u < most_lanes; u += 4) {
            four row[4];
            for (int k = 0; k < 4; ++k) row[k] = *(const four_anywhere *)(from + (u + k) * positions + p);
            const four a = {row[0][0], row[1][0], row[0][1], row[1][1]};
            const four b = {row[2][0], row[3][0], row[2][1], row[3][1]};
            const four c = {row[0][2], row[1][2], row[0][3], row[1][3]};
            const four d = {row[2][2], row[3][2], row[2][3], row[3][3]};
            const four column[4] = {{a[0], a[1], b[0], b[1]}, {a[2], a[3], b[2], b[3]},
                                    {c[0], c[1], d[0], d[1]}, {c[2], c[3], d[2], d[3]}};
            for (int k = 0; k < 4; ++k) *(four_anywhere *)(to + (p + k) * width + u) = column[k];
        }
    for (int64_t u = 0; u < lanes; ++u)
        for (int64_t p = u < most_lanes ? most_positions : 0; p < positions; ++p)
            to[p * width + u] = from[u * positions + p];
}

// The sums of a piece, (sum, row, lane), from its samples: a convolution's are padded.
static void piece_sums(const SampleSums *s, const Cut *c, Piece piece, const real *a, real *room) {
    const int64_t T = s->positions, whole = piece.lanes == c->width, first = piece.chain * s->batch;
    real *const packed = room + 3 * c->block * c->width, *const bias = packed + T * c->width;
    memset(room, 0, sums_room(s, c) * sizeof(real));
    Rows r = {.positions = T, .sums = room, .apart = c->block * c->width, .bias_of_rows = !c->of_units};
    for (int64_t n = 0; n < s->batch; ++n) {
        const real *const delta = s->delta + (first + n) * T * s->out;
        const real *const b = s->bias ? s->bias + (first + n) * s->out : 0;
        if (s->table) {
            r.d = a + n * sample_size(s), r.d_row = s->in, r.table = s->table + piece.row;
            side_by_side(delta + piece.lane * T, piece.lanes, T, c->width, packed);
        } else {
            const real *const x = a + n * s->inputs;
            r.d = (c->of_units ? x : delta) + piece.row, r.d_row = c->rows;
            r.x = (c->of_units ? delta : x) + piece.lane, r.x_row = c->lanes;
            for (int64_t p = 0; p < T && !whole; ++p)
                memcpy(packed + p * c->width, r.x + p * c->lanes, piece.lanes * sizeof(real));
        }
        if (s->table || !whole) r.x = packed, r.x_row = c->width;
        if (b && c->of_units) memcpy(bias, b + piece.lane, piece.lanes * sizeof(real));
        r.bias = !b ? 0 : c->of_units ? bias : b + piece.row;
        block_sums(&r, piece.rows, c->vectors);
    }
}

static void write_sums(const SampleSums *s, const Cut *c, Piece piece, const real *room) {
    const int64_t step = c->of_units ? s->in : 1, row = c->of_units ? 1 : s->in;  // of lanes, of rows
    const int64_t at = piece.chain * s->out * s->in + piece.row * row + piece.lane * step;
    for (int j = 0; j < 3; ++j, room += c->block * c->width)
        for (int64_t k = 0; k < piece.rows && s->sums[j]; ++k)
            for (int64_t v = 0; v < piece.lanes; ++v)
                s->sums[j][at + k * row + v * step] = room[k * c->width + v];
}

// Threads take pieces until none is left.
typedef struct {
    const SampleSums *s;
    Cut cut;
    int64_t samples, pieces;  // how many there are; samples: to be padded
    real *padded, *rooms;     // rooms: of every thread
    atomic_llong room, sample, ready, piece;
} SumsCrew;

static void sums_work(void *argument) {
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
    real *const room = crew->rooms + sums_room(s, &crew->cut) * atomic_fetch_add(&crew->room, 1);
    for (int64_t number; (number = atomic_fetch_add(&crew->piece, 1)) < crew->pieces;) {
        const Piece piece = sums_piece(&crew->cut, number);
        const int64_t own = (s->apart ? piece.chain : 0) * s->batch;
        const real *const a = s->table ? crew->padded + own * sample_size(s) : s->a + own * s->inputs;
        piece_sums(s, &crew->cut, piece, a, room);
        write_sums(s, &crew->cut, piece, room);
    }
    set_rounding_mode(mode);
}

// Products that are worth other threads.
#define SUMS_SHARED 8000000

// 0, or 1 where there was no memory.
int64_t sample_sums(const SampleSums *s, int64_t threads) {
    const double products = (double)s->chains * s->batch * s->positions * s->out * s->in;
    threads = products < SUMS_SHARED ? 1 : threads;
    SumsCrew crew = {.s = s, .cut = sums_cut(s, threads)};
    crew.pieces = sums_pieces(s, &crew.cut);
    if (s->table) crew.samples = (s->apart ? s->chains : 1) * s->batch;
    threads = crew.pieces == 1 ? 1 : threads;
    const int64_t rooms = threads * sums_room(s, &crew.cut);
    crew.rooms = malloc((rooms + crew.samples * sample_size(s)) * sizeof(real));
    if (!crew.rooms) return 1;
    crew.padded = crew.rooms + rooms;
    in_parallel(sums_work, &crew, threads);
    free(crew.rooms);
    return 0;
}

#endif
