/* Structured log with one writer thread and a bounded ring.
 *
 * The ring's slots are whole lines, copied in under the lock: a line is at most 2 KiB, and callers
 * hold the lock for a memcpy, never for a write(2). */
#include "base/log.h"

#include "base/clock.h"
#include "base/events.h"
#include "base/mtx.h"
#include "base/utf8.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOG_CLOSE_ROOM = 16 }; /* for `,"cut":true}` and the newline */

struct slot {
    size_t len;
    char text[LOG_LINE_MAX];
};

static struct {
    struct mtx lock; /* rank MTX_LOG; guards down to the blank line; as `queued` it is made by the
                        first log_open and stays: a thread may be about to take it */
    struct cnd queued;
    struct slot *ring; /* owned; LOG_RING_LINES slots; NULL while closed */
    size_t head, n;
    uint64_t unreported; /* dropped since the last report */
    bool stopping;       /* nothing more is queued */

    bool made; /* log_open's thread only, as the next one */
    pthread_t writer;
    atomic_int fd;                  /* relaxed; set before the writer starts */
    atomic_bool text, color;        /* relaxed; set before the writer starts */
    atomic_int least;               /* relaxed; a filter */
    atomic_uint_fast64_t n_dropped; /* relaxed; a gauge */
    atomic_bool open;               /* release after the lock was made; acquire by log_end, which
                                       looks again under the lock */
} g = {.fd = STDERR_FILENO, .least = LOG_INFO};

static void log_write_all(const char *text, size_t len)
{
    int fd = atomic_load_explicit(&g.fd, memory_order_relaxed);

    while (len > 0) {
        ssize_t n = write(fd, text, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return; /* there is nowhere to report it */
        text += n;
        len -= (size_t)n;
    }
}

static void write_line(const char *json, size_t len)
{
    char text[LOG_LINE_MAX + 64]; /* of colours; names have no quotes, so it is shorter otherwise */

    if (!atomic_load_explicit(&g.text, memory_order_relaxed)) {
        log_write_all(json, len);
        return;
    }
    len = log_text(text, sizeof text, json, len,
                   atomic_load_explicit(&g.color, memory_order_relaxed));
    log_write_all(text, len);
}

void log_set_text(bool text, bool color)
{
    atomic_store_explicit(&g.text, text, memory_order_relaxed);
    atomic_store_explicit(&g.color, color, memory_order_relaxed);
}

static void *writer_main(void *arg)
{
    static struct slot line; /* the writer is one thread */

    (void)arg;
    mtx_lock(&g.lock);
    for (;;) {
        while (g.n == 0 && !g.stopping)
            (void)cnd_wait(&g.queued, &g.lock, CLOCK_NEVER);
        if (g.n == 0)
            break;
        line = g.ring[g.head];
        g.head = (g.head + 1) % LOG_RING_LINES;
        g.n--;
        mtx_unlock(&g.lock);
        write_line(line.text, line.len);
        mtx_lock(&g.lock);
    }
    mtx_unlock(&g.lock);
    return NULL;
}

static void ring_set(struct slot *ring)
{
    struct slot *old;

    mtx_lock(&g.lock);
    old = g.ring;
    g.ring = ring;
    g.head = g.n = 0;
    g.stopping = ring == NULL;
    mtx_unlock(&g.lock);
    free(old);
}

int log_open(int fd, enum log_level least, struct err *e)
{
    struct slot *ring;
    int rc;

    assert(!atomic_load(&g.open));
    atomic_store_explicit(&g.fd, fd, memory_order_relaxed);
    atomic_store_explicit(&g.least, (int)least, memory_order_relaxed);
    ring = calloc(LOG_RING_LINES, sizeof *ring);
    if (ring == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the log ring");
    if (!g.made) {
        mtx_init(&g.lock, MTX_LOG);
        cnd_init(&g.queued);
        g.made = true;
    }
    ring_set(ring);
    rc = pthread_create(&g.writer, NULL, writer_main, NULL);
    if (rc != 0) {
        ring_set(NULL);
        return err_set_errno(e, ERR_INTERNAL, "", rc, "cannot start the log thread");
    }
    (void)pthread_setname_np(g.writer, "log");
    atomic_store_explicit(&g.open, true, memory_order_release);
    return 0;
}

void log_close(void)
{
    if (!atomic_exchange(&g.open, false))
        return;
    mtx_lock(&g.lock);
    g.stopping = true;
    cnd_signal(&g.queued);
    mtx_unlock(&g.lock);
    (void)pthread_join(g.writer, NULL);
    ring_set(NULL);
}

static const char *const level_names[] = {"debug", "info", "warn", "error"};

int log_level_parse(enum log_level *out, const char *name)
{
    for (int i = LOG_DEBUG; i <= LOG_ERROR; i++) {
        if (strcmp(level_names[i], name) == 0) {
            *out = (enum log_level)i;
            return 0;
        }
    }
    return -1;
}

const char *log_level_name(enum log_level level)
{
    return level_names[level];
}

enum log_level log_level_set(enum log_level least)
{
    return (enum log_level)atomic_exchange_explicit(&g.least, (int)least, memory_order_relaxed);
}

bool log_enabled(enum log_level level)
{
    return (int)level >= atomic_load_explicit(&g.least, memory_order_relaxed);
}

/* Appends raw text if it fits beside the closing; else marks the record as cut. */
static void record_append(struct log_rec *r, const char *text, size_t len)
{
    if (r->cut || r->len + len + LOG_CLOSE_ROOM > sizeof r->text) {
        r->cut = true;
        return;
    }
    memcpy(r->text + r->len, text, len);
    r->len += len;
}

void log_begin(struct log_rec *r, enum log_level level, const char *event)
{
    char at[CLOCK_TEXT_LEN + 1], head[128];
    int len;

    clock_text(at, clock_wall_us());
    len = snprintf(head, sizeof head, "{\"ts\":\"%s\",\"level\":\"%s\",\"event\":\"%s\"", at,
                   level_names[level], event);
    r->level = level;
    r->event = event;
    r->len = 0;
    r->cut = false;
    record_append(r, head, (size_t)len);
}

enum {
    ESCAPE_CAP = 13, /* two \uXXXX, of a code point beyond U+FFFF, and a NUL */
    UTF8_REPLACEMENT = 0xfffd
};

/* Escapes one code point for a JSON string into `out`. All but visible ASCII is escaped, so that a
 * line cannot control a terminal. */
static size_t escape(char out[ESCAPE_CAP], uint32_t c)
{
    if (c == '"' || c == '\\')
        return (size_t)snprintf(out, ESCAPE_CAP, "\\%c", (int)c);
    if (c >= 0x20 && c < 0x7f) {
        out[0] = (char)c;
        return 1;
    }
    if (c <= 0xffff)
        return (size_t)snprintf(out, ESCAPE_CAP, "\\u%04x", (unsigned)c);
    c -= 0x10000;
    return (size_t)snprintf(out, ESCAPE_CAP, "\\u%04x\\u%04x", (unsigned)(0xd800 + (c >> 10)),
                            (unsigned)(0xdc00 + (c & 0x3ff)));
}

/* A byte that is not UTF-8 becomes U+FFFD, so a line is always valid JSON whatever a client sent.
 */
void log_str(struct log_rec *r, const char *key, const char *value)
{
    const unsigned char *at = (const unsigned char *)value;
    size_t mark = r->len, left = value != NULL ? strlen(value) : 0;
    char piece[ESCAPE_CAP];

    if (value == NULL)
        return;
    record_append(r, ",\"", 2);
    record_append(r, key, strlen(key));
    record_append(r, "\":\"", 3);
    while (left > 0 && !r->cut) {
        uint32_t c = UTF8_REPLACEMENT;
        int n = utf8_scan(at, left, &c);

        record_append(r, piece, escape(piece, n > 0 ? c : UTF8_REPLACEMENT));
        at += n > 0 ? n : 1;
        left -= n > 0 ? (size_t)n : 1;
    }
    record_append(r, "\"", 1);
    if (r->cut)
        r->len = mark;
}

static void put_raw(struct log_rec *r, const char *key, const char *value)
{
    size_t mark = r->len;

    record_append(r, ",\"", 2);
    record_append(r, key, strlen(key));
    record_append(r, "\":", 2);
    record_append(r, value, strlen(value));
    if (r->cut)
        r->len = mark;
}

void log_u64(struct log_rec *r, const char *key, uint64_t value)
{
    char text[24];

    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    put_raw(r, key, text);
}

void log_real(struct log_rec *r, const char *key, double value)
{
    char text[32];

    (void)snprintf(text, sizeof text, "%.6g", value);
    put_raw(r, key, text);
}

void log_ms(struct log_rec *r, const char *key, uint64_t us)
{
    char text[32];

    (void)snprintf(text, sizeof text, "%llu.%03llu", (unsigned long long)(us / 1000),
                   (unsigned long long)(us % 1000));
    put_raw(r, key, text);
}

void log_err(struct log_rec *r, const struct err *e)
{
    log_str(r, "code", err_wire_name(e->code));
    if (e->field[0] != '\0')
        log_str(r, "param", e->field);
    log_str(r, "message", e->msg);
}

/* Queues a finished line, or drops and counts it. Returns false when it must be written directly.
 */
static bool enqueue(const char *text, size_t len)
{
    struct slot *s;
    bool taken;

    if (!atomic_load_explicit(&g.open, memory_order_acquire))
        return false;
    mtx_lock(&g.lock);
    taken = !g.stopping;
    if (taken && g.n == LOG_RING_LINES) {
        g.unreported++;
        (void)atomic_fetch_add_explicit(&g.n_dropped, 1, memory_order_relaxed);
    } else if (taken) {
        s = &g.ring[(g.head + g.n) % LOG_RING_LINES];
        if (g.unreported > 0 && len + 40 < sizeof s->text) {
            s->len = (size_t)snprintf(s->text, sizeof s->text, "%.*s,\"dropped_lines\":%llu}\n",
                                      (int)len - 2, text, (unsigned long long)g.unreported);
            g.unreported = 0;
        } else {
            memcpy(s->text, text, len);
            s->len = len;
        }
        g.n++;
        cnd_signal(&g.queued);
    }
    mtx_unlock(&g.lock);
    return taken;
}

static void close_record(struct log_rec *r)
{
    static const char cut[] = ",\"cut\":true";

    if (r->cut) {
        memcpy(r->text + r->len, cut, sizeof cut - 1);
        r->len += sizeof cut - 1;
    }
    memcpy(r->text + r->len, "}\n", 2);
    r->len += 2;
}

static void send_line(const struct log_rec *r)
{
    if (!enqueue(r->text, r->len))
        write_line(r->text, r->len);
}

static void send_record(const struct log_rec *r)
{
    if (log_enabled(r->level))
        send_line(r);
}

void log_end(struct log_rec *r)
{
    if (!log_enabled(r->level))
        return;
    close_record(r);
    send_record(r);
}

void log_asked(struct log_rec *r)
{
    close_record(r);
    send_line(r);
}

void log_event(struct log_rec *r)
{
    close_record(r);
    events_put(r->event, r->text, r->len - 1); /* without the newline */
    send_record(r);
}

static void record_sentence(struct log_rec *r, enum log_level level, const char *event,
                            const char *fmt, va_list ap)
{
    char text[512];

    (void)vsnprintf(text, sizeof text, fmt, ap);
    log_begin(r, level, event);
    log_str(r, "message", text);
}

void log_line(enum log_level level, const char *event, const char *fmt, ...)
{
    struct log_rec r;
    va_list ap;

    if (!log_enabled(level))
        return;
    va_start(ap, fmt);
    record_sentence(&r, level, event, fmt, ap);
    va_end(ap);
    log_end(&r);
}

void log_event_line(enum log_level level, const char *event, const char *fmt, ...)
{
    struct log_rec r;
    va_list ap;

    va_start(ap, fmt);
    record_sentence(&r, level, event, fmt, ap);
    va_end(ap);
    log_event(&r);
}

uint64_t log_dropped(void)
{
    return atomic_load_explicit(&g.n_dropped, memory_order_relaxed);
}
