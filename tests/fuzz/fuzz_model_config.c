/* config.json, and after the first NUL byte (if there is one) generation_config.json. */
#include "weights/model/model_config.h"

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

enum { LAYERS_TRIED = 4 }; /* a model spec of more is only slower */

static void check_limits(const struct model_config *c)
{
    assert(c->vocab_size >= 1 && c->vocab_size <= MODEL_VOCAB_MAX);
    assert(c->hidden_size >= 1 && c->hidden_size <= MODEL_WIDTH_MAX);
    assert(c->intermediate_size >= 1 && c->intermediate_size <= MODEL_WIDTH_MAX);
    assert(c->n_layers >= 1 && c->n_layers <= MODEL_LAYERS_MAX);
    assert(c->head_dim >= 2 && c->head_dim <= MODEL_HEAD_DIM_MAX);
    assert(c->n_kv_heads >= 1 && c->n_heads % c->n_kv_heads == 0);
    assert((uint64_t)c->n_heads * c->head_dim <= MODEL_WIDTH_MAX);
    assert(c->rope_dim >= 2 && c->rope_dim % 2 == 0 && c->rope_dim <= c->head_dim);
    assert(c->v_head_dim >= 1 && (uint64_t)c->n_heads * c->v_head_dim <= MODEL_WIDTH_MAX);
    assert((c->latents.kv_rank > 0) == (c->arch == ARCH_DEEPSEEK_V3));
    assert(c->max_position_embeddings >= 1 && c->max_position_embeddings <= MODEL_POSITION_MAX);
    assert(c->rms_norm_eps >= 0.0F && c->rope_theta > 0.0 && isfinite(c->rope_theta));
    assert(c->dtype == DTYPE_BF16 || c->dtype == DTYPE_F16 || c->dtype == DTYPE_F32);
    assert(c->n_eos <= MODEL_EOS_MAX);
}

static void check_experts(const struct model_experts *x)
{
    assert((x->n > 0) == (x->n_sparse_layers > 0));
    assert(x->n_per_token <= x->n && x->n_per_token <= MODEL_EXPERTS_PER_TOKEN_MAX);
    assert(x->shared_size <= MODEL_WIDTH_MAX);
    if (!x->sigmoid)
        return;
    assert(x->n % x->n_groups == 0 && x->n / x->n_groups >= 2);
    assert(x->n_groups_kept >= 1 && x->n_groups_kept <= x->n_groups);
    assert(x->n_per_token <= x->n / x->n_groups * x->n_groups_kept);
    assert(x->scale > 0.0F && isfinite(x->scale));
}

static void check_model_spec(const struct model_config *c)
{
    struct model_config few = *c;
    struct model_spec *m = NULL;
    struct err e = {0};

    few.n_layers = c->n_layers < LAYERS_TRIED ? c->n_layers : LAYERS_TRIED;
    if (model_spec_of_config(&m, &few, NULL, &e) != 0) {
        assert(e.code == ERR_NO_MEMORY);
        return;
    }
    assert(tensor_list_find(m->tensor_list, "model.norm.weight") != TENSOR_LIST_NO_TENSOR);
    model_spec_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    const uint8_t *nul = len > 0 ? memchr(data, 0, len) : NULL;
    size_t config_len = nul != NULL ? (size_t)(nul - data) : len;
    struct model_config c = {0};
    struct err e = {0};
    int rc = model_config_parse(&c, (const char *)data, config_len,
                                nul != NULL ? (const char *)nul + 1 : NULL,
                                nul != NULL ? len - config_len - 1 : 0, &e);

    assert((rc == 0) == (e.code == ERR_NONE));
    if (rc != 0) {
        assert(e.msg[0] != '\0');
        return 0;
    }
    check_limits(&c);
    check_experts(&c.experts);
    check_model_spec(&c);
    return 0;
}
