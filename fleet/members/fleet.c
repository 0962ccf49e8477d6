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
uint64_t fleet_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
    x = (x ^ x >> 27) * 0x94d049bb133111ebU;
    return x ^ x >> 31;
}

void fleet_blame(struct upstream *u, const struct err *why)
{
    uint64_t words = fleet_affinity(why->msg);

    if (u->error_wall_s == 0 || words != u->error_words)
        u->error_wall_s = clock_wall_s();
    u->error_words = words;
    u->error = *why;
}

const struct err *fleet_error_of(const struct upstream *u, int64_t *wall_s)
{
    bool silent = u->no_answer.code != ERR_NONE;

    *wall_s = silent ? u->no_answer_wall_s : u->error_wall_s;
    return silent ? &u->no_answer : &u->error;
}

/* Of the lock's holder: words that are made here. */
#define BLAME(u, ...)                                                                              \
    do {                                                                                           \
        struct err why_ = {0};                                                                     \
        (void)err_set(&why_, ERR_UNSYNCED, "", __VA_ARGS__);                                       \
        fleet_blame((u), &why_);                                                                   \
    } while (0)

static void join_locked(struct fleet *f, size_t upstream, const char *name)
{
    struct upstream *u = &f->upstreams[upstream];
    bool same = name != NULL && u->name != NULL && strcmp(name, u->name) == 0;
    struct upstream fresh = {.name = name,
                             .needs_outfit = f->needs_outfit,
                             .out = OUT_JOINED | (same ? u->out & OUT_FENCES : 0),
                             .fence_life = u->fence_life,
                             .n_lives = u->n_lives + 1,
                             .fit_change = u->fit_change};

    fresh.hash = name != NULL ? fleet_affinity(name) : fleet_mix(upstream);
    memcpy(fresh.n_outstanding, u->n_outstanding, sizeof fresh.n_outstanding);
    if (f->still)
        upstream_move(&fresh.out, UPSTREAM_ON_PAUSE_MISSED);
    if (fleet_is_out(&fresh, OUT_FENCES)) {
        fleet_blame(&fresh, &u->error);
        fresh.error_wall_s = u->error_wall_s;
    } else if (f->serial > 0) {
        BLAME(&fresh, "it came after version '%s'", f->label);
    }
    fresh.state = fresh.last = fleet_state_of(&fresh);
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
    for (size_t lane = 0; lane < FLEET_LANES; lane++)
        f->lines[lane].tail = &f->lines[lane].head;
    f->n = cfg->n_upstreams;
    f->min_ready = cfg->min_ready;
    for (size_t i = 0; i < FLEET_MAX; i++)
        f->upstreams[i].out = OUT_JOINED;
    for (size_t i = 0; i < f->n; i++)
        join_locked(f, i, cfg->names != NULL ? cfg->names[i] : NULL);
    f->cfg = *cfg;
    f->cfg.names = NULL; /* the array is the caller's */
    *out = f;
    return 0;
}

void fleet_free(struct fleet *f)
{
    if (f == NULL)
        return;
    for (size_t lane = 0; lane < FLEET_LANES; lane++)
        assert(f->lines[lane].n_waiting == 0 && f->lines[lane].n_running == 0);
    mtx_fini(&f->lock);
    free(f->upstreams);
    free(f);
}

struct fleet_who fleet_who(const struct fleet *f, size_t upstream)
{
    const char *name = f->upstreams[upstream].name;
    struct fleet_who w;

    if (name != NULL)
        (void)snprintf(w.text, sizeof w.text, "%s", name);
    else
        (void)snprintf(w.text, sizeof w.text, "upstream %zu", upstream);
    return w;
}

/* changes */

static void stand(const struct fleet *f, size_t n, struct fleet_standing *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (struct fleet_standing){fleet_is_sound(&f->upstreams[i]),
                                         fleet_in_rotation(&f->upstreams[i])};
}

void fleet_change_begin(struct fleet *f, struct fleet_change *c)
{
    mtx_lock(&f->lock);
    c->n = f->n;
    stand(f, c->n, c->before);
}

/* Where nothing can be relied on any more is told of, and so is that nobody is left. */
void fleet_change_end(struct fleet *f, struct fleet_change *c)
{
    bool closed = false, opened = false, any;

    fleet_decide_locked(f);
    fleet_blame_unfit_locked(f);
    for (size_t i = 0; i < f->n; i++)
        if (f->upstreams[i].error.code == ERR_NONE)
            f->upstreams[i].error_wall_s = 0;
    stand(f, c->n, c->after);
    any = fleet_any_serving_locked(f);
    mtx_unlock(&f->lock);
    for (size_t i = 0; i < c->n; i++) {
        bool lost = c->before[i].sound && !c->after[i].sound;

        if (lost && f->cfg.left != NULL)
            f->cfg.left(f->cfg.arg, i);
        closed = closed || (!lost && c->before[i].open && !c->after[i].open);
        opened = opened || (!c->before[i].open && c->after[i].open);
    }
    if (closed && !any && f->cfg.left != NULL)
        f->cfg.left(f->cfg.arg, FLEET_MAX);
    if (opened)
        fleet_grant_all(f);
    fleet_tell_moves(f);
}

/* which there are */

void fleet_add(struct fleet *f, size_t upstream, const char *name)
{
    mtx_lock(&f->lock);
    assert(upstream < FLEET_MAX && upstream <= f->n);
    assert(upstream == f->n || fleet_is_out(&f->upstreams[upstream], OUT_REMOVED));
    join_locked(f, upstream, name);
    if (upstream == f->n)
        f->n++;
    mtx_unlock(&f->lock);
}

void fleet_remove(struct fleet *f, size_t upstream)
{
    struct fleet_change c;

    fleet_change_begin(f, &c);
    assert(upstream < f->n);
    fleet_move(f, &f->upstreams[upstream], UPSTREAM_ON_REMOVED);
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
static bool may_be_another(const struct upstream *u, const struct upstream_saw *saw)
{
    if (saw->process[0] == '\0' || u->saw.process[0] == '\0')
        return u->heard_us != 0 && !fleet_is_alive(u);
    return strcmp(saw->process, u->saw.process) != 0;
}

static void say_restarted(const struct fleet *f, struct err *out)
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
                              const struct upstream_saw *saw)
{
    struct err why = {0};

    if (f->serial == 0 && !f->updating)
        return;
    if (may_be_another(u, saw))
        say_restarted(f, &why);
    else if (!f->updating && !saw->is_old && saw->label[0] != '\0' && u->serial == f->serial &&
             strcmp(saw->label, f->label) != 0)
        (void)err_set(&why, ERR_UNSYNCED, "", "it serves weights '%s', not '%s'", saw->label,
                      f->label);
    if (why.code == ERR_NONE)
        return;
    fleet_move(f, u, UPSTREAM_ON_OUT_OF_STEP);
    if (!fleet_is_out(u, OUT_FENCES)) /* why that is says more */
        fleet_blame(u, &why);
}

/* What the process before it was told, and what it had, is not so of this one. */
static void note_another_locked(const struct fleet *f, struct upstream *u)
{
    u->n_lives++;
    if (f->still)
        fleet_move(f, u, UPSTREAM_ON_PAUSE_MISSED);
}

/* What it said of its weights before holds for the same process only. */
static void note_locked(const struct fleet *f, struct upstream *u, const struct upstream_saw *saw)
{
    struct upstream_saw now = *saw;
    bool another = may_be_another(u, saw);

    if (saw->is_old && !another) {
        memcpy(now.label, u->saw.label, sizeof now.label);
        memcpy(now.unready, u->saw.unready, sizeof now.unready);
    } else if (saw->is_old) {
        now.label[0] = now.unready[0] = '\0';
    }
    if (now.release[0] == '\0' && !another)
        memcpy(now.release, u->saw.release, sizeof now.release);
    if (another)
        note_another_locked(f, u);
    u->told = !saw->is_old || (u->told && !another);
    u->saw = now;
    fleet_move(f, u, UPSTREAM_ON_ANSWER);
    u->n_misses = 0;
    u->n_silent = 0;
    err_clear(&u->no_answer);
    u->heard_us = clock_now_us();
}

/* What was wrong with it before it refused our key is not known any more. */
static void forget_key_locked(const struct fleet *f, struct upstream *u)
{
    if (u->error.code != ERR_UPSTREAM_KEY || fleet_is_out(u, OUT_KEY))
        return;
    err_clear(&u->error);
    if (fleet_is_out(u, OUT_FENCES))
        BLAME(u, "it is not as the others are, and only a whole update makes that good");
    else if (!fleet_is_synced(u) && f->serial > 0)
        BLAME(u, "its weights are not version '%s'", f->label);
}

bool fleet_is_dirty_marker(const char *label)
{
    return strncmp(label, FLEET_DIRTY_MARKER, sizeof FLEET_DIRTY_MARKER - 1) == 0;
}

/* Whoever began it did not live to end it. What is said during one of ours may be of that one. */
static void fence_unfinished_locked(const struct fleet *f, struct upstream *u)
{
    if (f->updating || fleet_is_out(u, OUT_UPDATE_FAILED) || !fleet_is_dirty_marker(u->saw.label))
        return;
    fleet_move(f, u, UPSTREAM_ON_UPDATE_FAILED);
    BLAME(u, "an update of it never ended ('%s'): its weights are of no version", u->saw.label);
}

static const char serves_nobody[] = "it would serve nobody: ";

void fleet_heard(struct fleet *f, size_t upstream, const struct upstream_saw *saw)
{
    struct upstream *u = &f->upstreams[upstream];
    struct upstream_saw heard = *saw;
    struct fleet_change c;
    bool was;

    fleet_change_begin(f, &c);
    was = fleet_is_synced(u);
    heard.is_old |= f->updating &&
                    fleet_is_dirty_marker(saw->label); /* of ours, and soon not any more */
    check_sync_locked(f, u, &heard);
    note_locked(f, u, &heard);
    forget_key_locked(f, u);
    fence_unfinished_locked(f, u);
    fleet_decide_locked(f);
    u->n_lives += was && !fleet_is_synced(u) && saw->process[0] == '\0'; /* by its words alone */
    if (!fleet_is_out(u, OUT_UNSOUND | OUT_KEY_WORK) ||
        strncmp(u->error.msg, serves_nobody, sizeof serves_nobody - 1) == 0)
        err_clear(&u->error);
    if (u->error.code == ERR_NONE && u->saw.unready[0] != '\0')
        BLAME(u, "%s%s", serves_nobody, u->saw.unready);
    fleet_change_end(f, &c);
}

static bool is_same_locked(const struct upstream *u, const char *process)
{
    return u->saw.process[0] == '\0' || strcmp(process, u->saw.process) == 0;
}

/* With every answer of a baton: what changes nothing is done with at once. Before the first update
 * its next answer about itself says what it has. The process that answered is the one that is known
 * from now on: an update that it takes puts it into step. */
bool fleet_confirm(struct fleet *f, size_t upstream, const char *process)
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
        say_restarted(f, &why);
        if (!fleet_is_out(u, OUT_FENCES)) /* why that is says more */
            fleet_blame(u, &why);
        fleet_move(f, u, UPSTREAM_ON_OUT_OF_STEP);
        note_another_locked(f, u);
        (void)snprintf(u->saw.process, sizeof u->saw.process, "%s", process);
        u->saw.label[0] = u->saw.unready[0] = '\0';
        u->told = false;
    }
    fleet_change_end(f, &c);
    return same;
}

bool fleet_may_name(struct fleet *f, const char *label, uint64_t epoch)
{
    bool may;

    mtx_lock(&f->lock);
    may = f->updating || f->epoch != epoch || f->label[0] == '\0' || strcmp(label, f->label) == 0;
    mtx_unlock(&f->lock);
    return may;
}

static void miss_locked(const struct fleet *f, struct upstream *u, bool refused,
                        const struct err *why)
{
    u->n_misses++;
    u->n_missed++;
    if (u->n_misses >= FLEET_MISSES_DOWN)
        fleet_move(f, u, UPSTREAM_ON_NO_ANSWER);
    else if (refused)
        fleet_move(f, u, UPSTREAM_ON_NO_LISTENER);
    u->no_answer = *why;
    u->no_answer_wall_s = clock_wall_s();
}

/* It answered, but for what it serves if that was not the question. */
void fleet_answered_locked(struct upstream *u)
{
    if (fleet_is_alive(u) && u->n_silent == 0)
        err_clear(&u->no_answer);
}

void fleet_missed(struct fleet *f, size_t upstream, bool refused, const struct err *why)
{
    struct fleet_change c;

    fleet_change_begin(f, &c);
    miss_locked(f, &f->upstreams[upstream], refused, why);
    fleet_change_end(f, &c);
}

void fleet_silent(struct fleet *f, size_t upstream, bool refused, const struct err *why)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;

    fleet_change_begin(f, &c);
    miss_locked(f, u, refused, why);
    u->n_silent++;
    if (u->n_silent >= FLEET_SILENT_MAX && u->heard_us != 0) {
        err_clear(&u->no_answer);
        (void)err_set(&u->no_answer, why->code, "",
                      "its version cannot be known: %u questions in a row got no answer; %.300s",
                      u->n_silent, why->msg);
    }
    fleet_change_end(f, &c);
}

void fleet_refused(struct fleet *f, size_t upstream, enum fleet_refusal what, const struct err *why)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;

    assert(why->code == ERR_UPSTREAM_KEY);
    fleet_change_begin(f, &c);
    fleet_move(
        f, u, what == FLEET_REFUSED_STATUS ? UPSTREAM_ON_STATUS_REFUSED : UPSTREAM_ON_WORK_REFUSED);
    fleet_blame(u, why);
    fleet_answered_locked(u);
    fleet_change_end(f, &c);
}

void fleet_admitted(struct fleet *f, size_t upstream)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;

    fleet_change_begin(f, &c);
    fleet_move(f, u, UPSTREAM_ON_WORK_ADMITTED);
    forget_key_locked(f, u);
    fleet_change_end(f, &c);
}

/* what was done */

void fleet_updating(struct fleet *f, bool on)
{
    struct fleet_change c;

    fleet_change_begin(f, &c);
    f->updating = on;
    f->epoch++;
    fleet_change_end(f, &c);
}

static void found_locked(const struct fleet *f, struct upstream *u)
{
    if (fleet_is_out(u, OUT_PAUSE_MISSED) && fleet_is_sound(u) && u->error.code == ERR_UNSYNCED)
        err_clear(&u->error);
    fleet_move(f, u, UPSTREAM_ON_PAUSE_TOLD);
}

void fleet_stands_still(struct fleet *f, size_t upstream, uint64_t life)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;

    fleet_change_begin(f, &c);
    if (u->n_lives == life)
        found_locked(f, u);
    fleet_change_end(f, &c);
}

/* Who is away takes nothing of it; who is there is told. */
void fleet_still(struct fleet *f, bool on, uint64_t order)
{
    struct fleet_change c;
    bool changes;

    fleet_change_begin(f, &c);
    changes = order > f->still_order && on != f->still;
    for (size_t i = 0; i < f->n && changes; i++) {
        struct upstream *u = &f->upstreams[i];

        found_locked(f, u);
        if (on && !fleet_is_alive(u))
            fleet_move(f, u, UPSTREAM_ON_PAUSE_MISSED);
    }
    if (changes)
        f->still = on;
    if (order > f->still_order)
        f->still_order = order;
    fleet_change_end(f, &c);
}

void fleet_pause_controller(struct fleet *f, size_t upstream, bool has_pause_controller)
{
    mtx_lock(&f->lock);
    f->upstreams[upstream].no_pause_controller = !has_pause_controller;
    mtx_unlock(&f->lock);
}

void fleet_hold_back(struct fleet *f, bool on, uint64_t order)
{
    bool ends = false;

    mtx_lock(&f->lock);
    if (order > f->held_order) {
        f->held_order = order;
        ends = f->held_back && !on;
        f->held_back = on;
    }
    mtx_unlock(&f->lock);
    if (ends)
        fleet_grant_all(f);
}

uint64_t fleet_epoch(struct fleet *f)
{
    uint64_t epoch;

    mtx_lock(&f->lock);
    epoch = f->epoch;
    mtx_unlock(&f->lock);
    return epoch;
}

void fleet_fence(struct fleet *f, size_t upstream, const struct err *why)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;

    fleet_change_begin(f, &c);
    fleet_move(f, u, UPSTREAM_ON_UPDATE_FAILED);
    fleet_blame(u, why);
    fleet_change_end(f, &c);
}

static void blame_absent(struct upstream *u)
{
    BLAME(u,
          "it did not answer when the fleet was %s: name it to /v1/upstreams/resync when it is "
          "back, or push a whole update",
          fleet_is_out(u, OUT_SLEEP_MISSED) ? "put to sleep" : "woken");
}

void fleet_fence_absent(struct fleet *f, size_t upstream, enum fleet_fence what)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;
    bool fences;

    fleet_change_begin(f, &c);
    fences = !fleet_is_out(u, OUT_FENCES);
    upstream_move(&u->out,
                  what == FLEET_FENCE_SLEEP ? UPSTREAM_ON_SLEEP_MISSED : UPSTREAM_ON_WAKE_MISSED);
    if (fences) {
        u->fence_life = u->n_lives;
        blame_absent(u);
    }
    fleet_change_end(f, &c);
}

void fleet_fence_told(struct fleet *f, size_t upstream, bool asleep)
{
    struct upstream *u = &f->upstreams[upstream];

    mtx_lock(&f->lock);
    fleet_move(f, u, asleep ? UPSTREAM_ON_SLEEP : UPSTREAM_ON_WAKE);
    if (fleet_is_out(u, OUT_SLEEP_MISSED | OUT_WAKE_MISSED))
        u->fence_life = u->n_lives;
    mtx_unlock(&f->lock);
}

static int may_resync_locked(const struct fleet *f, size_t upstream, struct err *e)
{
    const struct upstream *u = &f->upstreams[upstream];
    struct fleet_who who = fleet_who(f, upstream);

    if (fleet_is_out(u, OUT_REMOVED))
        return err_set(e, ERR_NOT_FOUND, "", "%s is no longer configured", who.text);
    if (fleet_is_out(u, OUT_UPDATE_FAILED))
        return err_set(e, ERR_NEEDS_UPDATE, "",
                       "%s is fenced: it is not as the others are, and only a whole update makes "
                       "that good",
                       who.text);
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
                               const struct upstream_saw *saw, struct err *e)
{
    bool decided = f->serial > 0 || f->decided;

    if (may_resync_locked(f, upstream, e) != 0)
        return -1;
    if (saw->unready[0] != '\0')
        return err_set(e, ERR_CONFLICT, "", "%s is not ready: %s", fleet_who(f, upstream).text,
                       saw->unready);
    if (fleet_is_dirty_marker(saw->label))
        return err_set(e, ERR_NEEDS_UPDATE, "",
                       "an update of %s never ended ('%s'), and only a whole one makes that good",
                       fleet_who(f, upstream).text, saw->label);
    if (!decided || (f->serial > 0 && saw->label[0] == '\0') || strcmp(saw->label, f->label) == 0)
        return 0;
    return err_set(e, ERR_CONFLICT, "", "%s serves weights %s, and the fleet %s",
                   fleet_who(f, upstream).text, fleet_name_of(saw->label).text,
                   fleet_name_of(f->label).text);
}

int fleet_resync(struct fleet *f, size_t upstream, const struct upstream_saw *saw, struct err *e)
{
    struct upstream *u = &f->upstreams[upstream];
    struct fleet_change c;
    int rc;

    fleet_change_begin(f, &c);
    rc = check_resync_locked(f, upstream, saw, e);
    if (rc == 0) {
        if (f->serial == 0 && !f->decided) {
            f->decided = true;
            (void)snprintf(f->label, sizeof f->label, "%s", saw->label);
        }
        note_locked(f, u, saw);
        fleet_move(f, u, UPSTREAM_ON_RESYNCED);
        u->serial = f->serial;
        f->epoch++; /* what was asked before says nothing against it */
        err_clear(&u->error);
    }
    fleet_change_end(f, &c);
    return rc;
}

/* @label  what it says from now on; "": that is not known */
static void step_locked(const struct fleet *f, struct upstream *u, bool done, const char *label)
{
    if (done) {
        fleet_move(f, u, UPSTREAM_ON_UPDATED);
        u->serial = f->serial;
        (void)snprintf(u->saw.label, sizeof u->saw.label, "%s", label); /* and what it said before
                                                                           holds no more */
        u->saw.unready[0] = '\0';
        err_clear(&u->error);
        fleet_answered_locked(u);
        return;
    }
    if (fleet_is_out(u, OUT_REMOVED))
        return; /* what runs there ends on the version that it began with */
    fleet_move(f, u, UPSTREAM_ON_OUT_OF_STEP);
    if (fleet_is_out(u, OUT_FENCES))
        return;
    BLAME(u, "it did not take version '%s'", f->label);
}

static void name_locked(struct fleet *f, const char *label)
{
    f->updating = false;
    f->decided = true;
    f->epoch++;
    (void)snprintf(f->label, sizeof f->label, "%s", label);
}

uint64_t fleet_committed(struct fleet *f, const char *label, const bool *done, const bool *named)
{
    struct fleet_change c;
    uint64_t serial;

    fleet_change_begin(f, &c);
    serial = ++f->serial;
    name_locked(f, label);
    for (size_t i = 0; i < f->n; i++)
        step_locked(f, &f->upstreams[i], done[i], named != NULL && named[i] ? f->label : "");
    fleet_change_end(f, &c);
    return serial;
}

uint64_t fleet_relabelled(struct fleet *f, const char *label, const bool *named)
{
    struct fleet_change c;
    uint64_t serial;

    fleet_change_begin(f, &c);
    serial = f->serial;
    name_locked(f, label);
    for (size_t i = 0; i < f->n; i++) {
        struct upstream *u = &f->upstreams[i];

        if (named[i]) {
            u->saw.label[0] = '\0';
            u->told = false;
        } else if (u->serial == serial && fleet_is_synced(u)) {
            step_locked(f, u, false, "");
        }
    }
    fleet_change_end(f, &c);
    return serial;
}
