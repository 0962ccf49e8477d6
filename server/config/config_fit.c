/* Which options go together: an option that would have no effect is refused by name, because its
 * user relies on it. */
#include "server/config/build.h"
#include "server/config/config_table.h"

#include <string.h>

/* Options of a server without upstreams, besides those of its engine. */
static const char *const own[] = {"engine",        "device",       "seed",      "seed-cidr",
                                  "seed-key-file", "seed-ca-file", "seed-rate", "seed-connections"};
/* Options of a server that receives updates itself. */
static const char *const received[] = {
    "weights",         "weight-version", "allow-path",       "cuda-library", "nccl-library",
    "nccl-allow-cidr", "max-versions",   "max-weight-bytes", "pin-timeout",  "non-finite",
    "state-dir",       "snapshot",       "serve-base",       "placement",    "fetch-prefix",
    "fetch-cidr",      "fetch-ca-file",  "nixl-library",     "nixl-devices", "nixl-tls"};
/* Options that need --state-dir. */
static const char *const needs_state[] = {"snapshot", "serve-base"};
/* Options that need --nixl-library. */
static const char *const needs_nixl[] = {"nixl-devices", "nixl-tls"};
/* Options that need --fetch-prefix. */
static const char *const needs_fetch[] = {"fetch-cidr", "fetch-ca-file"};
/* Options that need --seed or --seed-cidr. */
static const char *const needs_seed[] = {"seed-key-file", "seed-ca-file", "seed-rate",
                                         "seed-connections"};
/* First weights, which a server with --seed has from a peer. */
static const char *const first[] = {"weights", "weight-version"};
/* In front of a fleet each of these says what an update must contain: only one may be given. */
static const char *const model[] = {"model"}, *const model_spec[] = {"manifest"};
/* Options of a server in front of a fleet. */
static const char *const theirs[] = {
    "min-ready",   "probe-interval", "probe-timeout",        "stage",       "stage-window", "prove",
    "adapter-dir", "pause-fenced",   "allow-unseen-tensors", "dns-interval"};

/* The first option of the list that was given, or NULL. */
static const struct config_option *option_given(const struct config_loader *l,
                                                const char *const *flags, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct config_option *o = config_find(flags[i], strlen(flags[i]));

        if (l->config.origins->layers[o - config_options] != LAYER_DEFAULT)
            return o;
    }
    return NULL;
}

/* The same of the options of the embedded engine. */
static const struct config_option *engine_option_given(const struct config_loader *l)
{
    for (size_t i = 0; i < CONFIG_N_OPTIONS; i++)
        if (config_is_of_engine(&config_options[i]) &&
            l->config.origins->layers[i] != LAYER_DEFAULT)
            return &config_options[i];
    return NULL;
}

/* Names the option as it was given. Returns -1. */
static int option_refuse(const struct config_loader *l, const struct config_option *o,
                         const char *why, struct err *e)
{
    char name[CONFIG_NAME_MAX + 2], where[ERR_FIELD_MAX];

    (void)snprintf(name, sizeof name, "--%s", o->flag);
    config_where(where, &l->config, name);
    return err_set(e, ERR_BAD_REQUEST, where, "%s", why);
}

static int needs_fit(const struct config_loader *l, struct err *e)
{
    const struct config_option *o;

    o = option_given(l, needs_state, sizeof needs_state / sizeof needs_state[0]);
    if (o != NULL && l->config.state_dir == NULL)
        return option_refuse(l, o, "it has no effect without --state-dir", e);
    o = option_given(l, needs_fetch, sizeof needs_fetch / sizeof needs_fetch[0]);
    if (o != NULL && l->config.fetch_prefix.n == 0)
        return option_refuse(l, o, "it has no effect without --fetch-prefix", e);
    o = option_given(l, needs_nixl, sizeof needs_nixl / sizeof needs_nixl[0]);
    if (o != NULL && l->config.nixl_library == NULL)
        return option_refuse(l, o, "it has no effect without --nixl-library", e);
    if (l->config.nixl_library != NULL && l->config.nixl_devices == NULL)
        return option_refuse(l, config_find("nixl-library", strlen("nixl-library")),
                             "it needs --nixl-devices: the devices that may be read by", e);
    o = option_given(l, needs_seed, sizeof needs_seed / sizeof needs_seed[0]);
    if (o != NULL && l->config.seed.n == 0 && l->config.seed_cidr.n == 0)
        return option_refuse(l, o, "it has no effect without --seed or --seed-cidr", e);
    o = option_given(l, first, sizeof first / sizeof first[0]);
    if (o != NULL && l->config.seed.n > 0 &&
        (l->config.weights == NULL || strcmp(l->config.weights, "none") != 0))
        return option_refuse(l, o,
                             "with --seed the first version is a peer's, or that of "
                             "--state-dir: remove one of them",
                             e);
    return 0;
}

/* The limit is for the adapters of an engine of its own, or for those in --adapter-dir. */
static int adapters_fit(const struct config_loader *l, struct err *e)
{
    static const char *const limit[] = {"max-lora-bytes"};
    const struct config_option *o = option_given(l, limit, 1);

    if (o == NULL || l->config.adapter_dir != NULL)
        return 0;
    return option_refuse(l, o, "it has no effect with --upstream and without --adapter-dir", e);
}

static int upstreams_fit(const struct config_loader *l, struct err *e)
{
    const struct config_option *o = option_given(l, own, sizeof own / sizeof own[0]);

    if (o == NULL)
        o = engine_option_given(l);
    if (o != NULL)
        return option_refuse(l, o,
                             "it has no effect with --upstream: this server then has no engine of "
                             "its own, and reads no version of a peer; remove it, or remove "
                             "--upstream",
                             e);
    o = option_given(l, received, sizeof received / sizeof received[0]);
    if (o != NULL && !config_has_stage(&l->config))
        return option_refuse(
            l, o,
            "it has no effect with --upstream and without --stage: this server "
            "then has no weights of its own; remove it, add --stage, or remove --upstream",
            e);
    if (adapters_fit(l, e) != 0 || (config_has_stage(&l->config) && needs_fit(l, e) != 0))
        return -1;
    if (l->config.allow_unseen_tensors && l->config.model == NULL && l->config.model_spec == NULL)
        return option_refuse(
            l, config_find("allow-unseen-tensors", strlen("allow-unseen-tensors")),
            "it has no effect without --model or --manifest: names are compared with neither", e);
    if (l->config.stage_window != 0 && !config_stage_is_host(&l->config))
        return option_refuse(
            l, config_find("stage-window", strlen("stage-window")),
            "it has no effect without --stage host: the upstreams map a version on "
            "a GPU whole",
            e);
    if (config_is_sharded(&l->config) && config_stage_is_host(&l->config))
        return option_refuse(l, config_find("placement", strlen("placement")),
                             "sharded spreads a version over GPUs, and --stage host keeps it in "
                             "host memory: name GPUs, as in --stage cuda:0,cuda:1, or remove it",
                             e);
    o = option_given(l, model_spec, 1);
    if (o == NULL || option_given(l, model, 1) == NULL)
        return 0;
    return option_refuse(
        l, o, "with --upstream --model names the tensors of an update too; give one of them", e);
}

bool config_has_upstreams(const struct config *c)
{
    return c->upstream.n > 0 || c->upstream_file != NULL;
}

bool config_has_stage(const struct config *c)
{
    return config_has_upstreams(c) && strcmp(c->stage, "none") != 0;
}

bool config_is_sharded(const struct config *c)
{
    return strcmp(c->placement, "sharded") == 0;
}

bool config_stage_is_host(const struct config *c)
{
    return config_has_stage(c) && strncmp(c->stage, "host", 4) == 0 &&
           (c->stage[4] == '\0' || c->stage[4] == ',');
}

const char *config_stage_device(const struct config *c)
{
    if (!config_stage_is_host(c))
        return c->stage;
    return c->stage[4] == '\0' ? "cuda:0" : c->stage + 5;
}

int config_fit(const struct config_loader *l, struct err *e)
{
    const struct config_option *o = engine_option_given(l);

    if (o != NULL && !config_is_here(o))
        return option_refuse(l, o, BUILD_LACKS_ENGINE, e);
    if (config_has_upstreams(&l->config))
        return upstreams_fit(l, e);
    o = option_given(l, theirs, sizeof theirs / sizeof theirs[0]);
    if (o != NULL)
        return option_refuse(l, o, "it has no effect without --upstream or --upstream-file", e);
    if (config_is_sharded(&l->config) && strcmp(l->config.engine, "none") != 0)
        return option_refuse(l, config_find("placement", strlen("placement")),
                             "sharded is for --engine none and --stage: the embedded engine keeps "
                             "each version in host memory too",
                             e);
    return needs_fit(l, e);
}
