/* All requests are made before the first is sent: an operation that one engine's API cannot express
 * reaches no engine. */
#include "fleet/calls/fleet_request.h"

#include "base/net/trace.h"
#include "fleet/calls/fleet_priv.h"
#include "fleet/members/upstreams.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

uint64_t fleet_step_us(struct fleet_control *fc)
{
    uint64_t update_us = fleet_update_us(fc);

    return update_us < FLEET_STEP_US ? update_us : FLEET_STEP_US;
}

/* requests */

static const struct api_args *args_of(const struct fleet_target *target)
{
    static const struct api_args none = {0};

    return target->args != NULL ? target->args : &none;
}

/* The name of the group that the request is about, or that brings its tensors. */
static const char *group_of(const struct api_args *args)
{
    return args->tensors != NULL ? args->tensors->group
           : args->join != NULL  ? args->join->group
                                 : NULL;
}

/* The form of a request depends on the engine's release, and on how the group with the trainer was
 * made. */
struct form {
    struct api_context ctx; /* may point to the members below */
    char release[FLEET_RELEASE_MAX + 1];
    char group_name[FLEET_GROUP_NAME_MAX + 1];
};

static void form_read(struct form *f, struct fleet_control *fc, const struct fleet_target *target)
{
    const struct fleet_group *group;
    struct upstream_info info;

    *f = (struct form){.ctx = target->ctx};
    fleet_info(upstreams_fleet(fc->upstreams), target->upstream, &info);
    memcpy(f->release, info.report.release, sizeof f->release);
    f->ctx.release = f->release;
    mtx_lock(&fc->lock);
    group = fleet_group_locked(fc, group_of(args_of(target)));
    if (group != NULL) {
        f->ctx.group = group->packing;
        memcpy(f->group_name, group->name, sizeof f->group_name);
    }
    mtx_unlock(&fc->lock);
    if (f->ctx.group_name == NULL)
        f->ctx.group_name = f->group_name;
}

/* What is sent: a query, an operation, or that of each target. */
struct what {
    enum { WHAT_QUERY, WHAT_OP, WHAT_OP_OF_TARGET } kind;
    enum api_query query;
    enum api_op op;
};

static enum api_op fleet_request_op_of(const struct what *w, const struct fleet_target *target)
{
    return w->kind == WHAT_OP ? w->op : target->op;
}

/* The request that was made last for each kind. Most engines of a fleet get the same, and a body
 * may have the names of a whole model: it is made once, and they share it. */
struct last {
    struct api_request *made; /* borrowed; NULL: none yet */
    struct form forms[2];     /* of `made`, and of the next */
    unsigned at;              /* which is that of `made` */
    const struct api_args *args;
    enum api_op op;
};

static int make_op(struct api_request *out, struct fleet_control *fc, enum upstream_kind kind,
                   enum api_op op, const struct fleet_target *target, struct last *last,
                   struct err *e)
{
    struct form *form = &last->forms[1 - last->at];

    form_read(form, fc, target);
    if (last->made != NULL && last->args == args_of(target) && last->op == op &&
        api_context_equal(&form->ctx, &last->forms[last->at].ctx))
        return api_request_share(out, last->made, e);
    if (api_make_request(out, kind, op, args_of(target), &form->ctx, e) != 0)
        return -1;
    last->made = out;
    last->args = args_of(target);
    last->op = op;
    last->at = 1 - last->at;
    return 0;
}

static int make_calls(struct fleet_control *fc, const struct what *w,
                      const struct fleet_target *targets, size_t n, uint64_t timeout_us,
                      struct upstream_call *calls, struct err *e)
{
    struct last last[UPSTREAM_KINDS] = {{0}};

    for (size_t i = 0; i < n; i++) {
        struct api_request *r = &calls[i].request;
        enum upstream_kind kind = upstream_kind(targets[i].upstream); /* may change meanwhile */

        calls[i].target = upstream_target(targets[i].upstream);
        calls[i].timeout_us = targets[i].timeout_us > 0 ? targets[i].timeout_us : timeout_us;
        calls[i].trace = trace_current();
        calls[i].until_down = targets[i].until_down;
        calls[i].given_up = targets[i].given_up;
        calls[i].late_us = targets[i].late_us;
        calls[i].given_up_us = targets[i].given_up_us;
        calls[i].n_enough = targets[i].n_enough;
        calls[i].upstream = targets[i].upstream;
        if ((w->kind == WHAT_QUERY ? api_make_query(r, kind, w->query, e)
                                   : make_op(r, fc, kind, fleet_request_op_of(w, &targets[i]),
                                             &targets[i], &last[kind], e)) == 0)
            continue;
        while (i-- > 0)
            api_request_fini(&calls[i].request);
        return -1;
    }
    return 0;
}

/* Another process leaves rotation at once, not only at its next probe.
 * @incarnation  as of fleet_check_process
 * @lost         it is another one, by what it answered */
static void note_process(struct fleet_control *fc, struct fleet_result *result,
                         uint64_t incarnation, const char *process, bool lost)
{
    result->other_process = process[0] != '\0' &&
                            !fleet_check_process(fleet_of(fc), result->upstream, incarnation,
                                                 process);
    if (lost || result->other_process)
        upstreams_probe_now(fc->upstreams);
}

/* Some engines reply 200 with a body that reports a failure. */
static void check_done(enum api_op op, const struct fleet_target *target,
                       struct fleet_result *result)
{
    char words[FLEET_ERROR_TEXT_MAX] = "";
    struct err why = {0};

    if (result->outcome != FLEET_OK)
        return;
    if (api_check_done(upstream_kind(target->upstream), op, args_of(target), &target->ctx,
                       result->text, result->text_len, &why) == 0)
        return;
    api_read_error(words, sizeof words, result->text, result->text_len);
    result->outcome = FLEET_REFUSED;
    (void)err_set(&result->why, ERR_UPSTREAM, "", "%.100s answered %d, but %s: %s",
                  upstream_name(target->upstream), result->status, why.msg, words);
}

/* Not what it refused because of our client, or as it has no such route, nor an answer that was not
 * waited for. */
static bool is_engines_failure(const struct fleet_result *result, const struct fleet_target *target)
{
    bool given_up = target->given_up != NULL && __atomic_load_n(target->given_up, __ATOMIC_ACQUIRE);

    return !result_ok(result) && !fleet_result_lacks_route(result) && !given_up &&
           (result->why.code == ERR_UPSTREAM || result->why.code == ERR_UPSTREAM_TIMEOUT);
}

/* Was an unload refused because the engine has no adapter of that name? */
static bool has_no_adapter(enum api_op op, const struct fleet_target *target,
                           const struct fleet_result *result)
{
    return op == API_UNLOAD_ADAPTER && result->outcome == FLEET_REFUSED &&
           api_adapter_is_absent(upstream_kind(target->upstream), target->args->name,
                                 result->status, result->text, result->text_len);
}

/* Also by an error of its own: it keeps what it had under the name of an adapter. */
static enum have_answer answer_of(enum api_op op, const struct fleet_result *result, bool absent)
{
    bool adapter = op == API_LOAD_ADAPTER || op == API_UNLOAD_ADAPTER;

    if (absent)
        return HAVE_GOOD;
    return adapter && result->outcome == FLEET_REFUSED ? HAVE_REFUSED : fleet_result_answer(result);
}

/* The files may be others on each host, or have been replaced since the first engine read them;
 * only an engine that reports a digest shows it. */
static void set_other_files(struct fleet_result *result, const char *digest)
{
    result->outcome = FLEET_UNKNOWN;
    (void)err_set(&result->why, ERR_UPSTREAM, "",
                  "%.100s has loaded other files than the others: those at the lora_path have "
                  "changed since, or differ between hosts (digest %.64s)",
                  upstream_name(result->upstream), digest);
}

/* What the answer to an operation says of the engine. */
static void apply_answer(struct fleet_control *fc, enum api_op op,
                         const struct fleet_target *target, const struct have_before *before,
                         struct fleet_result *result)
{
    struct fleet *f = fleet_of(fc);
    char *digest = NULL;
    bool absent;

    check_done(op, target, result);
    absent = has_no_adapter(op, target, result);
    if (op == API_LOAD_ADAPTER && result->outcome == FLEET_OK)
        digest = api_read_digest(result->text, result->text_len);
    if (is_engines_failure(result, target))
        fleet_count_failure(f, target->upstream);
    if (!fleet_answer(f, target->upstream, op, args_of(target), before,
                      answer_of(op, result, absent), digest))
        set_other_files(result, digest);
    if (absent) {
        result->outcome = FLEET_SKIPPED;
        err_clear(&result->why);
    }
    free(digest);
}

/* Requests under way. */
struct sending {
    struct fleet_control *fc;
    const struct what *what;
    const struct fleet_target *targets; /* [n], and so are the next four */
    struct upstream_call *calls;
    struct upstream_reply *replies;
    struct fleet_results results;
    struct have_before *before;
    size_t n;
};

static void fleet_request_on_answered(void *arg, size_t at)
{
    struct sending *s = arg;
    const struct fleet_target *target = &s->targets[at];
    struct upstream_reply *reply = &s->replies[at];
    struct fleet_result *result = &s->results.list[at];
    const char *name = upstream_name(target->upstream);
    bool lost;

    fleet_result_read(result, name, reply);
    lost = fleet_result_read_lost(result, &target->ctx, name);
    note_process(s->fc, result, s->before[at].incarnation, reply->process, lost);
    if (s->what->kind != WHAT_QUERY)
        apply_answer(s->fc, fleet_request_op_of(s->what, target), target, &s->before[at], result);
    if (target->answered != NULL)
        target->answered(target->arg, result);
}

/* What the operations change is in doubt from before the first byte until their answers. */
static int call_all(struct sending *s, struct err *e)
{
    struct fleet *f = fleet_of(s->fc);
    bool changes = s->what->kind != WHAT_QUERY;
    struct upstream_info info;
    int rc;

    for (size_t i = 0; i < s->n; i++) { /* they keep their places meanwhile */
        s->results.list[i].upstream = upstream_ref(s->targets[i].upstream);
        if (changes) {
            fleet_doubt(f, s->targets[i].upstream, fleet_request_op_of(s->what, &s->targets[i]),
                        args_of(&s->targets[i]), &s->before[i]);
            continue;
        }
        fleet_info(f, s->targets[i].upstream, &info);
        s->before[i].incarnation = info.incarnation;
    }
    rc = upstreams_call(s->fc->upstreams, s->calls, s->n, s->replies, fleet_request_on_answered, s,
                        e);
    for (size_t i = 0; i < s->n; i++) {
        if (changes && !s->replies[i].answered)
            (void)fleet_answer(f, s->targets[i].upstream,
                               fleet_request_op_of(s->what, &s->targets[i]),
                               args_of(&s->targets[i]), &s->before[i], HAVE_LOST, NULL);
        upstream_reply_fini(&s->replies[i]);
    }
    return rc;
}

static int send_all(struct fleet_control *fc, const struct what *w,
                    const struct fleet_target *targets, size_t n, uint64_t timeout_us,
                    struct fleet_results *out, struct err *e)
{
    struct sending s = {.fc = fc,
                        .what = w,
                        .targets = targets,
                        .calls = calloc(n + 1, sizeof *s.calls),
                        .replies = calloc(n + 1, sizeof *s.replies),
                        .results = {calloc(n + 1, sizeof *s.results.list), n},
                        .before = calloc(n + 1, sizeof *s.before),
                        .n = n};
    int rc = -1;

    if (s.calls == NULL || s.replies == NULL || s.results.list == NULL || s.before == NULL)
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for requests to %zu upstreams", n);
    else
        rc = make_calls(fc, w, targets, n, timeout_us, s.calls, e);
    if (rc == 0 && n > 0)
        rc = call_all(&s, e);
    free(s.calls);
    free(s.replies);
    free(s.before);
    if (rc == 0)
        *out = s.results;
    else
        fleet_results_fini(&s.results);
    return rc;
}

int fleet_request(struct fleet_control *fc, enum api_op op, const struct fleet_target *targets,
                  size_t n, uint64_t timeout_us, struct fleet_results *out, struct err *e)
{
    const struct what w = {.kind = WHAT_OP, .op = op};

    assert(n <= FLEET_MAX);
    return send_all(fc, &w, targets, n, timeout_us, out, e);
}

int fleet_requests(struct fleet_control *fc, const struct fleet_target *targets, size_t n,
                   uint64_t timeout_us, struct fleet_results *out, struct err *e)
{
    const struct what w = {.kind = WHAT_OP_OF_TARGET};

    return send_all(fc, &w, targets, n, timeout_us, out, e);
}

int fleet_query(struct fleet_control *fc, enum api_query q, const struct fleet_target *targets,
                size_t n, uint64_t timeout_us, struct fleet_results *out, struct err *e)
{
    const struct what w = {.kind = WHAT_QUERY, .query = q};

    return send_all(fc, &w, targets, n, timeout_us, out, e);
}

int fleet_validate(struct fleet_control *fc, enum api_op op, const struct fleet_target *targets,
                   size_t n, struct err *e)
{
    const struct what w = {.kind = WHAT_OP, .op = op};
    struct upstream_call *calls = calloc(n + 1, sizeof *calls);
    int rc = calls != NULL ? make_calls(fc, &w, targets, n, 0, calls, e)
                           : err_set(e, ERR_NO_MEMORY, "", "no memory for requests");

    for (size_t i = 0; rc == 0 && i < n; i++)
        api_request_fini(&calls[i].request);
    free(calls);
    return rc;
}

int fleet_request_all(struct fleet_control *fc, enum api_op op, const struct api_args *args,
                      uint64_t timeout_us, struct fleet_results *out, struct err *e)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    struct fleet_target targets[FLEET_MAX];
    size_t n;

    return fleet_reachable_quorum(fc, all, args, targets, &n, e) == 0
               ? fleet_request(fc, op, targets, n, timeout_us, out, e)
               : -1;
}

void fleet_abort_all_requests(struct fleet_control *fc)
{
    const struct api_args args = {.all = true};
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    struct fleet_target targets[FLEET_MAX];
    size_t n = fleet_reachable(fc, all, &args, targets);

    (void)fleet_abort_queued(fleet_of(fc), true);
    fleet_tell(fc, API_ABORT_REQUESTS, targets, n, FLEET_CACHE_US);
}
