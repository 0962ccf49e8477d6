/* By ucontext(3), of which swapcontext is left out: AddressSanitizer warns of it. The sanitizers
 * are told of each change instead, in functions that are inlined: a return would be counted on the
 * other stack. */
#include "base/jobs/stack.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define WITH_ASAN 1
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#include <sanitizer/tsan_interface.h>
#endif

struct stack {
    ucontext_t context;
    void *memory; /* owned; NULL: it is a thread's */
    size_t nbytes;
    struct stack *(*run)(void *arg);
    void *arg;

    /* For the sanitizers. */
    const void *bottom;
    size_t size;
    void *fake;
    void *fiber;
};

/* The change under way: from, to. */
static _Thread_local struct stack *left, *entered;

static inline __attribute__((always_inline)) void tell_leaving(struct stack *from, struct stack *to,
                                                               bool for_good)
{
    left = from;
    entered = to;
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(for_good ? NULL : &from->fake, to->bottom, to->size);
#endif
#ifdef WITH_TSAN
    __tsan_switch_to_fiber(to->fiber, 0);
#endif
    (void)for_good;
}

static inline __attribute__((always_inline)) void tell_entered(void)
{
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(entered->fake, &left->bottom, &left->size);
#endif
}

struct stack *stack_of_thread(void)
{
    struct stack *s = calloc(1, sizeof *s);

#ifdef WITH_TSAN
    if (s != NULL)
        s->fiber = __tsan_get_current_fiber();
#endif
    return s;
}

static void stack_begin(void)
{
    struct stack *s = entered, *next;

    tell_entered();
    next = s->run(s->arg);
    tell_leaving(s, next, true);
    (void)setcontext(&next->context);
    abort();
}

static size_t page_nbytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* The lowest page is the guard. */
static int map_memory(struct stack *s, size_t nbytes)
{
    size_t page = page_nbytes();

    s->nbytes = (nbytes + page - 1) / page * page + page;
    s->memory = mmap(NULL, s->nbytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (s->memory == MAP_FAILED)
        return -1;
    if (mprotect(s->memory, page, PROT_NONE) != 0) {
        (void)munmap(s->memory, s->nbytes);
        return -1;
    }
    s->bottom = (char *)s->memory + page;
    s->size = s->nbytes - page;
    return 0;
}

/* On its own, as makecontext replaces where this returns to. */
static __attribute__((noinline)) void init_context(struct stack *s)
{
    (void)getcontext(&s->context);
    s->context.uc_stack.ss_sp = (char *)s->memory + (s->nbytes - s->size);
    s->context.uc_stack.ss_size = s->size;
}

struct stack *stack_new(size_t nbytes, struct stack *(*run)(void *arg), void *arg)
{
    struct stack *s = calloc(1, sizeof *s);

    if (s == NULL || map_memory(s, nbytes) != 0) {
        free(s);
        return NULL;
    }
    s->run = run;
    s->arg = arg;
    init_context(s);
    makecontext(&s->context, stack_begin, 0);
#ifdef WITH_TSAN
    s->fiber = __tsan_create_fiber(0);
#endif
    return s;
}

void stack_free(struct stack *s)
{
    if (s == NULL)
        return;
    if (s->memory != NULL) {
#ifdef WITH_TSAN
        __tsan_destroy_fiber(s->fiber);
#endif
        (void)munmap(s->memory, s->nbytes);
    }
    free(s);
}

void stack_change(struct stack *from, struct stack *to)
{
    volatile bool is_back = false;

    assert(from != to);
    (void)getcontext(&from->context); /* returns once more when `from` is entered again */
    if (!is_back) {
        is_back = true;
        tell_leaving(from, to, false);
        (void)setcontext(&to->context);
        abort();
    }
    tell_entered();
}
