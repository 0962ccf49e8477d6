#include "tests/unit/fleet/sim/broken.h"

#include "fleet/handoff/handoff_request.h"
#include "fleet/members/fleet_priv.h"
#include "fleet/proof/fleet_proof.h"
#include "fleet/update/fleet_update_priv.h"
#include "fleet/want/fleet_cache.h"
#include "fleet/want/fleet_reconcile.h"

#include <string.h>

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
__typeof__(have_reset_adapter) __wrap_have_reset_adapter, __real_have_reset_adapter;
__typeof__(fleet_start_parts) __wrap_fleet_start_parts, __real_fleet_start_parts;
__typeof__(fleet_result_may_have_run) __wrap_fleet_result_may_have_run,
    __real_fleet_result_may_have_run;
__typeof__(fleet_check_dirty_markers) __wrap_fleet_check_dirty_markers,
    __real_fleet_check_dirty_markers;
__typeof__(fleet_drop_restarted) __wrap_fleet_drop_restarted, __real_fleet_drop_restarted;
__typeof__(fleet_drop_without_base) __wrap_fleet_drop_without_base, __real_fleet_drop_without_base;
__typeof__(fleet_read_old_labels) __wrap_fleet_read_old_labels, __real_fleet_read_old_labels;
__typeof__(fleet_set_new_labels) __wrap_fleet_set_new_labels, __real_fleet_set_new_labels;
__typeof__(fleet_abort_with_lock) __wrap_fleet_abort_with_lock, __real_fleet_abort_with_lock;
__typeof__(fleet_need_tried) __wrap_fleet_need_tried, __real_fleet_need_tried;
__typeof__(fleet_derive_locked) __wrap_fleet_derive_locked, __real_fleet_derive_locked;
__typeof__(fleet_pause_drive) __wrap_fleet_pause_drive, __real_fleet_pause_drive;
__typeof__(fleet_sleep_drive) __wrap_fleet_sleep_drive, __real_fleet_sleep_drive;
__typeof__(fleet_own_updates_drive) __wrap_fleet_own_updates_drive, __real_fleet_own_updates_drive;
__typeof__(fleet_needs) __wrap_fleet_needs, __real_fleet_needs;
__typeof__(fleet_resync) __wrap_fleet_resync, __real_fleet_resync;
__typeof__(fleet_commit_open_update) __wrap_fleet_commit_open_update,
    __real_fleet_commit_open_update;

__typeof__(window_reader_has_window) __wrap_window_reader_has_window,
    __real_window_reader_has_window;
__typeof__(window_reader_has_ended) __wrap_window_reader_has_ended, __real_window_reader_has_ended;
__typeof__(handoff_request_send) __wrap_handoff_request_send, __real_handoff_request_send;
__typeof__(fleet_proof_is_beyond_repair) __wrap_fleet_proof_is_beyond_repair,
    __real_fleet_proof_is_beyond_repair;
__typeof__(fleet_start_update) __wrap_fleet_start_update, __real_fleet_start_update;

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
    if (broken == BROKEN_SENT)
        have->gate_calls.asked = have->sleep_calls.asked = false;
    if (broken != BROKEN_RESET)
        __real_have_reset(have, certain);
    if (broken == BROKEN_FIRST && !certain)
        have->caches.emptied = have->caches.due;
}

void __wrap_have_reset_adapter(struct adapter_have *a, bool certain)
{
    if (broken != BROKEN_RESTARTED_ADAPTERS)
        __real_have_reset_adapter(a, certain);
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

int __wrap_fleet_start_parts(struct fleet_control *fc, struct fleet_session *s,
                             const struct api_tensors *tensors, struct err *e)
{
    return broken == BROKEN_START ? 0 : __real_fleet_start_parts(fc, s, tensors, e);
}

bool __wrap_fleet_result_may_have_run(const struct fleet_result *result)
{
    return !(broken == BROKEN_TWICE && result->outcome == FLEET_UNKNOWN) &&
           __real_fleet_result_may_have_run(result);
}

int __wrap_fleet_check_dirty_markers(struct fleet_control *fc, struct fleet_session *s, bool all,
                                     struct err *e)
{
    return broken == BROKEN_PROCESS ? 0 : __real_fleet_check_dirty_markers(fc, s, all, e);
}

int __wrap_fleet_drop_restarted(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    return broken == BROKEN_PROCESS ? 0 : __real_fleet_drop_restarted(fc, s, e);
}

int __wrap_fleet_drop_without_base(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    return broken == BROKEN_BASE ? 0 : __real_fleet_drop_without_base(fc, s, e);
}

int __wrap_fleet_read_old_labels(struct fleet_control *fc, struct fleet_session *s, struct err *e)
{
    bool partial = s->partial;
    int rc;

    s->partial = partial && broken != BROKEN_BASE;
    rc = __real_fleet_read_old_labels(fc, s, e);
    s->partial = partial;
    return rc;
}

void __wrap_fleet_set_new_labels(struct fleet_control *fc, struct fleet_session *s, bool resumed,
                                 struct fanout_with *with, struct err *why)
{
    if (broken != BROKEN_LABEL)
        __real_fleet_set_new_labels(fc, s, resumed, with, why);
}

void __wrap_fleet_abort_with_lock(struct fleet_control *fc, struct fleet_session *s,
                                  const struct err *why)
{
    __real_fleet_abort_with_lock(fc, s, why);
    if (broken == BROKEN_SERIAL && upstreams_fleet(fc->upstreams)->serial > 0)
        upstreams_fleet(fc->upstreams)->serial--;
}

void __wrap_fleet_need_tried(struct fleet *f, struct upstream *upstream, enum fleet_need which,
                             const struct err *why)
{
    __real_fleet_need_tried(f, upstream, which, why);
    if (broken == BROKEN_DUE && why->code != ERR_NONE)
        upstream->needs[which].retry.due_us = CLOCK_NEVER;
}

void __wrap_fleet_derive_locked(const struct fleet *f, struct upstream *u)
{
    static const unsigned forgotten[BROKENS] = {
        [BROKEN_OUT_DOWN] = REASON_BIT(REASON_DOWN) | REASON_BIT(REASON_PROBES_FAIL),
        [BROKEN_OUT_SLEEP] = REASON_BIT(REASON_ASLEEP) | REASON_BIT(REASON_SLEEP_MISSED),
        [BROKEN_OUT_PAUSE] = REASON_BIT(REASON_NOT_RESUMED) | REASON_BIT(REASON_PAUSE_MISSED),
        [BROKEN_OUT_WEIGHTS] = REASON_BIT(REASON_OTHER_WEIGHTS),
        [BROKEN_OUT_NEEDS] = REASON_BIT(REASON_ADAPTERS),
        [BROKEN_OUT_DROPPED] = REASON_BIT(REASON_DROPPED)};

    __real_fleet_derive_locked(f, u);
    u->out &= ~forgotten[broken];
}

void __wrap_fleet_pause_drive(struct fleet_control *fc)
{
    if (broken != BROKEN_ROW_PAUSE)
        __real_fleet_pause_drive(fc);
}

void __wrap_fleet_sleep_drive(struct fleet_control *fc)
{
    if (broken != BROKEN_ROW_SLEEP)
        __real_fleet_sleep_drive(fc);
}

void __wrap_fleet_own_updates_drive(struct fleet_control *fc)
{
    if (broken != BROKEN_ROW_OWN_UPDATE)
        __real_fleet_own_updates_drive(fc);
}

bool __wrap_fleet_needs(struct fleet *f, struct upstream *upstream, enum fleet_need which)
{
    return !(broken == BROKEN_ROW_CACHES && which == NEED_CACHES) &&
           !(broken == BROKEN_ROW_ADAPTERS && which == NEED_ADAPTERS) &&
           !(broken == BROKEN_ROW_NAME && which == NEED_NAME) &&
           __real_fleet_needs(f, upstream, which);
}

int __wrap_fleet_resync(struct fleet *f, struct upstream *u, const struct upstream_info *before,
                        const struct upstream_report *report, struct err *e)
{
    struct upstream_report now = *report;

    if (broken == BROKEN_RESYNC)
        memcpy(now.label, f->label, sizeof now.label);
    return __real_fleet_resync(f, u, before, &now, e);
}

int __wrap_fleet_commit_open_update(struct fleet_control *fc, const char *label,
                                    struct fleet_session **out, struct err *e)
{
    if (broken != BROKEN_OPEN)
        return __real_fleet_commit_open_update(fc, label, out, e);
    *out = NULL;
    return 0;
}

bool __wrap_window_reader_has_window(const struct window_reader *r)
{
    return broken != BROKEN_READERS && __real_window_reader_has_window(r);
}

bool __wrap_window_reader_has_ended(const struct window_reader *r, const struct upstream_info *info)
{
    return broken == BROKEN_ENDED || __real_window_reader_has_ended(r, info);
}

int __wrap_handoff_request_send(struct handoff_request *r, struct err *e)
{
    const struct tensor_list *list = r->tensors.list;
    int rc;

    if (broken == BROKEN_WINDOW && list->tensors[0].name[0] == '2')
        return 0;
    rc = __real_handoff_request_send(r, e);
    if (broken == BROKEN_MAPPED)
        memset(r->mapped, 0, sizeof r->mapped);
    return rc;
}

bool __wrap_fleet_proof_is_beyond_repair(struct fleet_control *fc, struct upstream *upstream)
{
    return broken == BROKEN_REPAIR || __real_fleet_proof_is_beyond_repair(fc, upstream);
}

int __wrap_fleet_start_update(struct fleet_control *fc, const struct fleet_update_request *req,
                              struct fleet_session **out, struct fleet_results *replies,
                              struct err *e)
{
    static uint64_t last;

    if (broken == BROKEN_AGAIN && req->handoff > 0 && !req->repair && req->handoff == last)
        return err_set(e, ERR_CONFLICT, "", "it was tried");
    last = req->handoff;
    return __real_fleet_start_update(fc, req, out, replies, e);
}
