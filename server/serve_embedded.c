/* The server with weights of its own, built from the bottom up: GPUs, store, update worker, NCCL
 * group, engine, executors, pause controller, listeners. */
#include "base/jobs/workers.h"
#include "base/log.h"
#include "control/admission.h"
#include "control/generations.h"
#include "control/history.h"
#include "control/lora_loads.h"
#include "control/pause_controller.h"
#include "control/weight_transfer.h"
#include "control/zmq_threads.h"
#include "engine/lora/adapters.h"
#include "engine/scheduler/embedded.h"
#include "fleet/handoff/handoff.h"
#include "handlers/lora_view.h"
#include "memory/device.h"
#include "server/serve.h"
#include "server/serve_priv.h"
#include "weights/state/state_dir.h"
#include "weights/store/leases.h"
#include "weights/update/update.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int open_devices(struct server *s, struct err *e)
{
    for (uint32_t rank = 0; rank < s->device_list.n; rank++) {
        const struct cuda_device *about = &s->cuda.devices[s->device_list.index[rank]];

        if (device_new(&s->devices[rank], &s->cuda.api, about, e) != 0)
            return -1;
        s->weights.devices = s->devices;
        s->weights.n_devices = rank + 1;
    }
    return 0;
}

static int open_state(struct server *s, struct err *e)
{
    const struct config *c = &s->config;

    if (c->state_dir == NULL || state_dir_open(&s->weights.state, c->state_dir,
                                               (uint32_t)c->snapshot, s->model_spec, e) == 0)
        return 0;
    return serve_option_error(e, "--state-dir", c->state_dir);
}

static void update_ended(void *server, const struct update_info *info)
{
    struct server *s = server;
    struct update_record r = {
        .outcome = info->phase == UPDATE_COMMITTED ? OUTCOME_COMMITTED : OUTCOME_ABORTED,
        .serial = info->serial,
        .nbytes = info->nbytes_done,
        .n_tensors = info->n_tensors_done,
        .n_checksums = info->n_checksums,
        .source = info->source,
        .changes = info->changes,
        .times = {.receive_us = info->receive_us,
                  .proof_us = info->verify_us,
                  .commit_us = info->commit_us,
                  .whole_us = info->whole_us},
        .error = info->error,
        .actor = info->actor,
    };

    memcpy(r.update_id, info->id, sizeof r.update_id);
    memcpy(r.weight_version, info->label, sizeof r.weight_version);
    history_add_update(s->app.history, &r);
    if (s->weights.transfer != NULL && info->group_list != NULL)
        weight_transfer_keep_list(s->weights.transfer, info->group_list, info->group);
}

/* The first weights do not wait for upstreams, which may start later than this server. */
static int hand_version_over(void *server, uint64_t serial, struct err *e)
{
    struct server *s = server;

    if (life_state(&s->life) != LIFE_STARTING)
        return handoff_version(s->fleet.handoff, serial, e);
    handoff_want(s->fleet.handoff, serial);
    return 0;
}

static int build_store(struct server *s, struct err *e)
{
    const struct config *c = &s->config;
    struct app_weights *w = &s->weights;
    struct store_cfg store_cfg = {
        .model_spec = s->model_spec,
        .n_versions_max = (uint32_t)c->max_versions,
        .nbytes_max = c->max_weight_bytes > 0 ? c->max_weight_bytes : UINT64_MAX,
        .devices = w->devices,
        .n_devices = w->n_devices,
        .mirror = server_has_engine(s),
        .sharded = config_is_sharded(c),
        .host_memory = config_stage_is_host(c),
    };
    struct updates_cfg updates_cfg = {
        .receive_timeout_us = c->update_timeout * 1000,
        .pin_timeout_us = c->pin_timeout * 1000,
    };

    (void)non_finite_policy_parse(&updates_cfg.non_finite, c->non_finite); /* config checked it */
    if (w->state != NULL)
        store_cfg.journal = state_dir_journal(w->state);
    s->model_spec = NULL; /* moved into the store, also when that fails */
    if (store_new(&w->store, &store_cfg, e) != 0 || leases_new(&w->leases, w->store, e) != 0)
        return -1;
    updates_cfg.store = w->store;
    updates_cfg.on_end = update_ended;
    updates_cfg.end_arg = s;
    if (config_has_stage(c)) {
        updates_cfg.on_commit = hand_version_over;
        updates_cfg.commit_arg = s;
    }
    if (updates_new(&w->updates, &updates_cfg, e) != 0)
        return -1;
    w->lists = updates_lists(w->updates);
    return 0;
}

static int build_transfer(struct server *s, struct err *e)
{
    struct weight_transfer_cfg cfg = {
        .nccl = &s->nccl,
        .devices = s->weights.devices,
        .n_devices = s->weights.n_devices,
        .allow = &s->nccl_allow,
        .join_timeout_us = s->config.join_timeout * 1000,
    };

    return weight_transfer_new(&s->weights.transfer, &cfg, e);
}

static int build_adapters(struct server *s, struct err *e)
{
    const struct config *c = &s->config;
    struct adapters_config cfg = {.n_max = (uint32_t)c->max_loras,
                                  .rank_max = (uint32_t)c->max_lora_rank,
                                  .nbytes_max = c->max_lora_bytes,
                                  .base_names = s->generate.base_names};

    (void)non_finite_policy_parse(&cfg.non_finite, c->non_finite);
    s->generate.model = &s->model;
    if (adapters_new(&s->generate.adapters, &cfg, e) != 0)
        return -1;
    s->generate.lora = &lora_view;
    return lora_loads_new(&s->generate.loads, e);
}

/* An absolute path as given; a relative one resolved, since clients have other working directories.
 */
static void absolute_path(const char *path, char *out, size_t cap)
{
    char whole[SERVER_PATH_MAX];

    if (path[0] == '/' || realpath(path, whole) == NULL)
        (void)snprintf(out, cap, "%s", path);
    else
        (void)snprintf(out, cap, "%s", whole);
}

/* The last component of the directory, without trailing slashes. */
static void base_name(const char *path, char *out, size_t cap)
{
    char whole[SERVER_PATH_MAX];
    char *slash;
    size_t len;

    if (realpath(path, whole) == NULL) /* also turns ".." into a name */
        (void)snprintf(whole, sizeof whole, "%s", path);
    len = strlen(whole);
    while (len > 1 && whole[len - 1] == '/')
        whole[--len] = '\0';
    slash = strrchr(whole, '/');
    (void)snprintf(out, cap, "%s", slash != NULL && slash[1] != '\0' ? slash + 1 : whole);
}

/* What handlers know of the model. */
static void describe_model(struct server *s)
{
    const struct config *c = &s->config;
    struct app_generate *g = &s->generate;

    g->engine->ops->info(g->engine, &g->info);
    g->tokenizer = s->tokenizer;
    g->chat = s->chat;
    g->chat_why = &s->chat_why;
    g->defaults = strcmp(c->generation_config, "auto") == 0 ? &s->model.defaults : NULL;
    g->vocab_size = g->info.vocab_size;
    g->max_model_len = g->info.max_model_len;
    base_name(c->model, s->model_name, sizeof s->model_name);
    g->model_name = c->served_model_name != NULL ? c->served_model_name : s->model_name;
    absolute_path(c->model, s->model_path, sizeof s->model_path);
    g->model_path = s->model_path;
    s->base_names[0] = g->model_name;
    s->base_names[1] = c->model;
    s->base_names[2] = g->model_path;
    g->base_names = s->base_names;
}

/* Every reply would be refused. */
static int check_routed_experts(const struct server *s, struct err *e)
{
    const struct config *c = &s->config;

    if (s->app.settings.routed_experts == ROUTED_EXPERTS_ON_REQUEST ||
        s->generate.info.n_route_layers > 0)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "--return-routed-experts",
                   "'%s' needs a model with experts, and %s; leave it out",
                   c->return_routed_experts,
                   s->generate.engine != NULL ? "this one has none" : "there is no engine");
}

static int build_engine(struct server *s, struct err *e)
{
    const struct config *c = &s->config;
    struct embedded_cfg cfg = {
        .model_path = c->model,
        .model = &s->model,
        .store = s->weights.store,
        .tokenizer = s->tokenizer,
        .n_threads = (uint32_t)c->engine_threads,
        .pin_threads = c->engine_pin,
        .n_running_max = (uint32_t)c->max_num_seqs,
        .n_step_tokens_max = (uint32_t)c->max_num_batched_tokens,
        .max_model_len = (uint32_t)c->max_model_len,
        .kv_nbytes_max = c->kv_cache,
        .adapter_rank_max = (uint32_t)c->max_lora_rank,
    };

    if (!server_has_engine(s))
        return check_routed_experts(s, e);
    if (embedded_new(&s->generate.engine, &cfg, e) != 0)
        return -1;
    describe_model(s);
    return check_routed_experts(s, e) != 0 ? -1 : build_adapters(s, e);
}

static int build_pause_controller(struct server *s, struct err *e)
{
    const struct config *c = &s->config;
    struct app_generate *g = &s->generate;
    struct pause_controller_cfg cfg = {
        .life = &s->life,
        .store = s->weights.store,
        .updates = s->weights.updates,
        .leases = s->weights.leases,
        .engine = g->engine,
        .generations = g->generations,
        .sleep_timeout_us = c->pin_timeout * 1000,
    };

    if (admission_new(&g->admission, "generate", c->generate_concurrency, c->generate_queue, e) !=
            0 ||
        admission_new(&g->text_admission, "detokenize", c->detokenize_concurrency,
                      c->detokenize_queue, e) != 0 ||
        admission_new(&g->prompt_admission, "completions", c->detokenize_concurrency,
                      c->generate_queue + c->generate_concurrency, e) != 0)
        return -1;
    cfg.generate = g->admission;
    return pause_controller_new(&s->app.pause_controller, &cfg, e);
}

int server_build_weights(struct server *s, struct err *e)
{
    s->weights = (struct app_weights){
        .cuda = &s->cuda, .nccl = &s->nccl, .ipc_stats = &s->ipc_stats};
    s->generate = (struct app_generate){.model_name = "", .model_path = ""};
    s->app.weights = &s->weights;
    s->app.generate = &s->generate;
    if (open_devices(s, e) != 0 || open_state(s, e) != 0 || build_store(s, e) != 0 ||
        build_transfer(s, e) != 0 || build_engine(s, e) != 0 ||
        generations_new(&s->generate.generations, e) != 0 || build_pause_controller(s, e) != 0)
        return -1;
    return zmq_threads_new(&s->weights.zmq, e);
}

int server_build_embedded(struct server *s, struct err *e)
{
    if (server_build_weights(s, e) != 0 || server_build_executors(s, e) != 0)
        return -1;
    return listeners_open(&s->listeners, &s->app, s->life.boot_id, e);
}
