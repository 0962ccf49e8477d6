/* Which tensors of a model have come, list by list, where others receive them: an engine that is
 * told to take them itself. Nothing is known of their bytes.
 *
 * Names that the model does not have are noted and are no error, and neither is another dtype: the
 * engine knows more of what it can take. A tied name (lm_head.weight of a model that ties it)
 * brings nothing: engines skip it, and wait for the tensor that it is another name of. */
#ifndef BATON_WEIGHTS_TALLY_H
#define BATON_WEIGHTS_TALLY_H

#include "base/err.h"
#include "weights/model_spec.h"

#include <stdbool.h>
#include <stdint.h>

struct tally;

/* tally_new - nothing has come yet.
 * @m  borrowed until tally_free; NULL: it is not known what has to come
 * Errors: ERR_NO_MEMORY. Threads: of one tally one at a time; so are all below. */
int tally_new(struct tally **out, const struct model_spec *m, struct err *e);
void tally_free(struct tally *t); /* accepts NULL */

/* tally_check - may these come next?
 * @shapes  those that the model has must be of its shapes
 * @once    none may come a second time
 * Errors: ERR_MISMATCH at /shapes/<i>; ERR_CONFLICT at /names/<i>. */
int tally_check(const struct tally *t, const struct tensor_list *list, bool shapes, bool once,
                struct err *e);

/* tally_add - they have come. Errors: ERR_NO_MEMORY, ERR_TOO_LARGE; some of them count then. */
int tally_add(struct tally *t, const struct tensor_list *list, struct err *e);

uint32_t tally_n_came(const struct tally *t); /* names, of the model or not */

/* tally_missing - how many of the model's tensors have not come; 0 where it is not known.
 * @out  [cap] receives the first of their names, borrowed from the model spec */
uint32_t tally_missing(const struct tally *t, const char **out, uint32_t cap);

/* tally_model_spec - what came as a model of its own: every name, no aliases. Ends the tally's
 * counting: only tally_free may follow. Errors: ERR_BAD_REQUEST (nothing came), ERR_NO_MEMORY. */
int tally_model_spec(struct model_spec **out, struct tally *t, struct err *e);

#endif
