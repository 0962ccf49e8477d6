/* What an update of a model has to bring where another engine runs it. That engine may know models,
 * and take dtypes, that ours does not: then the stored tensors are all that is known of it. */
#include "engine/model/model_config.h"

#include <string.h>

static const char head_suffix[] = "lm_head.weight";

/* "lm_head.weight", or that of a model within a model. */
static bool is_head(const char *name)
{
    size_t len = strlen(name), n = sizeof head_suffix - 1;

    return len >= n && strcmp(name + len - n, head_suffix) == 0 &&
           (len == n || name[len - n - 1] == '.');
}

static int stored_manifest(struct manifest **out, const struct plan *stored, bool ties,
                           struct err *e)
{
    struct plan_builder *b;
    struct plan *plan;

    if (plan_builder_new(&b, e) != 0)
        return -1;
    for (uint32_t i = 0; i < stored->n_tensors; i++) {
        const struct tensor_spec *t = &stored->tensors[i];

        if (manifest_is_rotary(t->name) || (ties && is_head(t->name)))
            continue;
        if (plan_builder_add(b, t->name, t->dtype, t->shape, t->ndim, UINT64_MAX, e) != 0) {
            plan_builder_free(b);
            return -1;
        }
    }
    return plan_builder_finish(b, &plan, e) == 0 ? manifest_new(out, plan, NULL, 0, e) : -1;
}

int model_spec_load(struct manifest **out, const char *dir, const struct plan *stored,
                    struct err *e)
{
    struct model_config cfg;
    struct err why = {0};
    bool ties;

    if (model_config_load(&cfg, dir, &why) == 0 && model_manifest(out, &cfg, stored, &why) == 0)
        return 0;
    if (stored == NULL || (why.code != ERR_BAD_REQUEST && why.code != ERR_MISMATCH)) {
        *e = why;
        return -1;
    }
    if (model_config_ties(&ties, dir, e) != 0)
        return -1;
    return stored_manifest(out, stored, ties, e);
}
