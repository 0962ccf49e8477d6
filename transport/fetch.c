/* What comes goes straight to the disk: no file is in memory. A connection that breaks is no end of
 * a file whose server says which one it is: the rest is asked for, of that one. */
#include "base/utf8.h"
#include "transport/fetch_priv.h"
#include "transport/lanes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STATUS_OK = 200, STATUS_NOT_FOUND = 404 };

struct fetch {
    const struct fetch_rules *rules; /* borrowed, and so is the next */
    const struct progress *progress;
    struct lanes *lanes;
    char path[FETCH_PATH_MAX]; /* of the directory */

    /* The loop's thread has these while a call runs, the caller otherwise. */
    char at[FETCH_PATH_MAX];   /* of the file */
    char etag[HTTP_VALUE_MAX]; /* of the file; "": it has none that proves its bytes */
    int fd;
    bool asked;
    uint64_t nbytes, nbytes_max;
};

/* ---- on the loop's thread ---- */

static struct lane_ask ask_of(const struct fetch *f)
{
    struct lane_ask ask = {.method = "GET", .path = f->at};

    if (f->nbytes > 0) {
        ask.etag = f->etag;
        ask.from = f->nbytes;
        ask.to = UINT64_MAX;
    }
    return ask;
}

static enum lane_next fetch_next(void *arg, unsigned lane, struct lane_ask *out)
{
    struct fetch *f = arg;
    bool first = !f->asked;

    (void)lane;
    f->asked = true;
    *out = ask_of(f);
    return first ? LANE_ASKS : LANE_RESTS;
}

static int refuse_size(const struct fetch *f, uint64_t nbytes, struct err *e)
{
    return err_set(e, ERR_TOO_LARGE, "", "it has %llu bytes or more, at most %llu are allowed",
                   (unsigned long long)nbytes, (unsigned long long)f->nbytes_max);
}

/* The whole file comes, perhaps again. */
static int begin_whole(struct fetch *f, const struct http_head *h, struct err *e)
{
    bool proves = strncmp(h->etag, "W/", 2) != 0 && strlen(h->etag) + 1 < sizeof h->etag;

    if (f->nbytes > 0 && (ftruncate(f->fd, 0) != 0 || lseek(f->fd, 0, SEEK_SET) != 0))
        return err_set_errno(e, ERR_UNREADABLE, "", errno, "its temporary file cannot be emptied");
    f->nbytes = 0;
    (void)snprintf(f->etag, sizeof f->etag, "%s", proves ? h->etag : "");
    return h->content_length > 0 && (uint64_t)h->content_length > f->nbytes_max
               ? refuse_size(f, (uint64_t)h->content_length, e)
               : 0;
}

static int fetch_head(void *arg, unsigned lane, const struct http_head *h, struct err *e)
{
    struct fetch *f = arg;
    struct lane_ask ask = ask_of(f);
    uint64_t total;

    (void)lane;
    if (h->status == STATUS_NOT_FOUND)
        return err_set(e, ERR_NOT_FOUND, "", "it is not there (yet)");
    if (h->status != STATUS_OK && !(h->status / 100 == 2 && ask.to != 0))
        return err_set(e, ERR_UNREADABLE, "", "the server answered %d%s", h->status,
                       h->status >= 300 && h->status < 400 ? ", and redirects are not followed"
                                                           : "");
    if (lanes_check_encoding(h, e) != 0)
        return -1;
    if (h->status == STATUS_OK)
        return begin_whole(f, h, e);
    if (lanes_check_range(h, &ask, &total, e) != 0)
        return -1;
    return total > f->nbytes_max ? refuse_size(f, total, e) : 0;
}

static int fetch_data(void *arg, unsigned lane, const void *data, size_t len, struct err *e)
{
    struct fetch *f = arg;
    const char *at = data;

    (void)lane;
    if (f->nbytes + len > f->nbytes_max)
        return refuse_size(f, f->nbytes + len, e);
    f->nbytes += len;
    while (len > 0) {
        ssize_t n = write(f->fd, at, len);

        if (n < 0 && errno != EINTR)
            return err_set_errno(e, ERR_UNREADABLE, "", errno,
                                 "its temporary file cannot be written");
        at += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static int fetch_whole(void *arg, unsigned lane, struct err *e)
{
    (void)arg;
    (void)lane;
    (void)e;
    return 0;
}

/* ---- on the caller's ---- */

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

/* A broken connection is followed by another for as long as each brings more. */
static int fetch_get(struct fetch *f, struct err *e)
{
    struct lanes_work w = {.n_lanes = 1,
                           .next = fetch_next,
                           .head = fetch_head,
                           .data = fetch_data,
                           .whole = fetch_whole,
                           .arg = f};
    uint64_t had;
    bool broken;
    int rc;

    f->fd = temporary_file(f->rules->cfg.dir, e);
    if (f->fd < 0)
        return -1;
    f->nbytes = 0;
    f->etag[0] = '\0';
    do {
        err_clear(e);
        had = f->nbytes;
        f->asked = false;
        rc = lanes_run(f->lanes, &w, f->progress, &broken, e);
    } while (rc != 0 && broken && f->etag[0] != '\0' && f->nbytes > had);
    if (rc != 0)
        (void)close(f->fd);
    return rc;
}

/* Puts the file's name and its server before a message. */
static int say_fetched(const struct fetch *f, const char *name, struct err *e)
{
    char text[ERR_MSG_MAX];
    const char *url = lanes_url(f->lanes);

    memcpy(text, e->msg, sizeof text);
    (void)snprintf(e->msg, sizeof e->msg, "'%.*s' of %.*s: %.*s", utf8_cut(name, 120), name,
                   utf8_cut(url, 80), url, utf8_cut(text, 250), text);
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
    const char *rest = "";
    const struct fetch_prefix *p = fetch_prefix_of(r, url, &rest);
    struct lanes_place place = {.allowed = fetch_address_allowed, .allowed_arg = r};
    struct fetch *f;

    if (p == NULL)
        return err_set(e, ERR_FORBIDDEN, "/source", "'%.*s' is beneath no --fetch-prefix",
                       utf8_cut(url, 200), url);
    if (!fetch_path_is_plain(rest))
        return fetch_refuse_path("/source", url, e);
    f = calloc(1, sizeof *f);
    if (f == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to fetch files");
    f->rules = r;
    f->progress = progress;
    place.target = (struct http_target){.url = p->url, .ca_file = r->cfg.ca_file};
    if (snprintf(f->path, sizeof f->path, "%s%s", p->path, rest) >= (int)sizeof f->path)
        (void)fetch_refuse_path("/source", url, e);
    if (e->code != ERR_NONE || lanes_open(&f->lanes, &place, stall_us, e) != 0) {
        free(f);
        return -1;
    }
    *out = f;
    return 0;
}

void fetch_close(struct fetch *f)
{
    if (f == NULL)
        return;
    lanes_close(f->lanes);
    free(f);
}
