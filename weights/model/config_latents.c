/* The latent attention of config.json (MLA of DeepSeek-V3): keys that transformers reads, with its
 * meaning of an absent or null one. */
#include "weights/model/config_members.h"

#include <stdio.h>

/* Null has a meaning of its own: it is not the same as absent. */
static int read_q_rank(struct model_config *c, const json_t *o, struct err *e)
{
    const json_t *v = json_object_get(o, "q_lora_rank");

    if (v == NULL)
        return config_missing(e, "", "q_lora_rank", "an integer, or null for q_proj");
    return config_u32(&c->latents.q_rank, o, "q_lora_rank", false, 1, MODEL_WIDTH_MAX, e);
}

/* transformers computes the frequencies of angles by `head_dim`, which it writes too. */
static int check_head_dim(const struct model_config *c, const json_t *o, struct err *e)
{
    uint32_t head_dim = c->rope_dim;
    char allowed[64];

    if (config_u32(&head_dim, o, "head_dim", false, 1, UINT32_MAX, e) != 0)
        return -1;
    if (head_dim == c->rope_dim)
        return 0;
    (void)snprintf(allowed, sizeof allowed, "qk_rope_head_dim, %u, or no such key", c->rope_dim);
    return config_refuse(e, "", "head_dim", "of another value", allowed);
}

static int check_widths(const struct model_config *c, uint32_t nope, struct err *e)
{
    uint64_t widest = nope + (uint64_t)c->v_head_dim;

    if (c->n_kv_heads != c->n_heads)
        return err_set(e, ERR_BAD_REQUEST, "/num_key_value_heads",
                       "num_key_value_heads %u is not num_attention_heads %u: latents make a key "
                       "and a value for each head",
                       c->n_kv_heads, c->n_heads);
    if (c->rope_dim % 2 != 0)
        return err_set(e, ERR_BAD_REQUEST, "/qk_rope_head_dim",
                       "qk_rope_head_dim %u is not an even number", c->rope_dim);
    widest = widest > c->head_dim ? widest : c->head_dim;
    if (c->n_heads * widest > MODEL_WIDTH_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/num_attention_heads",
                       "num_attention_heads %u times %llu elements of a head is over %d",
                       c->n_heads, (unsigned long long)widest, MODEL_WIDTH_MAX);
    return 0;
}

int config_latents(struct model_config *c, const json_t *o, struct err *e)
{
    enum { PART_MAX = MODEL_HEAD_DIM_MAX / 2 };
    uint32_t nope = 0;

    if (read_q_rank(c, o, e) != 0 ||
        config_u32(&c->latents.kv_rank, o, "kv_lora_rank", true, 1, MODEL_WIDTH_MAX, e) != 0 ||
        config_u32(&nope, o, "qk_nope_head_dim", true, 1, PART_MAX, e) != 0 ||
        config_u32(&c->rope_dim, o, "qk_rope_head_dim", true, 2, PART_MAX, e) != 0 ||
        config_u32(&c->v_head_dim, o, "v_head_dim", true, 1, PART_MAX, e) != 0 ||
        config_bool_or_true(&c->rope_interleave, o, "rope_interleave", e) != 0 ||
        check_head_dim(c, o, e) != 0)
        return -1;
    c->head_dim = nope + c->rope_dim;
    return check_widths(c, nope, e);
}
