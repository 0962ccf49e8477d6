/* The pause controller as JSON. */
#include "handlers/pause_controller_json.h"

#include "base/clock.h"

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
