/* The changes of the server's state, in order: a bounded ring in memory.
 *
 * Writers are log_event() and log_event_line() in base/log.h: an event is the line of the log, so
 * both have the same names and members. Readers keep the id of the last event that they read; the
 * ring holds the latest EVENTS_KEPT, and a reader that falls behind notices it. There is one ring,
 * as there is one log.
 *
 * Ids increase by 1, and those of a later process are higher: the first is the time of
 * events_open() in seconds, times EVENTS_IDS_EACH_S. */
#ifndef BATON_BASE_EVENTS_H
#define BATON_BASE_EVENTS_H

#include "base/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { EVENTS_KEPT = 1024, EVENTS_IDS_EACH_S = 1000000 };

struct event {
    uint64_t id;
    const char *name; /* static; such as "update.committed" */
    size_t len;
    char data[LOG_LINE_MAX]; /* one JSON object, one line; no NUL after it */
};

/* events_open - begin with an empty ring. Before it events_put does nothing, and nothing else may
 * be called. Threads: main, before others use it; again only when no other thread uses it. */
void events_open(void);

/* events_put - append an event; the oldest one is dropped when the ring is full.
 * @name  static
 * @data  copied; cut at LOG_LINE_MAX
 * Threads: any; takes MTX_EVENTS. Blocks: no. */
void events_put(const char *name, const char *data, size_t len);

/* events_last - the id of the latest event. Threads: any. */
uint64_t events_last(void);

/* events_has - can a reader that has read up to `id` continue without a gap? */
bool events_has(uint64_t id);

/* events_next - copy the oldest event whose id is higher than `after`.
 * Returns false: there is none. A gap between `after` and out->id means that events are lost. */
bool events_next(uint64_t after, struct event *out);

/* events_wait - wait until there is an event with a higher id than `after`, events_wake is called,
 * or the deadline has passed. Threads: one. Blocks: until then. */
void events_wait(uint64_t after, uint64_t deadline_us);
void events_wake(void); /* also ends the next events_wait, if none waits now */

#endif
