/* POST /v1/load_lora_adapter: from a PEFT directory, from shared memory, or as the body.
 *
 * The name's place is taken and everything that can be refused at once is, on the handler's thread;
 * the bytes are read on a thread for loads. What served before serves until the last check of the
 * new one has passed. */
#include "base/clock.h"
#include "base/log.h"
#include "base/workers.h"
#include "engine/embedded/adapter_file.h"
#include "engine/embedded/adapters.h"
#include "handlers/app.h"
#include "handlers/body.h"
#include "handlers/control_plane.h"
#include "handlers/lora.h"
#include "handlers/reply.h"
#include "handlers/update_parts.h"
#include "server/config.h"
#include "transport/body.h"
#include "transport/roots.h"
#include "weights/safetensors.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
                                         "adapter_config",
                                         "is_3d_lora_weight",
                                         NULL};
const char *const lora_load_query[] = {
    "lora_name",     "load_inplace", "pinned",         "if_revision",
    "allow_partial", "timeout_s",    "adapter_config", NULL};

/* One load, from the request to its answer. */
struct load {
    struct job job;
    struct app *app;
    struct exchange *x; /* its reference; given up by the answer */
    char *name;         /* owned */
    struct adapters_options options;
    struct adapters_load *place; /* owned until put or cancelled */
    bool allow_partial;
    uint64_t timeout_us;

    char *path;       /* owned; a directory; NULL: tensors come by `source` */
    int root;         /* owned; -1 without a path */
    const char *rest; /* of path, beneath root */

    struct plan *plan;             /* one reference */
    struct source *source;         /* owned */
    struct adapter_config *config; /* owned */
    struct checksum *sums;         /* owned; [plan->n_tensors], or NULL */
    bool *has_sum;
};

static void load_free(struct load *l)
{
    if (l == NULL)
        return;
    adapters_cancel(l->place);
    source_close(l->source);
    plan_unref(l->plan);
    adapter_config_free(l->config);
    free(l->sums);
    free(l->has_sum);
    if (l->root >= 0)
        (void)close(l->root);
    free(l->path);
    free(l->name);
    free(l);
}

/* ---- the answer ---- */

static json_t *told_json(const struct names *names)
{
    json_t *array = json_array();

    for (uint32_t i = 0; i < names->n && i < LORA_NAMES_TOLD_MAX && array != NULL; i++) {
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

static json_t *loaded_json(const struct load *l, const struct loaded *d)
{
    const struct adapter_report *r = &d->report;
    const struct adapters_outcome *o = &d->outcome;

    return json_pack(
        "{s:s, s:s, s:I, s:s, s:b, s:b, s:b, s:I, s:I, s:I, s:I, s:o, s:I, s:o, s:I, s:o, s:I, "
        "s:o, s:I, s:b}",
        "status", "ok", "lora_name", l->name, "revision", (json_int_t)o->revision, "digest",
        d->digest, "unchanged", (int)o->unchanged, "replaced", (int)o->replaced, "pinned",
        (int)l->options.pinned, "rank", (json_int_t)d->rank, "nbytes", (json_int_t)d->nbytes,
        "n_users_older", (json_int_t)o->n_users, "n_matched", (json_int_t)r->matched.n, "matched",
        told_json(&r->matched), "n_unmatched", (json_int_t)r->unmatched.n, "unmatched",
        told_json(&r->unmatched), "n_ignored", (json_int_t)r->ignored.n, "ignored",
        told_json(&r->ignored), "n_missing", (json_int_t)r->missing.n, "missing",
        told_json(&r->missing), "n_config_keys_ignored", (json_int_t)r->n_keys_ignored,
        "base_changed", (int)r->base_changed);
}

/* What was put serves, whatever memory is left to tell of it. */
static void answer_loaded(struct load *l, const struct loaded *d)
{
    static const char bare[] = "{\"status\":\"ok\"}";
    struct exchange_reply r;

    if (!reply_json_make(200, loaded_json(l, d), &r))
        r = (struct exchange_reply){.status = 200,
                                    .content_type = "application/json",
                                    .data = bare,
                                    .len = sizeof bare - 1};
    exchange_reply(l->x, &r);
}

static void log_loaded(const struct load *l, const struct loaded *d)
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

/* ---- the work ---- */

static bool load_gone(void *arg)
{
    return exchange_gone(((struct load *)arg)->x);
}

/* A source looks at `gone` only; a server that stops ends it the same way. */
static bool load_over(void *arg)
{
    const struct load *l = arg;

    return atomic_load_explicit(lora_loads_stopping(l->app->loads), memory_order_relaxed) ||
           exchange_gone(l->x);
}

static struct adapter_spec spec_of(const struct load *l)
{
    const struct adapters_config *cfg = adapters_config_of(l->app->adapters);

    return (struct adapter_spec){
        .model = l->app->model,
        .config = l->config,
        .rank_max = cfg->rank_max,
        .nbytes_max = cfg->nbytes_max < ADAPTER_NBYTES_MAX ? cfg->nbytes_max : ADAPTER_NBYTES_MAX,
        .allow_partial = l->allow_partial};
}

static int take_room(void *arg, uint64_t nbytes, struct err *e)
{
    return adapters_reserve(arg, nbytes, e);
}

static int read_directory(struct load *l, struct adapter **out, struct adapter_report *report,
                          struct err *e)
{
    struct adapter_spec spec = spec_of(l);
    struct adapter_dir dir = {.dirfd = l->root, .path = l->rest, .inside = true};
    struct adapter_room room = {.take = take_room, .arg = l->place};
    struct adapter_wait wait = {.deadline_us = clock_after_us(l->timeout_us),
                                .stop = lora_loads_stopping(l->app->loads),
                                .gone = load_gone,
                                .gone_arg = l};

    return adapter_file_load(out, report, &spec, &dir, &room, &wait, e);
}

static int check_sum(const struct load *l, uint32_t i, const void *bytes, struct err *e)
{
    const struct tensor_spec *t = &l->plan->tensors[i];
    char found[CHECKSUM_LEN + 1], wanted[CHECKSUM_LEN + 1];
    struct checksum sum;

    if (l->sums == NULL || !l->has_sum[i])
        return 0;
    sum = checksum_of(bytes, t->nbytes);
    if (checksum_equal(sum, l->sums[i]))
        return 0;
    checksum_text(&sum, found);
    checksum_text(&l->sums[i], wanted);
    return err_set(e, ERR_CHECKSUM, "", "tensor '%.*s' has checksum %s, not %s",
                   plan_name_cut(t->name), t->name, found, wanted);
}

/* Tensors that are not wanted are read too, into `aside`: a body has them in its way. */
static int fill(struct load *l, struct adapter_builder *b, void *aside, struct err *e)
{
    const struct source_ops *ops = l->source->ops;
    struct progress p = {
        .deadline_us = clock_after_us(l->timeout_us), .gone = load_over, .gone_arg = l};

    atomic_init(&p.tensor, PROGRESS_NO_TENSOR);
    for (uint32_t i = 0; i < l->plan->n_tensors; i++) {
        void *at = adapter_builder_place(b, i);

        at = at != NULL ? at : aside;
        if (ops->fill(l->source, l->plan, i, 1, at, &p, e) != 0 || check_sum(l, i, at, e) != 0)
            return -1;
    }
    return ops->finish != NULL ? ops->finish(l->source, &p, e) : 0;
}

static int fill_all(struct load *l, struct adapter_builder *b, struct err *e)
{
    uint64_t nbytes = 1;
    void *aside;
    int rc;

    if (adapters_reserve(l->place, adapter_builder_nbytes(b), e) != 0 ||
        adapter_builder_reserve(b, e) != 0)
        return -1;
    for (uint32_t i = 0; i < l->plan->n_tensors; i++)
        if (adapter_builder_place(b, i) == NULL && l->plan->tensors[i].nbytes > nbytes)
            nbytes = l->plan->tensors[i].nbytes;
    aside = malloc(nbytes);
    if (aside == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a tensor of %" PRIu64 " bytes", nbytes);
    rc = fill(l, b, aside, e);
    free(aside);
    return rc;
}

static int read_tensors(struct load *l, struct adapter **out, struct adapter_report *report,
                        struct err *e)
{
    struct adapter_spec spec = spec_of(l);
    struct adapter_builder *b;

    if (l->plan->nbytes > spec.nbytes_max)
        return err_set(e, ERR_TOO_LARGE, "",
                       "the tensors have %" PRIu64 " bytes; at most %" PRIu64 " are allowed",
                       l->plan->nbytes, spec.nbytes_max);
    if (adapter_builder_new(&b, &spec, l->plan, e) != 0)
        return -1;
    if (fill_all(l, b, e) != 0) {
        adapter_builder_free(b);
        return -1;
    }
    *out = adapter_builder_finish(b, report);
    return 0;
}

static int load(struct load *l, struct loaded *d, struct err *e)
{
    struct adapters_load *place;
    struct adapter *a;

    if ((l->path != NULL ? read_directory(l, &a, &d->report, e)
                         : read_tensors(l, &a, &d->report, e)) != 0)
        return -1;
    (void)snprintf(d->digest, sizeof d->digest, "%s", adapter_digest(a));
    d->rank = adapter_rank(a);
    d->nbytes = adapter_nbytes(a);
    place = l->place;
    l->place = NULL;
    return adapters_put(place, a, &d->outcome, e);
}

/* The source is closed, and the place given back, before the answer. */
static void load_run(void *arg)
{
    struct load *l = arg;
    struct loaded d = {0};
    struct err e = {0};
    int rc = load(l, &d, &e);

    adapters_cancel(l->place);
    l->place = NULL;
    source_close(l->source);
    l->source = NULL;
    lora_loads_count(l->app->loads, rc != 0               ? LORA_FAILED
                                    : d.outcome.unchanged ? LORA_UNCHANGED
                                                          : LORA_LOADED);
    if (rc == 0) {
        log_loaded(l, &d);
        answer_loaded(l, &d);
    } else {
        reply_error(l->x, &e, NULL);
    }
    adapter_report_fini(&d.report);
    load_free(l);
}

/* ---- the request ---- */

/* What a request says beside its tensors; the same members in JSON and in the query. */
struct words {
    const char *name, *path;
    bool in_place, pinned, allow_partial, has_if_revision;
    uint64_t if_revision, timeout_s;
};

static const struct words words_default = {.in_place = true, .timeout_s = LORA_TIMEOUT_S_DEFAULT};

/* The three-dimensional tensors of mixtures of experts are none of ours. */
static int words_from_body(struct words *w, const json_t *body, struct err *e)
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
    if (three_d)
        return err_set(e, ERR_BAD_REQUEST, "/is_3d_lora_weight",
                       "is_3d_lora_weight is true; models with experts are not supported");
    return 0;
}

static int words_from_query(struct words *w, const struct exchange *x, struct err *e)
{
    w->name = exchange_query(x, "lora_name");
    w->has_if_revision = exchange_query(x, "if_revision") != NULL;
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

static int load_new(struct load **out, struct app *app, struct exchange *x, const struct words *w,
                    struct err *e)
{
    struct load *l = calloc(1, sizeof *l);

    if (l == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to load an adapter");
    l->root = -1;
    l->app = app;
    l->x = x;
    l->allow_partial = w->allow_partial;
    l->timeout_us = w->timeout_s * 1000000;
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

static int open_directory(struct load *l, const json_t *body, struct err *e)
{
    static const char *const others[] = {"names",     "dtypes", "dtype_names",
                                         "shapes",    "sizes",  "packed",
                                         "checksums", "shm",    "adapter_config"};
    const struct config_list *roots = &l->app->config->allow_path;
    char field[32];

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (body_given(body, others[i]) == NULL)
            continue;
        (void)snprintf(field, sizeof field, "/%s", others[i]);
        return err_set(e, ERR_BAD_REQUEST, field,
                       "%s goes with shm; what a directory holds stands in its files", others[i]);
    }
    return roots_open(&l->root, &l->rest, roots->items, roots->n, l->path, "/lora_path", e);
}

/* A file may only be unreadable yet; a request is wrong. */
static int read_config(struct load *l, const char *text, size_t len, struct err *e)
{
    if (adapter_config_parse(&l->config, text, len, e) == 0)
        return 0;
    if (e->code == ERR_UNREADABLE)
        e->code = ERR_BAD_REQUEST;
    return -1;
}

static int config_from_body(struct load *l, const json_t *body, struct err *e)
{
    const json_t *object = NULL;
    struct buf text = {0};
    int rc;

    if (body_required(body, "", "adapter_config", e) != 0 ||
        body_object(&object, body, "", "adapter_config", e) != 0)
        return -1;
    reply_dump(&text, object);
    rc = text.failed ? err_set(e, ERR_NO_MEMORY, "", "no memory for the adapter's config")
                     : read_config(l, text.data, text.len, e);
    buf_fini(&text);
    return rc;
}

static int open_shm(struct load *l, const json_t *body, struct err *e)
{
    if (body_given(body, "shm") == NULL)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "exactly one source is needed: lora_path, or shm with adapter_config and "
                       "names, dtypes, shapes, or a body of type application/vnd.safetensors");
    if (config_from_body(l, body, e) != 0 || plan_from_body(&l->plan, body, NULL, e) != 0 ||
        checksums_add(&l->sums, &l->has_sum, body, "", l->plan, 0, l->plan->n_tensors, e) != 0)
        return -1;
    return shm_from_body(&l->source, body, l->plan, e);
}

/* The config is small beside the tensors, and stands in the query. */
static int open_body(struct load *l, struct err *e)
{
    const char *config = exchange_query(l->x, "adapter_config");
    struct safetensors head = {0};

    if (config == NULL)
        return err_set(e, ERR_BAD_REQUEST, "/adapter_config",
                       "'adapter_config' is required, in the query when the body is tensors");
    if (read_config(l, config, strlen(config), e) != 0 ||
        safetensors_parse(&head, l->x->body, l->x->body_len, l->x->content_length, e) != 0)
        return -1;
    l->plan = plan_ref(head.plan);
    l->sums = head.checksums;
    l->has_sum = head.has_checksum;
    head.checksums = NULL;
    head.has_checksum = NULL;
    safetensors_fini(&head);
    return body_source_new(&l->source, l->x, l->app->config->body_stall_timeout * 1000, e);
}

/* From here on the load's thread answers. */
static int post(struct load *l, struct err *e)
{
    if (adapters_begin(l->app->adapters, l->name, &l->options, &l->place, e) != 0)
        return -1;
    l->job = (struct job){.run = load_run, .arg = l};
    return lora_loads_post(l->app->loads, &l->job, e);
}

static int load_from_json(struct app *app, struct exchange *x, const json_t *body, struct err *e)
{
    struct words w = words_default;
    struct load *l;

    if (words_from_body(&w, body, e) != 0 || load_new(&l, app, x, &w, e) != 0)
        return -1;
    if ((l->path != NULL ? open_directory(l, body, e) : open_shm(l, body, e)) == 0 &&
        post(l, e) == 0)
        return 0;
    load_free(l);
    return -1;
}

static int load_from_stream(struct app *app, struct exchange *x, struct err *e)
{
    struct words w = words_default;
    struct load *l;

    if (words_from_query(&w, x, e) != 0 || load_new(&l, app, x, &w, e) != 0)
        return -1;
    if (open_body(l, e) == 0 && post(l, e) == 0)
        return 0;
    load_free(l);
    return -1;
}

int handle_lora_load(struct app *app, struct exchange *x, struct err *e)
{
    json_t *body = NULL;
    int rc;

    if (app->adapters == NULL)
        return err_set(e, ERR_NO_ENGINE, "",
                       "this server holds weights only (--engine none): it has no adapters");
    if (body_is_tensors(x))
        return load_from_stream(app, x, e);
    if (x->n_query > 0)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "query member '%.60s': with a JSON body, members stand in the body",
                       x->query[0].name);
    if (body_parse(&body, x, x->route, e) != 0)
        return -1;
    rc = load_from_json(app, x, body, e);
    json_decref(body);
    return rc;
}
