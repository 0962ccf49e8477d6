/* The tensors that an update must bring for a model that another engine runs. That engine may
 * support models and dtypes that ours does not; then only the stored tensors are known. */
#include "weights/model/model_config.h"

#include <stdio.h>
#include <string.h>

static bool spec_of_dir_ends_in(const char *name, const char *suffix)
{
    size_t len = strlen(name), n = strlen(suffix);

    return len >= n && strcmp(name + len - n, suffix) == 0;
}

/* That of the model, or of a model within a model. */
static bool is_head(const char *name)
{
    return strcmp(name, "lm_head.weight") == 0 || spec_of_dir_ends_in(name, ".lm_head.weight");
}

/* Routers that correct the choice of experts by a bias: those of DeepSeek-V3, and of GLM-4.5, Kimi,
 * dots1 and others that took it over. transformers holds and saves both tensors in float32
 * since 5.24
 * (_keep_in_fp32_modules_strict); published checkpoints have BF16. */
static bool spec_of_dir_is_float32(const struct tensor_list *stored, const struct tensor_spec *t)
{
    static const char weight[] = ".gate.weight", bias[] = ".gate.e_score_correction_bias";
    size_t prefix = strlen(t->name) - (sizeof weight - 1);
    char sibling[TENSOR_LIST_NAME_LEN_MAX + sizeof bias];

    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_BF16 && t->dtype != DTYPE_F16)
        return false;
    if (spec_of_dir_ends_in(t->name, bias))
        return true;
    if (!spec_of_dir_ends_in(t->name, weight))
        return false;
    (void)snprintf(sibling, sizeof sibling, "%.*s%s", (int)prefix, t->name, bias);
    return tensor_list_find(stored, sibling) != TENSOR_LIST_NO_TENSOR;
}

static int spec_of_dir_hold_routers(struct model_spec *m, const struct tensor_list *stored,
                                    struct err *e)
{
    for (uint32_t i = 0; i < stored->n_tensors; i++)
        if (spec_of_dir_is_float32(stored, &stored->tensors[i]) &&
            model_spec_hold(m, stored->tensors[i].name, e) != 0)
            return -1;
    return 0;
}

static int stored_model_spec(struct model_spec **out, const struct tensor_list *stored, bool ties,
                             struct err *e)
{
    struct tensor_list_builder *b;
    struct tensor_list *tensor_list;
    struct model_spec *made;

    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    for (uint32_t i = 0; i < stored->n_tensors; i++) {
        const struct tensor_spec *t = &stored->tensors[i];

        if (model_spec_is_rotary(t->name) || (ties && is_head(t->name)))
            continue;
        if (tensor_list_builder_add(b, t->name,
                                    spec_of_dir_is_float32(stored, t) ? DTYPE_F32 : t->dtype,
                                    t->shape, t->ndim, UINT64_MAX, e) != 0) {
            tensor_list_builder_free(b);
            return -1;
        }
    }
    if (tensor_list_builder_finish(b, &tensor_list, e) != 0 ||
        model_spec_new(&made, tensor_list, NULL, 0, e) != 0)
        return -1;
    if (spec_of_dir_hold_routers(made, stored, e) != 0) {
        model_spec_free(made);
        return -1;
    }
    *out = made;
    return 0;
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
