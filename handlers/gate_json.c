/* The gate as JSON. */
#include "handlers/gate_json.h"

#include "base/clock.h"

json_t *gate_pause_json(const struct gate_info *info)
{
    json_t *until = json_null();

    if (info->lease_left_us != CLOCK_NEVER)
        until = json_integer(clock_wall_s() + (json_int_t)(info->lease_left_us / 1000000));
    return json_pack(
        "{s:b, s:s, s:s, s:b, s:s, s:I, s:f, s:o, s:o, s:I, s:I, s:I, s:I}", "paused",
        info->pause != PAUSE_NONE, "mode", lifecycle_pause_name(info->pause), "new_requests",
        info->reject ? "reject" : "queue", "acknowledged", (int)info->acknowledged, "holder",
        info->holder, "since", (json_int_t)info->since_wall_s, "held_s",
        (double)(clock_now_us() - info->since_us) / 1e6, "lease_s",
        info->lease_s > 0 ? json_integer(info->lease_s) : json_null(), "until", until, "epoch",
        (json_int_t)info->epoch, "aborted", (json_int_t)info->n_aborted, "running",
        (json_int_t)info->n_running, "waiting", (json_int_t)info->n_waiting);
}

json_t *gate_sleep_json(struct gate *g)
{
    struct lifecycle_state s;

    gate_state(g, &s);
    return json_pack("{s:b, s:s, s:s}", "asleep",
                     s.weights == WEIGHTS_ASLEEP || s.weights == WEIGHTS_DROPPED || s.kv_released,
                     "weights", lifecycle_weights_name(s.weights), "kv_cache",
                     s.kv_released ? "released" : "present");
}
