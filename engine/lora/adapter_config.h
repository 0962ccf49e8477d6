/* adapter_config.json of a PEFT adapter: which modules it changes, with which rank and scale.
 *
 * Every known key is either read, or ignored because it does not affect what is computed, or
 * refused. An unknown key is refused too, unless its value is null, false or empty: an
 * adapter that is applied almost right generates wrong tokens without any error. */
#ifndef BATON_ENGINE_LORA_ADAPTER_CONFIG_H
#define BATON_ENGINE_LORA_ADAPTER_CONFIG_H

#include "base/err.h"
#include "base/names.h"
#include "engine/lora/adapter_pattern.h"
#include "weights/model/model_config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ADAPTER_ALPHA_MAX 1e6

enum {
    ADAPTER_CONFIG_NBYTES_MAX = 4 << 20,
    ADAPTER_RANK_MAX = 4096,
    ADAPTER_NAMES_MAX = 7 * MODEL_LAYERS_MAX,    /* of a list of modules */
    ADAPTER_PATTERNS_MAX = 7 * MODEL_LAYERS_MAX, /* of rank_pattern and of alpha_pattern */
    ADAPTER_REGEXES_MAX = 64                     /* of those, that are more than a path */
};

/* The forms of target_modules. */
enum adapter_targets {
    TARGETS_UNSAID, /* absent or null: the modules that have tensors */
    TARGETS_ALL,    /* "all-linear" */
    TARGETS_NAMES,  /* paths, or ends of paths */
    TARGETS_PATTERN
};

struct adapter_override {
    struct adapter_pattern *pattern; /* owned */
    double value;
};

struct adapter_overrides {
    struct adapter_override *items; /* owned; the first that matches wins */
    uint32_t n;
};

struct adapter_config {
    uint32_t r;
    double alpha;
    bool rslora;        /* scale = alpha / sqrt(r), not alpha / r */
    bool base_changed;  /* init_lora_weights names a method that changes the base weights too */
    uint32_t n_ignored; /* keys with a value that do not affect what is computed */

    enum adapter_targets targets;
    struct names target_names;              /* TARGETS_NAMES */
    struct adapter_pattern *target_pattern; /* owned; TARGETS_PATTERN */
    struct names excluded_names;
    struct adapter_pattern *excluded_pattern; /* owned, or NULL */
    bool some_layers;                         /* only those with layers[i] */
    bool layers[MODEL_LAYERS_MAX];
    bool other_stack; /* layers_pattern names none that this model has */
    struct adapter_overrides ranks, alphas;

    uint64_t match_cpu_us; /* spent so far */
    char *text;            /* owned: as it came */
};

/* adapter_config_parse - Errors: ERR_UNREADABLE at /adapter_config (it is not JSON: perhaps only
 *         not yet), ERR_BAD_REQUEST at /adapter_config/<key>, ERR_TOO_LARGE, ERR_NO_MEMORY. */
int adapter_config_parse(struct adapter_config **out, const char *json, size_t len, struct err *e);
void adapter_config_free(struct adapter_config *c); /* accepts NULL */

/* The configuration of one module. */
struct adapter_target {
    bool wanted; /* the module is among the targets (with TARGETS_UNSAID: always) */
    uint32_t r;
    float scale;
};

/* adapter_config_target - @path  "model.layers.0.self_attn.q_proj"
 * @layer  its layer, or a number >= MODEL_LAYERS_MAX for a module outside the layers
 * Threads: one at a time: counts match_cpu_us. Errors: as adapter_pattern_match. */
int adapter_config_target(struct adapter_config *c, const char *path, uint32_t layer,
                          struct adapter_target *out, struct err *e);

#endif
