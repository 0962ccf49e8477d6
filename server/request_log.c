/* One line for each request, by what happened to it: a refused update, a refused key, a change of
 * health, or an access line. */
#include "server/request_log.h"

#include "base/clock.h"
#include "base/log.h"
#include "control/history.h"
#include "handlers/route.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    REFUSED_KEY_LINE_US = 1000000, /* between two lines about refused keys */
    HEALTH_FORMS = 2               /* of one health route: without a query, and with one */
};

enum access_log { ACCESS_OFF, ACCESS_ERRORS, ACCESS_ALL };

struct request_log {
    enum access_log access; /* immutable, as the next one */
    struct history *history;

    /* Relaxed: each is read alone. */
    _Atomic(const char *) *health; /* owned; [n_routes][HEALTH_FORMS] the static code of the last
                                      answer; NULL: well */
    atomic_uint_fast64_t next_key_line_us; /* no line about a refused key before */
    atomic_uint_fast64_t n_keys_unlogged;
};

int request_log_new(struct request_log **out, const char *access, struct history *history,
                    struct err *e)
{
    struct request_log *l = calloc(1, sizeof *l);

    if (l != NULL)
        l->health = calloc(n_routes * HEALTH_FORMS, sizeof *l->health);
    if (l == NULL || l->health == NULL) {
        free(l);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the log of requests");
    }
    l->access = strcmp(access, "off") == 0      ? ACCESS_OFF
                : strcmp(access, "errors") == 0 ? ACCESS_ERRORS
                                                : ACCESS_ALL;
    l->history = history;
    *out = l;
    return 0;
}

void request_log_free(struct request_log *l)
{
    if (l == NULL)
        return;
    free(l->health);
    free(l);
}

static const char *pattern_of(const struct http_request *x)
{
    const struct route *route = x->route;

    return route != NULL ? route->pattern : NULL;
}

static const char *code_of(const struct http_request *x, const struct http_server_outcome *o)
{
    return x->error != NULL ? err_wire_name(x->error->code) : o->log_code;
}

static void log_head(struct log_rec *r, enum log_level level, const char *event,
                     const struct http_request *x)
{
    const char *pattern = pattern_of(x);

    log_begin(r, level, event);
    log_actor(r, &x->actor);
    log_str(r, "method", http_request_method_name(x->method));
    log_str(r, "route", pattern);
    log_str(r, "path", pattern == NULL || x->path_arg[0] != '\0' ? x->path : NULL);
}

static void log_end_error(struct log_rec *r, const struct http_request *x,
                          const struct http_server_outcome *o)
{
    log_u64(r, "status", (uint64_t)o->status);
    if (x->error != NULL)
        log_err(r, x->error);
    else
        log_str(r, "code", o->log_code);
}

/* Probes come every second: only a change of the answer is logged. */
static void log_health(struct request_log *l, const struct http_request *x,
                       const struct http_server_outcome *o)
{
    size_t i = (size_t)((const struct route *)x->route - routes) * HEALTH_FORMS + (x->n_query > 0);
    const char *code = o->status < 400 ? NULL : code_of(x, o);
    const char *before = atomic_exchange_explicit(&l->health[i], code, memory_order_relaxed);
    struct log_rec r;

    if (before == code || o->gone)
        return;
    log_head(&r, code != NULL ? LOG_WARN : LOG_INFO, "health.changed", x);
    log_end_error(&r, x, o);
    log_str(&r, "previous", before != NULL ? before : "ok");
    log_end(&r);
}

/* Anyone can send requests without a key: there is one line a second, with a count. */
static void log_refused_key(struct request_log *l, const struct http_request *x,
                            const struct http_server_outcome *o)
{
    uint64_t now = clock_now_us(),
             next = atomic_load_explicit(&l->next_key_line_us, memory_order_relaxed);
    struct log_rec r;

    if (now < next || !atomic_compare_exchange_strong_explicit(
                          &l->next_key_line_us, &next, now + REFUSED_KEY_LINE_US,
                          memory_order_relaxed, memory_order_relaxed)) {
        (void)atomic_fetch_add_explicit(&l->n_keys_unlogged, 1, memory_order_relaxed);
        return;
    }
    log_head(&r, LOG_WARN, "auth.refused", x);
    log_end_error(&r, x, o);
    log_u64(&r, "suppressed",
            atomic_exchange_explicit(&l->n_keys_unlogged, 0, memory_order_relaxed));
    log_end(&r);
}

static void report_refused_update(struct request_log *l, const struct http_request *x,
                                  const struct http_server_outcome *o)
{
    const struct update_record u = {.outcome = OUTCOME_REFUSED,
                                    .nbytes = o->nbytes_in,
                                    .route = pattern_of(x),
                                    .times = {.whole_us = o->duration_us},
                                    .error = *x->error,
                                    .actor = x->actor};

    history_add_update(l->history, &u);
}

static void log_access(const struct request_log *l, const struct http_request *x,
                       const struct http_server_outcome *o)
{
    const struct route *route = x->route;
    bool is_read = route != NULL && route->role <= ROLE_VIEWER && o->status == 200;
    enum log_level level = o->status >= 500 ? LOG_WARN : is_read ? LOG_DEBUG : LOG_INFO;
    struct log_rec r;

    if (!log_enabled(level) || l->access == ACCESS_OFF ||
        (l->access == ACCESS_ERRORS && o->status < 400))
        return;
    log_head(&r, level, "request", x);
    log_end_error(&r, x, o);
    log_u64(&r, "bytes_in", o->nbytes_in);
    log_u64(&r, "bytes_out", o->nbytes_out);
    log_ms(&r, "duration_ms", o->duration_us);
    log_str(&r, "outcome", o->gone ? "gone" : "answered");
    log_end(&r);
}

/* Requests that change the weights, or that say that an update begins or ends. */
static bool is_update(const struct route *route)
{
    if (route == NULL)
        return false;
    switch (route->operation) {
    case OPERATION_UPDATE_START:
    case OPERATION_UPDATE:
    case OPERATION_UPDATE_VERIFY:
    case OPERATION_UPDATE_FINISH:
    case OPERATION_UPDATE_ABORT:
    case OPERATION_UPDATE_RENEW:
    case OPERATION_UPDATE_DELETE:
    case OPERATION_UPDATE_ZMQ:
    case OPERATION_COMMIT_RESUME:
        return true;
    default:
        return false;
    }
}

/* Was its key refused? One that is known, but may not use the route, is not a stranger's. */
static bool is_stranger(const struct http_request *x)
{
    return x->error != NULL && !x->admitted && x->actor.key[0] == '\0' &&
           (x->error->code == ERR_UNAUTHORIZED || x->error->code == ERR_FORBIDDEN);
}

/* Clients abort whatever failed, also an update that has ended. */
static bool is_late_abort(const struct http_request *x)
{
    const struct route *route = x->route;

    return x->error->code == ERR_ENDED && (route->operation == OPERATION_UPDATE_ABORT ||
                                           route->operation == OPERATION_UPDATE_DELETE);
}

/* Those of strangers are left out: anyone could fill the history. */
static bool is_refused_update(const struct http_request *x)
{
    return x->error != NULL && !x->error_reported && !x->committed && is_update(x->route) &&
           !is_late_abort(x) && (x->admitted || x->actor.key[0] != '\0');
}

void request_log_done(struct request_log *l, const struct http_request *x,
                      const struct http_server_outcome *o)
{
    const struct route *route = x->route;
    bool is_health = route != NULL && route->role == ROLE_HEALTH;

    if (x->error != NULL && !is_health && !x->error_reported)
        history_add_error(l->history, pattern_of(x), x->error);
    if (is_health)
        log_health(l, x, o);
    else if (is_stranger(x))
        log_refused_key(l, x, o);
    else if (is_refused_update(x))
        report_refused_update(l, x, o);
    else if (!x->error_reported)
        log_access(l, x, o);
}
