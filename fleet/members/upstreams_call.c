/* upstreams_call: one request to each of several engines, sent by the loop for a waiting thread. */
#include "fleet/members/upstreams_priv.h"

#include "base/clock.h"

#include <assert.h>
#include <string.h>

enum { DOWN_CHECK_US = 200000 }; /* between checks for engines that went down meanwhile */

static void link_locked(struct upstreams *u, struct batch *a)
{
    a->next = u->batches;
    a->prev_next = &u->batches;
    if (a->next != NULL)
        a->next->prev_next = &a->next;
    u->batches = a;
}

/* The batch may be gone as soon as the lock is released. */
static void end_batch(struct batch *a, const struct err *why)
{
    struct upstreams *u = a->upstreams;

    mtx_lock(&u->lock);
    *a->prev_next = a->next;
    if (a->next != NULL)
        a->next->prev_next = a->prev_next;
    if (why != NULL)
        a->error = *why;
    a->ended = true;
    cnd_broadcast(&u->ended);
    mtx_unlock(&u->lock);
}

static void on_replies(void *arg, struct upstream_reply *replies, size_t n)
{
    struct batch *a = arg;

    for (size_t i = 0; i < n; i++) {
        a->replies[i] = replies[i];
        replies[i].text = NULL;
    }
    end_batch(a, NULL);
}

static bool is_down(void *arg, const struct upstream_call *call)
{
    struct upstreams *u = arg;
    struct upstream_info info;

    if (!call->until_down)
        return false;
    fleet_info(u->fleet, call->upstream, &info);
    return !info.alive;
}

/* Only this thread removes batches from the list, so `next` stays valid. */
void upstreams_check_down(void *arg)
{
    struct upstreams *u = arg;
    struct batch *a, *next;

    mtx_lock(&u->lock);
    a = u->batches;
    mtx_unlock(&u->lock);
    if (a != NULL)
        loop_timer_set(u->loop, &u->down_check, clock_after_us(DOWN_CHECK_US));
    for (; a != NULL; a = next) {
        mtx_lock(&u->lock);
        next = a->next;
        mtx_unlock(&u->lock);
        if (a->fanout != NULL)
            upstream_fanout_give_up(a->fanout, is_down, u);
    }
}

/* Few calls have until_down, so each just sets the timer again. */
static void watch_batch(struct batch *a, struct upstream_fanout *fanout)
{
    struct upstreams *u = a->upstreams;

    a->fanout = fanout;
    for (size_t i = 0; i < a->n; i++)
        if (a->calls[i].until_down)
            loop_timer_set(u->loop, &u->down_check, clock_after_us(DOWN_CHECK_US));
}

static void on_batch(void *arg)
{
    struct batch *a = arg;
    struct upstream_fanout *fanout = NULL;
    struct err e = {0};

    /* If there was nothing to send, `a` has ended and is gone when this returns. */
    if (upstream_fanout_start(&fanout, a->upstreams->client, a->calls, a->n, on_replies, a, &e) !=
        0)
        end_batch(a, &e);
    else if (fanout != NULL)
        watch_batch(a, fanout);
}

static void fini_calls(struct upstream_call *calls, size_t n)
{
    for (size_t i = 0; i < n; i++)
        api_request_fini(&calls[i].request);
}

int upstreams_call(struct upstreams *u, struct upstream_call *calls, size_t n,
                   struct upstream_reply *replies, struct err *e)
{
    struct batch a = {.upstreams = u, .calls = calls, .n = n, .replies = replies};
    bool stopped;

    assert(!loop_is_current(u->loop));
    mtx_assert_none();
    a.item = (struct loop_item){.run = on_batch, .arg = &a};
    mtx_lock(&u->lock);
    stopped = u->stopped;
    if (!stopped)
        link_locked(u, &a);
    mtx_unlock(&u->lock);
    if (stopped) {
        fini_calls(calls, n);
        return err_set(e, ERR_DRAINING, "",
                       "the server is draining: no requests are sent to upstreams");
    }
    loop_post(u->loop, &a.item);
    mtx_lock(&u->lock);
    a.posted = true;
    cnd_broadcast(&u->ended);
    while (!a.ended)
        (void)cnd_wait(&u->ended, &u->lock, CLOCK_NEVER);
    mtx_unlock(&u->lock);
    if (a.error.code == ERR_NONE)
        return 0;
    *e = a.error;
    return -1;
}

/* The first batch that has not ended; only this thread ends batches. If its item is about to be
 * posted, wait for that: the batch must not be gone before. */
static struct batch *first_batch(struct upstreams *u)
{
    struct batch *a;

    mtx_lock(&u->lock);
    a = u->batches;
    while (a != NULL && !a->posted)
        (void)cnd_wait(&u->ended, &u->lock, CLOCK_NEVER);
    mtx_unlock(&u->lock);
    return a;
}

void upstreams_fail_calls(void *arg)
{
    struct upstreams *u = arg;
    struct err why = {0};
    struct batch *a;

    (void)err_set(&why, ERR_DRAINING, "", "the server stopped before all upstreams had answered");
    while ((a = first_batch(u)) != NULL) {
        loop_unpost(u->loop, &a->item);
        if (a->fanout != NULL)
            upstream_fanout_cancel(a->fanout);
        else
            fini_calls(a->calls, a->n); /* it was not started */
        end_batch(a, &why);
    }
}
