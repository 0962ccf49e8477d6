/* Inside the model's config: reading members of config.json, with errors that name the key. */
#ifndef BATON_WEIGHTS_MODEL_CONFIG_MEMBERS_H
#define BATON_WEIGHTS_MODEL_CONFIG_MEMBERS_H

#include "base/err.h"
#include "weights/model/model_config.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* config_member - the member, or NULL when it is absent or null: the two mean the same here.
 * Borrowed from `o`, which may be NULL. */
json_t *config_member(const json_t *o, const char *key);

/* config_quoted - a value as a message shows it: JSON, cut short. Returns out. */
const char *config_quoted(const json_t *v, char *out, size_t cap);

/* config_refuse - "<key> <found> is not supported; supported: <allowed>" at "<dict>/<key>";
 * config_missing - "<key> is missing, expected <expected>"; both always -1.
 * @dict  JSON pointer of the object that holds the key: "" or "/rope_scaling" */
int config_missing(struct err *e, const char *dict, const char *key, const char *expected);
int config_refuse(struct err *e, const char *dict, const char *key, const char *found,
                  const char *allowed);

/* config_agree - refuse two members that mean one thing and differ: readers of the file do not
 * agree which of them counts. Numbers are compared by value; an absent or null one agrees with all.
 * @a, @b  the second is the field of the error, ERR_BAD_REQUEST */
struct config_key {
    const json_t *in;  /* or NULL */
    const char *where; /* as `dict` of config_refuse */
    const char *key;
};
int config_agree(struct config_key a, struct config_key b, struct err *e);

/* Readers; an absent member leaves *out as it is. Errors: ERR_BAD_REQUEST at the key.
 * config_u32 takes an integer within [least, most], and refuses an absent one if `required`;
 * config_positive takes a finite number above 0; config_bool_or_true gives true for an absent one
 * and refuses null, which transformers would take for false. */
int config_u32(uint32_t *out, const json_t *o, const char *key, bool required, uint32_t least,
               uint32_t most, struct err *e);
int config_positive(double *out, const json_t *o, const char *dict, const char *key, struct err *e);
int config_bool(bool *out, const json_t *o, const char *key, struct err *e);
int config_bool_or_true(bool *out, const json_t *o, const char *key, struct err *e);

/* ---- config_rope.c ---- */

/* config_rope - how angles follow from positions, under the old keys or the new.
 * @c  rope_theta holds the default of the architecture; rope_dim, latents and
 *     max_position_embeddings are set: angles that would not be finite are refused, and a linear
 *     factor multiplies the context
 * Errors: ERR_BAD_REQUEST at the key that is the reason. */
int config_rope(struct model_config *c, const json_t *o, struct err *e);

/* ---- config_latents.c ---- */

/* config_latents - latent attention: the widths of a head and of its latents.
 * @c  n_heads and n_kv_heads are set
 * Errors: ERR_BAD_REQUEST at the key that is the reason. */
int config_latents(struct model_config *c, const json_t *o, struct err *e);

/* ---- config_experts.c ---- */

/* config_experts - the mixture of experts of an architecture that has one; else nothing.
 * @c  n_layers and intermediate_size are set
 * Errors: ERR_BAD_REQUEST at the key that is the reason. */
int config_experts(struct model_config *c, const json_t *o, struct err *e);

/* ---- config_generation.c ---- */

/* config_generation - the sampling defaults of generation_config.json.
 * @generation  NULL: there is no such file
 * Errors: ERR_BAD_REQUEST at the key whose value is outside the range of its request member. */
int config_generation(struct model_defaults *out, const json_t *generation, struct err *e);

#endif
