/* Inside the model spec: the other names that trainers and engines use for the same bytes. */
#ifndef BATON_WEIGHTS_MODEL_SPEC_ALIASES_H
#define BATON_WEIGHTS_MODEL_SPEC_ALIASES_H

#include "base/err.h"
#include "weights/model/model_tensors.h"
#include "weights/model_spec.h"

#include <stdint.h>

struct spec_aliases {
    struct alias_spec *specs;      /* owned; [n] */
    char (*names)[MODEL_NAME_MAX]; /* owned; of the specs of layers */
    const char **targets;          /* owned; lists of names of the tensor list, each ends in NULL */
    uint32_t n, n_names, n_targets;
};

/* spec_aliases_init - a tied head, stored rotary frequencies, MTP layers, and the names under which
 * vLLM or transformers 5 hold several tensors of a layer as one.
 * @tensor_list  of the model; borrowed until spec_aliases_fini
 * Errors: ERR_NO_MEMORY; nothing is left to free then. */
int spec_aliases_init(struct spec_aliases *out, const struct model_config *c,
                      const struct tensor_list *tensor_list, struct err *e);
void spec_aliases_fini(struct spec_aliases *a);

#endif
