/* What a model needs: its tensor list, and the other names under which trainers send the same
 * bytes.
 *
 * An alias never has memory of its own. `tied`: another name of a whole tensor (lm_head.weight of
 * a model that ties it); equal bytes are accepted, a difference is an error. `ignored`: a stored
 * value that is derived, such as rotary inv_freq; its bytes are read and dropped. An ignored name
 * that ends in '.' stands for every name that begins so: layers that the engine does not use.
 * Fused names (`gate_up_proj`) are slices: one incoming tensor fills several, in order, along its
 * rows. */
#ifndef BATON_WEIGHTS_MODEL_SPEC_H
#define BATON_WEIGHTS_MODEL_SPEC_H

#include "base/err.h"
#include "weights/tensor_list.h"

#include <stdbool.h>

enum alias_kind { ALIAS_TIED, ALIAS_IGNORED, ALIAS_FUSED };

struct alias {
    const char *name; /* of the model spec */
    enum alias_kind kind;
    uint32_t n_targets;      /* 1 for tied, 0 for ignored */
    const uint32_t *targets; /* indexes into the tensor list, in the order of the incoming bytes */
    uint32_t ndim;           /* the shape the incoming tensor must have (fused, tied) */
    uint64_t shape[TENSOR_LIST_NDIM_MAX];
};

struct model_spec {
    struct tensor_list *tensor_list; /* one reference, owned */
    uint32_t n_aliases;
    const struct alias *aliases; /* owned */
    bool *held;                  /* owned; [n_tensors], or NULL: none; see model_spec_hold */
    uint32_t n_rotary;           /* 0: not known */
    float *rotary;               /* owned; [n_rotary] what a stored inv_freq must be */
};

struct alias_spec {
    const char *name;
    enum alias_kind kind;
    const char *const *targets; /* names in the tensor list; NULL-terminated; NULL for ignored */
    uint32_t ndim;              /* fused: shape of the incoming tensor; tied takes its target's */
    uint64_t shape[TENSOR_LIST_NDIM_MAX];
};

/* model_spec_new - @tensor_list is moved in, also on failure. @aliases are copied.
 * Errors: ERR_INTERNAL (a target is not in the tensor list, or bytes do not add up), ERR_NO_MEMORY.
 */
int model_spec_new(struct model_spec **out, struct tensor_list *tensor_list,
                   const struct alias_spec *aliases, uint32_t n_aliases, struct err *e);
void model_spec_free(struct model_spec *m); /* accepts NULL */

/* Where the bytes of one incoming tensor go. */
struct model_spec_match {
    uint32_t index; /* into the tensor list; TENSOR_LIST_NO_TENSOR when an alias matched */
    const struct alias *alias; /* NULL when the tensor list's own name matched */
};

/* model_spec_match - find `t` and check shape and dtype.
 * @convert  accept a dtype that dtype_convert can turn into the model spec's; see model_spec_hold
 * @i        its place in the request, for the error's field
 *
 * Names ending in ".rotary_emb.inv_freq", equal to an ignored alias, or below one that ends in '.'
 * match with kind IGNORED.
 * Errors: ERR_MISMATCH at /names/<i> (unknown; the nearest known name is suggested when one is
 *         close), /shapes/<i>, /dtypes/<i>: expected and found, with the tensor's name. */
int model_spec_match(const struct model_spec *m, const struct tensor_spec *t, bool convert,
                     uint32_t i, struct model_spec_match *out, struct err *e);

/* model_spec_match_next - the same for the tensor after the one that matched as @last: most often
 * it is also the next one of the model spec, and needs no search. @out may be @last. */
int model_spec_match_next(const struct model_spec *m, const struct model_spec_match *last,
                          const struct tensor_spec *t, bool convert, uint32_t i,
                          struct model_spec_match *out, struct err *e);

/* model_spec_is_rotary - does the name end as stored rotary frequencies do? */
bool model_spec_is_rotary(const char *name);

/* model_spec_find - find `name` without checking shape or dtype. False: the model has no such name.
 * @last  the match of the name before it, or one with index TENSOR_LIST_NO_TENSOR; @out may be
 * @last */
bool model_spec_find(const struct model_spec *m, const struct model_spec_match *last,
                     const char *name, struct model_spec_match *out);

/* model_spec_check_shape - check the shape of a matched tensor. Errors: ERR_MISMATCH at
 * /shapes/<i>. */
int model_spec_check_shape(const struct model_spec *m, const struct model_spec_match *match,
                           const struct tensor_spec *t, uint32_t i, struct err *e);

/* model_spec_derive_rotary - set the values that ".rotary_emb.inv_freq" must have. Names with that
 * ending are checked from then on: another shape is ERR_MISMATCH in model_spec_match, another value
 * in model_spec_check_ignored.
 * @inv_freq  [n], copied. Threads: before the model spec is shared. Errors: ERR_NO_MEMORY. */
int model_spec_derive_rotary(struct model_spec *m, const float *inv_freq, uint32_t n,
                             struct err *e);

/* model_spec_hold - the model computes the tensor `name` in float32, its dtype here, whatever a
 * checkpoint has: BF16 and F16 are taken without `convert`, and widened, which loses nothing.
 * Threads: before the model spec is shared. Errors: ERR_INTERNAL (no such F32 tensor),
 * ERR_NO_MEMORY. */
int model_spec_hold(struct model_spec *m, const char *name, struct err *e);

/* model_spec_check_ignored - compare the bytes sent under an ignored name with the derived values.
 * @data  the tensor's bytes, unaligned
 * Errors: ERR_MISMATCH naming the tensor, the element and both values: a trainer with another
 *         rope_theta would otherwise see success, while the engine generates with the configured
 *         value. */
int model_spec_check_ignored(const struct model_spec *m, const struct tensor_spec *t,
                             const void *data, struct err *e);

/* model_spec_load - read a model spec for a store without an engine: a .safetensors file (its
 * header) or JSON {"names":[...],"dtypes":[...],"shapes":[...],"aliases":{"alias":"name",...}?}.
 * Errors: ERR_NOT_FOUND, ERR_UNREADABLE, ERR_BAD_REQUEST (what and where), ERR_NO_MEMORY. */
int model_spec_load(struct model_spec **out, const char *path, struct err *e);

#endif
