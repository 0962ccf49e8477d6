/* One struct carries every failure, from the function that detects it to the reply that reports it.
 *
 * The first cause wins: the deciding function fills a clean `struct err` and returns -1; callers
 * clean up and return -1 untouched. Rejected: thread-local error state, because a request
 * suspends on one thread and resumes on another. */
#ifndef BATON_BASE_ERR_H
#define BATON_BASE_ERR_H

#include <stdbool.h>
#include <stddef.h>

/* Every way a request can fail: code, HTTP status, wire name, retryable. Statuses appear here
 * only; wire names never change. */
#define ERR_CODES(X)                                                                               \
    X(ERR_BAD_REQUEST, 400, "bad_request", false)                                                  \
    X(ERR_UNAUTHORIZED, 401, "unauthorized", false)                                                \
    X(ERR_FORBIDDEN, 403, "forbidden", false)                                                      \
    X(ERR_NOT_FOUND, 404, "not_found", false)                                                      \
    X(ERR_NO_ROUTE, 404, "no_route", false)                                                        \
    X(ERR_BAD_METHOD, 405, "method_not_allowed", false)                                            \
    X(ERR_TIMEOUT, 408, "timeout", true)                                                           \
    X(ERR_CONFLICT, 409, "conflict", true)                                                         \
    X(ERR_NO_ENGINE, 409, "no_engine", false)                                                      \
    X(ERR_NO_GPU, 409, "no_gpu", false)                                                            \
    X(ERR_NO_NCCL, 409, "no_nccl", false)                                                          \
    X(ERR_NO_NIXL, 409, "no_nixl", false)                                                          \
    X(ERR_GROUP_LEFT, 409, "group_left", false)                                                    \
    X(ERR_HAS_UPSTREAMS, 409, "unsupported_in_proxy_mode", false)                                  \
    X(ERR_NO_UPSTREAMS, 409, "no_upstreams", false)                                                \
    X(ERR_ENDED, 409, "update_closed", false)                                                      \
    X(ERR_NEEDS_UPDATE, 409, "needs_update", false)                                                \
    X(ERR_PRECONDITION, 409, "precondition_failed", false)                                         \
    X(ERR_LEASE_ENDED, 410, "lease_ended", false)                                                  \
    X(ERR_TOO_LARGE, 413, "too_large", false)                                                      \
    X(ERR_TARGET_TOO_LONG, 414, "target_too_long", false)                                          \
    X(ERR_MEDIA_TYPE, 415, "unsupported_media_type", false)                                        \
    X(ERR_RANGE, 416, "range_not_satisfiable", false)                                              \
    X(ERR_EXPECTATION, 417, "expectation_failed", false)                                           \
    X(ERR_MISDIRECTED, 421, "misdirected_request", false)                                          \
    X(ERR_MISMATCH, 422, "manifest_mismatch", false)                                               \
    X(ERR_INCOMPLETE, 422, "incomplete_update", false)                                             \
    X(ERR_CHECKSUM, 422, "checksum_mismatch", false)                                               \
    X(ERR_NON_FINITE, 422, "non_finite_weights", false)                                            \
    X(ERR_UNREADABLE, 422, "source_unreadable", false)                                             \
    X(ERR_HEAD_TOO_LARGE, 431, "head_too_large", false)                                            \
    X(ERR_GONE, 499, "client_gone", true)                                                          \
    X(ERR_INTERNAL, 500, "internal_error", false)                                                  \
    X(ERR_ENGINE, 500, "engine_error", false)                                                      \
    X(ERR_NOT_RECORDED, 500, "not_recorded", true)                                                 \
    X(ERR_LOGITS, 500, "non_finite_logits", false)                                                 \
    X(ERR_CUDA, 500, "cuda_error", false)                                                          \
    X(ERR_NCCL, 500, "nccl_error", false)                                                          \
    X(ERR_NIXL, 500, "nixl_error", true)                                                           \
    X(ERR_UPSTREAM, 502, "upstream_error", true)                                                   \
    X(ERR_NOT_HANDED_OVER, 502, "not_handed_over", false)                                          \
    X(ERR_UPSTREAM_KEY, 502, "upstream_auth_failed", false)                                        \
    X(ERR_UPSTREAM_TIMEOUT, 504, "upstream_timeout", true)                                         \
    X(ERR_OVERLOADED, 503, "overloaded", true)                                                     \
    X(ERR_STARTING, 503, "starting", true)                                                         \
    X(ERR_DRAINING, 503, "draining", true)                                                         \
    X(ERR_ABORTED, 503, "aborted", true)                                                           \
    X(ERR_PAUSED, 503, "paused", true)                                                             \
    X(ERR_ASLEEP, 503, "asleep", true)                                                             \
    X(ERR_UNSYNCED, 503, "no_weights", true)                                                       \
    X(ERR_SEEDING, 503, "seeding", true)                                                           \
    X(ERR_NO_MEMORY, 503, "out_of_memory", true)                                                   \
    X(ERR_NO_ZMQ, 501, "no_zmq", false)                                                            \
    X(ERR_HTTP_VERSION, 505, "http_version_not_supported", false)                                  \
    X(ERR_NO_STAGING, 507, "insufficient_staging", true)

enum err_code {
    ERR_NONE = 0,
#define X(code, status, wire, retryable) code,
    ERR_CODES(X)
#undef X
        ERR_CODE_COUNT
};

enum { ERR_FIELD_MAX = 160, ERR_MSG_MAX = 512 };

struct err {
    enum err_code code;        /* HTTP status, wire name and retryable all derive from it */
    char field[ERR_FIELD_MAX]; /* JSON pointer of the offending member, "" if none */
    char msg[ERR_MSG_MAX];     /* one line: what was found, what was allowed */
};

/* err_set - fill a clean `e`, so that a failing line reads `return err_set(...)`.
 * @field  JSON pointer ("/names/3") or "" ; copied, cut at ERR_FIELD_MAX
 * @fmt    lower case, no final stop, no function names; cut at ERR_MSG_MAX; control characters in
 *         what it quotes become blanks
 *
 * Value: -1, always; a macro, so that the compiler knows it and can follow the failing paths.
 * Asserts that `e` is clean (a second report is our bug). Threads: any; `e` is the caller's. */
#define err_set(e, code, field, ...) (err_fill((e), (code), (field), __VA_ARGS__), -1)

/* err_set_errno - as err_set, with ": <strerror> (errno <n>)" appended. When this process has run
 * out of descriptors or memory (EMFILE, ENFILE, ENOMEM, ENOBUFS), the code is ERR_NO_MEMORY,
 * whatever `code` is: the client did nothing wrong. */
#define err_set_errno(e, code, field, errnum, ...)                                                 \
    (err_fill_errno((e), (code), (field), (errnum), __VA_ARGS__), -1)

/* The functions behind the two macros. */
__attribute__((format(printf, 4, 5))) void err_fill(struct err *e, enum err_code code,
                                                    const char *field, const char *fmt, ...);
__attribute__((format(printf, 5, 6))) void err_fill_errno(struct err *e, enum err_code code,
                                                          const char *field, int errnum,
                                                          const char *fmt, ...);

/* err_append - add to the message of an error; cut as err_set's. */
void err_append(struct err *e, const char *text);

/* err_clear - make `e` clean again (for a caller that handled the failure). */
void err_clear(struct err *e);

int err_http_status(enum err_code code);
const char *err_wire_name(enum err_code code); /* "none" for ERR_NONE */
bool err_retryable(enum err_code code);

#endif
