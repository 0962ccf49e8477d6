/* When something that failed is tried again: at once the first time it is needed, then after a
 * delay that doubles with each failure in a row. Not atomic; the owner's lock guards it. */
#ifndef BATON_FLEET_MEMBERS_RETRY_H
#define BATON_FLEET_MEMBERS_RETRY_H

#include "base/clock.h"

struct retry {         /* zero: it did not fail */
    uint64_t delay_us; /* after the last failure */
    uint64_t due_us;   /* no attempt before */
};

/* retry_is_due - may it be tried now? */
static inline bool retry_is_due(const struct retry *r)
{
    return clock_passed(r->due_us);
}

/* retry_clear - it succeeded, or its cause has changed. */
static inline void retry_clear(struct retry *r)
{
    *r = (struct retry){0};
}

/* retry_failed - @first_us  after the first failure in a row; @max_us  at most */
static inline void retry_failed(struct retry *r, uint64_t first_us, uint64_t max_us)
{
    r->delay_us = r->delay_us == 0 ? first_us : 2 * r->delay_us;
    if (r->delay_us > max_us)
        r->delay_us = max_us;
    r->due_us = clock_after_us(r->delay_us);
}

#endif
