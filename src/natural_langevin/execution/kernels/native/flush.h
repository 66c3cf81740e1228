// Numbers too small for full precision count as zero while a thread is at work here. Squared
// gradients of networks that are sure of their classes are such numbers, and a processor takes a
// hundred times as long for them: a step of such a network took three times as long.

#ifndef NATURAL_LANGEVIN_FLUSH_H
#define NATURAL_LANGEVIN_FLUSH_H

#include <stdint.h>

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
