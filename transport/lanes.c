/* The HTTP client needs a loop, which has a thread; the caller waits, and looks for the reasons to
 * end. */
#include "transport/lanes.h"

#include "base/clock.h"
#include "base/loop.h"
#include "base/mtx.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLICE_US = 100000,    /* between two looks at the reasons to end */
    RATE_MIN = 16 * 1024, /* bytes a second */
    STATUS_PARTIAL = 206
};

struct lane {
    struct lanes *of;
    struct http_call *call; /* NULL: it asks for nothing */
    struct lane_ask ask;
};

struct lanes {
    struct lanes_place place;
    uint64_t stall_us, stall_nbytes; /* in that time as many have to come, or all there are */
    struct loop *loop;
    struct http_client *client;

    struct mtx lock; /* rank MTX_LEAF; guards the next two */
    struct cnd changed;
    const struct lanes_work *given; /* to be begun */
    bool ended;

    /* The loop's thread has these. */
    const struct lanes_work *work; /* under way; NULL: none */
    struct lane lanes[LANES_MAX];
    struct err why; /* the caller's too, when the work has ended */
    bool broken;    /* likewise */

    struct loop_item begin, cancel;
    atomic_uint_fast64_t nbytes; /* relaxed: that have come of what was asked for without a body */
};

/* ---- on the loop's thread ---- */

static void work_end(struct lanes *s)
{
    s->work = NULL;
    mtx_lock(&s->lock);
    s->ended = true;
    cnd_signal(&s->changed);
    mtx_unlock(&s->lock);
}

static void work_give_up(void *arg)
{
    struct lanes *s = arg;

    if (s->work == NULL)
        return;
    for (unsigned i = 0; i < s->work->n_lanes; i++) {
        if (s->lanes[i].call != NULL)
            http_cancel(s->lanes[i].call);
        s->lanes[i].call = NULL;
    }
    work_end(s);
}

static unsigned lane_index(const struct lane *l)
{
    return (unsigned)(l - l->of->lanes);
}

static void on_run_head(void *arg, const struct http_head *head)
{
    struct lane *l = arg;
    const struct lanes_work *w = l->of->work;

    if (w->head(w->arg, lane_index(l), head, &l->of->why) != 0)
        work_give_up(l->of);
}

static bool on_run_data(void *arg, const void *data, size_t len)
{
    struct lane *l = arg;
    const struct lanes_work *w = l->of->work;

    if (l->ask.body == NULL)
        (void)atomic_fetch_add_explicit(&l->of->nbytes, len, memory_order_relaxed);
    if (w->data(w->arg, lane_index(l), data, len, &l->of->why) != 0)
        work_give_up(l->of);
    return true;
}

static void lanes_go_on(struct lanes *s);

static void on_run_done(void *arg, const struct http_end *end)
{
    struct lane *l = arg;
    struct lanes *s = l->of;

    l->call = NULL;
    s->broken = end->outcome == HTTP_BROKEN;
    if (end->outcome != HTTP_WHOLE)
        (void)err_set(&s->why, end->outcome == HTTP_NO_MEMORY ? ERR_NO_MEMORY : ERR_UNREADABLE, "",
                      "%.250s", end->why[0] != '\0' ? end->why : "no memory for the request");
    else if (s->work->whole(s->work->arg, lane_index(l), &s->why) == 0)
        return lanes_go_on(s);
    work_give_up(s);
}

static int lane_begin(struct lane *l, struct err *e)
{
    const struct lanes_place *place = &l->of->place;
    const struct lane_ask *ask = &l->ask;
    char range[64];
    struct http_header headers[2];
    struct http_call_request req = {.target = &place->target,
                                    .method = ask->method,
                                    .path = ask->path,
                                    .body = ask->body,
                                    .body_len = ask->body != NULL ? strlen(ask->body) : 0,
                                    .headers = headers,
                                    .connect_timeout_us = l->of->stall_us,
                                    .allowed = place->allowed,
                                    .allowed_arg = place->allowed_arg};
    struct http_events events = {
        .head = on_run_head, .data = on_run_data, .done = on_run_done, .arg = l};
    int n = snprintf(range, sizeof range, "bytes=%" PRIu64 "-", ask->from);

    if (ask->to != UINT64_MAX)
        (void)snprintf(range + n, sizeof range - (size_t)n, "%" PRIu64, ask->to - 1);
    if (ask->to != 0)
        headers[req.n_headers++] = (struct http_header){"Range", range};
    if (ask->to != 0 && ask->etag != NULL)
        headers[req.n_headers++] = (struct http_header){"If-Range", ask->etag};
    if (ask->body != NULL)
        headers[req.n_headers++] = (struct http_header){"Content-Type", "application/json"};
    return http_start(&l->call, l->of->client, &req, &events, e);
}

static void lanes_go_on(struct lanes *s)
{
    const struct lanes_work *w = s->work;
    bool rest = true, asks = false;

    for (unsigned i = 0; i < w->n_lanes; i++) {
        struct lane *l = &s->lanes[i];
        enum lane_next next = l->call != NULL ? LANE_WAITS : w->next(w->arg, i, &l->ask);

        l->of = s;
        rest = rest && next == LANE_RESTS;
        if (next == LANE_ASKS && lane_begin(l, &s->why) != 0)
            return work_give_up(s);
        asks = asks || l->call != NULL;
    }
    if (rest)
        work_end(s);
    else if (!asks) /* it waits by its own will */
        (void)atomic_fetch_add_explicit(&s->nbytes, s->stall_nbytes, memory_order_relaxed);
}

/* Also between two slices, when it has begun. */
static void work_begin(void *arg)
{
    struct lanes *s = arg;

    mtx_lock(&s->lock);
    if (s->given != NULL)
        s->work = s->given;
    s->given = NULL;
    mtx_unlock(&s->lock);
    if (s->work != NULL)
        lanes_go_on(s);
}

/* ---- on the caller's ---- */

/* Must it end now? @nbytes  that have come since `since_us` */
static int run_check(const struct lanes *s, const struct progress *progress, uint64_t nbytes,
                     uint64_t since_us, struct err *e)
{
    if (progress_check(progress, e) != 0)
        return -1;
    if (nbytes >= s->stall_nbytes || clock_now_us() - since_us < s->stall_us)
        return 0;
    return err_set(e, ERR_TIMEOUT, "", "%llu bytes came in %llu ms", (unsigned long long)nbytes,
                   (unsigned long long)s->stall_us / 1000);
}

int lanes_run(struct lanes *s, const struct lanes_work *w, const struct progress *progress,
              bool *broken, struct err *e)
{
    uint64_t seen = atomic_load_explicit(&s->nbytes, memory_order_relaxed), now;
    uint64_t since_us = clock_now_us();
    bool ended = false;

    s->why = (struct err){0};
    s->broken = false;
    mtx_lock(&s->lock);
    s->ended = false;
    s->given = w;
    mtx_unlock(&s->lock);
    while (!ended) {
        loop_post(s->loop, &s->begin);
        mtx_lock(&s->lock);
        if (!s->ended)
            (void)cnd_wait(&s->changed, &s->lock, clock_after_us(SLICE_US));
        ended = s->ended;
        mtx_unlock(&s->lock);
        now = atomic_load_explicit(&s->nbytes, memory_order_relaxed);
        if (!ended && e->code == ERR_NONE && run_check(s, progress, now - seen, since_us, e) != 0)
            loop_post(s->loop, &s->cancel);
        if (now - seen >= s->stall_nbytes) {
            since_us = clock_now_us();
            seen = now;
        }
    }
    if (broken != NULL)
        *broken = e->code == ERR_NONE && s->broken;
    if (e->code == ERR_NONE)
        *e = s->why;
    return e->code == ERR_NONE ? 0 : -1;
}

int lanes_check_encoding(const struct http_head *h, struct err *e)
{
    if (h->content_encoding[0] == '\0' || strcmp(h->content_encoding, "identity") == 0)
        return 0;
    return err_set(e, ERR_UNREADABLE, "", "it came in the encoding '%.*s'",
                   utf8_cut(h->content_encoding, 64), h->content_encoding);
}

int lanes_check_range(const struct http_head *h, const struct lane_ask *ask, uint64_t *total,
                      struct err *e)
{
    uint64_t from, last, all;
    char again[96] = "";

    if (sscanf(h->content_range, "bytes %" SCNu64 "-%" SCNu64 "/%" SCNu64, &from, &last, &all) == 3)
        (void)snprintf(again, sizeof again, "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, from, last,
                       all);
    if (h->status != STATUS_PARTIAL || strcmp(again, h->content_range) != 0 || from != ask->from ||
        from > last || last >= all || last + 1 != (ask->to == UINT64_MAX ? all : ask->to) ||
        (h->content_length >= 0 && (uint64_t)h->content_length != last + 1 - from))
        return err_set(e, ERR_UNREADABLE, "",
                       "the server answered %d with the range '%.*s' of %lld bytes when it was "
                       "asked for bytes from %llu on",
                       h->status, utf8_cut(h->content_range, 64), h->content_range,
                       (long long)h->content_length, (unsigned long long)ask->from);
    *total = all;
    return 0;
}

int lanes_open(struct lanes **out, const struct lanes_place *place, uint64_t stall_us,
               struct err *e)
{
    static const struct loop_cfg loop_cfg = {.name = "fetch"};
    struct lanes *s = calloc(1, sizeof *s);

    if (s == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for requests");
    mtx_init(&s->lock, MTX_LEAF);
    cnd_init(&s->changed);
    s->place = *place;
    s->stall_us = stall_us;
    s->stall_nbytes = stall_us * RATE_MIN / 1000000 + 1;
    s->begin = (struct loop_item){.run = work_begin, .arg = s};
    s->cancel = (struct loop_item){.run = work_give_up, .arg = s};
    if (loop_new(&s->loop, &loop_cfg, e) != 0 || http_client_new(&s->client, s->loop, e) != 0 ||
        loop_start(s->loop, e) != 0) {
        lanes_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

const char *lanes_url(const struct lanes *s)
{
    return s->place.target.url;
}

void lanes_close(struct lanes *s)
{
    if (s == NULL)
        return;
    if (s->loop != NULL)
        loop_stop(s->loop);
    http_client_free(s->client);
    loop_free(s->loop);
    cnd_fini(&s->changed);
    mtx_fini(&s->lock);
    free(s);
}
