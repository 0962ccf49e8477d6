/* Small fills too are shared among threads: WRAP parallel_run. */
#ifndef BATON_TESTS_ALL_THREADS_H
#define BATON_TESTS_ALL_THREADS_H

#include "base/jobs/parallel.h"

int __real_parallel_run(parallel_fn *fn, void *arg, uint64_t n, uint64_t nbytes, const char *name,
                        struct err *e);
int __wrap_parallel_run(parallel_fn *fn, void *arg, uint64_t n, uint64_t nbytes, const char *name,
                        struct err *e);

int __wrap_parallel_run(parallel_fn *fn, void *arg, uint64_t n, uint64_t nbytes, const char *name,
                        struct err *e)
{
    (void)nbytes;
    return __real_parallel_run(fn, arg, n, UINT64_MAX, name, e);
}

#endif
