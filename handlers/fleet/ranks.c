/* The status with the ranks of all engines, for clients that form a group by counting them. Each
 * engine is asked now, because it may have been restarted with another number of GPUs. */
#include "handlers/fleet/status.h"

#include "fleet/api/upstream_api.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/calls/fleet_request.h"
#include "fleet/members/upstreams.h"
#include "handlers/app.h"
#include "handlers/reply.h"

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

/* A member of SGLang's arguments, as an engine reports it; a baton has it elsewhere in its status.
 */
static json_t *arg_of(const json_t *reply, const char *name)
{
    static const char *const of_model[][2] = {{"model_path", "path"},
                                              {"tokenizer_path", "path"},
                                              {"served_model_name", "name"},
                                              {"context_length", "max_model_len"}};
    const json_t *of_baton = json_object_get(reply, "server_args");

    if (of_baton == NULL)
        return json_object_get(reply, name);
    for (size_t i = 0; i < sizeof of_model / sizeof of_model[0]; i++)
        if (strcmp(of_model[i][0], name) == 0)
            return json_object_get(json_object_get(reply, "model"), of_model[i][1]);
    return json_object_get(of_baton, name);
}

/* Makes null in `args` what this engine does not report alike; takes all from the first engine. */
static void intersect_args(json_t *args, bool first, const struct fleet_result *result)
{
    static const char *const names[] = {"enable_memory_saver",
                                        "enable_return_routed_experts",
                                        "dtype",
                                        "nnodes",
                                        "gpu_id_step",
                                        "base_gpu_id",
                                        "ep_size",
                                        "enable_lora",
                                        "max_lora_rank",
                                        "max_loras_per_batch",
                                        "max_loaded_loras",
                                        "model_path",
                                        "tokenizer_path",
                                        "served_model_name",
                                        "context_length"};
    json_t *reply = json_loadb(result->text, result->text_len, 0, NULL);

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        json_t *value = arg_of(reply, names[i]);

        if (first && value != NULL)
            (void)json_object_set(args, names[i], value);
        else if ((value != NULL || json_object_get(args, names[i]) != NULL) &&
                 !json_equal(json_object_get(args, names[i]), value))
            (void)json_object_set_new(args, names[i], json_null());
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

/* New; JSON null unless the request asks for it. */
static json_t *config_json(struct app *app, const struct http_request *x, struct err *e)
{
    const char *format = http_request_query(x, "config_format");

    return format != NULL && strcmp(format, "json") == 0 ? fleet_vllm_config_json(app, e)
                                                         : json_null();
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
