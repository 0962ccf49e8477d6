/* Event loop over one level- or edge-triggered epoll.
 *
 * A watch may go away while the batch of events that names it is being handled: loop_unwatch wipes
 * it from the batch. Rejected design: free at the end of the iteration, which every owner would
 * have to remember. */
#include "base/loop.h"

#include "base/clock.h"
#include "base/mtx.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    LOOP_EVENTS_MAX = 256, /* events fetched in one iteration */
    LOOP_ITEMS_MAX =
        32, /* items run in one iteration, so that a flood of them does not starve sockets */
    LOOP_WAIT_MS_MAX = 60 * 1000,
    LOOP_NAME_MAX = 16
};

struct loop {
    struct mtx lock; /* rank MTX_LOOP; guards down to the blank line */
    struct loop_item *items, **items_tail;
    bool signalled; /* the eventfd has been written and not yet read */
    bool stopping;

    int epoll_fd, event_fd; /* owned; immutable */
    uint64_t (*turn)(void *arg);
    void *turn_arg;
    char name[LOOP_NAME_MAX];

    struct loop_watch wake; /* loop thread (or before its start) down to the blank line */
    struct loop_timer *timers;
    struct epoll_event batch[LOOP_EVENTS_MAX];
    int n_batch;

    pthread_t thread; /* owner's thread; written before the loop runs */
    bool started;     /* owner's thread */

    atomic_uint_fast64_t lag_us[2];  /* relaxed: a gauge; of even and of odd periods */
    atomic_uint_fast64_t lag_period; /* of the last turn */
};

static _Thread_local const struct loop *current;

static void drain_wake(void *arg, uint32_t events)
{
    struct loop *l = arg;
    uint64_t n;

    (void)events;
    /* Read first: clearing first would let this read swallow the wake-up of a later post. */
    if (read(l->event_fd, &n, sizeof n) < 0)
        assert(errno == EAGAIN || errno == EINTR);
    mtx_lock(&l->lock);
    l->signalled = false;
    mtx_unlock(&l->lock);
}

int loop_new(struct loop **out, const struct loop_cfg *cfg, struct err *e)
{
    struct loop *l = calloc(1, sizeof *l);

    if (l == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the loop %s", cfg->name);
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (l->epoll_fd < 0) {
        (void)err_set_errno(e, ERR_INTERNAL, "", errno, "cannot make an epoll");
        goto err_free;
    }
    l->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->event_fd < 0) {
        (void)err_set_errno(e, ERR_INTERNAL, "", errno, "cannot make an eventfd");
        goto err_close_epoll;
    }
    l->wake = (struct loop_watch){.ready = drain_wake, .arg = l, .fd = l->event_fd};
    if (loop_watch(l, &l->wake, EPOLLIN, e) != 0)
        goto err_close_event;
    mtx_init(&l->lock, MTX_LOOP);
    l->items_tail = &l->items;
    l->turn = cfg->turn;
    l->turn_arg = cfg->arg;
    (void)snprintf(l->name, sizeof l->name, "%s", cfg->name);
    *out = l;
    return 0;

err_close_event:
    (void)close(l->event_fd);
err_close_epoll:
    (void)close(l->epoll_fd);
err_free:
    free(l);
    return -1;
}

/* Removes the first queued item, or returns NULL. One at a time, so that loop_unpost stays exact.
 */
static struct loop_item *take_item(struct loop *l)
{
    struct loop_item *item;

    mtx_lock(&l->lock);
    item = l->items;
    if (item != NULL) {
        l->items = item->next;
        if (l->items == NULL)
            l->items_tail = &l->items;
        else
            l->items->prev_next = &l->items;
        item->next = NULL;
        item->prev_next = NULL;
    }
    mtx_unlock(&l->lock);
    return item;
}

static void run_items(struct loop *l)
{
    struct loop_item *item;

    for (int i = 0; i < LOOP_ITEMS_MAX && (item = take_item(l)) != NULL; i++)
        item->run(item->arg);
}

static void run_timers(struct loop *l)
{
    uint64_t now = clock_now_us();

    while (l->timers != NULL && l->timers->due_us <= now) {
        struct loop_timer *t = l->timers;

        loop_timer_cancel(l, t);
        t->fire(t->arg);
    }
}

/* Milliseconds to sleep, rounded up so that a timer is due when we wake. */
static int wait_ms(struct loop *l, uint64_t wait_us)
{
    bool queued;

    mtx_lock(&l->lock);
    queued = l->items != NULL || l->stopping;
    mtx_unlock(&l->lock);
    if (queued)
        return 0;
    if (l->timers != NULL) {
        uint64_t now = clock_now_us();
        uint64_t left = l->timers->due_us > now ? l->timers->due_us - now : 0;

        if (left < wait_us)
            wait_us = left;
    }
    if (wait_us >= (uint64_t)LOOP_WAIT_MS_MAX * 1000)
        return LOOP_WAIT_MS_MAX;
    return (int)((wait_us + 999) / 1000);
}

static bool loop_ended(struct loop *l)
{
    bool yes;

    mtx_lock(&l->lock);
    yes = l->stopping && l->items == NULL;
    mtx_unlock(&l->lock);
    return yes;
}

static void note_turn(struct loop *l, uint64_t began_us)
{
    uint64_t now = clock_now_us(), lag = now - began_us, period = now / LOOP_LAG_PERIOD_US;
    uint64_t last = atomic_load_explicit(&l->lag_period, memory_order_relaxed);
    atomic_uint_fast64_t *most = &l->lag_us[period % 2], *before = &l->lag_us[(period + 1) % 2];

    if (period > last + 1)
        atomic_store_explicit(before, 0, memory_order_relaxed);
    if (period > last)
        atomic_store_explicit(most, 0, memory_order_relaxed);
    if (lag > atomic_load_explicit(most, memory_order_relaxed))
        atomic_store_explicit(most, lag, memory_order_relaxed);
    atomic_store_explicit(&l->lag_period, period, memory_order_relaxed);
}

static void *loop_main(void *arg)
{
    struct loop *l = arg;
    uint64_t wait_us = 0;

    current = l;
    while (!loop_ended(l)) {
        int n = epoll_wait(l->epoll_fd, l->batch, LOOP_EVENTS_MAX, wait_ms(l, wait_us));
        uint64_t began_us = clock_now_us();

        l->n_batch = n > 0 ? n : 0;
        for (int i = 0; i < l->n_batch; i++) {
            struct loop_watch *w = l->batch[i].data.ptr;

            if (w != NULL)
                w->ready(w->arg, l->batch[i].events);
        }
        l->n_batch = 0;
        run_items(l);
        run_timers(l);
        wait_us = l->turn != NULL ? l->turn(l->turn_arg) : CLOCK_NEVER;
        note_turn(l, began_us);
    }
    return NULL;
}

int loop_start(struct loop *l, struct err *e)
{
    int rc;

    assert(!l->started);
    rc = pthread_create(&l->thread, NULL, loop_main, l);
    if (rc != 0)
        return err_set_errno(e, ERR_INTERNAL, "", rc, "cannot start the thread %s", l->name);
    (void)pthread_setname_np(l->thread, l->name);
    l->started = true;
    return 0;
}

static void signal_locked(struct loop *l)
{
    static const uint64_t one = 1;

    mtx_assert_held(&l->lock);
    if (l->signalled || current == l)
        return;
    l->signalled = true;
    /* Fails only when the counter is full, and then the loop wakes anyway. */
    if (write(l->event_fd, &one, sizeof one) < 0)
        assert(errno == EAGAIN || errno == EINTR);
}

void loop_stop(struct loop *l)
{
    if (!l->started)
        return;
    assert(current != l);
    mtx_lock(&l->lock);
    l->stopping = true;
    signal_locked(l);
    mtx_unlock(&l->lock);
    (void)pthread_join(l->thread, NULL);
    l->started = false;
}

void loop_free(struct loop *l)
{
    if (l == NULL)
        return;
    loop_stop(l);
    mtx_fini(&l->lock);
    (void)close(l->event_fd);
    (void)close(l->epoll_fd);
    free(l);
}

bool loop_started(const struct loop *l)
{
    return l->started;
}

bool loop_is_current(const struct loop *l)
{
    return current == l;
}

int loop_watch(struct loop *l, struct loop_watch *w, uint32_t events, struct err *e)
{
    struct epoll_event ev = {.events = events, .data.ptr = w};

    if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, w->fd, &ev) != 0)
        return err_set_errno(e, ERR_INTERNAL, "", errno, "cannot watch a file descriptor");
    return 0;
}

void loop_unwatch(struct loop *l, struct loop_watch *w)
{
    struct epoll_event none = {0};

    (void)epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, w->fd, &none);
    for (int i = 0; i < l->n_batch; i++)
        if (l->batch[i].data.ptr == w)
            l->batch[i].data.ptr = NULL;
}

void loop_post(struct loop *l, struct loop_item *item)
{
    mtx_lock(&l->lock);
    if (item->prev_next == NULL) {
        item->next = NULL;
        item->prev_next = l->items_tail;
        *l->items_tail = item;
        l->items_tail = &item->next;
        signal_locked(l);
    }
    mtx_unlock(&l->lock);
}

void loop_unpost(struct loop *l, struct loop_item *item)
{
    mtx_lock(&l->lock);
    if (item->prev_next != NULL) {
        *item->prev_next = item->next;
        if (item->next != NULL)
            item->next->prev_next = item->prev_next;
        else
            l->items_tail = item->prev_next;
        item->next = NULL;
        item->prev_next = NULL;
    }
    mtx_unlock(&l->lock);
}

void loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t due_us)
{
    struct loop_timer **at = &l->timers;

    loop_timer_cancel(l, t);
    while (*at != NULL && (*at)->due_us <= due_us)
        at = &(*at)->next;
    t->due_us = due_us;
    t->next = *at;
    t->prev_next = at;
    if (t->next != NULL)
        t->next->prev_next = &t->next;
    *at = t;
}

void loop_timer_cancel(struct loop *l, struct loop_timer *t)
{
    (void)l;
    if (t->prev_next == NULL)
        return;
    *t->prev_next = t->next;
    if (t->next != NULL)
        t->next->prev_next = t->prev_next;
    t->next = NULL;
    t->prev_next = NULL;
}

uint64_t loop_lag_max_us(struct loop *l)
{
    uint64_t last = atomic_load_explicit(&l->lag_period, memory_order_relaxed);
    uint64_t period = clock_now_us() / LOOP_LAG_PERIOD_US;
    uint64_t most = atomic_load_explicit(&l->lag_us[last % 2], memory_order_relaxed);
    uint64_t before = atomic_load_explicit(&l->lag_us[(last + 1) % 2], memory_order_relaxed);

    if (period > last + 1) /* no turn in either */
        return 0;
    return period > last || most > before ? most : before;
}
