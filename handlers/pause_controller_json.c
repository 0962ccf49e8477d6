/* The pause controller as JSON. */
#include "handlers/pause_controller_json.h"

#include "base/clock.h"
#include "base/log.h"
#include "handlers/body.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

json_t *pause_controller_pause_json(const struct pause_controller_info *info)
{
    const struct pause *p = &info->pause;
    json_t *until = json_null();

    if (lease_timer_runs(&p->lease))
        until = json_integer(clock_wall_s() +
                             (json_int_t)(lease_timer_left_us(&p->lease) / 1000000));
    return json_pack(
        "{s:b, s:s, s:s, s:s, s:b, s:s, s:I, s:f, s:o, s:o, s:I, s:I, s:I, s:I}", "paused",
        p->state != PAUSE_OFF, "state", pause_state_name(p->state), "mode",
        lifecycle_pause_name(p->mode), "new_requests", p->reject ? "reject" : "queue",
        "acknowledged", (int)info->acknowledged, "owner", p->owner, "since",
        (json_int_t)p->since_wall_s, "held_s", (double)(clock_now_us() - p->since_us) / 1e6,
        "lease_s", p->lease.length_s > 0 ? json_integer(p->lease.length_s) : json_null(), "until",
        until, "epoch", (json_int_t)p->epoch, "aborted", (json_int_t)p->n_aborted, "running",
        (json_int_t)info->n_running, "waiting", (json_int_t)info->n_waiting);
}

json_t *pause_controller_sleep_json(struct pause_controller *g)
{
    struct lifecycle_state s;

    pause_controller_state(g, &s);
    return json_pack("{s:b, s:s, s:s}", "asleep",
                     s.weights == WEIGHTS_ASLEEP || s.weights == WEIGHTS_DROPPED || s.kv_released,
                     "weights", lifecycle_weights_name(s.weights), "kv_cache",
                     s.kv_released ? "released" : "present");
}

static int mode_parse(enum lifecycle_pause *out, const json_t *body, struct err *e)
{
    const char *mode = "keep";

    if (body_str(&mode, body, "", "mode", e) != 0)
        return -1;
    for (int p = PAUSE_KEEP; p < PAUSE_COUNT; p++) {
        if (strcmp(mode, lifecycle_pause_name((enum lifecycle_pause)p)) != 0)
            continue;
        *out = (enum lifecycle_pause)p;
        return 0;
    }
    return err_set(e, ERR_BAD_REQUEST, "/mode", "mode '%.32s' is not one of keep, wait, abort",
                   mode);
}

static int new_requests_parse(bool *reject, const json_t *body, struct err *e)
{
    const char *word = "queue";

    if (body_str(&word, body, "", "new_requests", e) != 0)
        return -1;
    *reject = strcmp(word, "reject") == 0;
    if (!*reject && strcmp(word, "queue") != 0)
        return err_set(e, ERR_BAD_REQUEST, "/new_requests", "'%.32s' is not one of queue, reject",
                       word);
    return 0;
}

/* Once in the life of the process: a trainer pauses at every step. */
static void warn_no_lease(const struct http_request *x)
{
    static atomic_bool warned;
    struct log_rec r;

    if (atomic_exchange_explicit(&warned, true, memory_order_relaxed))
        return;
    log_begin(&r, LOG_WARN, "pause.no_lease");
    log_actor(&r, &x->actor);
    log_str(&r, "message",
            "a pause without lease_s lasts until a resume, also if its client dies; "
            "later ones are not logged");
    log_end(&r);
}

int pause_parse(struct pause_request *req, const struct http_request *x, const json_t *body,
                struct err *e)
{
    uint64_t lease_s = 0, timeout_s = PAUSE_TIMEOUT_S_DEFAULT;
    const char *owner = x->actor.request_id;

    if (mode_parse(&req->mode, body, e) != 0 || new_requests_parse(&req->reject, body, e) != 0 ||
        body_u64(&lease_s, body, "", "lease_s", 1, PAUSE_LEASE_S_MAX, e) != 0 ||
        body_u64(&timeout_s, body, "", "timeout_s", 1, PAUSE_TIMEOUT_S_MAX, e) != 0 ||
        body_str(&owner, body, "", "owner", e) != 0)
        return -1;
    if (owner[0] == '\0' || strlen(owner) > PAUSE_OWNER_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/owner", "a name of %zu bytes; expected 1 to %d",
                       strlen(owner), PAUSE_OWNER_MAX);
    if (lease_s == 0)
        warn_no_lease(x);
    (void)snprintf(req->owner, sizeof req->owner, "%s", owner);
    req->lease_s = (uint32_t)lease_s;
    req->timeout_s = (uint32_t)timeout_s;
    return 0;
}
