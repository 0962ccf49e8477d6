/* Rejected: a batch, a loop and a lock at each place that sends a request to parts. Twenty such
 * loops had to be read to see which of them forgot to lock, to free or to fence. */
#include "fleet/update/fleet_fanout.h"

#include "fleet/update/fleet_update_priv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void batch_add(struct fleet_batch *b, struct fleet_session *s, size_t part,
               const struct api_args *args)
{
    struct fleet_part *p = &s->parts[part];

    b->part[b->n] = part;
    b->targets[b->n++] = (struct fleet_target){
        .upstream = p->upstream,
        .args = args,
        .until_down = s->repair,
        .timeout_us = part_may_hang(p) ? FLEET_LATE_US : 0,
        .given_up = s->given_up,
        .ctx = {.names = p->names,
                .update_id = p->update_id[0] != '\0' ? p->update_id : NULL,
                .has_begun = p->own_update == PART_UPDATE_OPEN}};
}

/* Nothing is lost if an engine that hangs is left out, or all are. */
static void set_before_bytes(struct fleet_control *fc, struct fleet_session *s,
                             struct fleet_batch *b, bool leaves_late)
{
    size_t n_live = 0, n_needed, n_others;

    mtx_lock(&fc->lock);
    n_needed = fleet_session_min_ready_locked(fc, s);
    for (size_t i = 0; i < s->n_parts; i++)
        n_live += !s->parts[i].out && !s->parts[i].removed;
    mtx_unlock(&fc->lock);
    n_others = n_live > b->n ? n_live - b->n : 0;
    for (size_t i = 0; i < b->n && s->given_up == NULL; i++) {
        b->targets[i].given_up = &fc->locks.cuts;
        b->targets[i].given_up_us = FLEET_LATE_US;
        b->targets[i].late_us = leaves_late ? FLEET_LATE_US : 0;
        b->targets[i].n_enough = n_needed > n_others ? n_needed - n_others : 0;
    }
}

size_t fanout_select(struct fleet_control *fc, struct fleet_session *s, const struct fanout *f,
                     struct fleet_batch *b)
{
    mtx_auto held = mtx_hold(&fc->lock);

    b->n = 0;
    for (size_t i = 0; i < s->n_parts; i++)
        if (f->select(&s->parts[i], f->arg)) {
            fleet_incarnation_of(fc, s->parts[i].upstream, &s->parts[i].asked);
            batch_add(b, s, i, f->of != NULL ? &f->of[i] : f->args);
            b->targets[b->n - 1].ctx.has_begun |= f->has_begun;
        }
    return b->n;
}

static bool fanout_overwrites(const struct fleet_part *p, const void *arg)
{
    (void)arg;
    return !p->two_phase && !p->out;
}

int fanout_validate(struct fleet_control *fc, struct fleet_session *s, enum api_op op,
                    const struct api_args *args, struct err *e)
{
    const struct fanout f = {.args = args, .select = fanout_overwrites};
    struct fleet_batch b;

    (void)fanout_select(fc, s, &f, &b);
    return fleet_validate(fc, op, b.targets, b.n, e);
}

/* A request under way. */
struct applying {
    struct fleet_control *fc;
    struct fleet_session *s;
    const struct fanout *f;
    struct fleet_batch b;
    bool applied[FLEET_MAX];
};

static void fleet_fanout_apply_result(struct applying *a, size_t at, struct fleet_result *result)
{
    struct fleet_part *p = &a->s->parts[a->b.part[at]];

    a->applied[at] = true;
    mtx_lock(&a->fc->lock);
    if (a->f->on_result != NULL)
        a->f->on_result(p, result, a->f->arg);
    else
        part_drop_failed(p, result);
    mtx_unlock(&a->fc->lock);
    if (a->f->fence_failed && !result_ok(result))
        fleet_fence(fleet_of(a->fc), p->upstream, &result->why);
    if (a->f->then != NULL)
        a->f->then(a->fc, a->s, p);
}

/* What follows for one engine does not wait for the others. */
static void fleet_fanout_on_answered(void *arg, struct fleet_result *result)
{
    struct applying *a = arg;

    for (size_t i = 0; i < a->b.n; i++)
        if (a->b.targets[i].upstream == result->upstream)
            fleet_fanout_apply_result(a, i, result);
}

/* No other result came, because of `e`. */
static void apply_none(struct applying *a, const struct err *e)
{
    for (size_t i = 0; i < a->b.n; i++) {
        struct fleet_result none = {
            .upstream = a->b.targets[i].upstream, .outcome = FLEET_UNKNOWN, .why = *e};

        if (!a->applied[i])
            fleet_fanout_apply_result(a, i, &none);
    }
}

/* Ownership as fleet/update/fleet_part.h defines it. */
static bool owns_parts(struct fleet_control *fc, const struct fleet_session *s)
{
    bool sends;

    mtx_lock(&fc->lock);
    sends = s->sending && s->sender == workers_self();
    mtx_unlock(&fc->lock);
    return sends || fleet_owns_update_lock(fc);
}

/* The requests of `with` are behind those of the batch. */
static int send_with(struct fleet_control *fc, const struct fanout *f, const struct fleet_batch *b,
                     uint64_t timeout_us, struct fleet_results *results, struct err *e)
{
    struct fanout_with *with = f->with;
    struct fleet_target *all = calloc(b->n + with->n, sizeof *all);
    struct fleet_result *of_with = calloc(with->n, sizeof *of_with);
    int rc = -1;

    if (all == NULL || of_with == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for requests to upstreams");
    } else {
        memcpy(all, b->targets, b->n * sizeof *all);
        for (size_t i = 0; i < b->n; i++)
            all[i].op = f->op;
        memcpy(all + b->n, with->targets, with->n * sizeof *all);
        rc = fleet_requests(fc, all, b->n + with->n, timeout_us, results, e);
    }
    if (rc == 0) {
        results->n = b->n;
        memcpy(of_with, results->list + b->n, with->n * sizeof *of_with);
        with->results = (struct fleet_results){of_with, with->n};
        of_with = NULL;
    }
    free(of_with);
    free(all);
    return rc;
}

int fanout_apply(struct fleet_control *fc, struct fleet_session *s, const struct fanout *f,
                 struct err *e)
{
    uint64_t timeout_us = f->timeout_us > 0 ? f->timeout_us : fleet_step_us(fc);
    bool has_with = f->with != NULL && f->with->n > 0;
    struct applying a = {.fc = fc, .s = s, .f = f};
    fleet_results_auto results = {0};
    struct fleet_batch *b = &a.b;
    int rc;

    if (fanout_select(fc, s, f, b) == 0 && !has_with)
        return 0;
    for (size_t i = 0; i < b->n; i++) {
        b->targets[i].answered = fleet_fanout_on_answered;
        b->targets[i].arg = &a;
    }
    assert(owns_parts(fc, s));
    if (f->before_bytes)
        set_before_bytes(fc, s, b, !f->patient);
    if (f->is_query)
        rc = fleet_query(fc, f->query, b->targets, b->n, timeout_us, &results, e);
    else if (has_with)
        rc = send_with(fc, f, b, timeout_us, &results, e);
    else
        rc = fleet_request(fc, f->op, b->targets, b->n, timeout_us, &results, e);
    if (rc != 0 && (f->fail_each || e->code == ERR_DRAINING))
        apply_none(&a, e);
    return rc == 0 ? (int)b->n : -1;
}
