// Work in several threads at once.

#ifndef NATURAL_LANGEVIN_THREADS_H
#define NATURAL_LANGEVIN_THREADS_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef __linux__
// Of the OpenMP that torch has brought into the process, NULL: it has brought another one.
extern void GOMP_parallel(void (*work)(void *), void *argument, unsigned threads, unsigned flags)
    __attribute__((weak));
#else
static void (*const GOMP_parallel)(void (*)(void *), void *, unsigned, unsigned) = 0;
#endif

// A fork has none of its parent's threads, and OpenMP would wait for them for ever.
static pid_t loaded_in;
__attribute__((constructor)) static void remember_process(void) { loaded_in = getpid(); }

typedef struct {
    void (*work)(void *);
    void *argument;
} Call;

static void *called(void *call) {
    ((Call *)call)->work(((Call *)call)->argument);
    return 0;
}

// `work` in `threads` threads, or fewer, one of which is this one. The others are torch's: they wait for
// its next operation wide awake, and new ones would share the cores with them.
static void in_parallel(void (*work)(void *), void *argument, int64_t threads) {
    if (threads > 1 && GOMP_parallel && getpid() == loaded_in) {
        GOMP_parallel(work, argument, (unsigned)threads, 0);
        return;
    }
    pthread_t others[threads];
    Call call = {work, argument};
    int64_t started = 1;
    while (started < threads && !pthread_create(others + started, 0, called, &call)) ++started;
    work(argument);
    for (int64_t k = 1; k < started; ++k) pthread_join(others[k], 0);
}

#endif
