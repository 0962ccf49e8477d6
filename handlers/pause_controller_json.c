/* The pause controller as JSON. */
#include "handlers/pause_controller_json.h"

#include "base/clock.h"
#include "handlers/rows/reply_rows.h"

#define UPSTREAMS_ROW                                                                              \
    {                                                                                              \
        "upstreams", M_ARRAY, .items = M_OBJECT, .of = result_reply, .flags = M_FLEET              \
    }

static json_t *paused_json(const void *from)
{
    const struct pause_controller_info *info = from;

    return json_boolean(info->pause.state != PAUSE_OFF);
}

static json_t *held_json(const void *from)
{
    const struct pause_controller_info *info = from;

    return json_real((double)(clock_now_us() - info->pause.since_us) / 1e6);
}

static json_t *until_json(const void *from)
{
    const struct pause_controller_info *info = from;
    const struct lease_timer *lease = &info->pause.lease;

    if (!lease_timer_runs(lease))
        return json_null();
    return json_integer(clock_wall_s() + (json_int_t)(lease_timer_left_us(lease) / 1000000));
}

const struct member pause_reply[] = {
    {"paused", M_BOOL, .make = paused_json,
     .doc = "true from the request on, also while the pause is pending"},
    {"state", M_STRING, M_IN(struct pause_controller_info, pause.state), .word = pause_state_name,
     M_WORDS("pending", "held", "replacing", "resuming"),
     .doc = "`pending`: requested, and not acknowledged yet; `held`: acknowledged; `replacing`: "
            "acknowledged, and another pause, whose values these are, is pending; `resuming`: "
            "engines are being resumed (in front of a fleet)"},
    {"mode", M_STRING, M_IN(struct pause_controller_info, pause.mode), .word = lifecycle_pause_name,
     M_WORDS("keep", "wait", "abort")},
    {"new_requests", M_STRING, M_IN(struct pause_controller_info, pause.reject),
     M_WORDS("queue", "reject")},
    {"acknowledged", M_BOOL, M_IN(struct pause_controller_info, acknowledged),
     .doc = "the state that the mode promises is reached: all generations are frozen (keep), or "
            "none runs (wait, abort)"},
    {"owner", M_STRING, M_IN(struct pause_controller_info, pause.owner),
     .doc = "the client that paused"},
    {"since", M_INT, M_IN(struct pause_controller_info, pause.since_wall_s), .doc = "unix seconds"},
    {"held_s", M_NUMBER, .make = held_json},
    {"lease_s", M_INT | M_NULL, M_IN(struct pause_controller_info, pause.lease.length_s)},
    {"until", M_INT | M_NULL, .make = until_json, .doc = "unix seconds; null: until resume"},
    {"epoch", M_INT, M_IN(struct pause_controller_info, pause.epoch),
     .doc = "counts every pause and resume"},
    {"aborted", M_INT, M_IN(struct pause_controller_info, pause.n_aborted),
     .doc = "generations, by mode abort"},
    {"running", M_INT, M_IN(struct pause_controller_info, n_running),
     .doc = "generations that are frozen or about to end"},
    {"waiting", M_INT, M_IN(struct pause_controller_info, n_waiting),
     .doc = "generations that queue"},
    UPSTREAMS_ROW,
    {0},
};

static json_t *asleep_json(const void *from)
{
    const struct lifecycle_state *s = from;

    return json_boolean(s->weights == WEIGHTS_ASLEEP || s->weights == WEIGHTS_DROPPED ||
                        s->kv_released);
}

const struct member sleep_reply[] = {
    {"asleep", M_BOOL, .make = asleep_json},
    {"weights", M_STRING, M_IN(struct lifecycle_state, weights), .word = lifecycle_weights_name,
     M_WORDS("unsynced", "ready", "asleep", "dropped")},
    {"kv_cache", M_STRING, M_IN(struct lifecycle_state, kv_released),
     M_WORDS("present", "released")},
    {0},
};

static const struct member freed_rows[] = {
    {"weights_device", M_INT, M_IN(struct slept, what.weights.nbytes_device)},
    {"weights_host", M_INT, M_IN(struct slept, what.weights.nbytes_host)},
    {"staging", M_INT, M_IN(struct slept, what.weights.nbytes_ready),
     .doc = "memory that was reserved for updates"},
    {"kv_cache", M_INT, M_IN(struct slept, what.nbytes_kv),
     .doc = "bytes of pages that were resident"},
    {0},
};

const struct member slept_reply[] = {
    {"", M_ROWS_OF(sleep_reply)},
    {"level", M_INT, M_IN(struct slept, level)},
    {"freed", M_OBJECT, .of = freed_rows, .store = STORE_ROWS},
    {"kept", M_INT, M_IN(struct slept, what.weights.nbytes_kept),
     .doc = "bytes kept in host memory for the wake"},
    {"aborted", M_INT, M_IN(struct slept, what.n_aborted), .doc = "generations"},
    UPSTREAMS_ROW,
    {0},
};

const struct member woken_reply[] = {
    {"", M_ROWS_OF(sleep_reply)},
    {"restored", M_INT, .doc = "bytes allocated on GPUs"},
    UPSTREAMS_ROW,
    {0},
};

const struct member resumed_reply[] = {
    {"paused", M_BOOL, .def = "false"},
    {.name = "was_paused", .type = M_BOOL},
    {"epoch", M_INT, M_IN(struct pause_controller_info, pause.epoch),
     .doc = "counts every pause and resume"},
    UPSTREAMS_ROW,
    {0},
};

json_t *pause_controller_pause_json(const struct pause_controller_info *info)
{
    return member_write(info, pause_reply);
}

json_t *pause_controller_sleep_json(struct pause_controller *g)
{
    struct lifecycle_state s;

    pause_controller_state(g, &s);
    return member_write(&s, sleep_reply);
}
