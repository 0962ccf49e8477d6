/* Parsing of traceparent and tracestate, and the trace of each thread.
 *
 * The trace of a fleet operation belongs to the thread that runs its handler, because any step of
 * the operation may send requests. Rejected: an argument of every function on the way to them. */
#include "base/net/trace.h"

#include "base/id.h"
#include "base/jobs/workers.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" */
enum {
    VERSION_LEN = 2,
    TRACE_ID_AT = VERSION_LEN + 1,
    PARENT_ID_AT = TRACE_ID_AT + TRACE_ID_LEN + 1,
    FLAGS_AT = PARENT_ID_AT + TRACE_SPAN_ID_LEN + 1,
    FLAGS_LEN = 2,
    FLAG_SAMPLED = 1
};

static const char HEX[] = "0123456789abcdef";

static bool is_hex(const char *text, size_t len)
{
    return strspn(text, HEX) >= len;
}

/* An id of zeros only is invalid. */
static bool is_id(const char *text, size_t len)
{
    return is_hex(text, len) && strspn(text, "0") < len;
}

/* Later versions may have more fields behind those of version 00. */
static bool is_traceparent(const char *text)
{
    size_t len = strlen(text);

    if (len < TRACE_PARENT_LEN || !is_hex(text, VERSION_LEN) || strncmp(text, "ff", 2) == 0)
        return false;
    if (len > TRACE_PARENT_LEN && (strncmp(text, "00", 2) == 0 || text[TRACE_PARENT_LEN] != '-'))
        return false;
    return text[TRACE_ID_AT - 1] == '-' && is_id(text + TRACE_ID_AT, TRACE_ID_LEN) &&
           text[PARENT_ID_AT - 1] == '-' && is_id(text + PARENT_ID_AT, TRACE_SPAN_ID_LEN) &&
           text[FLAGS_AT - 1] == '-' && is_hex(text + FLAGS_AT, FLAGS_LEN);
}

/* key=value. A key may be vendor@tenant. */
static bool is_member(const char *text, size_t len)
{
    static const char first[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    static const char rest[] = "abcdefghijklmnopqrstuvwxyz0123456789_-*/@";
    const char *equals = memchr(text, '=', len);
    size_t key_len = equals != NULL ? (size_t)(equals - text) : 0, value_len = len - key_len - 1;

    if (key_len == 0 || key_len > TRACE_STATE_KEY_MAX || value_len == 0 ||
        value_len > TRACE_STATE_VALUE_MAX || strchr(first, text[0]) == NULL ||
        strspn(text, rest) != key_len)
        return false;
    for (const char *p = equals + 1; p < text + len; p++)
        if (*p < 0x20 || *p > 0x7e || *p == '=')
            return false;
    return true;
}

/* Members may be empty, and have blanks around them. */
static bool is_tracestate(const char *text)
{
    size_t len, n = 0;

    if (strlen(text) > TRACE_STATE_MAX)
        return false;
    for (const char *at = text;; at += len + 1) {
        const char *begin = at + strspn(at, " \t"), *end;

        len = strcspn(at, ",");
        end = at + len;
        while (end > begin && (end[-1] == ' ' || end[-1] == '\t'))
            end--;
        if (end > begin &&
            (++n > TRACE_STATE_MEMBERS_MAX || !is_member(begin, (size_t)(end - begin))))
            return false;
        if (at[len] == '\0')
            return n > 0;
    }
}

/* Of the flags only that of version 00 is passed on, as the specification requires. */
void trace_parse(struct trace_context *out, const char *traceparent, const char *tracestate)
{
    uint64_t span_id = 0;
    unsigned long flags;

    memset(out, 0, sizeof *out);
    if (traceparent == NULL || !is_traceparent(traceparent))
        return;
    while (span_id == 0)
        span_id = id_random_u64();
    memcpy(out->trace_id, traceparent + TRACE_ID_AT, TRACE_ID_LEN);
    (void)snprintf(out->span_id, sizeof out->span_id, "%016llx", (unsigned long long)span_id);
    flags = strtoul((char[]){traceparent[FLAGS_AT], traceparent[FLAGS_AT + 1], '\0'}, NULL, 16);
    (void)snprintf(out->traceparent, sizeof out->traceparent, "00-%s-%s-%02lx", out->trace_id,
                   out->span_id, flags & FLAG_SAMPLED);
    if (tracestate != NULL && is_tracestate(tracestate))
        (void)snprintf(out->tracestate, sizeof out->tracestate, "%s", tracestate);
}

void trace_enter(const struct trace_context *t)
{
    *workers_local() = (void *)(uintptr_t)t;
}

void trace_leave(void)
{
    *workers_local() = NULL;
}

const struct trace_context *trace_current(void)
{
    static const struct trace_context none = {.trace_id = ""};
    const struct trace_context *t = *workers_local();

    return t != NULL ? t : &none;
}
