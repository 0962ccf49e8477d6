/* The thread that follows the ring of events (base/events.h) for all streams of GET /v1/events, and
 * looks regularly at what changes without an event. */
#ifndef BATON_CONTROL_EVENT_WATCH_H
#define BATON_CONTROL_EVENT_WATCH_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct event_watch;

enum {
    EVENT_SUBSCRIBERS_MAX = 32,
    EVENT_WATCH_PERIOD_MS = 250 /* the longest time between two looks; progress comes as often */
};

/* One subscriber, embedded in its owner's struct. */
struct event_subscriber {
    /* Read the ring and write the stream; called when there may be new events, at least every
     * EVENT_WATCH_PERIOD_MS, and a last time when the thread stops. Returns false when the stream
     * has ended: the subscriber is freed then. Runs on the thread, with no lock held; must not
     * block.
     * @progress  what `poll` returned; NULL: nothing
     * @last      the thread stops: end the stream, and return false */
    bool (*step)(struct event_subscriber *s, const char *progress, bool last);

    struct event_subscriber *next; /* of the thread */
};

struct event_watch_cfg {
    /* Look at what changes without an event. Runs on the thread before the steps, with no lock
     * held; must not block.
     * @n_subscribers  0: progress would have no reader
     * Returns: text for each subscriber that is not kept in the ring, valid until the next call; or
     * NULL. */
    const char *(*poll)(void *arg, size_t n_subscribers);
    void *arg;
};

/* event_watch_new - start the thread. Errors: ERR_NO_MEMORY, ERR_INTERNAL. */
int event_watch_new(struct event_watch **out, const struct event_watch_cfg *cfg, struct err *e);

/* event_watch_add - hand a subscriber to the thread, which steps it at once.
 * Threads: any; takes MTX_LEAF. Blocks: no.
 * Errors: ERR_OVERLOADED (EVENT_SUBSCRIBERS_MAX), ERR_DRAINING (stopped); it stays the caller's. */
int event_watch_add(struct event_watch *w, struct event_subscriber *s, struct err *e);

/* event_watch_stop - deliver the events so far, end every stream, join the thread. Repeating is
 * harmless. Threads: the owner's. Blocks: for one step of each subscriber. */
void event_watch_stop(struct event_watch *w);
void event_watch_free(struct event_watch *w); /* stops first; accepts NULL */

#endif
