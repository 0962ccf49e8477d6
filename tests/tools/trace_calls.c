/* Which functions of a program run, on which thread and stack: for a program that was built with
 * -finstrument-functions, by LD_PRELOAD. Each thread appends its calls and returns to
 * TRACE_DIR/TID: struct event, in order; TRACE_DIR/base is where the program is loaded.
 * tests/tools/trace_calls.py reads them. */
#define _GNU_SOURCE
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct event {
    uint64_t us;
    uint64_t function; /* its address */
    uint64_t at;       /* where its frame is */
    uint64_t is_return;
};

static __thread FILE *out;

void __cyg_profile_func_enter(void *function, void *site);
void __cyg_profile_func_exit(void *function, void *site);

static FILE *open_file(const char *name)
{
    char path[256];
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/%s", getenv("TRACE_DIR"), name);
    file = fopen(path, "wb");
    if (file == NULL)
        abort();
    return file;
}

/* The program itself is the first that is loaded. */
static int write_base(struct dl_phdr_info *info, size_t nbytes, void *arg)
{
    FILE *file = open_file("base");

    (void)nbytes, (void)arg;
    (void)fprintf(file, "%llu\n", (unsigned long long)info->dlpi_addr);
    (void)fclose(file);
    return 1;
}

static __attribute__((constructor)) void begin(void)
{
    (void)dl_iterate_phdr(write_base, NULL);
}

static void record(void *function, void *frame, bool is_return)
{
    struct event event = {
        .function = (uintptr_t)function, .at = (uintptr_t)frame, .is_return = is_return};
    struct timespec now;
    char tid[32];

    if (out == NULL) {
        (void)snprintf(tid, sizeof tid, "%d", (int)gettid());
        out = open_file(tid);
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    event.us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    (void)fwrite(&event, sizeof event, 1, out);
}

void __cyg_profile_func_enter(void *function, void *site)
{
    (void)site;
    record(function, __builtin_frame_address(0), false);
}

void __cyg_profile_func_exit(void *function, void *site)
{
    (void)site;
    record(function, __builtin_frame_address(0), true);
}
