// The bits of random.py, and the functions by which two of its words become two normals.

#ifndef NATURAL_LANGEVIN_RANDOM_BITS_H
#define NATURAL_LANGEVIN_RANDOM_BITS_H

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

typedef struct {
    uint32_t first, second;
} Key;

INLINE float float_of(int32_t word) {
    float value;
    memcpy(&value, &word, 4);
    return value;
}

INLINE int32_t word_of(float value) {
    int32_t word;
    memcpy(&word, &value, 4);
    return word;
}

// ln(u) for a positive, normal u: exponent, and ln(1 + t) / t as a polynomial (interpolated at
// Chebyshev nodes, relative error 4e-7) for t = m - 1, m in [0.75, 1.5).
INLINE float log_positive(float u) {
    const int32_t shifted = word_of(u) - 0x3F400000;  // puts 0.75 at an exponent's beginning
    const float exponent = (float)(shifted >> 23);
    const float t = float_of((shifted & 0x7FFFFF) + 0x3F400000) - 1.0f;
    float p = -0.0650838147219571f;
    p = p * t + 0.1400688175105198f;
    p = p * t - 0.173574057323999f;
    p = p * t + 0.20119603069912806f;
    p = p * t - 0.24978826540437807f;
    p = p * t + 0.333294737572879f;
    p = p * t - 0.500001774431273f;
    p = p * t + 1.0000001601623723f;
    return exponent * 0.6931471805599453f + t * p;
}

INLINE uint32_t random_bits(uint32_t index, Key key) {
    uint32_t x = index + key.first;
    x = (x ^ (x >> 17)) * 0xED5AD4BBu;
    x = (x ^ (x >> 11)) + key.second;
    x = x * 0xAC4C1B51u;
    x = (x ^ (x >> 15)) * 0x31848BABu;
    return x ^ (x >> 14);
}

INLINE float open_unit(uint32_t word) {
    return ((float)(int32_t)(word & 0x7FFFFFFFu) + 0.5f) * 4.656612873077393e-10f;
}

// cos of word / 2^32 turns.
INLINE float cos_turns(uint32_t word) {
    const float turns = (float)(int32_t)word * 2.3283064365386963e-10f;
    const float s = turns * turns;
    float c = 6.527706146240234f;
    c = c * s - 25.96688461303711f;
    c = c * s + 60.16743087768555f;
    c = c * s - 85.45011138916016f;
    c = c * s + 64.93911743164062f;
    c = c * s - 19.73920440673828f;
    return c * s + 1.0f;
}

#endif
