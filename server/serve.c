/* The server from first to last: rooms are built from the bottom up, the HTTP server starts last,
 * and everything is taken down in reverse. The first weights go in through the same update path as
 * any later ones, so that what is checked for a trainer is checked at start too. */
#include "server/serve.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/net/cidr.h"
#include "base/workers.h"
#include "control/admission.h"
#include "control/generations.h"
#include "control/life.h"
#include "control/lora_loads.h"
#include "control/metrics.h"
#include "control/pause_controller.h"
#include "control/weight_transfer.h"
#include "driver/cuda_info.h"
#include "driver/nccl_info.h"
#include "engine/lora/adapters.h"
#include "engine/scheduler/embedded.h"
#include "fleet/fleet_control.h"
#include "fleet/fleet_reconcile.h"
#include "fleet/members/upstreams.h"
#include "fleet/proxy/proxy.h"
#include "handlers/app.h"
#include "handlers/dialect.h"
#include "handlers/route.h"
#include "handlers/update/update_zmq.h"
#include "handlers/update_members.h"
#include "memory/device.h"
#include "memory/device_list.h"
#include "server/config/config.h"
#include "server/first_push.h"
#include "server/model_dir.h"
#include "server/serve_fleet.h"
#include "server/serve_listen.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "transport/file.h"
#include "transport/ipc/cuda_ipc.h"
#include "weights/store/leases.h"
#include "weights/update/coverage.h"
#include "weights/update/update.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PATH_LEN_MAX = 4096,
    SLAB_VERSIONS = 2 /* served and staging: what fits by default */
};

_Static_assert((int)CUDA_DEVICES_MAX <= (int)STORE_DEVICES_MAX, "every GPU can be a rank");

/* Everything that serve builds; each pointer owned; NULL until made. */
struct server {
    struct life life;
    struct app app;
    struct app_weights weights;   /* app.weights, or zeroed */
    struct app_generate generate; /* app.generate, or zeroed */
    struct app_fleet fleet;       /* app.fleet, or zeroed */
    struct cuda_info cuda;
    struct device_list list;                   /* --device, among cuda.devices */
    struct device *devices[STORE_DEVICES_MAX]; /* app.n_devices of them, by rank */
    struct cuda_ipc_stats ipc_stats;
    struct nccl_info nccl;
    struct cidr_list trainers; /* --nccl-allow-cidr */
    struct listeners listeners;
    struct model_config model;
    struct model_spec *model_spec; /* until the store takes it */
    struct source *first;          /* of the first weights, until they are pushed */
    struct file_weights first_weights;
    struct tokenizer *tokenizer;
    struct chat_template *chat; /* NULL: chat_why says why */
    struct err chat_why;
    char model_name[PATH_LEN_MAX], model_path[PATH_LEN_MAX];
    const char *base_names[2];    /* what the base model is called, which no adapter may be */
    struct config config;         /* as given, with what is resolved once */
    char *roots[CONFIG_LIST_MAX]; /* owned: --allow-path as real, absolute directories */
};

/* As it is given if that holds wherever a reader of it was started, else the whole path. */
static void absolute_path(const char *path, char *out, size_t cap)
{
    char whole[PATH_LEN_MAX];

    if (path[0] == '/' || realpath(path, whole) == NULL)
        (void)snprintf(out, cap, "%s", path);
    else
        (void)snprintf(out, cap, "%s", whole);
}

/* The directory's last part, without trailing slashes. */
static void base_name(const char *path, char *out, size_t cap)
{
    char whole[PATH_LEN_MAX];
    char *slash;
    size_t len;

    if (realpath(path, whole) == NULL) /* so that ".." has a name too */
        (void)snprintf(whole, sizeof whole, "%s", path);
    len = strlen(whole);
    while (len > 1 && whole[len - 1] == '/')
        whole[--len] = '\0';
    slash = strrchr(whole, '/');
    (void)snprintf(out, cap, "%s", slash != NULL && slash[1] != '\0' ? slash + 1 : whole);
}

int serve_blame(struct err *e, const char *option, const char *value)
{
    struct err cause = *e;
    const char *field = strcmp(cause.field, "/path") == 0 ? "" : cause.field; /* a request's */
    bool named = strstr(cause.msg, value) != NULL;

    err_clear(e);
    return err_set(e, cause.code, option, "%.200s%s%s%s%.400s", named ? "" : value,
                   named ? "" : ": ", field, field[0] != '\0' ? ": " : "", cause.msg);
}

/* --weights, or the model's own, or nothing. */
static int open_first_weights(struct server *h, const struct config *c, struct err *e)
{
    const char *path = c->weights;
    bool has = path != NULL;

    if (path != NULL && strcmp(path, "none") == 0)
        return 0;
    if (path == NULL && c->model != NULL &&
        model_dir_weights(&has, c->model, "start without weights by --weights none", e) != 0)
        return serve_blame(e, "--model", c->model);
    if (!has)
        return 0;
    if (file_source_open_local(&h->first, &h->first_weights, path != NULL ? path : c->model, e) ==
        0)
        return 0;
    return serve_blame(e, path != NULL ? "--weights" : "--model", path != NULL ? path : c->model);
}

static bool has_engine(const struct config *c)
{
    return strcmp(c->engine, "none") != 0;
}

/* A chat template that is not supported takes one route away, not the server. */
static void load_chat(struct server *h, const struct config *c)
{
    struct log_rec r;

    if (chat_template_load(&h->chat, c->model, &h->chat_why) == 0)
        return;
    if (h->chat_why.code == ERR_NOT_FOUND)
        return;
    log_begin(&r, LOG_WARN, "chat_template.refused");
    log_str(&r, "why", h->chat_why.msg);
    log_end(&r);
}

static int build_model_spec(struct server *h, const struct config *c, struct err *e)
{
    if (!has_engine(c)) {
        if (c->model_spec == NULL)
            return err_set(e, ERR_BAD_REQUEST, "--manifest",
                           "--engine none needs --manifest FILE: what must an update cover?");
        return model_spec_load(&h->model_spec, c->model_spec, e) == 0
                   ? 0
                   : serve_blame(e, "--manifest", c->model_spec);
    }
    if (strcmp(c->engine, "embedded") != 0)
        return err_set(e, ERR_BAD_REQUEST, "--engine",
                       "engine '%.32s' is not one of embedded, none", c->engine);
    if (c->model == NULL)
        return err_set(
            e, ERR_BAD_REQUEST, "--model",
            "it is missing; a Hugging Face model directory is expected, as in 'baton serve "
            "--model DIR'");
    if (model_dir_check(c->model, e) != 0 || model_config_load(&h->model, c->model, e) != 0 ||
        tokenizer_load(&h->tokenizer, c->model, e) != 0)
        return serve_blame(e, "--model", c->model);
    load_chat(h, c);
    return model_spec_of_config(&h->model_spec, &h->model, h->first_weights.tensor_list, e);
}

/* GPUs that are too small for one version are known before anything touches them. Several may be
 * meant to share one (placement: sharded). */
static int choose_devices(struct server *h, const struct config *c, struct err *e)
{
    uint64_t needed = h->model_spec->tensor_list->nbytes, total = 0;

    if (device_list_parse(&h->list, c->device, &h->cuda, e) != 0)
        return -1;
    for (uint32_t rank = 0; rank < h->list.n; rank++)
        total += h->cuda.devices[h->list.index[rank]].nbytes_total;
    if (h->list.n == 0 || needed <= total)
        return 0;
    if (h->list.n > 1)
        return err_set(e, ERR_NO_STAGING, "--device",
                       "one version of the weights has %llu bytes, these %u GPUs together have "
                       "%llu",
                       (unsigned long long)needed, (unsigned)h->list.n, (unsigned long long)total);
    return err_set(e, ERR_NO_STAGING, "--device",
                   "one version of the weights has %llu bytes, cuda:%d has %llu",
                   (unsigned long long)needed, h->cuda.devices[h->list.index[0]].ordinal,
                   (unsigned long long)total);
}

static int open_devices(struct server *h, struct err *e)
{
    h->weights.ipc_stats = &h->ipc_stats;
    for (uint32_t rank = 0; rank < h->list.n; rank++) {
        const struct cuda_device *about = &h->cuda.devices[h->list.index[rank]];

        if (device_new(&h->devices[rank], &h->cuda.api, about, e) != 0)
            return -1;
        h->weights.devices = h->devices;
        h->weights.n_devices = rank + 1;
    }
    return 0;
}

static int build_store(struct server *h, const struct config *c, struct err *e)
{
    struct store_cfg store_cfg = {
        .model_spec = h->model_spec,
        .n_versions_max = (uint32_t)c->max_versions,
        .nbytes_max = c->max_weight_bytes > 0 ? c->max_weight_bytes : UINT64_MAX,
        .devices = h->weights.devices,
        .n_devices = h->weights.n_devices,
        .mirror = has_engine(c),
    };
    struct updates_cfg updates_cfg = {
        .receive_timeout_us = c->update_timeout * 1000,
        .pin_timeout_us = c->pin_timeout * 1000,
    };

    (void)non_finite_policy_parse(&updates_cfg.non_finite, c->non_finite); /* is one of the words */
    h->model_spec = NULL; /* moved in, also on failure */
    if (store_new(&h->weights.store, &store_cfg, e) != 0 ||
        leases_new(&h->weights.leases, h->weights.store, e) != 0)
        return -1;
    updates_cfg.store = h->weights.store;
    if (updates_new(&h->weights.updates, &updates_cfg, e) != 0)
        return -1;
    h->weights.lists = updates_lists(h->weights.updates);
    return 0;
}

static int build_transfer(struct server *h, const struct config *c, struct err *e)
{
    struct weight_transfer_cfg cfg = {
        .nccl = &h->nccl,
        .devices = h->weights.devices,
        .n_devices = h->weights.n_devices,
        .allow = &h->trainers,
        .join_timeout_us = c->join_timeout * 1000,
    };

    return weight_transfer_new(&h->weights.transfer, &cfg, e);
}

static int build_adapters(struct server *h, const struct config *c, struct err *e)
{
    struct adapters_config cfg = {.n_max = (uint32_t)c->max_loras,
                                  .rank_max = (uint32_t)c->max_lora_rank,
                                  .nbytes_max = c->max_lora_bytes,
                                  .base_names = h->base_names};

    (void)non_finite_policy_parse(&cfg.non_finite, c->non_finite);
    h->base_names[0] = h->generate.model_name;
    h->generate.model = &h->model;
    if (adapters_new(&h->generate.adapters, &cfg, e) != 0)
        return -1;
    return lora_loads_new(&h->generate.loads, e);
}

static int build_engine(struct server *h, const struct config *c, struct err *e)
{
    struct embedded_cfg cfg = {
        .model_path = c->model,
        .model = &h->model,
        .store = h->weights.store,
        .tokenizer = h->tokenizer,
        .n_threads = (uint32_t)c->engine_threads,
        .pin_threads = c->engine_pin,
        .n_running_max = (uint32_t)c->max_num_seqs,
        .n_step_tokens_max = (uint32_t)c->max_num_batched_tokens,
        .max_model_len = (uint32_t)c->max_model_len,
        .kv_nbytes_max = c->kv_cache,
        .adapter_rank_max = (uint32_t)c->max_lora_rank,
    };
    struct engine_info info;

    if (!has_engine(c))
        return 0;
    if (c->on_update != NULL &&
        gen_on_update_parse(&h->app.settings.on_update, c->on_update, "--on-update", e) != 0)
        return -1;
    if (strcmp(c->logprobs_mode, gen_logprobs_mode_name(GEN_LOGPROBS_PROCESSED)) == 0)
        h->app.settings.logprobs_mode = GEN_LOGPROBS_PROCESSED;
    h->app.settings.max_logprobs = c->max_logprobs;
    if (embedded_new(&h->generate.engine, &cfg, e) != 0)
        return -1;
    h->generate.engine->ops->info(h->generate.engine, &info);
    h->generate.tokenizer = h->tokenizer;
    h->generate.chat = h->chat;
    h->generate.chat_why = &h->chat_why;
    h->generate.defaults = &h->model.defaults;
    h->generate.vocab_size = info.vocab_size;
    h->generate.max_model_len = info.max_model_len;
    base_name(c->model, h->model_name, sizeof h->model_name);
    h->generate.model_name = c->served_model_name != NULL ? c->served_model_name : h->model_name;
    absolute_path(c->model, h->model_path, sizeof h->model_path);
    h->generate.model_path = h->model_path;
    return build_adapters(h, c, e);
}

/* In front of upstreams these threads do nothing but wait for them, or for a lock. */
enum { FLEET_THREADS = 16 };

static const char *route_operation_id(size_t i)
{
    return routes[i].operation_id;
}

static int build_pools(struct server *h, const struct config *c, struct err *e)
{
    struct workers_cfg control = {"control", c->control_threads, c->control_queue};
    struct workers_cfg generate = {"generate", c->generate_threads,
                                   c->generate_queue + c->generate_concurrency};
    struct workers_cfg text = {"text", c->detokenize_concurrency, 1};

    if (h->app.fleet != NULL && control.n_threads < FLEET_THREADS)
        control.n_threads = FLEET_THREADS;
    if (h->app.fleet != NULL && generate.n_threads < FLEET_THREADS)
        generate.n_threads = FLEET_THREADS;
    if (metrics_new(&h->app.metrics, n_routes, route_operation_id, e) != 0 ||
        workers_new(&h->app.control, &control, e) != 0 ||
        workers_new(&h->app.generate_pool, &generate, e) != 0 ||
        workers_new(&h->app.text, &text, e) != 0)
        return -1;
    if (h->app.fleet == NULL)
        return generations_new(&h->generate.generations, e);
    return fleet_pools_new(&h->app, c->control_queue, FLEET_THREADS, e);
}

/* What stands between requests and an engine of our own. */
static int build_pause_controller(struct server *h, const struct config *c, struct err *e)
{
    struct pause_controller_cfg cfg = {
        .life = &h->life,
        .store = h->weights.store,
        .updates = h->weights.updates,
        .leases = h->weights.leases,
        .engine = h->generate.engine,
        .generations = h->generate.generations,
        .sleep_timeout_us = c->pin_timeout * 1000,
    };

    if (admission_new(&h->generate.admission, "generate", c->generate_concurrency,
                      c->generate_queue, e) != 0 ||
        admission_new(&h->generate.text_admission, "detokenize", c->detokenize_concurrency,
                      c->detokenize_queue, e) != 0 ||
        admission_new(&h->generate.prompt_admission, "completions", c->detokenize_concurrency,
                      c->generate_queue + c->generate_concurrency, e) != 0)
        return -1;
    cfg.generate = h->generate.admission;
    return pause_controller_new(&h->app.pause_controller, &cfg, e);
}

/* Did SIGTERM or SIGINT come within this time? */
static bool ended_within(uint64_t timeout_us)
{
    struct timespec ts = {(time_t)(timeout_us / 1000000), (long)(timeout_us % 1000000) * 1000L};
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    return sigtimedwait(&set, NULL, &ts) > 0;
}

/* SIGHUP: every file that may have been changed meanwhile. */
static void read_again(struct server *h)
{
    if (h->config.api_key_file != NULL)
        listeners_reload(&h->listeners);
    if (h->app.fleet != NULL)
        fleet_reload(&h->app);
    if (h->config.api_key_file == NULL && h->app.fleet == NULL)
        log_line(LOG_INFO, "signal.ignored", "SIGHUP: there is no file to read again");
}

/* Until SIGTERM or SIGINT. */
static void wait_for_end(struct server *h)
{
    sigset_t set;
    int sig = 0;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGHUP);
    while (sigwait(&set, &sig) != 0 || sig == SIGHUP)
        if (sig == SIGHUP)
            read_again(h);
}

static const char *first_label(const struct server *h, const struct config *c)
{
    if (c->weight_version != NULL)
        return c->weight_version;
    return h->first_weights.weight_version != NULL ? h->first_weights.weight_version : "initial";
}

static struct update_chunk *first_chunk(struct server *h, const struct config *c, struct err *e)
{
    struct update_chunk *chunk = calloc(1, sizeof *chunk);

    if (chunk == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the first weights");
        return NULL;
    }
    chunk->convert = true; /* the model's own file decides the dtypes of what it has */
    chunk->tensor_list = tensor_list_ref(h->first_weights.tensor_list);
    chunk->source = h->first;
    chunk->checksums = h->first_weights.checksums;
    chunk->has_checksum = h->first_weights.has_checksum;
    (void)snprintf(chunk->label, sizeof chunk->label, "%s", first_label(h, c));
    h->first = NULL;
    h->first_weights.checksums = NULL;
    h->first_weights.has_checksum = NULL;
    return chunk;
}

static int push_first(struct server *h, const struct config *c, struct err *e)
{
    struct update_chunk *chunk;

    if (h->first == NULL) {
        log_line(LOG_WARN, "weights.unsynced", "no weights to start with; waiting for an update");
        return 0;
    }
    chunk = first_chunk(h, c, e);
    return chunk != NULL ? first_push(h->weights.updates, chunk, ended_within, e) : -1;
}

/* Requests name absolute paths; a root given as "./checkpoints" or through a link means the
 * directory that it is now. */
static int resolve_roots(struct server *h, struct err *e)
{
    struct config_list *list = &h->config.allow_path;

    for (size_t i = 0; i < list->n; i++) {
        h->roots[i] = realpath(list->items[i], NULL);
        if (h->roots[i] == NULL)
            return err_set_errno(e, ERR_BAD_REQUEST, "--allow-path", errno, "'%.200s'",
                                 list->items[i]);
        list->items[i] = h->roots[i];
    }
    return 0;
}

static int read_trainers(struct server *h, const struct config *c, struct err *e)
{
    for (size_t i = 0; i < c->nccl_allow_cidr.n; i++)
        if (cidr_list_add(&h->trainers, c->nccl_allow_cidr.items[i], "--nccl-allow-cidr", e) != 0)
            return -1;
    return 0;
}

/* Some 200 MB, of no use without a GPU. */
static void look_for_nccl(struct server *h, const struct config *c)
{
    if (c->nccl_library != NULL || h->list.n > 0)
        nccl_probe(&h->nccl, c->nccl_library);
    else
        (void)snprintf(h->nccl.reason, sizeof h->nccl.reason,
                       "it was not looked for, since the weights lie in host memory");
}

/* Everything that is read before anything runs: what --check reads too. */
static int read_inputs(struct server *h, const struct config *c, struct err *e)
{
    if ((c->weight_version != NULL && label_check(c->weight_version, "--weight-version", e) != 0) ||
        resolve_roots(h, e) != 0 || open_first_weights(h, c, e) != 0 ||
        build_model_spec(h, c, e) != 0)
        return -1;
    if (h->first != NULL && label_check(first_label(h, c), "--weights", e) != 0)
        return -1;
    if (read_trainers(h, c, e) != 0)
        return -1;
    cuda_probe(&h->cuda, c->cuda_library);
    if (choose_devices(h, c, e) != 0)
        return -1;
    look_for_nccl(h, c);
    return 0;
}

static struct settings settings_of(const struct config *c)
{
    return (struct settings){
        .allow_path = c->allow_path.items,
        .n_allow_path = c->allow_path.n,
        .json_body_max = c->json_body_max,
        .update_timeout_ms = c->update_timeout,
        .body_stall_timeout_ms = c->body_stall_timeout,
        .join_timeout_ms = c->join_timeout,
        .generate_concurrency = c->generate_concurrency,
        .generate_queue = c->generate_queue,
        .detokenize_concurrency = c->detokenize_concurrency,
        .detokenize_queue = c->detokenize_queue,
        .listen = c->listen,
        .has_tls = c->tls_cert != NULL && c->tls_cert[0] != '\0',
        .sglang_memory_saver = c->sglang_memory_saver,
    };
}

/* What any server has, of whatever engine. */
static int build_frame(struct server *h, const struct config *c, struct err *e)
{
    h->app.settings = settings_of(c);
    h->app.life = &h->life;
    life_init(&h->life);
    if (dialects_parse(&h->app.settings.dialects, c->compat, "--compat", e) != 0)
        return -1;
    return listeners_open_health(&h->listeners, h->life.boot_id, e);
}

/* The upstreams are asked once all who want to know of them are there. */
static int build_fleet(struct server *h, const struct config *c, struct err *e)
{
    h->app.fleet = &h->fleet;
    if (build_frame(h, c, e) != 0 || fleet_open(&h->app, c, e) != 0 || build_pools(h, c, e) != 0 ||
        fleet_open_control(&h->app, c, e) != 0 || fleet_open_spec(&h->app, c, e) != 0 ||
        listeners_open(&h->listeners, &h->app, h->life.boot_id, e) != 0)
        return -1;
    fleet_reconcile_start(h->fleet.control);
    return upstreams_start(h->fleet.upstreams, e);
}

static int server_build(struct server *h, const struct config *c, struct err *e)
{
    if (read_inputs(h, c, e) != 0 || build_frame(h, c, e) != 0)
        return -1;
    h->weights = (struct app_weights){.cuda = &h->cuda, .nccl = &h->nccl};
    h->generate = (struct app_generate){.model_name = "", .model_path = ""};
    h->app.weights = &h->weights;
    h->app.generate = &h->generate;
    if (open_devices(h, e) != 0 || build_store(h, c, e) != 0 || build_transfer(h, c, e) != 0 ||
        build_engine(h, c, e) != 0 || build_pools(h, c, e) != 0 ||
        build_pause_controller(h, c, e) != 0 || zmq_updates_new(&h->weights.zmq, e) != 0)
        return -1;
    return listeners_open(&h->listeners, &h->app, h->life.boot_id, e);
}

/* First everything stops, in the order in which work flows, so that every open request is still
 * answered; then the HTTP server's loops end, which may have asked any part how it is; then memory
 * goes.
 */
static void stop_all(struct server *h)
{
    struct app *a = &h->app;
    uint32_t n_leases = 0;

    listeners_stop_health(&h->listeners);
    if (a->pause_controller != NULL)
        pause_controller_drain(a->pause_controller);
    upstreams_stop(h->fleet.upstreams); /* so that no thread waits for an answer of theirs */
    if (a->control != NULL)
        workers_stop(a->control);
    fleet_pools_stop(&h->fleet);
    if (h->generate.loads != NULL)
        lora_loads_stop(h->generate.loads);
    if (h->weights.zmq != NULL)
        zmq_updates_stop(h->weights.zmq);
    if (a->pause_controller != NULL)
        pause_controller_stop(a->pause_controller);
    if (h->weights.updates != NULL)
        updates_stop(h->weights.updates);
    if (h->weights.transfer != NULL)
        weight_transfer_stop(h->weights.transfer);
    if (h->weights.leases != NULL)
        n_leases = leases_stop(h->weights.leases);
    if (n_leases > 0)
        log_line(LOG_WARN, "leases.cut", "%u processes may still have weights mapped that go now",
                 (unsigned)n_leases);
    if (h->generate.engine != NULL)
        h->generate.engine->ops->stop(h->generate.engine);
    generations_cut(h->generate.generations);
    if (a->generate_pool != NULL)
        workers_stop(a->generate_pool);
    if (a->text != NULL)
        workers_stop(a->text);
    proxy_stop(h->fleet.proxy);
    listeners_close(&h->listeners);
}

/* Frees the house too; but what a call into NCCL that never came back may still use, the library
 * and the GPUs, stays until the process ends. */
static void take_down(struct server *h)
{
    struct app *a = &h->app;
    struct err why = {0};
    bool stuck;

    stop_all(h);
    stuck = h->weights.transfer != NULL && !weight_transfer_live(h->weights.transfer, &why);
    weight_transfer_free(h->weights.transfer);
    zmq_updates_free(h->weights.zmq);
    updates_free(h->weights.updates);
    if (h->generate.engine != NULL)
        h->generate.engine->ops->free(h->generate.engine);
    workers_free(a->control);
    fleet_pools_free(&h->fleet);
    workers_free(a->generate_pool);
    workers_free(a->text);
    lora_loads_free(h->generate.loads);
    adapters_free(h->generate.adapters);
    pause_controller_free(a->pause_controller);
    generations_free(h->generate.generations);
    admission_free(h->generate.admission);
    admission_free(h->generate.text_admission);
    admission_free(h->generate.prompt_admission);
    proxy_free(h->fleet.proxy);
    upstreams_free(h->fleet.upstreams); /* the HTTP servers, whose loops talk to them, are closed */
    fleet_control_free(h->fleet.control);
    metrics_free(a->metrics);
    source_close(h->first);
    file_weights_fini(&h->first_weights);
    leases_free(h->weights.leases);
    if (!stuck) {
        store_free(h->weights.store);
        for (uint32_t rank = h->weights.n_devices; rank > 0; rank--)
            device_free(h->devices[rank - 1]);
    }
    listeners_fini(&h->listeners);
    model_spec_free(h->model_spec);
    tokenizer_free(h->tokenizer);
    chat_template_free(h->chat);
    for (size_t i = 0; i < CONFIG_LIST_MAX; i++)
        free(h->roots[i]);
    if (!stuck)
        free(h);
}

/* Nothing new is begun. */
static void close_admission(struct server *h)
{
    if (h->app.fleet != NULL) {
        fleet_permits_close(upstreams_fleet(h->fleet.upstreams));
        return;
    }
    admission_close(h->generate.admission);
    admission_close(h->generate.text_admission);
    admission_close(h->generate.prompt_admission);
    pause_controller_drain(h->app.pause_controller);
}

/* Stop accepting, let what runs end until the deadline; a second signal ends at once. */
static void server_drain(struct server *h, const struct config *c)
{
    enum { POLL_US = 20000 };
    uint64_t deadline = clock_after_us(c->drain_timeout * 1000);
    bool idle = false;

    log_line(LOG_INFO, "drain", "stopping: running work has %llu ms",
             (unsigned long long)c->drain_timeout);
    life_set(&h->life, LIFE_DRAINING);
    listeners_quiesce(&h->listeners);
    close_admission(h);
    while (!idle && !clock_passed(deadline)) {
        if (ended_within(1)) {
            log_line(LOG_WARN, "shutdown.forced", "second signal: ending at once");
            return;
        }
        idle = listeners_wait_idle(&h->listeners, clock_after_us(POLL_US));
    }
    log_line(idle ? LOG_INFO : LOG_WARN, "drain.end",
             idle ? "all work has ended" : "the deadline passed; what runs is aborted");
}

static void log_own(const struct server *h, struct log_rec *r)
{
    struct store_info info;

    store_info(h->weights.store, &info);
    log_str(r, "model", h->generate.model_name);
    log_str(r, "weights", store_state_name(info.state));
    log_str(r, "weight_version", info.label);
    log_u64(r, "cuda_devices", h->cuda.n_devices);
    log_str(r, "device", h->config.device);
    log_str(r, "cuda", h->cuda.available ? h->cuda.driver_version : h->cuda.reason);
    log_str(r, "nccl", h->nccl.available ? h->nccl.version : h->nccl.reason);
}

static void serving_log(const struct server *h)
{
    struct log_rec r;

    log_begin(&r, LOG_INFO, "serving");
    listeners_log(&h->listeners, &r);
    log_str(&r, "boot_id", h->life.boot_id);
    log_str(&r, "version", BATON_VERSION);
    if (h->app.fleet != NULL)
        fleet_log(&h->app, &r);
    else
        log_own(h, &r);
    log_end(&r);
}

/* Would the first update, pushed as start does it, be taken? */
static int check_first(const struct server *h, const struct config *c, struct value_report *values,
                       struct err *e)
{
    const char *missing = "";
    uint32_t n = 0;
    int rc;

    if (h->first == NULL)
        return 0;
    rc = tensor_list_coverage(h->model_spec, h->first_weights.tensor_list, true, &missing, 1, &n,
                              e);
    if (rc == 0 && n > 0)
        rc = err_set(e, ERR_INCOMPLETE, "", "%u tensors are missing, the first is %.150s", n,
                     missing);
    if (rc == 0 &&
        value_check(h->first, h->first_weights.tensor_list, c->non_finite, values, e) == 0)
        return 0;
    return serve_blame(e, c->weights != NULL ? "--weights" : "--model",
                       c->weights != NULL ? c->weights : c->model);
}

int serve_inspect(const struct config *config, struct serve_report *out, struct err *e)
{
    struct server *h = calloc(1, sizeof *h);
    struct serve_report r = {0};
    int rc = -1;

    if (h == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to check");
    h->config = *config; /* its storage stays the caller's */
    config = &h->config;
    if (listeners_read(&h->listeners, config, e) == 0 && read_inputs(h, config, e) == 0 &&
        check_first(h, config, &r.values, e) == 0) {
        r.n_tensors = h->model_spec->tensor_list->n_tensors;
        r.nbytes = h->model_spec->tensor_list->nbytes;
        r.vocab_size = h->model.vocab_size;
        r.has_weights = h->first != NULL;
        if (r.has_weights)
            (void)snprintf(r.label, sizeof r.label, "%s", first_label(h, config));
        r.cuda = h->cuda;
        r.nccl = h->nccl;
        r.devices = h->list;
        r.mirror = h->list.n > 0 && has_engine(config);
        *out = r;
        rc = 0;
    }
    take_down(h);
    return rc;
}

int serve(const struct config *config, struct err *e)
{
    struct server *h = calloc(1, sizeof *h);
    int rc;

    if (h == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to start");
    h->config = *config; /* its storage stays the caller's */
    config = &h->config;
    rc = listeners_read(&h->listeners, config, e);
    if (rc == 0 && fleet_wanted(config))
        rc = build_fleet(h, config, e);
    else if (rc == 0)
        rc = server_build(h, config, e) == 0 ? push_first(h, config, e) : -1;
    if (rc == 0) {
        life_set(&h->life, LIFE_SERVING);
        serving_log(h);
        wait_for_end(h);
        server_drain(h, config);
    }
    take_down(h);
    return rc;
}
