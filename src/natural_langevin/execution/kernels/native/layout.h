// What Python hands over: one `Run` and an array of `Layer`, all fields eight bytes wide.
//
// `real` is the dtype of the network. Every array of parameters is (chain, *shape), contiguous; a
// frozen tensor has no chain axis (stride 0). Tensor 0 of a layer is its weight, tensor 1 its bias.

#ifndef NATURAL_LANGEVIN_LAYOUT_H
#define NATURAL_LANGEVIN_LAYOUT_H

#include <stdint.h>

#ifdef DOUBLE
typedef double real;
#else
typedef float real;
#endif

enum { LINEAR, CONVOLUTION, MAX_POOL, AVERAGE_POOL, APPEND };
enum { IDENTITY, RELU, LEAKY_RELU, TANH, SIGMOID, GELU, GELU_TANH, SILU, SOFTPLUS,
       ELU, SELU, MISH, HARDTANH };
enum { EUCLIDEAN, RMSPROP, DIAGONAL, QUASI_DIAGONAL, UNIT };
enum { FLAT, GAUSSIAN, NORMAL_INVERSE_GAMMA, STUDENT_T, LAPLACE, TWO_GAUSSIANS, POSITIVE };
enum { CATEGORICAL, BERNOULLI, NORMAL, HETEROSCEDASTIC, POISSON, NEGATIVE_BINOMIAL, ORDINAL, STUDENT, HURDLE };
enum { WEIGHT, BIAS };

// Numbers of a tensor's prior, one row per chain.
#define PRIOR_NUMBERS 4

typedef struct {
    int64_t kind;
    int64_t in, out;          // y = W x + b, W (out, in); of a pool: features of an output, outputs
    int64_t inputs, outputs;  // all features of a sample: in and out, but for convolutions and pools
    int64_t positions;        // of a convolution; elsewhere 1
                              // APPEND: its biases, `out` of them, follow the inputs
    const int32_t *table;     // (position, in), of a pool (out, in): which feature; `inputs`: none
    double share;             // AVERAGE_POOL: one over the number of features
    int64_t activation;       // of this layer's outputs
    double parameter[2];      // LeakyReLU: slope; Softplus: beta, threshold
    real *theta[2];           // NULL: no bias
    int64_t trainable[2];
    real *mean[2];            // running mean, NULL: none
    real *momentum[2];        // NULL: overdamped
    real *second[2];          // J_ii and J_00 (RMSProp: D), NULL: Euclidean
    real *cross;              // J_0i (out, in), NULL: no bias row
    real *blocks;             // UNIT: (out, in + 1, in + 1), bias first
    int64_t start[2];         // where a tensor's draws begin in the noise stream
    int64_t prior[2];         // kind
    const real *prior_numbers[2];  // (chain, PRIOR_NUMBERS)
    const real *centre[2];    // (chain, *shape): means of the prior, NULL: the prior's number 1
    const real *damping[2];   // (chain)
} Layer;

typedef struct {
    int64_t chains, layers, batch, threads;
    int64_t start, count;     // steps start ... start + count
    // Data: row r of chain c is rows[c][order[r]]; a permutation per chain and epoch.
    int64_t num_rows;         // rows that a chain sees
    int64_t shuffled;         // 0: the batch is the first `batch` rows of a chain, as they come
    const real *x;            // (row, in)
    const int64_t *classes;   // (row), categorical
    const real *y;            // (row, targets)
    int64_t targets;
    const real *offset;       // (row): added to a sample's loss, NULL: none
    const real *weight;       // (row): multiplies a sample's loss, NULL: 1
    const int64_t *rows;      // (chain, num_rows), NULL: all rows
    int32_t *orders;          // (chain, num_rows): permutations of ...
    int64_t *epochs;          // (chain): these epochs; NULL: not kept from call to call
    const int64_t *data_origin, *noise_origin, *label_origin;  // (chain)
    // Rates of step start + s: row s.
    const real *step_size;    // (step, chain), rows step_stride apart
    const real *decay, *mean_rate;  // (step), step_stride apart
    int64_t step_stride;
    const real *temperature, *friction;  // (chain); friction NULL: overdamped
    const real *dropout;      // (chain): rate of dropped hidden units, which are ReLU
    const int64_t *mask_origin;  // (chain), NULL: no dropout
    int64_t baoab;            // the underdamped integrator: 0 is Euler's
    const real *num_data;     // (chain): N times the power of the likelihood
    int64_t likelihood;
    double variance;          // NORMAL: sigma^2, STUDENT: scale^2, where known; ORDINAL: levels;
                              // NEGATIVE_BINOMIAL: a dispersion that is known
    int64_t own;              // whether the last output is the logarithm of the width or dispersion
    double df;                // STUDENT: degrees of freedom
    const real *per_scale;    // (target): 1 / the size of NORMAL's and STUDENT's targets, NULL: 1
    real *learned_variance;   // (chain), NULL: known
    int64_t metric, fresh, model_targets;
    int64_t *diverged;        // (chain)
    int64_t *wrong_row;       // one number: a row whose class is none of the likelihood's was read
    real *loss;               // (chain): of the last step
    void *workspace;
} Run;

#endif
