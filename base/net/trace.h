/* W3C Trace Context, level 1 (https://www.w3.org/TR/trace-context/): which trace of a distributed
 * tracing system a request belongs to.
 *
 * A request with a traceparent gets a span id of its own here. The log lines of the request have
 * both ids, and requests to upstreams that it causes name that span as their parent. Spans are not
 * exported. A request without a traceparent, or with a malformed one, has no trace. */
#ifndef BATON_BASE_NET_TRACE_H
#define BATON_BASE_NET_TRACE_H

#include <stdbool.h>

enum {
    TRACE_ID_LEN = 32, /* hex digits */
    TRACE_SPAN_ID_LEN = 16,
    TRACE_PARENT_LEN = 55, /* of version 00, and of the part of later versions that is read */
    TRACE_STATE_MAX = 512, /* bytes; a longer tracestate is ignored */
    TRACE_STATE_MEMBERS_MAX = 32,
    TRACE_STATE_KEY_MAX = 256,
    TRACE_STATE_VALUE_MAX = 256,
    TRACE_REQUEST_ID_MAX = 64
};

struct trace_context {
    char trace_id[TRACE_ID_LEN + 1]; /* "": there is no trace, and all others but the last are "" */
    char span_id[TRACE_SPAN_ID_LEN + 1];    /* of the request in this server */
    char traceparent[TRACE_PARENT_LEN + 1]; /* of requests that this server makes because of it */
    char tracestate[TRACE_STATE_MAX + 1];   /* as it came; "": none */
    char request_id[TRACE_REQUEST_ID_MAX + 1]; /* X-Request-Id of the request in this server, and of
                                                  those that it makes because of it; "": none */
};

/* trace_parse - read the headers of a request, and make its span id.
 * @traceparent  NULL: none
 * @tracestate   NULL: none; several headers are joined by ","; a malformed one is ignored
 * @out          all "" if there is no valid traceparent; the caller adds the request id
 * Threads: any. Blocks: no. */
void trace_parse(struct trace_context *out, const char *traceparent, const char *tracestate);

/* trace_enter - requests that this job or thread (workers_self) makes from now on are part of this
 * trace.
 * @t  "" for none; borrowed until trace_leave
 * trace_leave - they are part of no trace any more.
 * trace_current - the trace of this job or thread; valid until it calls trace_leave.
 * Threads: each has its own. Blocks: no. */
void trace_enter(const struct trace_context *t);
void trace_leave(void);
const struct trace_context *trace_current(void);

#endif
