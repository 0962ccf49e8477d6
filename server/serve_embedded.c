/* The server with weights of its own, built from the bottom up: GPUs, store, update worker, NCCL
 * group, engine, executors, pause controller, listeners. */
#include "base/jobs/workers.h"
#include "base/log.h"
#include "control/admission.h"
#include "control/generations.h"
#include "control/history.h"
#include "control/pause_controller.h"
#include "control/source_threads.h"
#include "control/weight_transfer.h"
#include "fleet/handoff/handoff.h"
#include "memory/device.h"
#include "server/serve.h"
#include "server/serve_priv.h"
#include "weights/delta/pull_chain.h"
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
        .nbytes = info->base.delta ? info->nbytes_sent : info->nbytes_done,
        .nbytes_made = info->base.delta ? info->nbytes_done : 0,
        .base = info->base,
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
        weight_transfer_committed(s->weights.transfer, info);
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

static int build_seeder(struct server *s, struct err *e)
{
    struct seeder_cfg cfg = {.store = s->weights.store,
                             .updates = s->weights.updates,
                             .boot_id = s->life.boot_id,
                             .peers = s->seed_peers,
                             .n_peers = s->n_seed_peers,
                             .authorization = s->seed_authorization,
                             .ca_file = s->config.seed_ca_file,
                             .cidrs = &s->seed_cidrs,
                             .n_connections = (unsigned)s->config.seed_connections,
                             .rate_max = s->config.seed_rate,
                             .stall_us = s->config.body_stall_timeout * 1000};

    if (s->n_seed_peers == 0 && s->seed_cidrs.n == 0)
        return 0;
    return seeder_new(&s->weights.seeder, &cfg, e);
}

int server_build_weights(struct server *s, struct err *e)
{
    static const struct workers_cfg source = {"source", SOURCE_THREADS_MAX, SOURCE_THREADS_MAX,
                                              false};
    static const struct workers_cfg file = {"file", FILE_THREADS, FILE_SENDS_MAX, true};

    s->weights = (struct app_weights){.cuda = &s->cuda,
                                      .nccl = &s->nccl,
                                      .nixl = s->nixl,
                                      .ipc_stats = &s->ipc_stats,
                                      .fetch_rules = s->fetch_rules};
    s->generate = (struct app_generate){.model_name = "", .model_path = ""};
    s->app.weights = &s->weights;
    s->app.generate = &s->generate;
    if (open_devices(s, e) != 0 || open_state(s, e) != 0 || build_store(s, e) != 0 ||
        build_transfer(s, e) != 0 || server_build_engine(s, e) != 0 ||
        generations_new(&s->generate.generations, e) != 0 || build_pause_controller(s, e) != 0)
        return -1;
    if (s->first != NULL) /* it is open until the first weights are served */
        s->app.settings.base_weights = s->config.weights != NULL ? s->config.weights
                                                                 : s->config.model;
    if (pull_chain_new(&s->weights.pulls, e) != 0 || build_seeder(s, e) != 0)
        return -1;
    return source_threads_new(&s->weights.source_threads, &source, e) == 0
               ? source_threads_new(&s->weights.file_threads, &file, e)
               : -1;
}

int server_build_embedded(struct server *s, struct err *e)
{
    if (server_build_weights(s, e) != 0 || server_build_executors(s, e) != 0)
        return -1;
    return listeners_open(&s->listeners, &s->app, s->life.boot_id, e);
}

void server_begin_seed(struct server *s)
{
    struct err e = {0};

    if (s->n_seed_peers > 0 && seeder_begin(s->weights.seeder, NULL, 0, NULL, &e) != 0)
        log_event_line(LOG_ERROR, "weights.seed_failed", "%s", e.msg);
}
