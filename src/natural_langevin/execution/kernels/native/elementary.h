// Elementary functions that a compiler can vectorise: no branches, no tables, no library calls.
//
// In single precision the errors are 1 to 3 units in the last place (polynomials fitted for least
// maximal error); in double precision the C library serves. NaN goes through all of them, and what
// overflows becomes infinite: that is how a chain that diverges is noticed.

#ifndef NATURAL_LANGEVIN_ELEMENTARY_H
#define NATURAL_LANGEVIN_ELEMENTARY_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "layout.h"

#define INLINE static inline __attribute__((always_inline))

// The bits of random.py, and the functions by which two of its words become two normals.
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

// 1 / sqrt(x) by a guess from the exponent and Newton's method: a division and a root of a vector take
// five times as long.
INLINE float rsqrt_single(float x) {
    float y = float_of(0x5F375A86 - (word_of(x) >> 1));
    const float half = 0.5f * x;
    y = y * (1.5f - half * y * y);
    y = y * (1.5f - half * y * y);
    return y * (1.5f - half * y * y);
}

INLINE float sqrt_single(float x) { return x * rsqrt_single(x); }

#ifdef DOUBLE

INLINE real exp_(real x) { return exp(x); }
INLINE real log_(real x) { return log(x); }
INLINE real tanh_(real x) { return tanh(x); }
INLINE real log1p_unit(real u) { return log1p(u); }
INLINE real normal_cdf(real x, real gauss) {
    (void)gauss;
    return 0.5 * erfc(-0.70710678118654752440 * x);
}
INLINE real rsqrt_(real x) { return 1.0 / sqrt(x); }
INLINE real abs_(real x) { return fabs(x); }
INLINE real sqrt_(real x) { return sqrt(x); }

#else

INLINE real abs_(real x) { return fabsf(x); }
INLINE real sqrt_(real x) { return sqrtf(x); }
INLINE real rsqrt_(real x) { return rsqrt_single(x); }
INLINE real log_(real x) { return log_positive(x) + (x - x); }  // x - x: 0, or NaN

// 2^n e^r with n whole and |r| <= ln(2) / 2; 2^n in two halves, so that it may over- or underflow.
INLINE real exp_(real x) {
    real clamped = x > 90.0f ? 90.0f : x;
    clamped = clamped < -105.0f ? -105.0f : clamped;
    const real shifted = clamped * 1.44269504f + 12582912.0f;  // rounds to a whole number
    const real n = shifted - 12582912.0f;
    const int32_t whole = word_of(shifted) - 0x4B400000;
    real r = clamped - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    real p = 0.00138146f;
    p = p * r + 0.008368716f;
    p = p * r + 0.04166839f;
    p = p * r + 0.16666521f;
    p = p * r + 0.49999994f;
    p = p * (r * r) + r + 1.0f;
    const int32_t half = whole >> 1;
    return p * float_of((half + 127) << 23) * float_of((whole - half + 127) << 23);
}

// ln(1 + u) for u in [0, 1].
INLINE real log1p_unit(real u) {
    real p = 0.0020302138291299343f;
    p = p * u - 0.013407392427325249f;
    p = p * u + 0.041477933526039124f;
    p = p * u - 0.08244141191244125f;
    p = p * u + 0.12418411672115326f;
    p = p * u - 0.16105680167675018f;
    p = p * u + 0.19890744984149933f;
    p = p * u - 0.24987269937992096f;
    p = p * u + 0.33332559466362f;
    p = p * u - 0.4999998211860657f;
    return u * (p * u + 1.0f);
}

// A quotient of polynomials in x^2 up to |x| = 9, where tanh is 1 in single precision. The choice
// comes last: one on the way in is worked out several times.
INLINE real tanh_(real x) {
    const real s = x * x;
    real p = 1.3354801708942432e-08f;
    p = p * s + 2.0609195416909643e-05f;
    p = p * s + 0.0034955956507474184f;
    p = p * s + 0.13381032645702362f;
    p = p * s + 1.0f;
    real q = 7.776619668220519e-07f;
    q = q * s + 0.00032856466714292765f;
    q = q * s + 0.025877011939883232f;
    q = q * s + 0.4671434760093689f;
    q = q * s + 1.0f;
    const real one = float_of((word_of(x) & (int32_t)0x80000000) | 0x3F800000);
    return abs_(x) > 9.0f ? one : x * p / q;
}

// Phi(x), given gauss = exp(-x^2 / 2): erfc is that times a polynomial in 1 / (1 + 0.4 |x| / sqrt 2).
INLINE real normal_cdf(real x, real gauss) {
    const real t = 1.0f / (1.0f + 0.28284271247461906f * abs_(x));
    real p = 0.07393330335617065f;
    p = p * t - 0.38788411021232605f;
    p = p * t + 0.6582674384117126f;
    p = p * t - 0.32726478576660156f;
    p = p * t + 0.36336061358451843f;
    p = p * t + 0.16460609436035156f;
    p = p * t + 0.22914741933345795f;
    p = p * t + 0.22583402693271637f;
    const real tail = 0.5f * t * p * gauss;
    return x > 0.0f ? 1.0f - tail : tail;
}

#endif

INLINE real sigmoid_(real x) { return 1 / (1 + exp_(-x)); }

// ln(1 + e^x) without overflow.
INLINE real softplus_(real x) {
    const real part = x < 0 ? 0 : x;  // NaN stays
    return part + log1p_unit(exp_(-abs_(x)));
}

// Numbers too small for full precision count as zero while a thread is at work here. Squared
// gradients of networks that are sure of their classes are such numbers, and a processor takes a
// hundred times as long for them: a step of such a network took three times as long.
#if defined(__SSE__) && defined(__x86_64__)
#include <xmmintrin.h>
#define SMALL_IS_ZERO 0x8040  // of results, and of what is read
static uint64_t rounding_mode(void) { return _mm_getcsr(); }
static void set_rounding_mode(uint64_t mode) { _mm_setcsr((unsigned)mode); }
#elif defined(__aarch64__)
#define SMALL_IS_ZERO (1 << 24)
static uint64_t rounding_mode(void) {
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static void set_rounding_mode(uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#else
#define SMALL_IS_ZERO 0
static uint64_t rounding_mode(void) { return 0; }
static void set_rounding_mode(uint64_t mode) { (void)mode; }
#endif

// Begins, and gives what is to be set again at the end.
static uint64_t flush_small(void) {
    const uint64_t before = rounding_mode();
    set_rounding_mode(before | SMALL_IS_ZERO);
    return before;
}

#endif
