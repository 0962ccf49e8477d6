/* The HTTP client needs a loop, which has a thread; the caller waits, and looks for the reasons to
 * end. What comes goes straight to the disk: no file is in memory. */
#include "base/clock.h"
#include "base/loop.h"
#include "base/mtx.h"
#include "base/utf8.h"
#include "http/client/http.h"
#include "transport/fetch_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SLICE_US = 100000, /* between two looks at the reasons to end */
    STATUS_OK = 200,
    STATUS_NOT_FOUND = 404
};

struct fetch {
    const struct fetch_rules *rules; /* borrowed, and so are the next two */
    const struct progress *progress;
    uint64_t stall_us;
    struct loop *loop;
    struct http_client *client;
    struct http_target target;
    char path[FETCH_PATH_MAX]; /* of the directory */

    struct mtx lock; /* rank MTX_LEAF; guards `ended` */
    struct cnd changed;
    bool ended;

    /* The loop's thread has these while a call runs, the caller otherwise. */
    struct loop_item begin, cancel;
    struct http_call *call;
    char at[FETCH_PATH_MAX]; /* of the file */
    int fd;
    uint64_t nbytes_max;
    struct err why;

    atomic_uint_fast64_t nbytes; /* relaxed: that have come */
};

/* ---- on the loop's thread ---- */

static void fetch_ended(struct fetch *f)
{
    f->call = NULL;
    mtx_lock(&f->lock);
    f->ended = true;
    cnd_signal(&f->changed);
    mtx_unlock(&f->lock);
}

static void fetch_give_up(void *arg)
{
    struct fetch *f = arg;

    if (f->call == NULL)
        return;
    http_cancel(f->call);
    fetch_ended(f);
}

static int refuse_size(struct fetch *f, uint64_t nbytes)
{
    return err_set(&f->why, ERR_TOO_LARGE, "",
                   "it has %llu bytes or more, at most %llu are allowed",
                   (unsigned long long)nbytes, (unsigned long long)f->nbytes_max);
}

static int check_head(struct fetch *f, const struct http_head *h)
{
    if (h->status == STATUS_NOT_FOUND)
        return err_set(&f->why, ERR_NOT_FOUND, "", "it is not there (yet)");
    if (h->status != STATUS_OK)
        return err_set(&f->why, ERR_UNREADABLE, "", "the server answered %d%s", h->status,
                       h->status >= 300 && h->status < 400 ? ", and redirects are not followed"
                                                           : "");
    if (h->content_encoding[0] != '\0' && strcmp(h->content_encoding, "identity") != 0)
        return err_set(&f->why, ERR_UNREADABLE, "", "it came in the encoding '%.*s'",
                       utf8_cut(h->content_encoding, 64), h->content_encoding);
    return h->content_length > 0 && (uint64_t)h->content_length > f->nbytes_max
               ? refuse_size(f, (uint64_t)h->content_length)
               : 0;
}

static void fetch_on_head(void *arg, const struct http_head *head)
{
    struct fetch *f = arg;

    if (check_head(f, head) != 0)
        fetch_give_up(f);
}

static int keep(struct fetch *f, const char *data, size_t len)
{
    uint64_t nbytes = atomic_fetch_add_explicit(&f->nbytes, len, memory_order_relaxed) + len;

    if (nbytes > f->nbytes_max)
        return refuse_size(f, nbytes);
    while (len > 0) {
        ssize_t n = write(f->fd, data, len);

        if (n < 0 && errno != EINTR)
            return err_set_errno(&f->why, ERR_UNREADABLE, "", errno,
                                 "its temporary file cannot be written");
        data += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static bool fetch_on_data(void *arg, const void *data, size_t len)
{
    struct fetch *f = arg;

    if (keep(f, data, len) != 0)
        fetch_give_up(f);
    return true;
}

static void fetch_on_done(void *arg, const struct http_end *end)
{
    struct fetch *f = arg;

    if (end->outcome != HTTP_WHOLE)
        (void)err_set(&f->why, end->outcome == HTTP_NO_MEMORY ? ERR_NO_MEMORY : ERR_UNREADABLE, "",
                      "%.250s", end->why[0] != '\0' ? end->why : "no memory for the request");
    fetch_ended(f);
}

static void fetch_begin(void *arg)
{
    struct fetch *f = arg;
    struct http_call_request req = {.target = &f->target,
                                    .method = "GET",
                                    .path = f->at,
                                    .connect_timeout_us = f->stall_us,
                                    .allowed = fetch_address_allowed,
                                    .allowed_arg = f->rules};
    struct http_events events = {
        .head = fetch_on_head, .data = fetch_on_data, .done = fetch_on_done, .arg = f};

    if (http_start(&f->call, f->client, &req, &events, &f->why) != 0)
        fetch_ended(f);
}

/* ---- on the caller's ---- */

/* Must it end now? @moved_us  when the last bytes came */
static int fetch_check(const struct fetch *f, uint64_t moved_us, struct err *e)
{
    if (progress_check(f->progress, e) != 0)
        return -1;
    if (clock_now_us() - moved_us < f->stall_us)
        return 0;
    return err_set(e, ERR_TIMEOUT, "", "no byte came for %llu ms",
                   (unsigned long long)f->stall_us / 1000);
}

static int fetch_wait(struct fetch *f, struct err *e)
{
    uint64_t seen = 0, now, moved_us = clock_now_us();
    bool ended = false;

    while (!ended) {
        mtx_lock(&f->lock);
        if (!f->ended)
            (void)cnd_wait(&f->changed, &f->lock, clock_after_us(SLICE_US));
        ended = f->ended;
        mtx_unlock(&f->lock);
        now = atomic_load_explicit(&f->nbytes, memory_order_relaxed);
        moved_us = now != seen ? clock_now_us() : moved_us;
        seen = now;
        if (!ended && e->code == ERR_NONE && fetch_check(f, moved_us, e) != 0)
            loop_post(f->loop, &f->cancel);
    }
    if (e->code == ERR_NONE)
        *e = f->why;
    return e->code == ERR_NONE ? 0 : -1;
}

static int temporary_file(const char *dir, struct err *e)
{
    char path[FETCH_PATH_MAX];
    int fd = -1;

    if (snprintf(path, sizeof path, "%s/baton-fetch-XXXXXX", dir) < (int)sizeof path)
        fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return err_set_errno(e, ERR_UNREADABLE, "", errno,
                             "no temporary file can be made in the directory for it");
    (void)unlink(path);
    return fd;
}

static int fetch_get(struct fetch *f, struct err *e)
{
    f->fd = temporary_file(f->rules->cfg.dir, e);
    if (f->fd < 0)
        return -1;
    f->ended = false;
    f->why = (struct err){0};
    atomic_store_explicit(&f->nbytes, 0, memory_order_relaxed);
    loop_post(f->loop, &f->begin);
    if (fetch_wait(f, e) == 0)
        return 0;
    (void)close(f->fd);
    return -1;
}

/* Puts the file's name and its server before a message. */
static int say_fetched(const struct fetch *f, const char *name, struct err *e)
{
    char text[ERR_MSG_MAX];

    memcpy(text, e->msg, sizeof text);
    (void)snprintf(e->msg, sizeof e->msg, "'%.*s' of %.*s: %.*s", utf8_cut(name, 120), name,
                   utf8_cut(f->target.url, 80), f->target.url, utf8_cut(text, 250), text);
    return -1;
}

int fetch_file(void *fetch, int *fd, const char *name, uint64_t nbytes_max, struct err *e)
{
    struct fetch *f = fetch;

    if (!fetch_path_is_plain(name) ||
        snprintf(f->at, sizeof f->at, "%s/%s", f->path, name) >= (int)sizeof f->at)
        return fetch_refuse_path("", name, e);
    f->nbytes_max = nbytes_max;
    if (fetch_get(f, e) != 0)
        return say_fetched(f, name, e);
    *fd = f->fd;
    return 0;
}

int fetch_open(struct fetch **out, const struct fetch_rules *r, const char *url,
               const struct progress *progress, uint64_t stall_us, struct err *e)
{
    static const struct loop_cfg loop_cfg = {.name = "fetch"};
    const char *rest = "";
    const struct fetch_prefix *p = fetch_prefix_of(r, url, &rest);
    struct fetch *f;

    if (p == NULL)
        return err_set(e, ERR_FORBIDDEN, "/source", "'%.*s' is beneath no --fetch-prefix",
                       utf8_cut(url, 200), url);
    if (!fetch_path_is_plain(rest))
        return fetch_refuse_path("/source", url, e);
    f = calloc(1, sizeof *f);
    if (f == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to fetch files");
    mtx_init(&f->lock, MTX_LEAF);
    cnd_init(&f->changed);
    f->rules = r;
    f->progress = progress;
    f->stall_us = stall_us;
    f->target = (struct http_target){.url = p->url, .ca_file = r->cfg.ca_file};
    f->begin = (struct loop_item){.run = fetch_begin, .arg = f};
    f->cancel = (struct loop_item){.run = fetch_give_up, .arg = f};
    if (snprintf(f->path, sizeof f->path, "%s%s", p->path, rest) >= (int)sizeof f->path)
        (void)fetch_refuse_path("/source", url, e);
    if (e->code != ERR_NONE || loop_new(&f->loop, &loop_cfg, e) != 0 ||
        http_client_new(&f->client, f->loop, e) != 0 || loop_start(f->loop, e) != 0) {
        fetch_close(f);
        return -1;
    }
    *out = f;
    return 0;
}

void fetch_close(struct fetch *f)
{
    if (f == NULL)
        return;
    if (f->loop != NULL)
        loop_stop(f->loop);
    http_client_free(f->client);
    loop_free(f->loop);
    cnd_fini(&f->changed);
    mtx_fini(&f->lock);
    free(f);
}
