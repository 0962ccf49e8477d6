/* The tensors that an update must bring for a model that another engine runs. That engine may
 * support models and dtypes that ours does not; then only the stored tensors are known. */
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

static int stored_model_spec(struct model_spec **out, const struct tensor_list *stored, bool ties,
                             struct err *e)
{
    struct tensor_list_builder *b;
    struct tensor_list *tensor_list;

    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    for (uint32_t i = 0; i < stored->n_tensors; i++) {
        const struct tensor_spec *t = &stored->tensors[i];

        if (model_spec_is_rotary(t->name) || (ties && is_head(t->name)))
            continue;
        if (tensor_list_builder_add(b, t->name, t->dtype, t->shape, t->ndim, UINT64_MAX, e) != 0) {
            tensor_list_builder_free(b);
            return -1;
        }
    }
    return tensor_list_builder_finish(b, &tensor_list, e) == 0
               ? model_spec_new(out, tensor_list, NULL, 0, e)
               : -1;
}

int model_spec_of_dir(struct model_spec **out, const char *dir, const struct tensor_list *stored,
                      struct err *e)
{
    struct model_config cfg;
    struct err why = {0};
    bool ties;

    if (model_config_load(&cfg, dir, &why) == 0 &&
        model_spec_of_config(out, &cfg, stored, &why) == 0)
        return 0;
    if (stored == NULL || (why.code != ERR_BAD_REQUEST && why.code != ERR_MISMATCH)) {
        *e = why;
        return -1;
    }
    if (model_config_ties(&ties, dir, e) != 0)
        return -1;
    return stored_model_spec(out, stored, ties, e);
}
