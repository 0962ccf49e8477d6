/* The options of the embedded engine. A build without it has none of them. */
#include "server/config/build.h"
#include "server/config/config_table.h"

#include <string.h>

static const char *const of_engine[] = {
    "served-model-name",      "engine-threads", "engine-pin",        "max-num-seqs",
    "max-num-batched-tokens", "max-model-len",  "generation-config", "logprobs-mode",
    "return-routed-experts",  "max-logprobs",   "max-unread-bytes",  "kv-cache",
    "no-prefix-cache",        "max-loras",      "max-lora-rank"};

bool config_is_of_engine(const struct config_option *o)
{
    for (size_t i = 0; i < sizeof of_engine / sizeof of_engine[0]; i++)
        if (strcmp(of_engine[i], o->flag) == 0)
            return true;
    return false;
}

bool config_is_here(const struct config_option *o)
{
    return build_has_engine || !config_is_of_engine(o);
}

const char *const *config_flags(void)
{
    static const char *flags[CONFIG_N_OPTIONS + 1];
    size_t n = 0;

    for (size_t i = 0; i < CONFIG_N_OPTIONS; i++)
        if (config_is_here(&config_options[i]))
            flags[n++] = config_options[i].flag;
    flags[n] = NULL;
    return flags;
}
