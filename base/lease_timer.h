/* The time of a lease: how long it is, and when it ends unless it is renewed. The caller's lock
 * guards it. */
#ifndef BATON_BASE_LEASE_TIMER_H
#define BATON_BASE_LEASE_TIMER_H

#include "base/clock.h"

#include <stdbool.h>
#include <stdint.h>

struct lease_timer {
    uint32_t length_s; /* 0: no lease */
    uint64_t end_us;   /* CLOCK_NEVER: it does not run */
};

/* lease_timer_set - a lease of that length, which does not run yet. @length_s  0: no lease */
static inline void lease_timer_set(struct lease_timer *t, uint32_t length_s)
{
    *t = (struct lease_timer){.length_s = length_s, .end_us = CLOCK_NEVER};
}

/* lease_timer_renew - the lease ends its whole length from now; without a lease nothing changes. */
static inline void lease_timer_renew(struct lease_timer *t)
{
    if (t->length_s > 0)
        t->end_us = clock_after_us((uint64_t)t->length_s * 1000000);
}

/* lease_timer_extend - the same, with another length from now on. @length_s  0: the one it has */
static inline void lease_timer_extend(struct lease_timer *t, uint32_t length_s)
{
    if (length_s > 0)
        t->length_s = length_s;
    lease_timer_renew(t);
}

static inline bool lease_timer_runs(const struct lease_timer *t)
{
    return t->end_us != CLOCK_NEVER;
}

static inline bool lease_timer_expired(const struct lease_timer *t)
{
    return clock_passed(t->end_us);
}

/* lease_timer_left_us - time until the lease ends, 0 if it has; CLOCK_NEVER: it does not run. */
static inline uint64_t lease_timer_left_us(const struct lease_timer *t)
{
    uint64_t now_us = clock_now_us();

    if (t->end_us == CLOCK_NEVER)
        return CLOCK_NEVER;
    return t->end_us > now_us ? t->end_us - now_us : 0;
}

#endif
