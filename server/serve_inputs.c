/* What a start reads before anything runs. --check reads the same. */
#include "base/log.h"
#include "fleet/handoff/window_plan.h"
#include "fleet/members/upstream_config.h"
#include "handlers/update_members.h"
#include "memory/memory.h"
#include "server/config/build.h"
#include "server/model_dir.h"
#include "server/serve.h"
#include "server/serve_fleet.h"
#include "server/serve_priv.h"
#include "transport/nixl/nixl.h"
#include "weights/model_spec.h"
#include "weights/store/shares.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert((int)CUDA_DEVICES_MAX <= (int)STORE_DEVICES_MAX, "every GPU can be a rank");
_Static_assert((int)STORE_DEVICES_MAX <= (int)SHARES_RANKS_MAX, "every rank can have a share");

const char *server_first_label(const struct server *s)
{
    if (s->config.weight_version != NULL)
        return s->config.weight_version;
    return s->first_weights.weight_version != NULL ? s->first_weights.weight_version : "initial";
}

/* Requests name absolute paths: a directory given as "./checkpoints", or through a symbolic link,
 * is the one to which it leads now. */
static int resolve_allow_path(struct server *s, struct err *e)
{
    struct config_list *list = &s->config.allow_path;

    for (size_t i = 0; i < list->n; i++) {
        s->allow_path[i] = realpath(list->items[i], NULL);
        if (s->allow_path[i] == NULL)
            return err_set_errno(e, ERR_BAD_REQUEST, "--allow-path", errno, "'%.200s'",
                                 list->items[i]);
        list->items[i] = s->allow_path[i];
    }
    return 0;
}

/* --weights, else those of --model, if it has any. */
int server_open_first(struct server *s, struct err *e)
{
    const struct config *c = &s->config;
    const char *path = c->weights;
    bool has = path != NULL;

    file_weights_fini(&s->first_weights);

    if ((path != NULL && strcmp(path, "none") == 0) || c->seed.n > 0)
        return 0;
    if (path == NULL && c->model != NULL && !config_has_stage(c) && /* the upstreams have them */
        model_dir_weights(&has, c->model, "start without weights by --weights none", e) != 0)
        return serve_option_error(e, "--model", c->model);
    if (!has)
        return 0;
    if (file_source_open_local(&s->first, &s->first_weights, path != NULL ? path : c->model, e) ==
        0)
        return 0;
    return serve_option_error(e, path != NULL ? "--weights" : "--model",
                              path != NULL ? path : c->model);
}

static int spec_of_file(struct server *s, struct err *e)
{
    const char *path = s->config.model_spec;

    if (path == NULL)
        return err_set(
            e, ERR_BAD_REQUEST, "--manifest",
            "it is missing; --engine none needs a file that lists the tensors of an update");
    if (model_spec_load(&s->model_spec, path, e) != 0)
        return serve_option_error(e, "--manifest", path);
    return 0;
}

static int spec_of_fleet(struct server *s, struct err *e)
{
    const char *from;

    if (serve_fleet_spec(&s->model_spec, &from, &s->config, e) != 0)
        return -1;
    return s->model_spec != NULL
               ? 0
               : err_set(e, ERR_BAD_REQUEST, "--stage",
                         "--manifest or --model is missing: they name the tensors that an update "
                         "must contain");
}

static int read_model(struct server *s, struct err *e)
{
    const struct config *c = &s->config;

    if (config_has_stage(c))
        return spec_of_fleet(s, e);
    if (!server_has_engine(s))
        return spec_of_file(s, e);
    if (strcmp(c->engine, "embedded") != 0)
        return err_set(e, ERR_BAD_REQUEST, "--engine",
                       "engine '%.32s' is not one of embedded, none", c->engine);
    return server_read_engine(s, e);
}

static int read_nccl_allow(struct server *s, struct err *e)
{
    const struct config_list *list = &s->config.nccl_allow_cidr;

    for (size_t i = 0; i < list->n; i++)
        if (cidr_list_add(&s->nccl_allow, list->items[i], "--nccl-allow-cidr", e) != 0)
            return -1;
    return 0;
}

static int read_fetch_rules(struct server *s, struct err *e)
{
    const struct config *c = &s->config;
    const char *temporary = getenv("TMPDIR");
    struct fetch_cfg cfg = {.prefixes = c->fetch_prefix.items,
                            .n_prefixes = c->fetch_prefix.n,
                            .cidrs = c->fetch_cidr.items,
                            .n_cidrs = c->fetch_cidr.n,
                            .ca_file = c->fetch_ca_file,
                            .dir = c->state_dir != NULL ? c->state_dir
                                   : temporary != NULL  ? temporary
                                                        : "/tmp"};

    return cfg.n_prefixes == 0 ? 0 : fetch_rules_new(&s->fetch_rules, &cfg, e);
}

static int add_peer(struct server *s, const char *url, struct err *e)
{
    if (s->n_seed_peers == SEED_PEERS_MAX)
        return err_set(e, ERR_BAD_REQUEST, "--seed", "more than %d peers", SEED_PEERS_MAX);
    s->seed_peers[s->n_seed_peers++] = url;
    return 0;
}

static int cut_peers(struct server *s, struct err *e)
{
    const struct config_list *list = &s->config.seed;
    char *at;

    for (size_t i = 0; i < list->n; i++) {
        s->seed_text[i] = strdup(list->items[i]);
        if (s->seed_text[i] == NULL)
            return err_set(e, ERR_NO_MEMORY, "--seed", "no memory for peers");
        at = s->seed_text[i];
        for (char *url = strsep(&at, ","); url != NULL; url = strsep(&at, ","))
            if (add_peer(s, url, e) != 0)
                return -1;
    }
    return 0;
}

static int read_seed(struct server *s, struct err *e)
{
    const struct config *c = &s->config;

    if (cut_peers(s, e) != 0)
        return -1;
    for (size_t i = 0; i < s->n_seed_peers; i++)
        if (seeder_check_url(s->seed_peers[i], "--seed", e) != 0)
            return -1;
    for (size_t i = 0; i < c->seed_cidr.n; i++)
        if (cidr_list_add(&s->seed_cidrs, c->seed_cidr.items[i], "--seed-cidr", e) != 0)
            return -1;
    if (c->seed_ca_file != NULL && access(c->seed_ca_file, R_OK) != 0)
        return err_set_errno(e, ERR_BAD_REQUEST, "--seed-ca-file", errno, "'%.200s' cannot be read",
                             c->seed_ca_file);
    return c->seed_key_file == NULL
               ? 0
               : upstream_authorization(&s->seed_authorization, c->seed_key_file, "--seed-key-file",
                                        e);
}

/* The sizes of GPUs are checked before any of them is used. One version must fit into all of them
 * together, since ranks may share it; first weights are whole on each, unless --placement is
 * sharded. */
static int check_sizes(const struct server *s, struct err *e)
{
    const struct device_list *list = &s->device_list;
    const struct cuda_device *gpus = s->cuda.devices, *least;
    uint64_t needed = s->model_spec->tensor_list->nbytes, total = 0;
    const char *otherwise = config_has_stage(&s->config)
                                ? ": name more GPUs and --placement sharded, or use --stage host"
                                : "";

    if (list->n == 0 || config_stage_is_host(&s->config))
        return 0;
    for (uint32_t rank = 0; rank < list->n; rank++)
        total += gpus[list->index[rank]].nbytes_total;
    if (needed > total && list->n > 1)
        return err_set(e, ERR_NO_STAGING, "--device",
                       "one version of the weights has %llu bytes, these %u GPUs together have "
                       "%llu%s",
                       (unsigned long long)needed, (unsigned)list->n, (unsigned long long)total,
                       otherwise);
    least = device_list_least(list, &s->cuda);
    if (needed <= least->nbytes_total ||
        (list->n > 1 && (s->first == NULL || config_is_sharded(&s->config))))
        return 0;
    return err_set(e, ERR_NO_STAGING, "--device",
                   "one version of the weights has %llu bytes, cuda:%d has %llu%s",
                   (unsigned long long)needed, least->ordinal,
                   (unsigned long long)least->nbytes_total, otherwise);
}

int server_check_room(const struct server *s, struct err *e)
{
    const struct config *c = &s->config;
    bool host = config_stage_is_host(c);
    bool first = s->first != NULL && s->device_list.n == 0 && c->state_dir == NULL;
    uint64_t needed = s->model_spec->tensor_list->nbytes * (host ? 2 : first);
    struct memory_room room = memory_room("");

    if (host && c->max_weight_bytes > 0 && c->max_weight_bytes < room.nbytes)
        room = (struct memory_room){c->max_weight_bytes, "--max-weight-bytes"};
    if (needed <= room.nbytes)
        return 0;
    return err_set(e, ERR_NO_STAGING, "",
                   "%s: %llu bytes (%.1f GB) are needed, %llu (%.1f GB) are available (bound: %s)",
                   host ? "--stage host takes the memory of two versions of the weights at the "
                          "start"
                        : "the first weights are kept in host memory",
                   (unsigned long long)needed, (double)needed / 1e9,
                   (unsigned long long)room.nbytes, (double)room.nbytes / 1e9, room.bound);
}

int server_share_nbytes(const struct server *s, uint64_t *out, struct err *e)
{
    const struct tensor_list *list = s->model_spec->tensor_list;
    uint32_t n_tensors;
    uint8_t *owners;

    if (s->device_list.n == 0)
        return 0;
    if (shares_new(&owners, list, s->device_list.n, e) != 0)
        return -1;
    for (uint32_t rank = 0; rank < s->device_list.n; rank++)
        out[rank] = shares_nbytes(owners, list, rank, &n_tensors);
    free(owners);
    return 0;
}

/* An engine on one GPU maps the shares of all. */
static int check_peers(const struct server *s, struct err *e)
{
    const struct device_list *list = &s->device_list;

    for (uint32_t a = 0; a < list->n; a++) {
        for (uint32_t b = 0; b < list->n; b++) {
            const struct cuda_device *from = &s->cuda.devices[list->index[a]];
            const struct cuda_device *to = &s->cuda.devices[list->index[b]];

            if (a != b && !cuda_can_reach(&s->cuda.api, from, to))
                return err_set(e, ERR_BAD_REQUEST, "--placement",
                               "cuda:%d has no peer access to cuda:%d: an engine there could not "
                               "map the share of cuda:%d; remove --placement sharded, or use "
                               "--stage host",
                               from->ordinal, to->ordinal, to->ordinal);
        }
    }
    return 0;
}

/* --placement sharded: each GPU holds its share. */
static int check_shares(const struct server *s, struct err *e)
{
    uint64_t shares[STORE_DEVICES_MAX];

    if (!config_is_sharded(&s->config))
        return 0;
    if (s->device_list.n < 2)
        return err_set(e, ERR_BAD_REQUEST, "--placement",
                       "sharded spreads a version over several GPUs, and %s names %u: name more, "
                       "as in cuda:0,cuda:1, or remove --placement",
                       config_has_stage(&s->config) ? "--stage" : "--device",
                       (unsigned)s->device_list.n);
    if (server_share_nbytes(s, shares, e) != 0)
        return -1;
    for (uint32_t rank = 0; rank < s->device_list.n; rank++) {
        const struct cuda_device *d = &s->cuda.devices[s->device_list.index[rank]];

        if (shares[rank] > d->nbytes_total)
            return err_set(e, ERR_NO_STAGING, "--placement",
                           "the share of cuda:%d has %llu bytes, the GPU has %llu: name more GPUs",
                           d->ordinal, (unsigned long long)shares[rank],
                           (unsigned long long)d->nbytes_total);
    }
    return config_has_stage(&s->config) ? check_peers(s, e) : 0;
}

/* The windows of --stage host are on one GPU. */
static int choose_window(struct server *s, struct err *e)
{
    const struct cuda_device *d = &s->cuda.devices[s->device_list.index[0]];
    const struct tensor_list *list = s->model_spec->tensor_list;
    uint32_t n_halves;

    if (s->device_list.n > 1)
        return err_set(e, ERR_BAD_REQUEST, "--stage",
                       "'%.64s' names %u GPUs: host takes one, on which the windows are, as in "
                       "host,cuda:0",
                       s->config.stage, (unsigned)s->device_list.n);
    if (window_nbytes_choose(&s->window_nbytes, list, s->config.stage_window, e) != 0)
        return -1;
    n_halves = window_n_halves(s->window_nbytes, list->nbytes);
    if (s->window_nbytes <= d->nbytes_total / n_halves)
        return 0;
    return err_set(e, ERR_NO_STAGING, "--stage-window",
                   "%u of %llu bytes (windows) are needed on cuda:%d, which has %llu",
                   (unsigned)n_halves, (unsigned long long)s->window_nbytes, d->ordinal,
                   (unsigned long long)d->nbytes_total);
}

/* The error names a GPU that was not typed. */
static void explain_default_gpu(const struct config *c, struct err *e)
{
    char what[sizeof e->msg];

    if (strcmp(c->stage, "host") != 0)
        return;
    memcpy(what, e->msg, sizeof what);
    (void)snprintf(e->msg, sizeof e->msg,
                   "host has its windows on a GPU, by default cuda:0: %.400s", what);
}

/* --stage is a --device that must be GPUs. */
static int choose_devices(struct server *s, struct err *e)
{
    bool has_stage = config_has_stage(&s->config);
    const char *expected = has_stage
                               ? "cuda:<number>, the UUID of a GPU, host, or none; host stands "
                                 "first, as in host,cuda:1"
                               : DEVICE_LIST_EXPECTED;
    int rc = device_list_parse(&s->device_list, s->config.device, &s->cuda, expected, e);

    if (rc == 0)
        rc = check_sizes(s, e);
    if (rc != 0 && has_stage) {
        (void)snprintf(e->field, sizeof e->field, "--stage");
        explain_default_gpu(&s->config, e);
    }
    if (rc != 0 || !has_stage)
        return rc;
    if (s->device_list.n == 0)
        return err_set(e, ERR_BAD_REQUEST, "--stage",
                       "'%.32s' is not a list of GPUs: upstreams map the weights by CUDA IPC; give "
                       "cuda:0, or several as cuda:0,cuda:1, or host, or none",
                       s->config.device);
    return config_stage_is_host(&s->config) ? choose_window(s, e) : 0;
}

/* libnccl takes some 200 MB of memory and is of no use without a GPU. */
static void probe_nccl(struct server *s)
{
    if (s->config.nccl_library != NULL || s->device_list.n > 0)
        nccl_probe(&s->nccl, s->config.nccl_library);
    else
        (void)snprintf(s->nccl.reason, sizeof s->nccl.reason,
                       "it was not looked for, since the weights are in host memory");
}

static int probe_nixl(struct server *s, struct err *e)
{
    const struct config *c = &s->config;
    struct nixl_cfg cfg = {
        .library = c->nixl_library, .devices = c->nixl_devices, .tls = c->nixl_tls};

    if (c->nixl_library == NULL || nixl_new(&s->nixl, &cfg, e) == 0)
        return 0;
    return serve_option_error(e, "--nixl-library", c->nixl_library);
}

int server_read_inputs(struct server *s, struct err *e)
{
    const char *label = s->config.weight_version;

    if (server_has_engine(s) && !build_has_engine)
        return server_read_engine(s, e); /* before any file is read */
    if ((label != NULL && label_check(label, "--weight-version", e) != 0) ||
        resolve_allow_path(s, e) != 0 || server_open_first(s, e) != 0 || read_model(s, e) != 0)
        return -1;
    if (s->first != NULL && label_check(server_first_label(s), "--weights", e) != 0)
        return -1;
    if (read_nccl_allow(s, e) != 0 || read_fetch_rules(s, e) != 0 || read_seed(s, e) != 0)
        return -1;
    cuda_probe(&s->cuda, s->config.cuda_library);
    if (choose_devices(s, e) != 0 || check_shares(s, e) != 0)
        return -1;
    probe_nccl(s);
    return probe_nixl(s, e);
}
