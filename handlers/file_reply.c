/* The bytes are copied piece by piece into the stream of the reply. A reply takes FILE_UNSENT_MAX
 * and one piece of memory, however long it is and however slow its client. Rejected: replies that
 * point into the memory that they send, as those of one tensor do, because an update would have to
 * wait until they have ended. */
#include "handlers/file_reply.h"

#include "base/clock.h"
#include "base/mtx.h"
#include "control/source_threads.h"
#include "handlers/app.h"
#include "handlers/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FILE_PIECE_NBYTES = 1 << 20,
    FILE_UNSENT_MAX = 1 << 20, /* bytes that the client has not read; above it the stream waits */
    FILE_POLL_US = 100000      /* for a stop, the end of the lease or of the client */
};
_Static_assert((int)FILE_UNSENT_MAX < (int)HTTP_REQUEST_STREAM_NBYTES_MAX, "a piece may follow");

/* One reply that is being sent. */
struct file_send {
    struct mtx lock; /* rank MTX_LEAF; guards down to the blank line */
    struct cnd changed;
    bool drained; /* the client has read since it was set to false */

    struct http_request *x;         /* consumed by the end of the stream */
    struct source_threads *threads; /* borrowed */
    struct job job;
    struct file_source source; /* without its digest */
    uint64_t at, end;          /* bytes of it that are still to be read */
    char *piece;               /* owned; [FILE_PIECE_NBYTES] */
    struct http_reply head;
};

static void file_send_free(struct file_send *s)
{
    s->source.end(s->source.arg);
    cnd_fini(&s->changed);
    mtx_fini(&s->lock);
    free(s->piece);
    free(s);
}

/* On the HTTP server's thread, under the request's lock. */
static void file_send_drained(void *arg)
{
    struct file_send *s = arg;

    mtx_lock(&s->lock);
    s->drained = true;
    cnd_signal(&s->changed);
    mtx_unlock(&s->lock);
}

/* Waits until the client has read, for a short time. */
static void file_send_wait(struct file_send *s)
{
    mtx_lock(&s->lock);
    s->drained = false;
    mtx_unlock(&s->lock);
    http_request_on_drained(s->x, FILE_UNSENT_MAX, file_send_drained, s);
    mtx_lock(&s->lock);
    if (!s->drained)
        (void)cnd_wait(&s->changed, &s->lock, clock_after_us(FILE_POLL_US));
    mtx_unlock(&s->lock);
}

/* Sends a piece, unless the client has to read first, or it is not there yet. Errors: those of the
 * source; ERR_GONE. */
static int file_send_piece(struct file_send *s, bool *waits, struct err *e)
{
    uint64_t n = s->end - s->at < FILE_PIECE_NBYTES ? s->end - s->at : FILE_PIECE_NBYTES;

    *waits = http_request_stream_unsent(s->x) > FILE_UNSENT_MAX;
    if (*waits)
        n = 0;
    if (s->source.read(s->source.arg, s->at, &n, s->piece, e) != 0)
        return -1;
    if (http_request_disconnected(s->x) ||
        (n > 0 && http_request_stream_write(s->x, s->piece, n) != 0))
        return err_set(e, ERR_GONE, "", "the client disconnected");
    s->at += n;
    return 0;
}

static void file_send_run(void *arg)
{
    struct file_send *s = arg;
    struct source_threads *threads = s->threads;
    struct err e = {0};
    bool waits;

    http_request_stream_open_as(s->x, &s->head);
    while (s->at < s->end && e.code == ERR_NONE) {
        if (source_threads_stopping(threads))
            (void)err_set(&e, ERR_DRAINING, "", "the server is stopping");
        else if (file_send_piece(s, &waits, &e) == 0 && waits)
            file_send_wait(s);
    }
    if (e.code != ERR_NONE)
        http_request_note_error(s->x, &e);
    http_request_stream_close(s->x, e.code == ERR_NONE);
    file_send_free(s);
    source_threads_end(threads);
}

/* Returns the first byte after the digits; NULL: it is too large. */
static const char *range_number(const char *text, uint64_t *out)
{
    for (*out = 0; *text >= '0' && *text <= '9'; text++) {
        if (*out > (UINT64_MAX - 9) / 10)
            return NULL;
        *out = *out * 10 + (uint64_t)(*text - '0');
    }
    return text;
}

struct file_range {
    uint64_t at, end;
    bool part; /* else it is all of the file */
};

/* "bytes=0-99", "bytes=100-" or "bytes=-100". Anything else, several ranges too, asks for the whole
 * file, as HTTP allows: *out is then unchanged. Returns false if it has none of the bytes. */
static bool range_parse(struct file_range *out, const char *text, uint64_t nbytes)
{
    static const char unit[] = "bytes=";
    const char *from = text + sizeof unit - 1, *dash, *end;
    uint64_t first, last;
    bool suffix, open;

    if (strncmp(text, unit, sizeof unit - 1) != 0 || (dash = range_number(from, &first)) == NULL ||
        *dash != '-' || (end = range_number(dash + 1, &last)) == NULL || *end != '\0')
        return true;
    suffix = dash == from;
    open = dash[1] == '\0';
    if ((suffix && open) || (!suffix && !open && last < first))
        return true;
    if (suffix ? last == 0 : first >= nbytes)
        return false;
    if (suffix)
        first = last < nbytes ? nbytes - last : 0;
    if (suffix || open || last >= nbytes)
        last = nbytes - 1;
    *out = (struct file_range){first, last + 1, true};
    return true;
}

/* Adds the headers of the file to those of `head`. */
static void file_head(struct http_reply *r, const struct file_source *f, const char *etag,
                      const struct file_range *range, const struct http_reply *head)
{
    *r = *head;
    r->status = range->part ? 206 : 200;
    http_reply_header(r, "Accept-Ranges", "bytes");
    http_reply_header(r, "ETag", "%s", etag);
    if (range->part)
        http_reply_header(r, "Content-Range", "bytes %llu-%llu/%llu", (unsigned long long)range->at,
                          (unsigned long long)range->end - 1, (unsigned long long)f->nbytes);
}

static int refuse_range(struct http_request *x, uint64_t nbytes)
{
    struct http_reply reply;
    struct err e = {0};

    (void)err_set(&e, ERR_RANGE, "", "the file has %llu bytes, and none of '%.80s'",
                  (unsigned long long)nbytes, x->range);
    http_request_note_error(x, &e);
    reply_error_make(x->route, &e, NULL, &reply);
    http_reply_header(&reply, "Content-Range", "bytes */%llu", (unsigned long long)nbytes);
    http_reply(x, &reply);
    return 0;
}

static int file_send_start(struct app *app, struct http_request *x, const struct file_source *f,
                           const struct http_reply *head, const struct file_range *range,
                           struct err *e)
{
    struct file_send *s = calloc(1, sizeof *s);

    if (s == NULL) {
        f->end(f->arg);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the download");
    }
    mtx_init(&s->lock, MTX_LEAF);
    cnd_init(&s->changed);
    s->x = x;
    s->threads = app->weights->file_threads;
    s->source = *f;
    s->head = *head;
    s->at = range->at;
    s->end = range->end;
    s->job = (struct job){.run = file_send_run, .arg = s};
    s->piece = malloc(FILE_PIECE_NBYTES);
    if (s->piece == NULL)
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the download");
    else if (source_threads_post(s->threads, &s->job, e) == 0)
        return 0;
    file_send_free(s);
    return -1;
}

enum { ETAG_MAX = 80 };

int file_reply(struct app *app, struct http_request *x, const struct file_source *f,
               const struct http_reply *head, struct err *e)
{
    static const char no_bytes[1] = "";
    struct file_range range = {.end = f->nbytes};
    struct http_reply r;
    char etag[ETAG_MAX];

    (void)snprintf(etag, sizeof etag, "\"%s\"", f->digest);
    if (x->method == METHOD_GET && x->range[0] != '\0' &&
        (x->if_range[0] == '\0' || strcmp(x->if_range, etag) == 0) &&
        !range_parse(&range, x->range, f->nbytes)) {
        f->end(f->arg);
        return refuse_range(x, f->nbytes);
    }
    file_head(&r, f, etag, &range, head);
    if (x->method != METHOD_HEAD)
        return file_send_start(app, x, f, &r, &range, e);
    f->end(f->arg);
    r.data = no_bytes; /* of a HEAD only the length is sent */
    r.len = f->nbytes;
    http_reply(x, &r);
    return 0;
}
