// The update of a linear layer on the CPU: one pass over its state, row by row.
//
// The matrix products have been formed by the BLAS; here they meet metric, drift, noise and running
// mean. A row's noise is made in a buffer that stays in the first-level cache. The loops are plain,
// so that the compiler can vectorise them for whatever machine this is. Formulas: see
// preconditioners/; the noise is that of random.py, from the same addresses.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "native/random_bits.h"

namespace {

// Normals number first ... first + 32 blocks of a stream; first is a multiple of 32.
inline void normals(uint32_t first, int64_t blocks, Key key, float* out) {
    for (int64_t block = 0; block < blocks; ++block) {
        const uint32_t base = first + 32 * static_cast<uint32_t>(block);
        float* const here = out + 32 * block;
#pragma GCC ivdep
        for (uint32_t k = 0; k < 16; ++k) {
            const float u = open_unit(random_bits(base + k, key));
            const uint32_t angle_word = random_bits(base + 16 + k, key);
            const float radius = std::sqrt(std::max(-2.0f * log_positive(u), 0.0f));
            here[k] = radius * cos_turns(angle_word);
            here[k + 16] = radius * cos_turns(angle_word - (1u << 30));
        }
    }
}

inline float mix(float old, float now, float rate) { return old + rate * (now - old); }

// How far theta goes by a change of which kick is not noise: the change itself, or by the momentum.
// early = 0: r <- kept r + change, and theta follows that (Euler). early = 1: the kick acts before
// the momentum is forgotten, and theta moves by half before that and by half after it (BAOAB). A
// number, since every variant of a row takes half a second to build.
template <bool MOVES>
inline float follow(float* r, int64_t i, float kept, float early, float change, float kick) {
    if (!MOVES) return change;
    const float kicked = r[i] + kick;
    r[i] = kept * (r[i] + early * kick) + (change - early * kick);
    return r[i] + 0.5f * early * (kicked - r[i]);
}

struct Layer {
    int64_t chains, outputs, inputs, weight_start, bias_start;
    float share;         // 1 / B
    float early;         // see follow
    int adapts, fresh;   // whether gamma > 0; whether the metric is applied as this batch changed it
    const float *gradient, *statistics;       // (chain, O, I) sums; (chain, O, I or 2 I): [second, cross]
    const float *bias_gradient, *bias_square;  // (chain, O) sums
    float *theta, *mean, *second, *cross, *bias, *bias_mean, *bias_second;  // means may be null
    float *momentum, *bias_momentum;  // null: there is none
    const float *prior, *damping, *numbers;
    const int32_t* keys;
};

// One unit's weights and bias. ADAPTS: the metric takes this batch in; FRESH: and is applied so.
// MOVES: there is a momentum, which theta follows.
template <int KIND, bool BIAS, bool ADAPTS, bool FRESH, bool MOVES>
void row(const Layer& l, int64_t chain, int64_t o, float* z) {
    constexpr bool QUASI = KIND == 3 && BIAS;
    const float* number = l.numbers + 7 * chain;
    if (number[5] <= 0.0f) return;  // a stopped chain stands still
    const float eta = number[0], scale = number[1], gamma = number[2], mu = number[3];
    const float kept = number[6], early = l.early;
    const float* prior = l.prior + 4 * chain;
    const float precision = prior[0] * number[4], centre = prior[1];
    const Key key = {uint32_t(l.keys[2 * chain]), uint32_t(l.keys[2 * chain + 1])};
    const int64_t unit = chain * l.outputs + o, n = l.inputs;
    const float damping = l.damping[2 * chain], share = l.share;

    float v_b = 0.0f, corner = 0.0f, j_b = 0.0f;
    if (BIAS) {
        const float g = l.bias_gradient[unit] * share;
        v_b = g + prior[2] * number[4] * (l.bias[unit] - prior[3]);
        if (KIND >= 1) {
            const float old = l.bias_second[unit];
            if (ADAPTS) j_b = mix(old, KIND == 1 ? g * g : l.bias_square[unit] * share, gamma);
            corner = 1.0f / std::sqrt((FRESH ? j_b : old) + l.damping[2 * chain + 1]);
        }
    }

    const uint32_t element = static_cast<uint32_t>(l.weight_start + o * n);
    const uint32_t skip = element % 32;
    normals(element - skip, (skip + n + 31) / 32, key, z);
    const float* __restrict noise = z + skip;
    const float* __restrict g = l.gradient + unit * n;
    const float* __restrict s2 =
        KIND >= 2 && ADAPTS ? l.statistics + unit * n * (QUASI ? 2 : 1) : nullptr;
    const float* __restrict s1 = QUASI && ADAPTS ? s2 + n : nullptr;
    float* __restrict w = l.theta + unit * n;
    float* __restrict r = MOVES ? l.momentum + unit * n : nullptr;
    float* __restrict second = KIND >= 1 ? l.second + unit * n : nullptr;
    float* __restrict cross = QUASI ? l.cross + unit * n : nullptr;
    float row_sum = 0.0f, row_kick = 0.0f;
#pragma omp simd reduction(+ : row_sum, row_kick)
    for (int64_t i = 0; i < n; ++i) {
        const float gi = g[i] * share;
        const float v = gi + precision * (w[i] - centre);
        if (KIND == 0) {
            w[i] += follow<MOVES>(r, i, kept, early, scale * noise[i] - eta * v, -eta * v);
            continue;
        }
        float j = second[i];  // as this step applies it
        if (ADAPTS) {
            const float now = mix(j, KIND == 1 ? gi * gi : s2[i] * share, gamma);
            second[i] = now;
            if (FRESH) j = now;
        }
        if (QUASI) {
            float c = cross[i];
            if (ADAPTS) {
                const float now = mix(c, s1[i] * share, gamma);
                cross[i] = now;
                if (FRESH) c = now;
            }
            const float scaled = corner * c;
            const float schur = std::max(j - scaled * scaled, 0.0f);
            const float diagonal = 1.0f / std::sqrt(schur + damping);
            const float first_row = -corner * diagonal * scaled;
            const float kick = -eta * (first_row * v_b + diagonal * v);
            const float change = scale * noise[i] + kick;
            w[i] += follow<MOVES>(r, i, kept, early, diagonal * change, diagonal * kick);
            row_sum += first_row * change;
            if (MOVES) row_kick += first_row * kick;
        } else {
            const float root = 1.0f / std::sqrt(j + damping);
            const float kick = -eta * root * v;
            const float change =
                KIND == 1 ? scale * std::sqrt(root) * noise[i] + kick : root * (scale * noise[i] + kick);
            w[i] += follow<MOVES>(r, i, kept, early, change, KIND == 1 ? kick : root * kick);
        }
    }
    if (l.mean != nullptr) {
        float* __restrict average = l.mean + unit * n;
        for (int64_t i = 0; i < n; ++i) average[i] = mix(average[i], w[i], mu);
    }

    if (BIAS) {
        const uint32_t place = static_cast<uint32_t>(l.bias_start + o), over = place % 32;
        normals(place - over, 1, key, z);
        const float z_b = z[over];
        float change, kick = -eta * v_b;
        if (KIND == 0) {
            change = scale * z_b + kick;
        } else if (KIND == 1) {
            kick *= corner;
            change = scale * std::sqrt(corner) * z_b + kick;
        } else {
            kick *= corner;
            change = corner * (scale * z_b + kick) + row_sum;
            kick = corner * kick + row_kick;
        }
        float& b = l.bias[unit];
        b += follow<MOVES>(l.bias_momentum, unit, kept, early, change, kick);
        if (KIND >= 1 && ADAPTS) l.bias_second[unit] = j_b;
        if (l.bias_mean != nullptr) l.bias_mean[unit] = mix(l.bias_mean[unit], b, mu);
    }
}

template <int KIND, bool BIAS, bool ADAPTS, bool FRESH, bool MOVES>
void layer(const Layer& l) {
#pragma omp parallel
    {
        std::vector<float> z(l.inputs + 64);
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < l.chains * l.outputs; ++unit) {
            row<KIND, BIAS, ADAPTS, FRESH, MOVES>(l, unit / l.outputs, unit % l.outputs, z.data());
        }
    }
}

template <int KIND, bool BIAS, bool MOVES>
void layer(const Layer& l) {
    if (KIND == 0 || !l.adapts) return layer<KIND, BIAS, false, false, MOVES>(l);
    return l.fresh ? layer<KIND, BIAS, true, true, MOVES>(l)
                   : layer<KIND, BIAS, true, false, MOVES>(l);
}

template <int KIND, bool BIAS>
void layer(const Layer& l) {
    return l.momentum != nullptr ? layer<KIND, BIAS, true>(l) : layer<KIND, BIAS, false>(l);
}

}  // namespace

extern "C" void linear_update(int kind, int bias, const Layer* l) {
    using Function = void (*)(const Layer&);
    static const Function functions[4][2] = {
        {layer<0, false>, layer<0, true>},
        {layer<1, false>, layer<1, true>},
        {layer<2, false>, layer<2, true>},
        {layer<3, false>, layer<3, true>},
    };
    functions[kind][bias](*l);
}

extern "C" void linear_noise(uint32_t first, int64_t blocks, int32_t key0, int32_t key1, float* out) {
    normals(first, blocks, {uint32_t(key0), uint32_t(key1)}, out);
}
