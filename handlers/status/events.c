/* GET /v1/events: the state of the server and then each change of it, as server-sent events.
 *
 * The handler only checks the request; the thread of control/event_watch.h opens the stream and
 * writes all of it, so that the snapshot and the events after it need no lock of their own. */
#include "base/events.h"
#include "base/clock.h"
#include "control/event_watch.h"
#include "handlers/control_plane.h"
#include "handlers/reply.h"
#include "handlers/status/status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    EVENTS_UNSENT_MAX = 256 *
                        1024, /* bytes that a client has not read; above it the stream waits */
    EVENTS_COMMENT_S = 15,    /* a comment line after so long without anything else */
    EVENTS_TYPES_MAX = 32
};

/* The first part of each name, up to its dot. */
static const char *const families[] = {
    "drain",   "error", "fleet",    "handoff", "lora",   "nccl",     "pause", "readiness", "resume",
    "serving", "sleep", "snapshot", "state",   "update", "upstream", "wake",  "weights",   NULL};

struct events_stream {
    struct event_subscriber subscriber; /* first */
    struct http_request *x;             /* one reference, until the stream is closed */
    struct app *app;
    uint32_t types; /* bits of `families` */
    uint64_t read;  /* id of the last event read */
    bool resumes;   /* no snapshot: the client has everything up to `read` */
    bool open;      /* the head of the reply is written */
    uint64_t wrote_us;
};

/* Returns the index in `families`; n: none. */
static size_t family_of(const char *name, size_t len)
{
    size_t i = 0;

    while (families[i] != NULL &&
           (strlen(families[i]) != len || strncmp(families[i], name, len) != 0))
        i++;
    return i;
}

static bool wants(const struct events_stream *s, const char *name)
{
    return (s->types >> family_of(name, strcspn(name, ".")) & 1) != 0;
}

static int types_parse(uint32_t *out, const char *text, struct err *e)
{
    _Static_assert(sizeof families / sizeof families[0] <= EVENTS_TYPES_MAX, "a bit for each");

    *out = UINT32_MAX;
    if (text == NULL)
        return 0;
    *out = 0;
    for (;;) {
        size_t len = strcspn(text, ","), i = family_of(text, len);

        if (families[i] == NULL)
            return err_set(
                e, ERR_BAD_REQUEST, "/types",
                "'%.*s' is no type of event; allowed: drain, error, fleet, handoff, lora, nccl, "
                "pause, readiness, resume, serving, sleep, snapshot, state, update, upstream, "
                "wake, weights, separated by commas",
                (int)(len < 40 ? len : 40), text);
        *out |= UINT32_C(1) << i;
        if (text[len] == '\0')
            return 0;
        text += len + 1;
    }
}

/* An id of an earlier process, or one that the ring does not reach, begins with a snapshot. */
static void resume_parse(struct events_stream *s, const char *text)
{
    char *end;
    uint64_t id;

    if (text[0] < '0' || text[0] > '9')
        return;
    errno = 0;
    id = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || !events_has(id))
        return;
    s->resumes = true;
    s->read = id;
}

static json_t *app_status_json(const struct app *app)
{
    return app->fleet != NULL ? app->fleet->status(app) : status_json(app);
}

static int write_event(struct events_stream *s, uint64_t id, const char *name, const char *data,
                       size_t len)
{
    struct buf text = {0};
    int rc;

    if (id > 0)
        buf_printf(&text, "id: %llu\n", (unsigned long long)id);
    buf_printf(&text, "event: %s\ndata: ", name);
    buf_append(&text, data, len);
    buf_puts(&text, "\n\n");
    rc = text.failed ? -1 : http_request_stream_write(s->x, text.data, text.len);
    buf_fini(&text);
    s->wrote_us = clock_now_us();
    return rc;
}

/* The id is read first: an event that comes meanwhile may be in the snapshot too, and none is lost.
 */
static int write_snapshot(struct events_stream *s)
{
    struct buf text = {0};
    json_t *status;
    int rc;

    s->read = events_last();
    status = app_status_json(s->app);
    reply_append_json(&text, status);
    json_decref(status);
    rc = text.failed ? -1 : write_event(s, s->read, "state", text.data, text.len);
    buf_fini(&text);
    return rc;
}

static int events_stream_begin(struct events_stream *s)
{
    static const char retry[] = "retry: 1000\n\n";
    struct http_reply head = {.status = 200, .content_type = "text/event-stream; charset=utf-8"};

    http_reply_header(&head, "Cache-Control", "no-store");
    http_reply_header(&head, "X-Accel-Buffering", "no"); /* of nginx */
    http_request_stream_open_as(s->x, &head);
    s->open = true;
    if (http_request_stream_write(s->x, retry, sizeof retry - 1) != 0)
        return -1;
    return s->resumes ? 0 : write_snapshot(s);
}

/* A client that does not read makes the stream wait; when the ring has overtaken it, it is cut. */
static int write_new(struct events_stream *s, bool last)
{
    struct event ev;

    while ((last || http_request_stream_unsent(s->x) < EVENTS_UNSENT_MAX) &&
           events_next(s->read, &ev)) {
        if (ev.id != s->read + 1)
            return -1;
        s->read = ev.id;
        if (wants(s, ev.name) && write_event(s, ev.id, ev.name, ev.data, ev.len) != 0)
            return -1;
    }
    return 0;
}

/* It is not kept for a slow client: the next one says more. */
static int write_progress(struct events_stream *s, const char *progress)
{
    static const char name[] = "update.progress";

    if (progress == NULL || !wants(s, name) ||
        http_request_stream_unsent(s->x) >= EVENTS_UNSENT_MAX)
        return 0;
    return write_event(s, 0, name, progress, strlen(progress));
}

static int write_comment(struct events_stream *s)
{
    static const char comment[] = ":\n\n";

    if (clock_now_us() - s->wrote_us < EVENTS_COMMENT_S * UINT64_C(1000000))
        return 0;
    s->wrote_us = clock_now_us();
    return http_request_stream_write(s->x, comment, sizeof comment - 1);
}

static void events_stream_end(struct events_stream *s, bool complete)
{
    http_request_stream_close(s->x, complete);
    free(s);
}

static bool stream_step(struct event_subscriber *subscriber, const char *progress, bool last)
{
    struct events_stream *s = (struct events_stream *)subscriber;
    int rc = http_request_disconnected(s->x) ? -1 : 0;

    if (!s->open)
        rc = events_stream_begin(s);
    if (rc == 0)
        rc = write_new(s, last);
    if (rc == 0)
        rc = write_progress(s, progress);
    if (rc == 0)
        rc = write_comment(s);
    if (rc == 0 && !last)
        return true;
    events_stream_end(s, rc == 0);
    return false;
}

static int stream_new(struct events_stream **out, struct app *app, struct http_request *x,
                      struct err *e)
{
    struct events_stream *s;
    uint32_t types;

    if (types_parse(&types, http_request_query(x, "types"), e) != 0)
        return -1;
    s = calloc(1, sizeof *s);
    if (s == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a stream of events");
    s->subscriber.step = stream_step;
    s->x = x;
    s->app = app;
    s->types = types;
    resume_parse(s, x->last_event_id);
    *out = s;
    return 0;
}

int handle_events(struct app *app, struct http_request *x, struct err *e)
{
    struct events_stream *s;

    if (stream_new(&s, app, x, e) != 0)
        return -1;
    if (event_watch_add(app->events, &s->subscriber, e) == 0)
        return 0;
    free(s);
    return -1;
}
