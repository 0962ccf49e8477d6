/* The engines' configuration for clients of vLLM's /server_info: a member has a value if all
 * engines report the same. */
#include "fleet/api/api_json.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/calls/fleet_request.h"
#include "fleet/members/upstreams.h"
#include "handlers/app.h"
#include "handlers/fleet/status.h"

#include <stdio.h>
#include <stdlib.h>

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

static void read_config(struct engine_config *out, const struct fleet_result *result)
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

json_t *fleet_vllm_config_json(const struct app *app, struct err *e)
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
            read_config(&configs[i], &results.list[i]);
        out = common_json(configs, n, e);
        for (size_t i = 0; i < n; i++)
            json_decref(configs[i].config);
    }
    free(configs);
    return out;
}
