/* An allocator whose n-th call fails, on whatever thread. The linker puts it before the real one:
 * --wrap=malloc,--wrap=calloc,--wrap=realloc. */
#ifndef BATON_TESTS_FAILING_ALLOC_H
#define BATON_TESTS_FAILING_ALLOC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

void *__real_malloc(size_t nbytes);
void *__real_calloc(size_t n, size_t nbytes);
void *__real_realloc(void *p, size_t nbytes);
void *__wrap_malloc(size_t nbytes);
void *__wrap_calloc(size_t n, size_t nbytes);
void *__wrap_realloc(void *p, size_t nbytes);

static atomic_long alloc_left = -1;      /* calls until the one that fails; below 0: none does */
static atomic_size_t alloc_nbytes_asked; /* of all calls */

static bool alloc_fails(size_t nbytes)
{
    atomic_fetch_add(&alloc_nbytes_asked, nbytes);
    return atomic_load(&alloc_left) >= 0 && atomic_fetch_sub(&alloc_left, 1) == 0;
}

void *__wrap_malloc(size_t nbytes)
{
    return alloc_fails(nbytes) ? NULL : __real_malloc(nbytes);
}

void *__wrap_calloc(size_t n, size_t nbytes)
{
    return alloc_fails(n * nbytes) ? NULL : __real_calloc(n, nbytes);
}

void *__wrap_realloc(void *p, size_t nbytes)
{
    return alloc_fails(nbytes) ? NULL : __real_realloc(p, nbytes);
}

#endif
