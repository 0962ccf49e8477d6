#include "tests/unit/fleet/sim/broken.h"

#include "fleet/members/fleet_priv.h"
#include "fleet/update/fleet_update_priv.h"
#include "fleet/want/fleet_cache.h"

enum broken broken;

__typeof__(have_doubt) __wrap_have_doubt, __real_have_doubt;
__typeof__(have_reset) __wrap_have_reset, __real_have_reset;
__typeof__(fleet_fence) __wrap_fleet_fence, __real_fleet_fence;
__typeof__(fleet_reset_parts_begin) __wrap_fleet_reset_parts_begin, __real_fleet_reset_parts_begin;
__typeof__(fleet_set_dirty_markers) __wrap_fleet_set_dirty_markers, __real_fleet_set_dirty_markers;
__typeof__(fleet_begin_switch) __wrap_fleet_begin_switch, __real_fleet_begin_switch;
__typeof__(fleet_switch_now) __wrap_fleet_switch_now, __real_fleet_switch_now;
__typeof__(fleet_gate_is_kept) __wrap_fleet_gate_is_kept, __real_fleet_gate_is_kept;
__typeof__(fleet_engine_is_held_locked) __wrap_fleet_engine_is_held_locked,
    __real_fleet_engine_is_held_locked;
__typeof__(fleet_update_us) __wrap_fleet_update_us, __real_fleet_update_us;
__typeof__(fleet_set_why) __wrap_fleet_set_why, __real_fleet_set_why;
__typeof__(fleet_to_wake) __wrap_fleet_to_wake, __real_fleet_to_wake;

void __wrap_have_doubt(struct engine_have *have, enum api_op op, const struct api_args *args,
                       struct have_before *before)
{
    struct engine_have was = *have;

    __real_have_doubt(have, op, args, before);
    if (broken != BROKEN_DOUBT)
        return;
    have->gate = was.gate;
    have->own = was.own;
    have->sleep = was.sleep;
}

void __wrap_have_reset(struct engine_have *have, bool certain)
{
    if (broken != BROKEN_RESET)
        __real_have_reset(have, certain);
}

void __wrap_fleet_fence(struct fleet *f, struct upstream *upstream, const struct err *why)
{
    if (broken != BROKEN_FENCE)
        __real_fleet_fence(f, upstream, why);
}

void __wrap_fleet_reset_parts_begin(struct fleet_resets *r, struct fleet_control *fc,
                                    struct fleet_session *s)
{
    __real_fleet_reset_parts_begin(r, fc, s);
    if (broken == BROKEN_CACHES)
        r->n_targets = 0;
}

int __wrap_fleet_set_dirty_markers(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    return broken == BROKEN_MARKER ? 0 : __real_fleet_set_dirty_markers(fc, s, e);
}

void __wrap_fleet_begin_switch(struct fleet *f, struct upstream *const *parts, size_t n)
{
    if (broken == BROKEN_GATES)
        fleet_set_updating(f, true);
    else
        __real_fleet_begin_switch(f, parts, n);
}

void __wrap_fleet_switch_now(struct fleet_control *fc, struct fleet_session *s)
{
    if (broken != BROKEN_SWITCH)
        __real_fleet_switch_now(fc, s);
}

bool __wrap_fleet_gate_is_kept(struct fleet_control *fc, struct upstream *upstream)
{
    return broken != BROKEN_KEPT && __real_fleet_gate_is_kept(fc, upstream);
}

bool __wrap_fleet_engine_is_held_locked(const struct fleet_control *fc, struct upstream *upstream)
{
    return broken != BROKEN_KEPT && __real_fleet_engine_is_held_locked(fc, upstream);
}

uint64_t __wrap_fleet_update_us(const struct fleet_control *fc)
{
    return broken == BROKEN_DEADLINE ? 3600000000 : __real_fleet_update_us(fc);
}

void __wrap_fleet_set_why(struct upstream *u, enum upstream_reason which, const struct err *why)
{
    if (broken != BROKEN_WHY)
        __real_fleet_set_why(u, which, why);
}

struct api_sleep __wrap_fleet_to_wake(const struct fleet *f, const struct upstream *u)
{
    if (broken == BROKEN_WAKE && fleet_may_sleep(f, u))
        return (struct api_sleep){.weights = !f->asleep.weights, .kv = !f->asleep.kv};
    return __real_fleet_to_wake(f, u);
}
