/* What the thread of events looks at regularly: readiness, and the progress of the open update. */
#ifndef BATON_HANDLERS_STATUS_EVENTS_POLL_H
#define BATON_HANDLERS_STATUS_EVENTS_POLL_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct app;

/* Zeroed but for `app`; the thread's only. */
struct events_poll {
    const struct app *app; /* borrowed */
    bool known, ready;
    enum err_code why; /* why it is not ready */
    char at[128];      /* how far the open update was: id, phase, bytes */
    char *progress;    /* owned: that update as JSON; NULL: none was sent */
};

/* events_poll - the `poll` of struct event_watch_cfg; arg is a struct events_poll. Puts the event
 * `readiness` when readiness or its reason has changed.
 * Returns: the open update as JSON if it has come further; without subscribers NULL. */
const char *events_poll(void *arg, size_t n_subscribers);
void events_poll_fini(struct events_poll *p); /* the thread has stopped */

#endif
