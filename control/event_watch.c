/* One thread steps all subscribers: a step copies a few events into the buffer of a stream, and the
 * event loop of the listener sends them, so that a client that does not read delays nobody.
 * Rejected: writing to the streams where an event happens, which may be under any lock. */
#include "control/event_watch.h"

#include "base/clock.h"
#include "base/events.h"
#include "base/mtx.h"

#include <stdlib.h>

struct event_watch {
    struct mtx lock;                /* rank MTX_LEAF; guards down to the blank line */
    struct event_subscriber *added; /* not seen by the thread yet */
    size_t n;                       /* all of them */
    bool stopping;

    struct event_subscriber *all; /* the thread's only */
    struct event_watch_cfg cfg;   /* immutable */
    pthread_t thread;             /* the owner's, like the next */
    bool joined;
};

/* Moves those that were added to the thread's list. Returns: is it to stop? */
static bool take_added(struct event_watch *w, size_t *n)
{
    bool stopping;

    mtx_lock(&w->lock);
    while (w->added != NULL) {
        struct event_subscriber *s = w->added;

        w->added = s->next;
        s->next = w->all;
        w->all = s;
    }
    *n = w->n;
    stopping = w->stopping;
    mtx_unlock(&w->lock);
    return stopping;
}

static void step_all(struct event_watch *w, const char *progress, bool last)
{
    struct event_subscriber **at = &w->all;
    size_t n_ended = 0;

    while (*at != NULL) {
        struct event_subscriber *s = *at, *next = s->next;

        if (s->step(s, progress, last)) {
            at = &s->next;
            continue;
        }
        *at = next;
        n_ended++;
    }
    mtx_lock(&w->lock);
    w->n -= n_ended;
    mtx_unlock(&w->lock);
}

static void *watch_main(void *arg)
{
    struct event_watch *w = arg;
    bool stopping = false;
    uint64_t seen;
    size_t n;

    while (!stopping) {
        const char *progress;

        seen = events_last();
        stopping = take_added(w, &n);
        progress = w->cfg.poll(w->cfg.arg, n);
        step_all(w, progress, stopping);
        if (!stopping)
            events_wait(seen, clock_after_us(EVENT_WATCH_PERIOD_MS * UINT64_C(1000)));
    }
    return NULL;
}

int event_watch_new(struct event_watch **out, const struct event_watch_cfg *cfg, struct err *e)
{
    struct event_watch *w = calloc(1, sizeof *w);
    int rc;

    if (w == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the thread of events");
    w->cfg = *cfg;
    mtx_init(&w->lock, MTX_LEAF);
    rc = pthread_create(&w->thread, NULL, watch_main, w);
    if (rc != 0) {
        mtx_fini(&w->lock);
        free(w);
        return err_set_errno(e, ERR_INTERNAL, "", rc, "cannot start the thread of events");
    }
    (void)pthread_setname_np(w->thread, "events");
    *out = w;
    return 0;
}

int event_watch_add(struct event_watch *w, struct event_subscriber *s, struct err *e)
{
    int rc = 0;

    mtx_lock(&w->lock);
    if (w->stopping) {
        rc = err_set(e, ERR_DRAINING, "", "the server is stopping: there are no more events");
    } else if (w->n >= EVENT_SUBSCRIBERS_MAX) {
        rc = err_set(e, ERR_OVERLOADED, "",
                     "%zu streams of events are open, and the limit is %d: close one, or read "
                     "/v1/status",
                     w->n, EVENT_SUBSCRIBERS_MAX);
    } else {
        s->next = w->added;
        w->added = s;
        w->n++;
    }
    mtx_unlock(&w->lock);
    if (rc == 0)
        events_wake();
    return rc;
}

void event_watch_stop(struct event_watch *w)
{
    if (w->joined)
        return;
    mtx_lock(&w->lock);
    w->stopping = true;
    mtx_unlock(&w->lock);
    events_wake();
    (void)pthread_join(w->thread, NULL);
    w->joined = true;
}

void event_watch_free(struct event_watch *w)
{
    if (w == NULL)
        return;
    event_watch_stop(w);
    mtx_fini(&w->lock);
    free(w);
}
