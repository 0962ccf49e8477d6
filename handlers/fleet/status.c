/* The status of a fleet as JSON. It takes short locks only, because this runs on event loops. */
#include "handlers/fleet/status.h"

#include "base/clock.h"
#include "control/life.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/handoff/handoff.h"
#include "fleet/members/fleet_adapters.h"
#include "fleet/members/upstream_config.h"
#include "fleet/members/upstreams.h"
#include "fleet/update/fleet_coverage.h"
#include "fleet/want/fleet_pause.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/fleet/handlers.h"
#include "handlers/reply.h"
#include "handlers/rows/life_request.h"
#include "handlers/rows/reply_rows.h"
#include "handlers/status_json.h"
#include "weights/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* one engine */

static json_t *fleet_text_or_null(const char *text)
{
    return text[0] != '\0' ? json_string(text) : json_null();
}

static json_t *error_or_null(const struct err *e)
{
    if (e->code == ERR_NONE)
        return json_null();
    return member_write(e, reason_rows);
}

static json_t *last_heard_json(uint64_t probe_ok_us)
{
    uint64_t now = clock_now_us();

    if (probe_ok_us == 0)
        return json_null();
    return json_real(now > probe_ok_us ? (double)(now - probe_ok_us) / 1e6 : 0.0);
}

/* @errors  [n_errors]; @paused  for its fence; @lacks, @proof  stolen */
static json_t *upstream_json(const struct upstream *upstream, const struct upstream_info *info,
                             const struct upstream_error *errors, size_t n_errors, bool paused,
                             json_t *lacks, json_t *proof)
{
    const struct upstream_error *error = n_errors > 0 ? errors : &(struct upstream_error){0};
    const char *name = upstream_config(upstream)->name_url;

    return json_pack(
        "{s:s, s:s, s:s, s:o, s:s, s:o, s:o, s:o, s:{s:I, s:I}, s:I, s:I, s:o, s:o, s:o, s:o, s:b, "
        "s:o, s:o, s:o}",
        "upstream", upstream_name(upstream), "dialect", upstream_kind_name(upstream_kind(upstream)),
        "origin", upstream_config_origin(upstream_config(upstream)), "name",
        name != NULL ? json_sprintf("dns+%s", name) : json_null(), "state",
        upstream_state_name(info->state), "weight_version", fleet_text_or_null(info->report.label),
        "serial", info->serial > 0 ? json_integer((json_int_t)info->serial) : json_null(),
        "process", fleet_text_or_null(info->report.process), "outstanding", "generate",
        (json_int_t)info->n_outstanding[FLEET_GENERATE], "text",
        (json_int_t)info->n_outstanding[FLEET_TEXT], "n_granted", (json_int_t)info->n_granted,
        "n_missed", (json_int_t)info->n_failures, "last_heard_s",
        last_heard_json(info->probe_ok_us), "error", error_or_null(&error->why), "last_error_at",
        n_errors > 0 ? json_integer(error->wall_s) : json_null(), "errors",
        member_write_list(errors, n_errors, sizeof errors[0], upstream_error_rows), "fence_paused",
        (int)paused, "missing_adapters", lacks, "proof", proof, "seeding_from",
        fleet_text_or_null(info->report.seeding_from));
}

static json_t *missing_adapters_json(struct fleet *f, struct upstream *upstream)
{
    size_t n;
    struct fleet_adapter_entry *lacks = fleet_adapter_list(f, upstream, &n);
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++)
        list = json_list_append(list, json_string(lacks[i].name));
    fleet_adapter_list_free(lacks, n);
    return list;
}

/* What was found wrong is why an engine is fenced; of another fence nothing is proven. */
static json_t *proof_json(struct fleet_control *fc, struct upstream *upstream, bool fenced)
{
    struct fleet_prover p;

    if (!fleet_proof_get(fc, upstream, &p) || (fenced && p.state == PROOF_PROVEN))
        return json_null();
    return member_write(&p, proof_rows);
}

json_t *fleet_upstream_json(const struct app *app, struct upstream *upstream)
{
    struct fleet *f = upstreams_fleet(app->fleet->upstreams);
    struct upstream_error errors[UPSTREAM_ERRORS_MAX];
    struct upstream_info info;

    fleet_info(f, upstream, &info);
    return upstream_json(upstream, &info, errors, fleet_errors(f, upstream, errors),
                         fleet_fence_is_paused(app->fleet->control, upstream),
                         missing_adapters_json(f, upstream),
                         proof_json(app->fleet->control, upstream, info.fenced));
}

json_t *fleet_removed_json(const struct app *app, struct upstream *upstream)
{
    struct upstream_info info;

    fleet_info(upstreams_fleet(app->fleet->upstreams), upstream, &info);
    return upstream_json(upstream, &info, &info.error, info.error.why.code != ERR_NONE, false,
                         json_array(), json_null());
}

/* A removed engine is listed while requests run there. */
static bool is_listed(const struct upstream_info *info)
{
    return !info->removed ||
           info->n_outstanding[FLEET_GENERATE] + info->n_outstanding[FLEET_TEXT] > 0;
}

static json_t *all_upstreams_json(const struct app *app)
{
    upstream_list_auto *all = upstreams_list(app->fleet->upstreams);
    json_t *list = json_array();

    for (size_t i = 0; i < all->n; i++) {
        struct upstream_info info;

        fleet_info(upstreams_fleet(app->fleet->upstreams), all->items[i], &info);
        if (is_listed(&info))
            list = json_list_append(list, fleet_upstream_json(app, all->items[i]));
    }
    return list;
}

static json_t *names_json(const struct app *app)
{
    json_t *list = json_array();
    struct upstream_name_info info;

    for (size_t i = 0; upstreams_name(app->fleet->upstreams, i, &info); i++)
        list = json_list_append(list, member_write(&info, upstream_name_rows));
    return list;
}

static json_t *upstreams_json(const struct app *app)
{
    struct fleet_stats s;
    struct err differ = {0};
    bool warns = fleet_proof_warning(app->fleet->control, &differ);

    fleet_stats(upstreams_fleet(app->fleet->upstreams), &s);
    return json_pack("{s:I, s:I, s:I, s:s?, s:o, s:o}", "min_ready", (json_int_t)s.min_ready,
                     "n_serving", (json_int_t)s.n_serving, "n", (json_int_t)s.n_upstreams,
                     "warning", warns ? differ.msg : NULL, "names", names_json(app), "list",
                     all_upstreams_json(app));
}

/* the status */

static const char *weights_state(const struct app *app, const struct fleet_stats *s)
{
    struct fleet_sleep sleep;

    fleet_get_sleep(app->fleet->control, &sleep);
    if (sleep.weights)
        return store_state_name(sleep.level >= 2 ? STORE_DROPPED : STORE_ASLEEP);
    return store_state_name(s->n_serving > 0 ? STORE_READY : STORE_UNSYNCED);
}

/* The update that this server received, while enough upstreams serve its version: after a sleep at
 * level 2 they do not until it is handed to them again. */
static json_t *update_id_json(const struct app *app, const struct fleet_stats *s)
{
    struct handoff_info now;
    struct store_info info;

    if (app->fleet->handoff == NULL)
        return json_null();
    handoff_info_get(app->fleet->handoff, &now);
    store_info(app->weights->store, &info);
    return s->ready && now.done == info.serial ? status_update_id_json(&info) : json_null();
}

static json_t *spec_json(struct fleet_control *fc)
{
    const char *from;
    uint32_t n;

    return fleet_spec_get(fc, &from, &n)
               ? json_pack("{s:s, s:I}", "from", from, "n_tensors", (json_int_t)n)
               : json_null();
}

static json_t *fleet_weights_json(const struct app *app, const struct fleet_stats *s)
{
    return json_pack("{s:s, s:o, s:o, s:o, s:s?, s:o}", "state", weights_state(app, s), "serial",
                     s->serial > 0 ? json_integer((json_int_t)s->serial) : json_null(), "update_id",
                     update_id_json(app, s), "weight_version", fleet_text_or_null(s->label),
                     "coverage", fleet_last_coverage(app->fleet->control), "spec",
                     spec_json(app->fleet->control));
}

/* As an engine of the server's own has it. */
static json_t *fleet_engine_json(const struct fleet_stats *s)
{
    return json_pack("{s:s, s:I, s:I}", "name", "upstreams", "running",
                     (json_int_t)s->n_running[FLEET_GENERATE], "waiting",
                     (json_int_t)s->n_waiting[FLEET_GENERATE]);
}

static json_t *lane_json(const struct app *app, const struct fleet_stats *s, enum fleet_queue lane)
{
    const struct settings *c = &app->settings;
    uint64_t each = lane == FLEET_GENERATE ? c->generate_concurrency : c->detokenize_concurrency;
    uint64_t queue = lane == FLEET_GENERATE ? c->generate_queue : c->detokenize_queue;

    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "running", (json_int_t)s->n_running[lane],
                     "waiting", (json_int_t)s->n_waiting[lane], "concurrency_each",
                     (json_int_t)each, "queue", (json_int_t)queue, "refused",
                     (json_int_t)s->n_refused[lane], "cancelled", (json_int_t)s->n_cancelled[lane]);
}

/* @handed  do enough upstreams have the version? */
static json_t *handed_one_json(const char *name, const struct upstream_info *info, bool handed)
{
    bool has = handed && info->alive && info->synced && !info->fenced;
    const char *why = info->error.why.code != ERR_NONE
                          ? info->error.why.msg
                          : "the version is not handed over to it; that is tried again";

    return fleet_result_json(name, has, 0, has ? NULL : why);
}

json_t *fleet_handed_json(const struct app *app, uint64_t serial)
{
    upstream_list_auto *all = upstreams_list(app->fleet->upstreams);
    json_t *list = json_array();
    struct handoff_info now;

    handoff_info_get(app->fleet->handoff, &now);
    for (size_t i = 0; i < all->n; i++) {
        struct upstream_info info;

        fleet_info(upstreams_fleet(app->fleet->upstreams), all->items[i], &info);
        if (!upstream_is_removed(all->items[i]))
            list = json_list_append(
                list, handed_one_json(upstream_name(all->items[i]), &info, now.done >= serial));
    }
    return list;
}

/* Why the last try of a hand-off or repair failed, and when the next one is. */
static json_t *failed_json(const struct handoff_info *info)
{
    uint64_t now = clock_now_us();
    json_t *error = error_or_null(&info->why);

    if (json_is_object(error))
        (void)json_object_set_new(
            error, "retry_in_s",
            json_real(info->retry_due_us > now ? (double)(info->retry_due_us - now) / 1e6 : 0));
    return error;
}

/* The version that this server received for its upstreams, and how far it was handed over. */
static json_t *stage_json(const struct app *app)
{
    struct handoff_info now;
    struct store_info info;

    if (app->fleet->handoff == NULL)
        return json_null();
    handoff_info_get(app->fleet->handoff, &now);
    store_info(app->weights->store, &info);
    return json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:f, s:o, s:o, s:o}",
                     "memory", store_in_host_memory(app->weights->store) ? "host" : "gpu",
                     "placement", store_sharded(app->weights->store) ? "sharded" : "replicated",
                     "window_nbytes", (json_int_t)now.window_nbytes, "n_devices",
                     (json_int_t)app->weights->n_devices, "state", store_state_name(info.state),
                     "plan_digest", store_model_spec(app->weights->store)->tensor_list->digest,
                     "weight_version", fleet_text_or_null(info.label), "serial",
                     (json_int_t)info.serial, "handed_serial", (json_int_t)now.done, "n_handoffs",
                     (json_int_t)now.n_handoffs, "n_repairs", (json_int_t)now.n_repairs,
                     "last_handoff_s", (double)now.last_us / 1e6, "error", failed_json(&now),
                     "handoff", fleet_update_json(app), "upstreams",
                     info.serial > 0 ? fleet_handed_json(app, info.serial) : json_array());
}

/* Which update a client has open. With --stage it is this server that receives it, on its GPUs. */
static json_t *own_weights_json(const struct app *app)
{
    if (app->weights == NULL)
        return json_pack("{s:o}", "update", fleet_update_json(app));
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "update", status_update_json(app), "state",
                     status_state_json(app), "seed", status_seed_json(app), "cuda",
                     status_cuda_json(app), "nccl", status_nccl_json(app), "nixl",
                     status_nixl_json(app));
}

json_t *fleet_status_json(const struct app *app)
{
    struct fleet_stats s;
    json_t *status = status_head_json(app);

    fleet_stats(upstreams_fleet(app->fleet->upstreams), &s);
    if (status == NULL || json_object_update_new(status, own_weights_json(app)) != 0 ||
        json_object_update_new(
            status,
            json_pack("{s:o, s:o, s:{s:o, s:o}, s:o, s:o, s:n, s:o, s:o, s:o}", "stage",
                      stage_json(app), "weights", fleet_weights_json(app, &s), "admission",
                      "generate", lane_json(app, &s, FLEET_GENERATE), "detokenize",
                      lane_json(app, &s, FLEET_TEXT), "engine", fleet_engine_json(&s), "http",
                      status_http_json(app), "model", "pause", fleet_pause_json(app), "sleep",
                      fleet_sleep_json(app), "upstreams", upstreams_json(app))) != 0) {
        json_decref(status);
        return NULL;
    }
    return status;
}

int handle_fleet_status(struct app *app, struct http_request *x, struct err *e)
{
    (void)e;
    reply_json(x, 200, fleet_status_json(app));
    return 0;
}

/* the list */

int handle_fleet_upstreams(struct app *app, struct http_request *x, struct err *e)
{
    (void)e;
    reply_json(x, 200, upstreams_json(app));
    return 0;
}

/* Why it gets no requests, or would refuse them or keep them for ever; NULL: it serves. An update,
 * and a pause that keeps requests, do not count: they wait, and a router that took all engines out
 * would have none left. */
static const char *why_not_ready(struct fleet_control *fc, const struct upstream_info *info)
{
    struct fleet_sleep sleep;
    struct pause pause;

    if (info->may_sleep && info->state == UPSTREAM_UNSYNCED)
        return "asleep";
    if (info->state != UPSTREAM_SERVING)
        return upstream_state_name(info->state);
    fleet_get_sleep(fc, &sleep);
    if (sleep.weights || sleep.kv)
        return "asleep";
    fleet_get_pause(fc, &pause);
    return pause_is_held(&pause) && pause.reject ? "paused" : NULL;
}

int handle_fleet_upstream_ready(struct app *app, struct http_request *x, struct err *e)
{
    struct upstream_request req = {0};
    struct upstream_info info;
    struct upstream *it;
    const char *why;

    if (member_read_query(&req, upstream_ready_query, x, e) != 0 ||
        upstreams_find(app->fleet->upstreams, req.upstream, &it, e) != 0)
        return -1;
    fleet_info(upstreams_fleet(app->fleet->upstreams), it, &info);
    upstream_unref(it);
    why = why_not_ready(app->fleet->control, &info);
    if (why == NULL)
        reply_json(x, 200, json_pack("{s:b}", "ready", 1));
    else
        reply_json(
            x, 503,
            json_pack("{s:b, s:s, s:s}", "ready", 0, "reason", why, "message", info.error.why.msg));
    return 0;
}

int handle_upstreams(struct app *app, struct http_request *x, struct err *e)
{
    (void)app;
    (void)x;
    return err_set(e, ERR_NO_UPSTREAMS, "",
                   "the server has an engine of its own: it was not started with --upstream");
}
