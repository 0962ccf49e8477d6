/* Which options make sense together: one that would be given and never heeded is refused by name,
 * because whoever gave it counts on it. */
#include "server/config_table.h"

#include <string.h>

/* Of an engine and weights of its own. */
static const char *const own[] = {
    "model",        "weights",          "weight-version", "served-model-name",
    "engine",       "manifest",         "engine-threads", "engine-pin",
    "max-num-seqs", "allow-path",       "on-update",      "kv-cache",
    "max-loras",    "max-lora-rank",    "max-lora-bytes", "max-model-len",
    "device",       "cuda-library",     "nccl-library",   "allow-trainer",
    "max-versions", "max-weight-bytes", "pin-timeout",    "max-num-batched-tokens"};
/* Of upstreams. */
static const char *const theirs[] = {"min-ready", "probe-interval", "probe-timeout"};

/* The option of a list that somebody gave, or NULL. */
static const struct config_option *given(const struct config_loader *l, const char *const *flags,
                                         size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct config_option *o = config_find(flags[i], strlen(flags[i]));

        if (l->layers[o - config_options] != LAYER_DEFAULT)
            return o;
    }
    return NULL;
}

/* Under the name that it was given by. Always -1. */
static int refuse(const struct config_loader *l, const struct config_option *o, const char *why,
                  struct err *e)
{
    char name[CONFIG_NAME_MAX + 2];

    (void)snprintf(name, sizeof name, "--%s", o->flag);
    if (l->layers[o - config_options] == LAYER_ENV)
        config_env_name(name, o);
    return err_set(e, ERR_BAD_REQUEST, name, "%s", why);
}

int config_fit(const struct config_loader *l, struct err *e)
{
    const struct config_option *o;

    if (l->config.upstream.n > 0 || l->config.upstream_file != NULL) {
        o = given(l, own, sizeof own / sizeof own[0]);
        return o == NULL ? 0
                         : refuse(l, o,
                                  "with --upstream there is no embedded engine and there are no "
                                  "weights that this could be about",
                                  e);
    }
    o = given(l, theirs, sizeof theirs / sizeof theirs[0]);
    return o == NULL ? 0 : refuse(l, o, "without --upstream there is nobody to ask", e);
}
