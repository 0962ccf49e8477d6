/* Waiting for a descriptor, a time, a deadline or a stop, whichever is first. */
#ifndef BATON_BASE_NET_POLL_WAIT_H
#define BATON_BASE_NET_POLL_WAIT_H

#include "base/err.h"
#include "base/progress.h"

#include <stdint.h>

enum { POLL_SLICE_US = 25 * 1000 }; /* the longest time until a stop is noticed */

enum poll_end {
    POLL_READY,  /* the descriptor has one of the events, an error or a hang-up */
    POLL_UNTIL,  /* until_us has passed */
    POLL_LATE,   /* p->deadline_us has passed */
    POLL_STOPPED /* p->stop is set */
};

/* poll_wait - wait.
 * @fd        borrowed; -1 waits for no descriptor
 * @events    of poll(2)
 * @until_us  of base/clock.h; CLOCK_NEVER when only the deadline counts
 *
 * Threads: any. Blocks: until the earliest of the four, a stop POLL_SLICE_US later at most. */
enum poll_end poll_wait(int fd, short events, uint64_t until_us, const struct progress *p);

/* poll_refuse - fill `e` for POLL_LATE (ERR_TIMEOUT) or POLL_STOPPED (ERR_CONFLICT).
 * @fmt  the operation that was not finished: "the deadline passed while <operation>"
 * Returns -1. */
__attribute__((format(printf, 4, 5))) int poll_refuse(enum poll_end end, const char *field,
                                                      struct err *e, const char *fmt, ...);

#endif
