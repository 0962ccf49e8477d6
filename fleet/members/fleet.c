/* One lock over a table of upstreams. Whatever is seen or done is a change of it, after which
 * follows who is in rotation (fleet_priv.h); who gets a request, which version is the first, and
 * what is told of all this are files of their own. */
#include "fleet/members/fleet_priv.h"

#include "base/clock.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* [splitmix64] */
uint64_t fleet_hash_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
    x = (x ^ x >> 27) * 0x94d049bb133111ebU;
    return x ^ x >> 31;
}

void fleet_set_error(struct upstream *u, const struct err *why)
{
    uint64_t words = fleet_affinity(why->msg);

    if (u->error_wall_s == 0 || words != u->error_hash)
        u->error_wall_s = clock_wall_s();
    u->error_hash = words;
    u->error = *why;
}

const struct err *fleet_error_of(const struct upstream *u, int64_t *wall_s)
{
    bool silent = u->no_answer.code != ERR_NONE;

    *wall_s = silent ? u->no_answer_wall_s : u->error_wall_s;
    return silent ? &u->no_answer : &u->error;
}

/* Of the lock's holder: words that are made here. */
#define SET_ERROR(u, ...)                                                                          \
    do {                                                                                           \
        struct err why_ = {0};                                                                     \
        (void)err_set(&why_, ERR_UNSYNCED, "", __VA_ARGS__);                                       \
        fleet_set_error((u), &why_);                                                               \
    } while (0)

static void upstream_join_locked(struct fleet *f, size_t upstream, const char *name)
{
    struct upstream *u = &f->upstreams[upstream];
    bool same = name != NULL && u->name != NULL && strcmp(name, u->name) == 0;
    struct upstream fresh = {.name = name,
                             .requires_adapters = f->requires_adapters,
                             .out = OUT_JOINED | (same ? u->out & OUT_FENCES : 0),
                             .fence_incarnation = u->fence_incarnation,
                             .incarnation = u->incarnation + 1,
                             .adapters_change = u->adapters_change};

    fresh.hash = name != NULL ? fleet_affinity(name) : fleet_hash_mix(upstream);
    memcpy(fresh.n_outstanding, u->n_outstanding, sizeof fresh.n_outstanding);
    if (f->quiesced)
        upstream_state_apply(&fresh.out, UPSTREAM_ON_PAUSE_MISSED);
    if (fleet_is_out(&fresh, OUT_FENCES)) {
        fleet_set_error(&fresh, &u->error);
        fresh.error_wall_s = u->error_wall_s;
    } else if (f->serial > 0) {
        SET_ERROR(&fresh, "it came after version '%s'", f->label);
    }
    fresh.state = fresh.last_seen = fleet_state_of(&fresh);
    *u = fresh;
}

int fleet_new(struct fleet **out, const struct fleet_cfg *cfg, struct err *e)
{
    struct fleet *f = calloc(1, sizeof *f);

    assert(cfg->n_upstreams >= 1 && cfg->n_upstreams <= FLEET_MAX);
    if (f != NULL)
        f->upstreams = calloc(FLEET_MAX, sizeof *f->upstreams);
    if (f == NULL || f->upstreams == NULL) {
        free(f);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the upstreams");
    }
    mtx_init(&f->lock, MTX_ADMISSION);
    for (size_t queue = 0; queue < FLEET_QUEUES; queue++)
        f->queues[queue].tail = &f->queues[queue].head;
    f->n = cfg->n_upstreams;
    f->min_ready = cfg->min_ready;
    for (size_t i = 0; i < FLEET_MAX; i++)
        f->upstreams[i].out = OUT_JOINED;
    for (size_t i = 0; i < f->n; i++)
        upstream_join_locked(f, i, cfg->names != NULL ? cfg->names[i] : NULL);
    f->cfg = *cfg;
    f->cfg.names = NULL; /* the array is the caller's */
    *out = f;
    return 0;
}

void fleet_free(struct fleet *f)
{
    if (f == NULL)
        return;
    for (size_t queue = 0; queue < FLEET_QUEUES; queue++)
        assert(f->queues[queue].n_waiting == 0 && f->queues[queue].n_running == 0);
    mtx_fini(&f->lock);
    free(f->upstreams);
    free(f);
}

struct fleet_name fleet_name(const struct fleet *f, size_t upstream)
{
    const char *name = f->upstreams[upstream].name;
    struct fleet_name w;

    if (name != NULL)
        (void)snprintf(w.text, sizeof w.text, "%s", name);
    else
        (void)snprintf(w.text, sizeof w.text, "upstream %zu", upstream);
    return w;
}

/* changes */

static void rotation_snapshot(const struct fleet *f, size_t n, struct fleet_rotation *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (struct fleet_rotation){fleet_is_reliable(&f->upstreams[i]),
                                         fleet_in_rotation(&f->upstreams[i])};
}

void fleet_change_begin(struct fleet *f, struct fleet_change *c)
{
    mtx_lock(&f->lock);
    c->n = f->n;
    rotation_snapshot(f, c->n, c->before);
}

/* Where nothing can be relied on any more is told of, and so is that nobody is left. */
void fleet_change_end(struct fleet *f, struct fleet_change *c)
{
    bool closed = false, opened = false, any;

    fleet_decide_version_locked(f);
    fleet_set_missing_errors_locked(f);
    for (size_t i = 0; i < f->n; i++)
        if (f->upstreams[i].error.code == ERR_NONE)
            f->upstreams[i].error_wall_s = 0;
    rotation_snapshot(f, c->n, c->after);
    any = fleet_any_serving_locked(f);
    mtx_unlock(&f->lock);
    for (size_t i = 0; i < c->n; i++) {
        bool lost = c->before[i].sound && !c->after[i].sound;

        if (lost && f->cfg.left_rotation != NULL)
            f->cfg.left_rotation(f->cfg.arg, i);
        closed = closed || (!lost && c->before[i].open && !c->after[i].open);
        opened = opened || (!c->before[i].open && c->after[i].open);
    }
    if (closed && !any && f->cfg.left_rotation != NULL)
        f->cfg.left_rotation(f->cfg.arg, FLEET_MAX);
    if (opened)
        fleet_grant_all(f);
    fleet_report_states(f);
}

/* which there are */

void fleet_add(struct fleet *f, size_t upstream, const char *name)
{
    mtx_lock(&f->lock);
    assert(upstream < FLEET_MAX && upstream <= f->n);
    assert(upstream == f->n || fleet_is_out(&f->upstreams[upstream], OUT_REMOVED));
    upstream_join_locked(f, upstream, name);
    if (upstream == f->n)
        f->n++;
    mtx_unlock(&f->lock);
}

void fleet_remove(struct fleet *f, size_t upstream)
{
    struct fleet_change c;

    fleet_change_begin(f, &c);
    assert(upstream < f->n);
    fleet_apply_event(f, &f->upstreams[upstream], UPSTREAM_ON_REMOVED);
    fleet_change_end(f, &c);
}

void fleet_set_min_ready(struct fleet *f, size_t min_ready)
{
    struct fleet_change c;

    fleet_change_begin(f, &c);
    f->min_ready = min_ready;
    fleet_change_end(f, &c);
}

/* what was seen */

/* Is what answers the process that was put into step? Nobody can tell of one that was away and
 * does not name itself. */
static bool may_be_restarted(const struct upstream *u, const struct upstream_report *report)
{
    if (report->process[0] == '\0' || u->report.process[0] == '\0')
        return u->probe_ok_us != 0 && !fleet_is_alive(u);
    return strcmp(report->process, u->report.process) != 0;
}

static void set_restarted_error(const struct fleet *f, struct err *out)
{
    err_clear(out);
    if (f->serial == 0)
        (void)err_set(out, ERR_UNSYNCED, "", "it was restarted: what it serves is not known yet");
    else
        (void)err_set(out, ERR_UNSYNCED, "", "it was restarted: its weights are not version '%s'",
                      f->label);
}

/* Before the first update what it says decides, but of nobody while that is under way. */
static void check_sync_locked(const struct fleet *f, struct upstream *u,
                              const struct upstream_report *report)
{
    struct err why = {0};

    if (f->serial == 0 && !f->updating)
        return;
    if (may_be_restarted(u, report))
        set_restarted_error(f, &why);
    else if (!f->updating && !report->is_stale && report->label[0] != '\0' &&
             u->serial == f->serial && strcmp(report->label, f->label) != 0)
        (void)err_set(&why, ERR_UNSYNCED, "", "it serves weights '%s', not '%s'", report->label,
                      f->label);
    if (why.code == ERR_NONE)
        return;
    fleet_apply_event(f, u, UPSTREAM_ON_UNSYNCED);
    if (!fleet_is_out(u, OUT_FENCES)) /* why that is says more */
        fleet_set_error(u, &why);
}

/* What the process before it was told, and what it had, is not so of this one. */
static void note_restart_locked(const struct fleet *f, struct upstream *u)
{
    u->incarnation++;
    if (f->quiesced)
        fleet_apply_event(f, u, UPSTREAM_ON_PAUSE_MISSED);
}

/* What it said of its weights before holds for the same process only. */
static void store_report_locked(const struct fleet *f, struct upstream *u,
                                const struct upstream_report *report)
{
    struct upstream_report now = *report;
    bool restarted = may_be_restarted(u, report);

    if (report->is_stale && !restarted) {
        memcpy(now.label, u->report.label, sizeof now.label);
        memcpy(now.not_ready, u->report.not_ready, sizeof now.not_ready);
    } else if (report->is_stale) {
        now.label[0] = now.not_ready[0] = '\0';
    }
    if (now.release[0] == '\0' && !restarted)
        memcpy(now.release, u->report.release, sizeof now.release);
    if (restarted)
        note_restart_locked(f, u);
    u->label_known = !report->is_stale || (u->label_known && !restarted);
    u->report = now;
    fleet_apply_event(f, u, UPSTREAM_ON_PROBE_OK);
    u->n_failures_in_row = 0;
    u->n_probe_failures = 0;
    err_clear(&u->no_answer);
    u->probe_ok_us = clock_now_us();
}

/* What was wrong with it before it refused our key is not known any more. */
static void clear_auth_error_locked(const struct fleet *f, struct upstream *u)
{
    if (u->error.code != ERR_UPSTREAM_KEY || fleet_is_out(u, OUT_AUTH))
        return;
    err_clear(&u->error);
    if (fleet_is_out(u, OUT_FENCES))
        SET_ERROR(u, "it is not as the others are, and only a whole update makes that good");
    else if (!fleet_is_synced(u) && f->serial > 0)
        SET_ERROR(u, "its weights are not version '%s'", f->label);
}

bool fleet_is_dirty_marker(const char *label)
{
    return strncmp(label, FLEET_DIRTY_MARKER, sizeof FLEET_DIRTY_MARKER - 1) == 0;
}

/* Whoever began it did not live to end it. What is said during one of ours may be of that one. */
static void fence_dirty_locked(const struct fleet *f, struct upstream *u)
{
    if (f->updating || fleet_is_out(u, OUT_UPDATE_FAILED) ||
        !fleet_is_dirty_marker(u->report.label))
        return;
    fleet_apply_event(f, u, UPSTREAM_ON_UPDATE_FAILED);
    SET_ERROR(u, "an update of it never ended ('%s'): its weights are of no version",
              u->report.label);
}

static const char not_ready_prefix[] = "it would serve nobody: ";

void fleet_probe_ok(struct fleet *f, size_t upstream, const struct upstream_report *report)
{
    struct upstream *u = &f->upstreams[upstream];
    struct upstream_report fresh_report = *report;
    struct fleet_change c;
    bool was;

    fleet_change_begin(f, &c);
    was = fleet_is_synced(u);
    fresh_report.is_stale |= f->updating && fleet_is_dirty_marker(
                                                report->label); /* of ours, and soon not any more */
    check_sync_locked(f, u, &fresh_report);
    store_report_locked(f, u, &fresh_report);
    clear_auth_error_locked(f, u);
    fence_dirty_locked(f, u);
    fleet_decide_version_locked(f);
    u->incarnation += was && !fleet_is_synced(u) &&
                      report->process[0] == '\0'; /* by its words alone */
    if (!fleet_is_out(u, OUT_UNRELIABLE | OUT_AUTH_REQUEST) ||
        strncmp(u->error.msg, not_ready_prefix, sizeof not_ready_prefix - 1) == 0)
        err_clear(&u->error);
    if (u->error.code == ERR_NONE && u->report.not_ready[0] != '\0')
        SET_ERROR(u, "%s%s", not_ready_prefix, u->report.not_ready);
    fleet_change_end(f, &c);
}

static bool is_same_locked(const struct upstream *u, const char *process)
{
    return u->report.process[0] == '\0' || strcmp(process, u->report.process) == 0;
}

/* With every answer of a baton: what changes nothing is done with at once. Before the first update
 * its next answer about itself says what it has. The process that answered is the one that is known
 * from now on: an update that it takes puts it into step. */
bool fleet_check_process(struct fleet *f, size_t upstream, const char *process)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;
    struct err why = {0};
    bool same;

    mtx_lock(&f->lock);
    same = is_same_locked(u, process);
    mtx_unlock(&f->lock);
    if (same)
        return true;
    fleet_change_begin(f, &c);
    same = is_same_locked(u, process);
    if (!same) {
        set_restarted_error(f, &why);
        if (!fleet_is_out(u, OUT_FENCES)) /* why that is says more */
            fleet_set_error(u, &why);
        fleet_apply_event(f, u, UPSTREAM_ON_UNSYNCED);
        note_restart_locked(f, u);
        (void)snprintf(u->report.process, sizeof u->report.process, "%s", process);
        u->report.label[0] = u->report.not_ready[0] = '\0';
        u->label_known = false;
    }
    fleet_change_end(f, &c);
    return same;
}

bool fleet_may_report_version(struct fleet *f, const char *label, uint64_t weights_epoch)
{
    bool may;

    mtx_lock(&f->lock);
    may = f->updating || f->weights_epoch != weights_epoch || f->label[0] == '\0' ||
          strcmp(label, f->label) == 0;
    mtx_unlock(&f->lock);
    return may;
}

static void count_failure_locked(const struct fleet *f, struct upstream *u, bool refused,
                                 const struct err *why)
{
    u->n_failures_in_row++;
    u->n_failures++;
    if (u->n_failures_in_row >= FLEET_FAILURES_DOWN)
        fleet_apply_event(f, u, UPSTREAM_ON_DOWN);
    else if (refused)
        fleet_apply_event(f, u, UPSTREAM_ON_CONNECTION_REFUSED);
    u->no_answer = *why;
    u->no_answer_wall_s = clock_wall_s();
}

/* It answered, but for what it serves if that was not the question. */
void fleet_clear_failure_locked(struct upstream *u)
{
    if (fleet_is_alive(u) && u->n_probe_failures == 0)
        err_clear(&u->no_answer);
}

void fleet_request_failed(struct fleet *f, size_t upstream, bool refused, const struct err *why)
{
    struct fleet_change c;

    fleet_change_begin(f, &c);
    count_failure_locked(f, &f->upstreams[upstream], refused, why);
    fleet_change_end(f, &c);
}

void fleet_probe_failed(struct fleet *f, size_t upstream, bool refused, const struct err *why)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;

    fleet_change_begin(f, &c);
    count_failure_locked(f, u, refused, why);
    u->n_probe_failures++;
    if (u->n_probe_failures >= FLEET_PROBE_FAILURES_MAX && u->probe_ok_us != 0) {
        err_clear(&u->no_answer);
        (void)err_set(&u->no_answer, why->code, "",
                      "its version cannot be known: %u questions in a row got no answer; %.300s",
                      u->n_probe_failures, why->msg);
    }
    fleet_change_end(f, &c);
}

void fleet_auth_failed(struct fleet *f, size_t upstream, enum fleet_auth what,
                       const struct err *why)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;

    assert(why->code == ERR_UPSTREAM_KEY);
    fleet_change_begin(f, &c);
    fleet_apply_event(f, u,
                      what == FLEET_AUTH_PROBE ? UPSTREAM_ON_PROBE_AUTH_FAILED
                                               : UPSTREAM_ON_REQUEST_AUTH_FAILED);
    fleet_set_error(u, why);
    fleet_clear_failure_locked(u);
    fleet_change_end(f, &c);
}

void fleet_auth_ok(struct fleet *f, size_t upstream)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;

    fleet_change_begin(f, &c);
    fleet_apply_event(f, u, UPSTREAM_ON_REQUEST_AUTH_OK);
    clear_auth_error_locked(f, u);
    fleet_change_end(f, &c);
}

/* what was done */

void fleet_set_updating(struct fleet *f, bool on)
{
    struct fleet_change c;

    fleet_change_begin(f, &c);
    f->updating = on;
    f->weights_epoch++;
    fleet_change_end(f, &c);
}

static void clear_pause_missed_locked(const struct fleet *f, struct upstream *u)
{
    if (fleet_is_out(u, OUT_PAUSE_MISSED) && fleet_is_reliable(u) && u->error.code == ERR_UNSYNCED)
        err_clear(&u->error);
    fleet_apply_event(f, u, UPSTREAM_ON_PAUSE_CLEARED);
}

void fleet_confirm_quiesced(struct fleet *f, size_t upstream, uint64_t incarnation)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;

    fleet_change_begin(f, &c);
    if (u->incarnation == incarnation)
        clear_pause_missed_locked(f, u);
    fleet_change_end(f, &c);
}

/* Who is away takes nothing of it; who is there is told. */
void fleet_quiesce(struct fleet *f, bool on, uint64_t order)
{
    struct fleet_change c;
    bool changes;

    fleet_change_begin(f, &c);
    changes = order > f->quiesce_order && on != f->quiesced;
    for (size_t i = 0; i < f->n && changes; i++) {
        struct upstream *u = &f->upstreams[i];

        clear_pause_missed_locked(f, u);
        if (on && !fleet_is_alive(u))
            fleet_apply_event(f, u, UPSTREAM_ON_PAUSE_MISSED);
    }
    if (changes)
        f->quiesced = on;
    if (order > f->quiesce_order)
        f->quiesce_order = order;
    fleet_change_end(f, &c);
}

void fleet_set_pause_queue(struct fleet *f, size_t upstream, bool has_pause_queue)
{
    mtx_lock(&f->lock);
    f->upstreams[upstream].no_pause_queue = !has_pause_queue;
    mtx_unlock(&f->lock);
}

void fleet_hold_generates(struct fleet *f, bool on, uint64_t order)
{
    bool ends = false;

    mtx_lock(&f->lock);
    if (order > f->hold_order) {
        f->hold_order = order;
        ends = f->generates_held && !on;
        f->generates_held = on;
    }
    mtx_unlock(&f->lock);
    if (ends)
        fleet_grant_all(f);
}

uint64_t fleet_weights_epoch(struct fleet *f)
{
    uint64_t weights_epoch;

    mtx_lock(&f->lock);
    weights_epoch = f->weights_epoch;
    mtx_unlock(&f->lock);
    return weights_epoch;
}

void fleet_fence(struct fleet *f, size_t upstream, const struct err *why)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;

    fleet_change_begin(f, &c);
    fleet_apply_event(f, u, UPSTREAM_ON_UPDATE_FAILED);
    fleet_set_error(u, why);
    fleet_change_end(f, &c);
}

static void set_missed_error(struct upstream *u)
{
    SET_ERROR(u,
              "it did not answer when the fleet was %s: name it to /v1/upstreams/resync when it is "
              "back, or push a whole update",
              fleet_is_out(u, OUT_SLEEP_MISSED) ? "put to sleep" : "woken");
}

void fleet_fence_missed(struct fleet *f, size_t upstream, enum fleet_fence what)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;
    bool fences;

    fleet_change_begin(f, &c);
    fences = !fleet_is_out(u, OUT_FENCES);
    upstream_state_apply(&u->out, what == FLEET_FENCE_SLEEP ? UPSTREAM_ON_SLEEP_MISSED
                                                            : UPSTREAM_ON_WAKE_MISSED);
    if (fences) {
        u->fence_incarnation = u->incarnation;
        set_missed_error(u);
    }
    fleet_change_end(f, &c);
}

void fleet_note_sleep(struct fleet *f, size_t upstream, bool asleep)
{
    struct upstream *u = &f->upstreams[upstream];

    mtx_lock(&f->lock);
    fleet_apply_event(f, u, asleep ? UPSTREAM_ON_SLEEP : UPSTREAM_ON_WAKE);
    if (fleet_is_out(u, OUT_SLEEP_MISSED | OUT_WAKE_MISSED))
        u->fence_incarnation = u->incarnation;
    mtx_unlock(&f->lock);
}

static int may_resync_locked(const struct fleet *f, size_t upstream, struct err *e)
{
    const struct upstream *u = &f->upstreams[upstream];
    struct fleet_name name = fleet_name(f, upstream);

    if (fleet_is_out(u, OUT_REMOVED))
        return err_set(e, ERR_NOT_FOUND, "", "%s is no longer configured", name.text);
    if (fleet_is_out(u, OUT_UPDATE_FAILED))
        return err_set(e, ERR_NEEDS_UPDATE, "",
                       "%s is fenced: it is not as the others are, and only a whole update makes "
                       "that good",
                       name.text);
    if (f->updating)
        return err_set(e, ERR_CONFLICT, "",
                       "an update is under way: what is to be served is known when it has ended");
    return 0;
}

int fleet_may_resync(struct fleet *f, size_t upstream, struct err *e)
{
    int rc;

    mtx_lock(&f->lock);
    rc = may_resync_locked(f, upstream, e);
    mtx_unlock(&f->lock);
    return rc;
}

static int check_resync_locked(const struct fleet *f, size_t upstream,
                               const struct upstream_report *report, struct err *e)
{
    bool decided = f->serial > 0 || f->decided;

    if (may_resync_locked(f, upstream, e) != 0)
        return -1;
    if (report->not_ready[0] != '\0')
        return err_set(e, ERR_CONFLICT, "", "%s is not ready: %s", fleet_name(f, upstream).text,
                       report->not_ready);
    if (fleet_is_dirty_marker(report->label))
        return err_set(e, ERR_NEEDS_UPDATE, "",
                       "an update of %s never ended ('%s'), and only a whole one makes that good",
                       fleet_name(f, upstream).text, report->label);
    if (!decided || (f->serial > 0 && report->label[0] == '\0') ||
        strcmp(report->label, f->label) == 0)
        return 0;
    return err_set(e, ERR_CONFLICT, "", "%s serves weights %s, and the fleet %s",
                   fleet_name(f, upstream).text, fleet_label_text(report->label).text,
                   fleet_label_text(f->label).text);
}

int fleet_resync(struct fleet *f, size_t upstream, const struct upstream_report *report,
                 struct err *e)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;
    int rc;

    fleet_change_begin(f, &c);
    rc = check_resync_locked(f, upstream, report, e);
    if (rc == 0) {
        if (f->serial == 0 && !f->decided) {
            f->decided = true;
            (void)snprintf(f->label, sizeof f->label, "%s", report->label);
        }
        store_report_locked(f, u, report);
        fleet_apply_event(f, u, UPSTREAM_ON_RESYNCED);
        u->serial = f->serial;
        f->weights_epoch++; /* what was asked before says nothing against it */
        err_clear(&u->error);
    }
    fleet_change_end(f, &c);
    return rc;
}

/* @label  what it says from now on; "": that is not known */
static void set_updated_locked(const struct fleet *f, struct upstream *u, bool done,
                               const char *label)
{
    if (done) {
        fleet_apply_event(f, u, UPSTREAM_ON_UPDATED);
        u->serial = f->serial;
        (void)snprintf(u->report.label, sizeof u->report.label, "%s", label); /* and what it said
                                                                           before holds no more */
        u->report.not_ready[0] = '\0';
        err_clear(&u->error);
        fleet_clear_failure_locked(u);
        return;
    }
    if (fleet_is_out(u, OUT_REMOVED))
        return; /* what runs there ends on the version that it began with */
    fleet_apply_event(f, u, UPSTREAM_ON_UNSYNCED);
    if (fleet_is_out(u, OUT_FENCES))
        return;
    SET_ERROR(u, "it did not take version '%s'", f->label);
}

static void set_version_locked(struct fleet *f, const char *label)
{
    f->updating = false;
    f->decided = true;
    f->weights_epoch++;
    (void)snprintf(f->label, sizeof f->label, "%s", label);
}

uint64_t fleet_commit_version(struct fleet *f, const char *label, const bool *done,
                              const bool *named)
{
    struct fleet_change c;
    uint64_t serial;

    fleet_change_begin(f, &c);
    serial = ++f->serial;
    set_version_locked(f, label);
    for (size_t i = 0; i < f->n; i++)
        set_updated_locked(f, &f->upstreams[i], done[i], named != NULL && named[i] ? f->label : "");
    fleet_change_end(f, &c);
    return serial;
}

uint64_t fleet_set_label(struct fleet *f, const char *label, const bool *named)
{
    struct fleet_change c;
    uint64_t serial;

    fleet_change_begin(f, &c);
    serial = f->serial;
    set_version_locked(f, label);
    for (size_t i = 0; i < f->n; i++) {
        struct upstream *u = &f->upstreams[i];

        if (named[i]) {
            u->report.label[0] = '\0';
            u->label_known = false;
        } else if (u->serial == serial && fleet_is_synced(u)) {
            set_updated_locked(f, u, false, "");
        }
    }
    fleet_change_end(f, &c);
    return serial;
}
