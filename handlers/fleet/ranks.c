/* The status with the ranks of all engines, for clients that form a group by counting them, and
 * with their configuration for clients of vLLM's /server_info: a member has a value if all engines
 * report the same. Each engine is asked now, because it may have been restarted with another number
 * of GPUs. */
#include "handlers/fleet/status.h"

#include "fleet/api/api_json.h"
#include "fleet/api/upstream_api.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/calls/fleet_request.h"
#include "fleet/members/upstreams.h"
#include "handlers/app.h"
#include "handlers/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANKS_TIMEOUT_US = 5000000,
    RANKS_EACH_MAX = 4096 /* of one engine; a larger number is an error */
};

/* What all engines that answer are together. */
struct group_view {
    json_t *ranks; /* [{"rank", "upstream"}], in the order of the upstreams, as in a group */
    json_t *args;  /* {…}: what all engines report alike */
    uint64_t n_gpus;
};

/* @n_gpus  raised by those of this engine */
static int read_ranks(const struct fleet_result *result, uint64_t *out, uint64_t *n_gpus,
                      struct err *e)
{
    struct err why = {0};

    if (result->outcome != FLEET_OK || result->text == NULL) {
        why = result->why;
    } else if (api_read_ranks(out, upstream_kind(result->upstream), result->text, result->text_len,
                              &why) == 0) {
        if (*out <= RANKS_EACH_MAX) {
            *n_gpus += *out;
            *out += *out == 0; /* a baton without a GPU, as in its own world size */
            return 0;
        }
        (void)err_set(&why, ERR_UPSTREAM, "", "it reports %llu ranks", (unsigned long long)*out);
    }
    return err_set(e, ERR_UPSTREAM, "", "%.200s does not report its number of ranks: %.250s",
                   upstream_name(result->upstream), why.msg);
}

static int add_ranks(struct group_view *view, const struct fleet_result *result, struct err *e)
{
    uint64_t n = 0;

    if (read_ranks(result, &n, &view->n_gpus, e) != 0)
        return -1;
    for (uint64_t i = 0; i < n; i++)
        if (json_array_append_new(view->ranks,
                                  json_pack("{s:I, s:s}", "rank",
                                            (json_int_t)json_array_size(view->ranks), "upstream",
                                            upstream_name(result->upstream))) != 0)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for the ranks");
    return 0;
}

/* SGLang's arguments that clients read. */
static const struct server_arg {
    const char *name, *of_model; /* of_model: a baton has it in `model`, by this name; or NULL */
} server_args[] = {
    {"enable_memory_saver", NULL},
    {"enable_return_routed_experts", NULL},
    {"dtype", NULL},
    {"nnodes", NULL},
    {"gpu_id_step", NULL},
    {"base_gpu_id", NULL},
    {"ep_size", NULL},
    {"enable_lora", NULL},
    {"max_lora_rank", NULL},
    {"max_loras_per_batch", NULL},
    {"max_loaded_loras", NULL},
    {"model_path", "path"},
    {"tokenizer_path", "path"},
    {"served_model_name", "name"},
    {"context_length", "max_model_len"},
};

/* As an engine reports it. */
static json_t *arg_of(const json_t *reply, const struct server_arg *arg)
{
    const json_t *of_baton = json_object_get(reply, "server_args");

    if (of_baton == NULL)
        return json_object_get(reply, arg->name);
    if (arg->of_model != NULL)
        return json_object_get(json_object_get(reply, "model"), arg->of_model);
    return json_object_get(of_baton, arg->name);
}

/* Makes null in `args` what this engine does not report alike; takes all from the first engine. */
static void intersect_args(json_t *args, bool first, const struct fleet_result *result)
{
    json_t *reply = json_loadb(result->text, result->text_len, 0, NULL);

    for (size_t i = 0; i < sizeof server_args / sizeof server_args[0]; i++) {
        const char *name = server_args[i].name;
        json_t *value = arg_of(reply, &server_args[i]), *before = json_object_get(args, name);

        if (first && value != NULL)
            (void)json_object_set(args, name, value);
        else if ((value != NULL || before != NULL) && !json_equal(before, value))
            (void)json_object_set_new(args, name, json_null());
    }
    json_decref(reply);
}

/* SGLang's arguments are those that all engines report; sleep works whatever they report. */
static int put_args(struct app *app, json_t *status, json_t *args)
{
    json_t *own = json_object_get(status, "server_args");

    (void)json_object_del(own, "enable_return_routed_experts");
    if (app->settings.sglang_memory_saver)
        (void)json_object_del(args, "enable_memory_saver");
    if (app->settings.sglang_base_gpu_id != UINT64_MAX)
        (void)json_object_del(args, "base_gpu_id");
    return json_object_update(own, args);
}

static int query_ranks(struct app *app, struct group_view *view, struct err *e)
{
    upstream_list_auto *all = upstreams_list(app->fleet->upstreams);
    struct fleet_target targets[FLEET_MAX];
    fleet_results_auto results = {0};
    size_t n;
    int rc = 0;

    if (fleet_reachable_quorum(app->fleet->control, all, NULL, targets, &n, e) != 0 ||
        fleet_query(app->fleet->control, API_GET_RANKS, targets, n, RANKS_TIMEOUT_US, &results,
                    e) != 0)
        return -1;
    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = add_ranks(view, &results.list[i], e);
        intersect_args(view->args, i == 0, &results.list[i]);
    }
    return rc;
}

/* a vLLM's configuration */

enum {
    VALUE_SHOWN_MAX = 100, /* bytes of a value that differs */
    PATH_MAX_NBYTES = 64
};

/* Members that clients use. */
static const struct config_member {
    const char *section, *member; /* section NULL: a member of the object itself */
} members[] = {
    {"model_config", "model"},
    {"model_config", "max_model_len"},
    {"model_config", "dtype"},
    {"model_config", "logprobs_mode"},
    {"model_config", "max_logprobs"},
    {"parallel_config", "data_parallel_size"},
    {NULL, "lora_config"},
    {NULL, "weight_transfer_config"},
};

struct engine_config {
    const char *name; /* the engine's; until upstreams_free */
    json_t *config;   /* owned; NULL: not reported, `why` has the reason */
    struct err why;
};

static json_t *section_of(json_t *config, const struct config_member *m)
{
    return m->section != NULL ? json_object_get(config, m->section) : config;
}

/* Borrowed; NULL: it does not report it. */
static json_t *value_of(const struct engine_config *configs, const struct config_member *m)
{
    return json_object_get(section_of(configs->config, m), m->member);
}

static json_t *difference(const struct engine_config *a, const struct engine_config *b,
                          const struct config_member *m)
{
    char *of_a = json_dumps(value_of(a, m), JSON_ENCODE_ANY | JSON_COMPACT);
    char *of_b = json_dumps(value_of(b, m), JSON_ENCODE_ANY | JSON_COMPACT);
    json_t *text = json_sprintf("%s has %.*s, %s has %.*s", a->name, VALUE_SHOWN_MAX,
                                of_a != NULL ? of_a : "", b->name, VALUE_SHOWN_MAX,
                                of_b != NULL ? of_b : "");

    free(of_a);
    free(of_b);
    return text != NULL ? text : json_string("the upstreams differ");
}

/* Why there is no common value (new); NULL: there is one. */
static json_t *disagreement(const struct engine_config *configs, size_t n,
                            const struct config_member *m)
{
    for (size_t i = 0; i < n; i++) {
        if (configs[i].config == NULL)
            return json_string(configs[i].why.msg);
        if (value_of(&configs[i], m) == NULL)
            return json_sprintf("%s does not report it", configs[i].name);
        if (!json_equal(value_of(&configs[i], m), value_of(&configs[0], m)))
            return difference(&configs[0], &configs[i], m);
    }
    return n > 0 ? NULL : json_string("no upstream replied");
}

static int add_member(json_t *out, const struct engine_config *configs, size_t n,
                      const struct config_member *m)
{
    json_t *why = disagreement(configs, n, m);
    json_t *value = why == NULL ? json_incref(value_of(&configs[0], m)) : json_null();
    char path[PATH_MAX_NBYTES];

    (void)snprintf(path, sizeof path, "%s%s%s", m->section != NULL ? m->section : "",
                   m->section != NULL ? "." : "", m->member);
    if (why != NULL && json_object_set_new(json_object_get(out, "unknown"), path, why) != 0) {
        json_decref(value);
        return -1;
    }
    return json_object_set_new(section_of(out, m), m->member, value);
}

static json_t *common_json(const struct engine_config *configs, size_t n, struct err *e)
{
    json_t *out = json_pack("{s:{}, s:{}, s:{}}", "model_config", "parallel_config", "unknown");
    bool whole = out != NULL;

    for (size_t i = 0; i < sizeof members / sizeof members[0] && whole; i++)
        whole = add_member(out, configs, n, &members[i]) == 0;
    if (whole)
        return out;
    json_decref(out);
    (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the upstreams' configuration");
    return NULL;
}

static void read_engine_config(struct engine_config *out, const struct fleet_result *result)
{
    struct err e = {0};

    out->name = upstream_name(result->upstream);
    out->why = result->why;
    if (result->outcome != FLEET_OK)
        return;
    out->config = api_read_config(upstream_kind(result->upstream), result->text, result->text_len,
                                  &e);
    if (out->config == NULL)
        (void)err_set(&out->why, e.code, "", "%.200s: %.250s", upstream_name(result->upstream),
                      e.msg);
}

/* The members of a vLLM's configuration that its clients use (new): the value on which all
 * reachable engines agree, or null; then `unknown` has the reason by the member's name. */
static json_t *vllm_config_json(const struct app *app, struct err *e)
{
    struct fleet_control *fc = app->fleet->control;
    upstream_list_auto *all = upstreams_list(app->fleet->upstreams);
    struct fleet_target targets[FLEET_MAX];
    struct engine_config *configs = calloc(FLEET_MAX, sizeof *configs);
    fleet_results_auto results = {0};
    json_t *out = NULL;
    size_t n = fleet_reachable(fc, all, NULL, targets);

    if (configs == NULL)
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for requests to the upstreams");
    else if (fleet_query(fc, API_GET_CONFIG, targets, n, FLEET_CONFIG_US, &results, e) == 0) {
        for (size_t i = 0; i < n; i++)
            read_engine_config(&configs[i], &results.list[i]);
        out = common_json(configs, n, e);
        for (size_t i = 0; i < n; i++)
            json_decref(configs[i].config);
    }
    free(configs);
    return out;
}

/* the reply */

/* New; JSON null unless the request asks for it. */
static json_t *config_json(struct app *app, const struct http_request *x, struct err *e)
{
    const char *format = http_request_query(x, "config_format");

    return format != NULL && strcmp(format, "json") == 0 ? vllm_config_json(app, e) : json_null();
}

int handle_fleet_ranks(struct app *app, struct http_request *x, struct err *e)
{
    struct group_view view = {.ranks = json_array(), .args = json_object()};
    json_t *config = NULL, *status;
    int rc = -1;

    if (view.ranks == NULL || view.args == NULL)
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the ranks");
    else if (query_ranks(app, &view, e) == 0)
        config = config_json(app, x, e);
    if (config != NULL) {
        rc = 0;
        status = fleet_status_json(app);
        if (status == NULL ||
            json_object_set_new(status, "cuda",
                                json_pack("{s:O, s:I}", "ranks", view.ranks, "n_gpus",
                                          (json_int_t)view.n_gpus)) != 0 ||
            json_object_set(status, "vllm_config", config) != 0 ||
            put_args(app, status, view.args) != 0) {
            json_decref(status);
            status = NULL;
        }
        reply_json(x, 200, status);
    }
    json_decref(view.ranks);
    json_decref(view.args);
    json_decref(config);
    return rc;
}
