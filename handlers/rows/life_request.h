/* What requests of health, upstreams and the life cycle ask for, the same of one server and of a
 * fleet. Their rows are in life_rows.c. */
#ifndef BATON_HANDLERS_ROWS_LIFE_REQUEST_H
#define BATON_HANDLERS_ROWS_LIFE_REQUEST_H

#include "base/err.h"
#include "control/pause_state.h"
#include "handlers/rows/member.h"
#include "http/http_request.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* pause_parse - @req  zeroed. Errors: ERR_BAD_REQUEST at the member. */
int pause_parse(struct pause_request *req, const struct http_request *x, const json_t *body,
                struct err *e);

struct pause_input {
    int mode;         /* from PAUSE_KEEP on */
    int new_requests; /* 0 queue, 1 reject */
    uint32_t lease_s, timeout_s;
    const char *owner; /* borrowed from the body or the request */
};

/* What sleeps, or wakes. */
struct wake_request {
    const json_t *tags; /* borrowed; NULL: both */
    bool weights, kv;   /* neither: nothing is to be done */
};

struct sleep_request {
    uint32_t level;
    struct wake_request what;
};

/* sleep_parse, wake_parse - @req  zeroed. Errors: ERR_BAD_REQUEST at the member, or the tag. */
int sleep_parse(struct sleep_request *req, const json_t *body, struct err *e);
int wake_parse(struct wake_request *req, const json_t *body, struct err *e);

struct reset_cache_request {
    bool running, external;
};

enum { ABORT_IDS_MAX = 65536 };

struct abort_request {
    const json_t *ids; /* borrowed: an array, which is not checked; NULL: all requests */
    bool all;
};

/* abort_parse - @req  zeroed. Errors: ERR_BAD_REQUEST at the member, or if not exactly one of both
 * is given. */
int abort_parse(struct abort_request *req, const json_t *body, struct err *e);

struct ready_request {
    int what; /* 0 generate, 1 control */
};

struct upstream_request {
    const char *upstream; /* borrowed from the body or the query */
};

struct prove_request {
    const char *upstream; /* borrowed; NULL: all that serve the version */
    bool checksums;
    uint64_t timeout_s;
};

#endif
