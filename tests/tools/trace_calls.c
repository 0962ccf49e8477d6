/* Which functions of a program run, and on which thread: for a program that was built with
 * -finstrument-functions, by LD_PRELOAD. Each thread appends its calls and returns to
 * TRACE_DIR/TID: struct event, in order. tests/tools/trace_calls.py reads them. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct event {
    uint64_t us;
    uint64_t function; /* its address; 0: a return */
};

static __thread FILE *out;

void __cyg_profile_func_enter(void *function, void *site);
void __cyg_profile_func_exit(void *function, void *site);

static void record(uint64_t function)
{
    struct event event = {.function = function};
    struct timespec now;
    char path[256];

    if (out == NULL) {
        (void)snprintf(path, sizeof path, "%s/%d", getenv("TRACE_DIR"), (int)gettid());
        out = fopen(path, "wb");
        if (out == NULL)
            abort();
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    event.us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    (void)fwrite(&event, sizeof event, 1, out);
}

void __cyg_profile_func_enter(void *function, void *site)
{
    (void)site;
    record((uint64_t)(uintptr_t)function);
}

void __cyg_profile_func_exit(void *function, void *site)
{
    (void)function;
    (void)site;
    record(0);
}
