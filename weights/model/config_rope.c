/* Rotary embeddings of config.json. transformers 5 writes rope_parameters, with rope_theta inside;
 * older versions wrote rope_scaling beside rope_theta, where `type` is an old name of `rope_type`.
 *
 * A file that has both is read only if both say the same: transformers 5 takes rope_scaling whole
 * and drops rope_parameters, its rope_theta too, and older readers know rope_scaling alone. */
#include "weights/model/config_members.h"
#include "weights/model/rope.h"

#include <math.h>
#include <string.h>

static const double MAGNITUDE_MAX = 1e6;

/* partial_rotary_factor, beside the dictionary or inside it. */
static int check_partial(const json_t *o, const char *where, struct err *e)
{
    double partial = 1.0;

    if (config_positive(&partial, o, where, "partial_rotary_factor", e) != 0)
        return -1;
    if (partial < 1.0 || partial > 1.0)
        return config_refuse(e, where, "partial_rotary_factor", "other than 1", "1");
    return 0;
}

/* A number above 0 that must be there. */
static int read_needed(double *out, const json_t *dict, const char *where, const char *key,
                       struct err *e)
{
    if (config_member(dict, key) == NULL)
        return config_missing(e, where, key, "a number above 0");
    return config_positive(out, dict, where, key, e);
}

static int read_llama3(struct model_config *c, const json_t *dict, const char *where, struct err *e)
{
    struct rope_scaling *s = &c->rope_scaling;

    if (read_needed(&s->factor, dict, where, "factor", e) != 0 ||
        read_needed(&s->low_freq_factor, dict, where, "low_freq_factor", e) != 0 ||
        read_needed(&s->high_freq_factor, dict, where, "high_freq_factor", e) != 0)
        return -1;
    if (!(s->low_freq_factor < s->high_freq_factor))
        return config_refuse(e, where, "high_freq_factor", "not above low_freq_factor",
                             "a larger number");
    return 0;
}

/* 0 means absent in transformers. */
static int read_or_zero(double *out, const json_t *dict, const char *where, const char *key,
                        struct err *e)
{
    const json_t *v = config_member(dict, key);

    if (json_is_number(v) && json_number_value(v) == 0.0)
        return 0;
    return config_positive(out, dict, where, key, e);
}

static double yarn_mscale(double factor, double mscale)
{
    return factor > 1.0 ? 0.1 * mscale * log(factor) + 1.0 : 1.0;
}

/* The magnitudes: of the rotation for every model, of the scores for latent attention alone. */
static int read_magnitudes(struct model_config *c, const json_t *dict, const char *where,
                           struct err *e)
{
    struct rope_scaling *s = &c->rope_scaling;
    double mscale = 0.0, all_dim = 0.0;

    if (read_or_zero(&mscale, dict, where, "mscale", e) != 0 ||
        read_or_zero(&all_dim, dict, where, "mscale_all_dim", e) != 0)
        return -1;
    s->rotation = yarn_mscale(s->factor, 1.0);
    if (mscale > 0.0 && all_dim > 0.0)
        s->rotation = yarn_mscale(s->factor, mscale) / yarn_mscale(s->factor, all_dim);
    s->scores = 1.0;
    if (c->latents.kv_rank > 0 && all_dim > 0.0)
        s->scores = pow(yarn_mscale(s->factor, all_dim), 2.0);
    if (config_positive(&s->rotation, dict, where, "attention_factor", e) != 0)
        return -1;
    if (!(s->rotation <= MAGNITUDE_MAX && s->scores <= MAGNITUDE_MAX))
        return config_refuse(e, where, "attention_factor", "or what mscale makes of it, over 1e6,",
                             "a smaller number");
    return 0;
}

/* Null is false in transformers. */
static int read_truncate(struct rope_scaling *s, const json_t *dict, const char *where,
                         struct err *e)
{
    const json_t *v = json_object_get(dict, "truncate");
    char found[64];

    s->truncate = v == NULL || json_is_true(v);
    if (v != NULL && !json_is_boolean(v) && !json_is_null(v))
        return config_refuse(e, where, "truncate", config_quoted(v, found, sizeof found),
                             "true and false");
    return 0;
}

static int read_yarn(struct model_config *c, const json_t *dict, const char *where, struct err *e)
{
    struct rope_scaling *s = &c->rope_scaling;

    s->beta_fast = 32.0;
    s->beta_slow = 1.0;
    if (read_needed(&s->factor, dict, where, "factor", e) != 0 ||
        read_or_zero(&s->beta_fast, dict, where, "beta_fast", e) != 0 ||
        read_or_zero(&s->beta_slow, dict, where, "beta_slow", e) != 0 ||
        read_truncate(s, dict, where, e) != 0)
        return -1;
    if (!(s->beta_slow <= s->beta_fast))
        return config_refuse(e, where, "beta_fast", "below beta_slow", "a larger number");
    return read_magnitudes(c, dict, where, e);
}

static int read_kind(struct model_config *c, const json_t *dict, const char *where, struct err *e)
{
    const char *key = config_member(dict, "rope_type") != NULL ? "rope_type" : "type";
    const json_t *type = config_member(dict, key);
    const char *name = type == NULL ? "default" : json_string_value(type);
    char found[64];

    if (config_agree((struct config_key){dict, where, "rope_type"},
                     (struct config_key){dict, where, "type"}, e) != 0)
        return -1;
    if (name != NULL && strcmp(name, "default") == 0)
        return 0;
    if (name != NULL && strcmp(name, "linear") == 0) {
        c->rope_kind = ROPE_LINEAR;
        return read_needed(&c->rope_scaling.factor, dict, where, "factor", e);
    }
    if (name != NULL && strcmp(name, "llama3") == 0) {
        c->rope_kind = ROPE_LLAMA3;
        return read_llama3(c, dict, where, e);
    }
    if (name != NULL && strcmp(name, "yarn") == 0) {
        c->rope_kind = ROPE_YARN;
        return read_yarn(c, dict, where, e);
    }
    return config_refuse(e, where, key, config_quoted(type, found, sizeof found),
                         "\"default\", \"linear\", \"llama3\" and \"yarn\"");
}

/* In float32, as they are computed, up to the last position. */
static bool angles_are_finite(const struct model_config *c)
{
    float frequencies[MODEL_HEAD_DIM_MAX / 2];

    rope_frequencies(frequencies, c);
    for (uint32_t i = 0; i < c->rope_dim / 2; i++)
        if (!isfinite(frequencies[i] * (float)c->max_position_embeddings))
            return false;
    return true;
}

static int check_angles(const struct model_config *c, const char *where_theta, const char *where,
                        struct err *e)
{
    struct model_config unscaled = *c;

    unscaled.rope_kind = ROPE_DEFAULT;
    if (!angles_are_finite(&unscaled))
        return config_refuse(e, where_theta, "rope_theta", "makes infinite angles",
                             "a larger number");
    if (!angles_are_finite(c))
        return config_refuse(e, where, "factor", "makes infinite angles", "a larger number");
    return 0;
}

/* The context before it was stretched: inside the dictionary; or beside it, where it wins in
 * transformers 5 and others do not look; else the one of the file. */
static int read_original(struct model_config *c, const json_t *o, const json_t *dict,
                         const char *where, struct err *e)
{
    static const char key[] = "original_max_position_embeddings";

    c->rope_scaling.original_positions = c->max_position_embeddings;
    if (config_positive(&c->rope_scaling.original_positions, o, "", key, e) != 0 ||
        config_positive(&c->rope_scaling.original_positions, dict, where, key, e) != 0)
        return -1;
    return config_agree((struct config_key){dict, where, key}, (struct config_key){o, "", key}, e);
}

/* vLLM and SGLang count so: the other kinds have a max_position_embeddings that is scaled already.
 */
static void scale_context(struct model_config *c)
{
    double n = c->max_position_embeddings * c->rope_scaling.factor;

    if (c->rope_kind == ROPE_LINEAR)
        c->max_position_embeddings = (uint32_t)fmax(1.0, fmin(n, MODEL_POSITION_MAX));
}

/* @c  as config_rope's, with the rope_theta of the file
 * @dict  the value of `where` in `o` */
static int rope_read_dict(struct model_config *c, const json_t *o, json_t *dict, const char *where,
                          struct err *e)
{
    const char *inner;
    json_t *v;

    json_object_foreach(dict, inner, v)
    {
        if (json_is_object(v)) /* one set for each layer type */
            return config_refuse(e, where, inner, "an object", "one set for all layers");
    }
    if (config_positive(&c->rope_theta, dict, where, "rope_theta", e) != 0 ||
        config_agree((struct config_key){dict, where, "rope_theta"},
                     (struct config_key){o, "", "rope_theta"}, e) != 0 ||
        check_partial(dict, where, e) != 0 || read_original(c, o, dict, where, e) != 0 ||
        read_kind(c, dict, where, e) != 0)
        return -1;
    if (c->latents.kv_rank > 0 && c->rope_kind != ROPE_DEFAULT && c->rope_kind != ROPE_YARN &&
        config_member(dict, "mscale_all_dim") != NULL)
        return config_refuse(e, where, "mscale_all_dim", "without yarn", "rope_type \"yarn\"");
    scale_context(c);
    return check_angles(c, config_member(dict, "rope_theta") != NULL ? where : "", where, e);
}

/* NULL: absent, null or empty, which transformers takes for absent too. */
static int find_dict(json_t **out, const json_t *o, const char *where, struct err *e)
{
    json_t *dict = config_member(o, where + 1);
    char found[64];

    *out = json_object_size(dict) > 0 ? dict : NULL;
    return dict == NULL || json_is_object(dict)
               ? 0
               : config_refuse(e, "", where + 1, config_quoted(dict, found, sizeof found),
                               "an object");
}

static bool rotates_alike(const struct model_config *a, const struct model_config *b)
{
    float x[MODEL_HEAD_DIM_MAX / 2], y[MODEL_HEAD_DIM_MAX / 2];
    float x_row[MODEL_HEAD_DIM_MAX], y_row[MODEL_HEAD_DIM_MAX];
    double x_scores = a->rope_kind == ROPE_YARN ? a->rope_scaling.scores : 1.0;
    double y_scores = b->rope_kind == ROPE_YARN ? b->rope_scaling.scores : 1.0;

    rope_frequencies(x, a);
    rope_frequencies(y, b);
    rope_row(x_row, x, a, 1);
    rope_row(y_row, y, b, 1);
    return memcmp(x, y, a->rope_dim / 2 * sizeof *x) == 0 &&
           memcmp(x_row, y_row, a->rope_dim * sizeof *x_row) == 0 &&
           !(x_scores < y_scores || x_scores > y_scores) &&
           a->max_position_embeddings == b->max_position_embeddings;
}

int config_rope(struct model_config *c, const json_t *o, struct err *e)
{
    static const char first[] = "/rope_parameters", second[] = "/rope_scaling";
    struct model_config other;
    json_t *parameters, *scaling;

    c->rope_kind = ROPE_DEFAULT;
    if (find_dict(&parameters, o, first, e) != 0 || find_dict(&scaling, o, second, e) != 0 ||
        config_positive(&c->rope_theta, o, "", "rope_theta", e) != 0 ||
        check_partial(o, "", e) != 0)
        return -1;
    if (parameters == NULL && scaling == NULL)
        return check_angles(c, "", "", e);
    other = *c;
    if (parameters != NULL && rope_read_dict(c, o, parameters, first, e) != 0)
        return -1;
    if (scaling != NULL && rope_read_dict(&other, o, scaling, second, e) != 0)
        return -1;
    if (parameters != NULL && scaling != NULL && !rotates_alike(c, &other))
        return err_set(
            e, ERR_BAD_REQUEST, second,
            "rope_scaling and rope_parameters say different things: transformers 5 reads "
            "rope_scaling and drops the other, with its rope_theta; put all into one of "
            "them and remove the other");
    if (parameters == NULL)
        *c = other;
    return 0;
}
