/* How an update of the fleet starts: the engines that answer take part, and each baton starts an
 * update of its own. */
#include "fleet/update/fleet_update_priv.h"

#include "base/id.h"
#include "base/log.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { BATON_LEASE_SPARE_S = 60 };

static int refuse_open(const struct fleet_session *s, struct err *e)
{
    if (s->handoff)
        return fleet_refuse_handoff(s, e);
    return err_set(e, ERR_CONFLICT, "",
                   "update %s is %s, and its lease has %" PRIu64
                   " s left: finish or abort it first",
                   s->id, update_phase_name(s->phase), lease_timer_left_us(&s->lease) / 1000000);
}

static int check_none_open(struct fleet_control *fc, const struct fleet_update_request *req,
                           struct err *e)
{
    mtx_auto held = mtx_hold(&fc->lock);

    if (fc->session != NULL)
        return refuse_open(fc->session, e);
    if (fc->sleep.weights && (fc->sleep.level < 2 || req->handoff))
        return err_set(e, ERR_ASLEEP, "", "the weights are asleep: wake them first");
    return 0;
}

static uint32_t baton_lease_s(struct fleet_control *fc, uint32_t lease_s)
{
    uint64_t wanted = fleet_update_us(fc) / 1000000 + BATON_LEASE_SPARE_S;

    if (wanted < lease_s)
        wanted = lease_s;
    return wanted < UPDATE_LEASE_S_MAX ? (uint32_t)wanted : UPDATE_LEASE_S_MAX;
}

/* May an earlier update, of this server or one before it, still be open there? One of another
 * client is closed by a hand-off only, where this server is the only one that updates engines, and
 * where the engine has nothing of a version. */
static bool may_have_open_update(const struct fleet_session *s, const struct fleet_part *p,
                                 const struct upstream_info *info)
{
    return p->before != PART_WAS_IN_STEP || info->serial == 0 || s->handoff ||
           info->have.own == OWN_UNKNOWN || info->have.own == OWN_OPEN;
}

static void parts_init(struct fleet_control *fc, struct fleet_session *s,
                       const struct fleet_target *targets)
{
    struct upstream_info info;
    struct err ignored = {0};
    bool undecided = fleet_version_undecided(fleet_of(fc), &ignored);

    for (size_t i = 0; i < s->n_parts; i++) {
        struct fleet_part *p = &s->parts[i];

        fleet_info(fleet_of(fc), targets[i].upstream, &info);
        p->upstream = upstream_ref(targets[i].upstream);
        p->number = upstream_number(p->upstream);
        p->two_phase = upstream_caps_of(targets[i].upstream)->two_phase;
        p->no_process_id = !upstream_caps_of(targets[i].upstream)->status_names_process;
        p->finish_takes_no_label = upstream_caps_of(targets[i].upstream)->finish_takes_no_version;
        if (!p->two_phase)
            (void)snprintf(p->update_id, sizeof p->update_id, FLEET_DIRTY_MARKER "%s", s->id);
        p->before = info.fenced   ? PART_WAS_FENCED
                    : info.synced ? PART_WAS_IN_STEP
                    : undecided   ? PART_WAS_UNDECIDED
                                  : PART_WAS_OUT_OF_STEP;
        p->closes_any = !p->two_phase && may_have_open_update(s, p, &info);
        if (p->closes_any)
            p->own_update = PART_UPDATE_EARLIER;
    }
}

/* A baton that was restarted since its last probe has started the update in its new process, which
 * has none of the fleet's weights and missed a pause. It may have been restarted after its answer
 * too, which is as old as the others took: it does not tell which process is there now. What else
 * told of the restart since the engines were chosen has put it out of step. */
static void check_process(struct fleet_control *fc, const struct fleet_session *s,
                          struct fleet_part *p, const char *process, struct fleet_result *result)
{
    struct upstream_info info;

    fleet_info(fleet_of(fc), p->upstream, &info);
    if (!result->other_process && (p->before != PART_WAS_IN_STEP || info.synced) &&
        (process[0] == '\0' || info.report.process[0] == '\0' ||
         strcmp(process, info.report.process) == 0))
        return;
    if (p->before == PART_WAS_IN_STEP)
        p->before = PART_WAS_OUT_OF_STEP;
    if (!s->partial)
        return;
    result->outcome = FLEET_UNKNOWN;
    (void)err_set(&result->why, ERR_UPSTREAM, "",
                  "%.100s was restarted: it does not serve the fleet's version, and a partial "
                  "update cannot bring it there; send it again for the others, or a whole one",
                  upstream_name(p->upstream));
}

/* Before a start, and after one that failed. */
static void recover(struct fleet_control *fc, struct fleet_session *s)
{
    struct upstream *batons[FLEET_MAX];
    size_t n = 0;

    for (size_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].two_phase && upstream_have(s->parts[i].upstream).own != OWN_CLOSED)
            batons[n++] = s->parts[i].upstream;
    fleet_close_own_updates(fc, batons, n);
}

/* The replies of the batons to their start. */
static int apply_start_results(struct fleet_control *fc, struct fleet_session *s,
                               const struct fleet_batch *b, const struct fleet_results *results,
                               struct err *e)
{
    for (size_t i = 0; i < b->n; i++) {
        struct fleet_part *p = &s->parts[b->part[i]];
        struct fleet_result *r = &results->list[i];
        char process[FLEET_LABEL_MAX + 1];

        if (r->outcome == FLEET_OK &&
            api_read_start(p->update_id, process, r->text, r->text_len, &r->why) != 0)
            r->outcome = FLEET_UNKNOWN;
        if (r->outcome == FLEET_OK)
            check_process(fc, s, p, process, r);
    }
    fleet_session_set_report(s, results);
    if (fleet_results_ok(results, e))
        return 0;
    fleet_abort_parts(fc, s, "another server could not start its update");
    recover(fc, s);
    return -1;
}

static int start_parts(struct fleet_control *fc, struct fleet_session *s,
                       const struct fleet_update_request *req, struct fleet_results *replies,
                       struct err *e)
{
    struct fleet_batch b = {0};
    const struct api_args args = {.native = req->native,
                                  .selector = req->selector,
                                  .convert = req->convert,
                                  .lease_s = baton_lease_s(fc, req->lease_s)};

    for (size_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].two_phase) {
            batch_add(&b, s, i, &args);
            if (s->given_up == NULL) {
                b.targets[b.n - 1].given_up = &fc->locks.cuts;
                b.targets[b.n - 1].given_up_us = FLEET_LATE_US;
            }
        }
    recover(fc, s);
    if (fanout_validate(fc, s, API_START_UPDATE, &args, e) != 0 ||
        fleet_request(fc, API_START_UPDATE, b.targets, b.n, fleet_step_us(fc), replies, e) != 0 ||
        apply_start_results(fc, s, &b, replies, e) != 0)
        return -1;
    fleet_results_fini(replies);
    return 0;
}

/* A partial update keeps the tensors that it does not bring, so of the engines that answer only
 * those that serve the fleet's version take part; in a repair the one that does not. */
static int choose_engines(struct fleet_control *fc, const struct upstream_list *all,
                          const struct fleet_update_request *req, struct fleet_target *targets,
                          size_t *n, struct err *e)
{
    size_t n_kept = 0, min_ready = fleet_min_ready(fc);
    struct upstream_info info;

    if (req->repair)
        *n = fleet_reachable(fc, all, NULL, targets);
    else if (fleet_reachable_quorum(fc, all, NULL, targets, n, e) != 0)
        return -1;
    for (size_t i = 0; i < *n; i++) {
        bool in_step;

        fleet_info(fleet_of(fc), targets[i].upstream, &info);
        in_step = info.synced && !info.fenced;
        if (req->repair ? targets[i].upstream == req->upstream && !in_step
                        : !req->partial || in_step)
            targets[n_kept++] = targets[i];
    }
    *n = n_kept;
    if (req->repair && n_kept == 0)
        return err_set(e, ERR_CONFLICT, "",
                       "the upstream does not answer, or serves the fleet's version");
    if (req->partial && n_kept < min_ready)
        return err_set(e, ERR_UNSYNCED, "/partial",
                       "a partial update keeps the rest of what is served: %zu upstreams serve "
                       "the fleet's version, and --min-ready is %zu; send a whole one",
                       n_kept, min_ready);
    return 0;
}

/* The status shows a copy until all engines have answered: the session itself is not shared yet. */
static int show_starting(struct fleet_control *fc, const struct fleet_session *s, struct err *e)
{
    struct fleet_session *copy = fleet_update_copy(fc, s);

    if (copy == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for an update");
    copy->starting = true;
    mtx_lock(&fc->lock);
    fc->starting = copy;
    mtx_unlock(&fc->lock);
    return 0;
}

/* @s  the session that is open now; NULL: it could not start */
static void end_starting(struct fleet_control *fc, struct fleet_session *s)
{
    mtx_lock(&fc->lock);
    fleet_session_unref(fc->starting);
    fc->starting = NULL;
    fc->session = fleet_session_ref(s);
    mtx_unlock(&fc->lock);
}

static int fleet_request_session_start(struct fleet_control *fc,
                                       const struct fleet_update_request *req,
                                       struct fleet_session **out, struct fleet_results *replies,
                                       struct err *e)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    struct fleet_target targets[FLEET_MAX];
    struct fleet_session *s;
    char id[ID_LEN + 1];
    size_t n;

    assert(fleet_owns_update_lock(fc));
    if (check_none_open(fc, req, e) != 0 || choose_engines(fc, all, req, targets, &n, e) != 0 ||
        fleet_session_new(&s, n, e) != 0)
        return -1;
    id_make(id);
    (void)snprintf(s->id, sizeof s->id, "upd-%s", id);
    (void)snprintf(s->label, sizeof s->label, "%s", req->label);
    s->auto_commit = req->auto_commit;
    s->anonymous = req->anonymous || req->auto_commit;
    s->partial = req->partial;
    s->sharded = req->sharded;
    s->repair = req->repair;
    s->given_up = req->given_up;
    s->handoff = req->handoff;
    s->selector = req->selector;
    s->actor = req->actor;
    s->began_us = clock_now_us();
    lease_timer_set(&s->lease, req->lease_s);
    parts_init(fc, s, targets);
    if (show_starting(fc, s, e) != 0 || fleet_coverage_start(fc, s, e) != 0 ||
        start_parts(fc, s, req, replies, e) != 0) {
        end_starting(fc, NULL);
        fleet_unref(fc, s);
        return -1;
    }
    lease_timer_renew(&s->lease);
    end_starting(fc, s);
    *out = s;
    return 0;
}

static void log_started(const struct fleet_session *s)
{
    struct log_rec r;

    log_begin(&r, LOG_INFO, "update.started");
    log_str(&r, "update_id", s->id);
    log_str(&r, "weight_version", s->label[0] != '\0' ? s->label : NULL);
    log_u64(&r, "upstreams", s->n_parts);
    log_actor(&r, &s->actor);
    log_event(&r);
}

int fleet_start_update(struct fleet_control *fc, const struct fleet_update_request *req,
                       struct fleet_session **out, struct fleet_results *replies, struct err *e)
{
    int rc;

    if (fleet_step_lock(fc, req->x, "the start of an update", e) != 0)
        return -1;
    rc = fleet_request_session_start(fc, req, out, replies, e);
    if (rc == 0 && req->handoff == 0)
        log_started(*out);
    fleet_op_unlock(fc);
    return rc;
}
