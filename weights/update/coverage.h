/* Which tensors of a manifest a plan would bring. */
#ifndef BATON_WEIGHTS_UPDATE_COVERAGE_H
#define BATON_WEIGHTS_UPDATE_COVERAGE_H

#include "base/err.h"
#include "weights/manifest.h"

/* plan_coverage - match every tensor of `plan` and count what is left of the manifest.
 * @convert    as manifest_match
 * @missing    [cap] receives the first names that the plan lacks; borrowed from the manifest
 * @n_missing  how many there are in all
 * Errors: ERR_MISMATCH (of manifest_match), ERR_BAD_REQUEST at /names/<i> (two names of the plan
 *         bring the same tensor), ERR_NO_MEMORY. Pure: no state changes. */
int plan_coverage(const struct manifest *m, const struct plan *plan, bool convert,
                  const char **missing, uint32_t cap, uint32_t *n_missing, struct err *e);

#endif
