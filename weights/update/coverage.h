/* Which tensors of a model spec a tensor list would bring. */
#ifndef BATON_WEIGHTS_UPDATE_COVERAGE_H
#define BATON_WEIGHTS_UPDATE_COVERAGE_H

#include "base/err.h"
#include "weights/model_spec.h"

/* tensor_list_coverage - match every tensor of @tensor_list and count the tensors of the model spec
 * that it does not bring.
 * @convert    as model_spec_match
 * @missing    [cap] receives the first missing names; borrowed from the model spec
 * @n_missing  how many are missing in all
 * Errors: ERR_MISMATCH (of model_spec_match), ERR_BAD_REQUEST at /names/<i> (two names of the
 * tensor list bring the same tensor), ERR_NO_MEMORY. Pure: no state changes. */
int tensor_list_coverage(const struct model_spec *m, const struct tensor_list *tensor_list,
                         bool convert, const char **missing, uint32_t cap, uint32_t *n_missing,
                         struct err *e);

#endif
