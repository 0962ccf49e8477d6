/* An event loop: one thread, one epoll.
 *
 * Each turn handles ready file descriptors, then items posted by other threads, then due timers,
 * then calls the owner's `turn`, and then sleeps until the next event or timer. Nothing in a turn
 * may block. Watches, items and timers are embedded in their owners, so that posting, watching and
 * arming a timer never fail for lack of our memory. */
#ifndef BATON_BASE_LOOP_H
#define BATON_BASE_LOOP_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct loop;

/* A watched file descriptor. */
struct loop_watch {
    void (*ready)(void *arg, uint32_t events); /* EPOLL* bits; loop thread */
    void *arg;
    int fd; /* borrowed; the owner closes it after loop_unwatch */
};

/* Work posted to the loop thread. Zeroed but for run and arg, it is not queued. */
struct loop_item {
    void (*run)(void *arg); /* loop thread; may free the item */
    void *arg;

    struct loop_item *next, **prev_next; /* of the loop; prev_next is NULL while not queued */
};

/* A one-shot timer. Arming walks the list of armed timers, so a loop should have only a few. */
struct loop_timer {
    void (*fire)(void *arg); /* loop thread; may arm again */
    void *arg;

    uint64_t due_us;
    struct loop_timer *next, **prev_next; /* of the loop; prev_next is NULL while not armed */
};

struct loop_cfg {
    const char *name; /* of the thread; cut at 15 bytes */
    /* Called at the end of each turn; may be NULL. Returns the longest wait before the next turn,
     * in microseconds (CLOCK_NEVER: no limit). */
    uint64_t (*turn)(void *arg);
    void *arg;
};

/* loop_new - make the loop; its thread is not started.
 * Errors: ERR_INTERNAL (no epoll or eventfd), ERR_NO_MEMORY; *out untouched. */
int loop_new(struct loop **out, const struct loop_cfg *cfg, struct err *e);

/* loop_start - start the thread. Errors: ERR_INTERNAL. */
int loop_start(struct loop *l, struct err *e);

/* loop_stop - run the items posted so far, then end and join the thread. Does nothing if the loop
 * was not started or is already stopped. Threads: the owner's, never the loop's. */
void loop_stop(struct loop *l);
void loop_free(struct loop *l); /* stops first; accepts NULL */

bool loop_started(const struct loop *l);    /* owner's thread: is there a thread to post to? */
bool loop_is_current(const struct loop *l); /* is this the loop's thread? */

/* loop_watch - call w->ready when `events` (EPOLL* bits) happen on w->fd.
 * Threads: the loop's, or any before loop_start.
 * Errors: ERR_INTERNAL with the error of epoll_ctl; the descriptor is then not watched. */
int loop_watch(struct loop *l, struct loop_watch *w, uint32_t events, struct err *e);

/* loop_unwatch - `ready` is not called any more, not even for what this turn has fetched already.
 * Threads: the loop's, or any while no thread runs. */
void loop_unwatch(struct loop *l, struct loop_watch *w);

/* loop_post - have item->run called on the loop thread; an item that is queued stays where it is.
 * Threads: any; takes MTX_LOOP. Blocks: no. */
void loop_post(struct loop *l, struct loop_item *item);

/* loop_unpost - remove an item from the queue; does nothing if it is not queued. On the loop thread
 * this means that it will not run. */
void loop_unpost(struct loop *l, struct loop_item *item);

/* loop_timer_set - (re)arm. loop_timer_cancel - disarm. Threads: the loop's, or any before start.
 */
void loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t due_us);
void loop_timer_cancel(struct loop *l, struct loop_timer *t);

enum { LOOP_LAG_PERIOD_US = 30000000 };

/* loop_lag_max_us - the longest turn that ended in this period or the one before; periods begin by
 * the clock, so that readers do not disturb each other. Threads: any. */
uint64_t loop_lag_max_us(struct loop *l);

#endif
