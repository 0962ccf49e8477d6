/* Structured log: one JSON object a line, on standard error; or a text line, for people.
 *
 * A line is built in a bounded record on the caller's stack and handed to one writer thread through
 * a bounded ring. When the ring is full, lines are dropped and counted, and the next line that
 * fits reports how many. Client bytes are escaped, never printed raw. */
#ifndef BATON_BASE_LOG_H
#define BATON_BASE_LOG_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

enum { LOG_LINE_MAX = 2048, LOG_RING_LINES = 1024 };

struct log_rec {
    enum log_level level;
    size_t len;        /* of text, without the closing brace */
    bool cut;          /* a member did not fit and was left out */
    const char *event; /* borrowed; static */
    char text[LOG_LINE_MAX];
};

/* log_set_text - write lines as text from now on, for --log-format text. Threads: main, before
 * log_open. */
void log_set_text(bool text, bool color);

/* log_text - a line of the log as text, with its newline; cut at `cap`. Returns: its length.
 * @json  [len] as log_end makes it */
size_t log_text(char *out, size_t cap, const char *json, size_t len, bool color);

/* log_open - start the writer thread; lines logged before or after go out directly.
 * @fd     borrowed; written until log_close
 * Errors: ERR_INTERNAL (no thread); logging then stays direct. */
int log_open(int fd, enum log_level least, struct err *e);

/* log_close - write what is queued, join the thread. Lines logged meanwhile are written directly.
 * Threads: one at a time, as log_open. */
void log_close(void);

/* log_level_parse - "debug", "info", "warn" or "error". Returns -1 for another word. */
int log_level_parse(enum log_level *out, const char *name);

/* log_level_set - write lines of this level and above from now on. Returns: the level before.
 * Threads: any. */
enum log_level log_level_set(enum log_level least);
const char *log_level_name(enum log_level level);

bool log_enabled(enum log_level level);

/* Build and send one line: log_begin, any log_* members, log_end. `event` is a fixed word such as
 * "request" or "update.committed"; keys are fixed words too. Threads: any. Never blocks on disk. */
void log_begin(struct log_rec *r, enum log_level level, const char *event);
void log_str(struct log_rec *r, const char *key, const char *value); /* NULL is left out */
void log_u64(struct log_rec *r, const char *key, uint64_t value);
void log_real(struct log_rec *r, const char *key, double value); /* finite; six digits */
void log_ms(struct log_rec *r, const char *key, uint64_t us);    /* microseconds, as milliseconds */
void log_err(struct log_rec *r, const struct err *e);            /* members code, param, message */
void log_end(struct log_rec *r);

/* log_asked - log_end for what an operator has asked for: whatever the level of the log. */
void log_asked(struct log_rec *r);

/* log_event - log_end for a change of state: the line is also put among the events of
 * GET /v1/events (base/events.h), whatever the level of the log. Takes MTX_EVENTS, then MTX_LOG. */
void log_event(struct log_rec *r);

/* log_line - an event with one sentence. log_event_line - the same, by log_event. */
__attribute__((format(printf, 3, 4))) void log_line(enum log_level level, const char *event,
                                                    const char *fmt, ...);
__attribute__((format(printf, 3, 4))) void log_event_line(enum log_level level, const char *event,
                                                          const char *fmt, ...);

/* log_dropped - lines dropped since start, for metrics. */
uint64_t log_dropped(void);

#endif
