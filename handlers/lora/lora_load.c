/* POST /v1/load_lora_adapter, whatever its tensors come by.
 *
 * The name's place is taken and everything that can be refused at once is, on the handler's thread;
 * the bytes are read on a thread for loads. What served before serves until the last check of the
 * new one has passed. */
#include "handlers/lora/lora_load.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"
#include "control/lora_loads.h"
#include "control/pause_controller.h"
#include "control/weight_transfer.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/lora_json.h"
#include "handlers/reply.h"
#include "handlers/route.h"
#include "handlers/source/source_json.h"
#include "weights/update/host_copy.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    LORA_TIMEOUT_S_DEFAULT = 20, /* clients that wait 30 s, as SGLang's and prime-rl's, hear why */
    LORA_APPEAR_S = 5, /* for lora_path to exist, unless timeout_s is given: it may be mistyped */
    LORA_TIMEOUT_S_MAX = 600,
    LORA_NAMES_REPORTED_MAX = 4096 /* of each list in a reply; the counts beside them are whole */
};

const char *const lora_load_members[] = {"lora_name",
                                         "lora_path",
                                         "load_inplace",
                                         "pinned",
                                         "if_revision",
                                         "allow_partial",
                                         "timeout_s",
                                         "names",
                                         "dtypes",
                                         "dtype_names",
                                         "shapes",
                                         "sizes",
                                         "packed",
                                         "checksums",
                                         "shm",
                                         "ipc_handles",
                                         "ipc_handles_pickled",
                                         "tensor_sizes",
                                         "per_gpu",
                                         "metadata_by_gpu",
                                         "buckets",
                                         "transport",
                                         "expected_digest",
                                         "bucket_nbytes",
                                         "packed_buffer_size_bytes",
                                         "group_name",
                                         "adapter_config",
                                         "is_3d_lora_weight",
                                         "lora_int_id",     /* these two are of vLLM's clients */
                                         "base_model_name", /* and of no use here */
                                         NULL};
const char *const lora_load_query[] = {
    "lora_name",     "load_inplace", "pinned",         "if_revision",
    "allow_partial", "timeout_s",    "adapter_config", NULL};

static void load_free(struct lora_load *l)
{
    if (l == NULL)
        return;
    adapters_cancel(l->place);
    update_chunk_free(l->chunk);
    adapter_config_free(l->config);
    if (l->root >= 0)
        (void)close(l->root);
    free(l->path);
    free(l->name);
    free(l);
}

/* ---- the answer ---- */

static json_t *names_array_json(const struct names *names)
{
    json_t *array = json_array();

    for (uint32_t i = 0; i < names->n && i < LORA_NAMES_REPORTED_MAX && array != NULL; i++) {
        if (json_array_append_new(array, json_string(names->items[i])) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    return array;
}

/* What was loaded, told after the registry has taken it over. */
struct loaded {
    struct adapter_report report;
    struct adapters_outcome outcome;
    char digest[ADAPTER_DIGEST_LEN + 1];
    uint32_t rank;
    uint64_t nbytes;
};

static json_t *loaded_json(const struct lora_load *l, const struct loaded *d)
{
    const struct adapter_report *r = &d->report;
    const struct adapters_outcome *o = &d->outcome;

    return json_pack(
        "{s:s, s:s, s:I, s:s, s:b, s:b, s:b, s:I, s:I, s:I, s:I, s:o, s:I, s:o, s:I, s:o, s:I, "
        "s:o, s:I, s:o, s:I, s:b, s:o}",
        "status", "ok", "lora_name", l->name, "revision", (json_int_t)o->revision, "digest",
        d->digest, "unchanged", (int)o->unchanged, "replaced", (int)o->replaced, "pinned",
        (int)l->options.pinned, "rank", (json_int_t)d->rank, "nbytes", (json_int_t)d->nbytes,
        "n_users_older", (json_int_t)o->n_users, "n_matched", (json_int_t)r->matched.n, "matched",
        names_array_json(&r->matched), "n_unmatched", (json_int_t)r->unmatched.n, "unmatched",
        names_array_json(&r->unmatched), "n_ignored", (json_int_t)r->ignored.n, "ignored",
        names_array_json(&r->ignored), "n_missing", (json_int_t)r->missing.n, "missing",
        names_array_json(&r->missing), "n_non_finite", (json_int_t)r->non_finite.n, "non_finite",
        names_array_json(&r->non_finite), "n_config_keys_ignored", (json_int_t)r->n_keys_ignored,
        "base_changed", (int)r->base_changed, "loaded_adapters", lora_loaded_json(l->app));
}

/* What was put serves, whatever memory is left to tell of it. */
static void reply_loaded(struct lora_load *l, const struct loaded *d)
{
    static const char bare[] = "{\"status\":\"ok\"}";
    struct http_reply r;

    if (!reply_json_make(l->x, 200, loaded_json(l, d), &r))
        r = (struct http_reply){.status = 200,
                                .content_type = "application/json",
                                .data = bare,
                                .len = sizeof bare - 1};
    http_reply(l->x, &r);
}

static void log_loaded(const struct lora_load *l, const struct loaded *d)
{
    struct log_rec r;

    if (!log_enabled(LOG_INFO))
        return;
    log_begin(&r, LOG_INFO, d->outcome.unchanged ? "lora.unchanged" : "lora.loaded");
    log_str(&r, "lora_name", l->name);
    log_u64(&r, "revision", d->outcome.revision);
    log_str(&r, "digest", d->digest);
    log_u64(&r, "rank", d->rank);
    log_u64(&r, "nbytes", d->nbytes);
    log_u64(&r, "n_matched", d->report.matched.n);
    log_u64(&r, "n_unmatched", d->report.unmatched.n);
    log_end(&r);
}

static void warn_non_finite(const struct lora_load *l, const struct loaded *d)
{
    for (uint32_t i = 0; i < d->report.non_finite.n && i < LORA_NAMES_REPORTED_MAX; i++) {
        struct log_rec r;

        log_begin(&r, LOG_WARN, "lora.non_finite");
        log_str(&r, "lora_name", l->name);
        log_u64(&r, "revision", d->outcome.revision);
        log_str(&r, "tensor", d->report.non_finite.items[i]);
        log_end(&r);
    }
}

/* ---- the work ---- */

static bool load_client_disconnected(void *arg)
{
    return http_request_disconnected(((struct lora_load *)arg)->x);
}

/* A source looks at `gone` only; a server that stops ends it the same way. */
static bool load_cancelled(void *arg)
{
    const struct lora_load *l = arg;

    return atomic_load_explicit(lora_loads_stopping(l->app->generate->loads),
                                memory_order_relaxed) ||
           http_request_disconnected(l->x);
}

static struct adapter_spec spec_of(const struct lora_load *l)
{
    const struct adapters_config *cfg = adapters_config_of(l->app->generate->adapters);

    return (struct adapter_spec){
        .model = l->app->generate->model,
        .config = l->config,
        .rank_max = cfg->rank_max,
        .nbytes_max = cfg->nbytes_max < ADAPTER_NBYTES_MAX ? cfg->nbytes_max : ADAPTER_NBYTES_MAX,
        .allow_partial = l->allow_partial,
        .non_finite = cfg->non_finite};
}

static int reserve_memory(void *arg, uint64_t nbytes, struct err *e)
{
    return adapters_reserve(arg, nbytes, e);
}

/* As adapter_file_look. */
static int read_directory(struct lora_load *l, struct adapter **out, struct adapter_report *report,
                          struct err *e)
{
    struct adapter_spec spec = spec_of(l);
    struct adapter_dir dir = {.dirfd = l->root, .path = l->rest, .inside = true};
    struct adapter_room room = {.take = reserve_memory, .arg = l->place};
    struct adapter_wait wait = {.deadline_us = l->deadline_us,
                                .appear_us = l->appear_us,
                                .stop = lora_loads_stopping(l->app->generate->loads),
                                .gone = load_client_disconnected,
                                .gone_arg = l};

    return adapter_file_look(&l->sight, out, report, &spec, &dir, &room, &wait, e);
}

/* The tensors on their way into the adapter. */
struct tensor_sink {
    const struct lora_load *l;
    struct adapter_builder *builder;
    void *scratch; /* owned; room for any that is not wanted: a source has them in its way */
};

static const struct tensor_list *tensor_list_of(const struct lora_load *l)
{
    return l->chunk->ranks != NULL ? l->chunk->ranks[0].tensor_list : l->chunk->tensor_list;
}

static void *sink_buffer(void *arg, uint32_t i)
{
    const struct tensor_sink *t = arg;
    void *place = adapter_builder_place(t->builder, i);

    return place != NULL ? place : t->scratch;
}

static int check_sum(const struct lora_load *l, uint32_t i, const void *bytes, struct err *e)
{
    const struct update_chunk *c = l->chunk;
    const struct checksum *sums = c->ranks != NULL ? c->ranks[0].checksums : c->checksums;
    const bool *has_sum = c->ranks != NULL ? c->ranks[0].has_checksum : c->has_checksum;
    const struct tensor_spec *t = &tensor_list_of(l)->tensors[i];
    char found[CHECKSUM_LEN + 1], expected[CHECKSUM_LEN + 1], field[32];
    struct checksum sum;

    if (sums == NULL || !has_sum[i])
        return 0;
    sum = checksum_of(bytes, t->nbytes);
    if (checksum_equal(sum, sums[i]))
        return 0;
    checksum_text(&sum, found);
    checksum_text(&sums[i], expected);
    (void)snprintf(field, sizeof field, "/checksums/%u", i);
    return err_set(e, ERR_CHECKSUM, field, "tensor '%.*s' has checksum %s, not %s",
                   utf8_cut_name(t->name), t->name, found, expected);
}

static int sink_arrived(void *arg, uint32_t i, const void *bytes, struct err *e)
{
    const struct tensor_sink *t = arg;

    return check_sum(t->l, i, bytes, e) != 0
               ? -1
               : adapter_builder_came(t->builder, tensor_list_of(t->l), i, e);
}

static void *scratch_new(const struct tensor_list *tensor_list, const struct adapter_builder *b,
                         struct err *e)
{
    uint64_t nbytes = 1;
    void *scratch;

    for (uint32_t i = 0; i < tensor_list->n_tensors; i++)
        if (adapter_builder_place(b, i) == NULL && tensor_list->tensors[i].nbytes > nbytes)
            nbytes = tensor_list->tensors[i].nbytes;
    scratch = malloc(nbytes);
    if (scratch == NULL)
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for a tensor of %" PRIu64 " bytes", nbytes);
    return scratch;
}

/* Whoever went away may have used the memory again that was read. */
static int check_client(const struct lora_load *l, struct err *e)
{
    if (!http_request_disconnected(l->x))
        return 0;
    return err_set(e, ERR_GONE, "",
                   "the client went away while its tensors were read; they may have changed under "
                   "the reading and were not taken");
}

static int read_source(struct lora_load *l, struct adapter_builder *b, struct err *e)
{
    struct progress p = {.deadline_us = l->deadline_us, .gone = load_cancelled, .gone_arg = l};
    struct tensor_sink t = {.l = l, .builder = b};
    struct host_copy copy = {.source = l->chunk->source,
                             .tensor_list = tensor_list_of(l),
                             .devices = l->app->weights->devices,
                             .n_devices = l->app->weights->n_devices,
                             .progress = &p,
                             .place = sink_buffer,
                             .came = sink_arrived,
                             .arg = &t};
    int rc;

    atomic_init(&p.tensor, PROGRESS_NO_TENSOR);
    if (adapters_reserve(l->place, adapter_builder_nbytes(b), e) != 0 ||
        adapter_builder_reserve(b, e) != 0)
        return -1;
    t.scratch = scratch_new(tensor_list_of(l), b, e);
    if (t.scratch == NULL)
        return -1;
    rc = host_copy_run(&copy, e);
    free(t.scratch);
    return rc == 0 ? check_client(l, e) : -1;
}

/* What a source calls a client that went away may have been this server's end. */
static void set_stop_error(const struct lora_load *l, struct err *e)
{
    if (e->code != ERR_GONE || http_request_disconnected(l->x) ||
        !atomic_load_explicit(lora_loads_stopping(l->app->generate->loads), memory_order_relaxed))
        return;
    err_clear(e);
    (void)err_set(e, ERR_CONFLICT, "", "the load was stopped while its tensors were read");
}

static int read_tensors(struct lora_load *l, struct adapter **out, struct adapter_report *report,
                        struct err *e)
{
    struct adapter_spec spec = spec_of(l);
    const struct tensor_list *tensor_list = tensor_list_of(l);
    struct adapter_builder *b;

    if (tensor_list->nbytes > spec.nbytes_max)
        return err_set(e, ERR_TOO_LARGE, "",
                       "the tensors have %" PRIu64 " bytes; at most %" PRIu64 " are allowed",
                       tensor_list->nbytes, spec.nbytes_max);
    if (adapter_builder_new(&b, &spec, tensor_list, e) != 0) {
        chunk_refield(l->chunk, 0, e);
        return -1;
    }
    if (read_source(l, b, e) != 0) {
        adapter_builder_free(b);
        chunk_refield(l->chunk, 0, e);
        set_stop_error(l, e);
        return -1;
    }
    *out = adapter_builder_finish(b, report);
    return 0;
}

/* Returns: 0; 1 not yet; -1. */
static int load_adapter(struct lora_load *l, struct loaded *d, struct err *e)
{
    struct adapters_load *place;
    struct adapter *a;
    int rc = l->path != NULL ? read_directory(l, &a, &d->report, e)
                             : read_tensors(l, &a, &d->report, e);

    if (rc != 0)
        return rc;
    (void)snprintf(d->digest, sizeof d->digest, "%s", adapter_digest(a));
    d->rank = adapter_rank(a);
    d->nbytes = adapter_nbytes(a);
    place = l->place;
    l->place = NULL;
    return adapters_put(place, a, &d->outcome, e);
}

/* A trainer still writes: others get their turn first. Not sooner than after a pause, or those that
 * wait would look without end. */
static int retry_later(struct lora_load *l, struct err *e)
{
    static const struct timespec poll = {.tv_nsec = ADAPTER_POLL_MS * 1000000L};

    (void)nanosleep(&poll, NULL);
    return lora_loads_again(l->app->generate->loads, &l->job, e);
}

/* The source is closed, and the place given back, before the answer: a trainer that was told may
 * send the next thing at once. */
static void load_run(void *arg)
{
    struct lora_load *l = arg;
    struct loaded d = {0};
    struct err e = {0};
    int rc = load_adapter(l, &d, &e);

    if (rc == 1 && retry_later(l, &e) == 0)
        return;
    adapters_cancel(l->place);
    l->place = NULL;
    update_chunk_free(l->chunk);
    l->chunk = NULL;
    lora_loads_end(l->app->generate->loads, &l->job,
                   rc != 0               ? LORA_ON_FAILED
                   : d.outcome.unchanged ? LORA_ON_UNCHANGED
                                         : LORA_ON_LOADED);
    if (rc == 0) {
        warn_non_finite(l, &d);
        log_loaded(l, &d);
        reply_loaded(l, &d);
    } else {
        reply_error(l->x, &e, NULL);
    }
    adapter_report_fini(&d.report);
    load_free(l);
}

/* ---- the request ---- */

/* What a request says beside its tensors; the same members in JSON and in the query. */
struct load_params {
    const char *name, *path;
    bool in_place, pinned, allow_partial, has_if_revision, has_timeout;
    uint64_t if_revision, timeout_s;
};

static const struct load_params load_params_default = {.in_place = true,
                                                       .timeout_s = LORA_TIMEOUT_S_DEFAULT};

/* The three-dimensional tensors of mixtures of experts are none of ours. */
static int params_from_body(struct load_params *w, const json_t *body, struct err *e)
{
    bool three_d = false;

    if (body_required(body, "", "lora_name", e) != 0 ||
        body_str(&w->name, body, "", "lora_name", e) != 0 ||
        body_str(&w->path, body, "", "lora_path", e) != 0 ||
        body_bool(&w->in_place, body, "", "load_inplace", e) != 0 ||
        body_bool(&w->pinned, body, "", "pinned", e) != 0 ||
        body_bool(&w->allow_partial, body, "", "allow_partial", e) != 0 ||
        body_u64(&w->if_revision, body, "", "if_revision", 0, INT64_MAX, e) != 0 ||
        body_u64(&w->timeout_s, body, "", "timeout_s", 0, LORA_TIMEOUT_S_MAX, e) != 0 ||
        body_bool(&three_d, body, "", "is_3d_lora_weight", e) != 0)
        return -1;
    w->has_if_revision = body_given(body, "if_revision") != NULL;
    w->has_timeout = body_given(body, "timeout_s") != NULL;
    if (three_d)
        return err_set(e, ERR_BAD_REQUEST, "/is_3d_lora_weight",
                       "is_3d_lora_weight is true; models with experts are not supported");
    return 0;
}

static int params_from_query(struct load_params *w, const struct http_request *x, struct err *e)
{
    w->name = http_request_query(x, "lora_name");
    w->has_if_revision = http_request_query(x, "if_revision") != NULL;
    if (w->name == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/lora_name",
                       "'lora_name' is required, in the query when the body is tensors");
    if (query_bool(&w->in_place, x, "load_inplace", e) != 0 ||
        query_bool(&w->pinned, x, "pinned", e) != 0 ||
        query_bool(&w->allow_partial, x, "allow_partial", e) != 0 ||
        query_u64(&w->if_revision, x, "if_revision", 0, INT64_MAX, e) != 0 ||
        query_u64(&w->timeout_s, x, "timeout_s", 0, LORA_TIMEOUT_S_MAX, e) != 0)
        return -1;
    return 0;
}

static int load_new(struct lora_load **out, struct app *app, struct http_request *x,
                    const struct load_params *w, struct err *e)
{
    struct lora_load *l = calloc(1, sizeof *l);

    if (l == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to load an adapter");
    l->root = -1;
    l->app = app;
    l->x = x;
    l->allow_partial = w->allow_partial;
    l->deadline_us = clock_after_us(w->timeout_s * 1000000);
    l->appear_us = w->has_timeout ? 0 : clock_after_us(LORA_APPEAR_S * 1000000);
    l->options = (struct adapters_options){.only_new = !w->in_place,
                                           .has_if_revision = w->has_if_revision,
                                           .if_revision = w->if_revision,
                                           .pinned = w->pinned};
    l->name = strdup(w->name);
    l->path = w->path != NULL ? strdup(w->path) : NULL;
    if (l->name == NULL || (w->path != NULL && l->path == NULL)) {
        load_free(l);
        return err_set(e, ERR_NO_MEMORY, "", "no memory to load an adapter");
    }
    l->options.path = l->path;
    *out = l;
    return 0;
}

/* From here on the load's thread answers. */
static int post_load(struct lora_load *l, struct err *e)
{
    if (adapters_begin(l->app->generate->adapters, l->name, &l->options, &l->place, e) != 0)
        return -1;
    l->job = (struct lora_job){.run = load_run, .arg = l, .lane = lora_lane_of(l)};
    return lora_loads_post(l->app->generate->loads, &l->job, e);
}

static int load_from_json(struct app *app, struct http_request *x, const json_t *body,
                          struct err *e)
{
    struct load_params w = load_params_default;
    struct lora_load *l;

    if (params_from_body(&w, body, e) != 0 || load_new(&l, app, x, &w, e) != 0)
        return -1;
    if (lora_open(l, body, e) == 0 && post_load(l, e) == 0)
        return 0;
    load_free(l);
    return -1;
}

static int load_from_stream(struct app *app, struct http_request *x, struct err *e)
{
    struct load_params w = load_params_default;
    struct lora_load *l;

    if (params_from_query(&w, x, e) != 0 || load_new(&l, app, x, &w, e) != 0)
        return -1;
    if (lora_open_stream(l, e) == 0 && post_load(l, e) == 0)
        return 0;
    load_free(l);
    return -1;
}

static int check_app(struct app *app, struct err *e)
{
    if (pause_controller_allows(app->pause_controller, CALL_LORA_LOAD, e) != 0)
        return -1;
    if (app->generate->adapters == NULL)
        return err_set(e, ERR_NO_ENGINE, "",
                       "this server holds weights only (--engine none): it has no adapters");
    return 0;
}

static int refuse_query(const struct http_request *x, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, "",
                   "query member '%.60s': with a JSON body, members stand in the body",
                   x->query[0].name);
}

/* A trainer that is refused may not have waited for the answer before it broadcasts. */
int handle_lora_load(struct app *app, struct http_request *x, struct err *e)
{
    const struct route *route = x->route;
    bool stream = body_is_tensors(x);
    json_t *body = NULL;
    int rc;

    if (check_app(app, e) != 0 ||
        (!stream && ((route->strict && x->n_query > 0 && refuse_query(x, e) != 0) ||
                     body_parse(&body, x, route, e) != 0))) {
        update_refused_unread(app, x);
        return -1;
    }
    if (stream)
        return load_from_stream(app, x, e);
    rc = load_from_json(app, x, body, e);
    if (rc != 0 && body_given(body, "transport") != NULL)
        weight_transfer_doubt(app->weights->transfer,
                              json_string_value(body_given(body, "group_name")));
    json_decref(body);
    return rc;
}
