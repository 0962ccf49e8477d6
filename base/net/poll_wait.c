/* poll(2) in slices, because a stop is only a flag and does not wake the thread. */
#include "base/net/poll_wait.h"

#include "base/clock.h"
#include "base/mtx.h"

#include <assert.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static uint64_t poll_wait_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

enum poll_end poll_wait(int fd, short events, uint64_t until_us, const struct progress *p)
{
    struct pollfd pfd = {.fd = fd, .events = events};

    mtx_assert_none();
    for (;;) {
        uint64_t now = clock_now_us(), wait_us;
        if (atomic_load_explicit(&p->stop, memory_order_relaxed))
            return POLL_STOPPED;
        if (now >= p->deadline_us)
            return POLL_LATE;
        if (now >= until_us)
            return POLL_UNTIL;
        wait_us = poll_wait_least(poll_wait_least(p->deadline_us, until_us) - now, POLL_SLICE_US);
        /* Rounded up: rounded down, the last millisecond would be spent spinning. */
        if (poll(&pfd, 1, (int)((wait_us + 999) / 1000)) > 0)
            return POLL_READY;
    }
}

int poll_refuse(enum poll_end end, const char *field, struct err *e, const char *fmt, ...)
{
    char what[ERR_MSG_MAX];
    va_list ap;

    assert(end == POLL_LATE || end == POLL_STOPPED);
    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (end == POLL_LATE)
        return err_set(e, ERR_TIMEOUT, field, "the deadline passed while %s", what);
    return err_set(e, ERR_CONFLICT, field, "stopped while %s", what);
}
