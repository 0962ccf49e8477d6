/* upstreams_call: one request to each of several engines, sent by the loop for a waiting thread. */
#include "fleet/members/upstreams_priv.h"

#include "base/clock.h"

#include <assert.h>
#include <string.h>

enum { DOWN_CHECK_US = 200000 }; /* between checks for calls that need not be waited for */

static void link_batch_locked(struct upstreams *u, struct call_batch *b)
{
    b->next = u->batches;
    b->prev_next = &u->batches;
    if (b->next != NULL)
        b->next->prev_next = &b->next;
    u->batches = b;
}

/* The batch may be gone as soon as the lock is released. */
static void end_batch(struct call_batch *b, const struct err *why)
{
    struct upstreams *u = b->upstreams;

    mtx_lock(&u->lock);
    *b->prev_next = b->next;
    if (b->next != NULL)
        b->next->prev_next = b->prev_next;
    if (why != NULL)
        b->error = *why;
    b->ended = true;
    cnd_broadcast(&u->ended);
    mtx_unlock(&u->lock);
}

static void upstreams_call_on_reply(void *arg, size_t at, struct upstream_reply *reply)
{
    struct call_batch *b = arg;

    mtx_lock(&b->upstreams->lock);
    b->replies[at] = *reply;
    b->replies[at].came = true;
    reply->text = NULL;
    cnd_broadcast(&b->upstreams->ended);
    mtx_unlock(&b->upstreams->lock);
}

/* Those of which nothing was asked are good. */
static void upstreams_call_on_replies(void *arg, struct upstream_reply *replies, size_t n)
{
    struct call_batch *b = arg;

    for (size_t i = 0; i < n; i++)
        if (!replies[i].requested)
            upstreams_call_on_reply(b, i, &replies[i]);
    end_batch(b, NULL);
}

static bool is_call_down(void *arg, const struct upstream_call *call)
{
    struct upstreams *u = arg;
    struct upstream_info info;

    if (call->given_up != NULL && __atomic_load_n(call->given_up, __ATOMIC_ACQUIRE))
        return true;
    if (!call->until_down)
        return false;
    fleet_info(u->fleet, call->upstream, &info);
    return !info.alive;
}

/* Only this thread removes batches from the list, so `next` stays valid. */
void upstreams_check_down(void *arg)
{
    struct upstreams *u = arg;
    struct call_batch *b, *next;

    mtx_lock(&u->lock);
    b = u->batches;
    mtx_unlock(&u->lock);
    if (b != NULL)
        loop_timer_set(u->loop, &u->down_check, clock_after_us(DOWN_CHECK_US));
    for (; b != NULL; b = next) {
        mtx_lock(&u->lock);
        next = b->next;
        mtx_unlock(&u->lock);
        if (b->fanout != NULL)
            upstream_fanout_give_up(b->fanout, is_call_down, u);
    }
}

/* One that is armed stays as it is: else each new call would put it off. */
static void watch(struct upstreams *u)
{
    if (u->down_check.prev_next == NULL)
        loop_timer_set(u->loop, &u->down_check, clock_after_us(DOWN_CHECK_US));
}

static void watch_batch(struct call_batch *b, struct upstream_fanout *fanout)
{
    struct upstreams *u = b->upstreams;

    b->fanout = fanout;
    upstream_fanout_on_reply(fanout, upstreams_call_on_reply);
    for (size_t i = 0; i < b->n; i++)
        if (b->calls[i].until_down || b->calls[i].given_up != NULL || b->calls[i].late_us > 0)
            watch(u);
}

static void start_batch(void *arg)
{
    struct call_batch *b = arg;
    struct upstream_fanout *fanout = NULL;
    struct err e = {0};

    /* If there was nothing to send, `b` has ended and is gone when this returns. */
    if (upstream_fanout_start(&fanout, b->upstreams->client, b->calls, b->n,
                              upstreams_call_on_replies, b, &e) != 0)
        end_batch(b, &e);
    else if (fanout != NULL)
        watch_batch(b, fanout);
}

static void fini_calls(struct upstream_call *calls, size_t n)
{
    for (size_t i = 0; i < n; i++)
        api_request_fini(&calls[i].request);
}

/* Returns: n if there is none. */
static size_t next_answer_locked(const struct call_batch *b)
{
    size_t i = 0;

    while (i < b->n && (!b->replies[i].came || b->replies[i].answered))
        i++;
    return i;
}

/* Until it has ended, and all answers that came were told. */
static void tell_answers(struct call_batch *b, upstreams_answered_fn *answered, void *arg)
{
    struct upstreams *u = b->upstreams;
    size_t i;

    mtx_lock(&u->lock);
    while ((i = next_answer_locked(b)) < b->n || !b->ended) {
        if (i == b->n) {
            (void)cnd_wait(&u->ended, &u->lock, CLOCK_NEVER);
            continue;
        }
        b->replies[i].answered = true;
        mtx_unlock(&u->lock);
        if (answered != NULL)
            answered(arg, i);
        mtx_lock(&u->lock);
    }
    mtx_unlock(&u->lock);
}

int upstreams_call(struct upstreams *u, struct upstream_call *calls, size_t n,
                   struct upstream_reply *replies, upstreams_answered_fn *answered, void *arg,
                   struct err *e)
{
    struct call_batch b = {.upstreams = u, .calls = calls, .n = n, .replies = replies};
    bool stopped;

    for (size_t i = 0; i < n; i++)
        replies[i] = (struct upstream_reply){0};
    assert(!loop_is_current(u->loop));
    mtx_assert_none();
    b.item = (struct loop_item){.run = start_batch, .arg = &b};
    mtx_lock(&u->lock);
    stopped = u->stopped;
    if (!stopped)
        link_batch_locked(u, &b);
    mtx_unlock(&u->lock);
    if (stopped) {
        fini_calls(calls, n);
        return err_set(e, ERR_DRAINING, "",
                       "the server is draining: no requests are sent to upstreams");
    }
    loop_post(u->loop, &b.item);
    mtx_lock(&u->lock);
    b.posted = true;
    cnd_broadcast(&u->ended);
    mtx_unlock(&u->lock);
    tell_answers(&b, answered, arg);
    if (b.error.code == ERR_NONE)
        return 0;
    *e = b.error;
    return -1;
}

/* The first batch that has not ended; only this thread ends batches. If its item is about to be
 * posted, wait for that: the batch must not be gone before. */
static struct call_batch *first_batch(struct upstreams *u)
{
    struct call_batch *b;

    mtx_lock(&u->lock);
    b = u->batches;
    while (b != NULL && !b->posted)
        (void)cnd_wait(&u->ended, &u->lock, CLOCK_NEVER);
    mtx_unlock(&u->lock);
    return b;
}

void upstreams_fail_calls(void *arg)
{
    struct upstreams *u = arg;
    struct err why = {0};
    struct call_batch *b;

    (void)err_set(&why, ERR_DRAINING, "", "the server stopped before all upstreams had answered");
    while ((b = first_batch(u)) != NULL) {
        loop_unpost(u->loop, &b->item);
        if (b->fanout != NULL)
            upstream_fanout_cancel(b->fanout);
        else
            fini_calls(b->calls, b->n); /* it was not started */
        end_batch(b, &why);
    }
}
