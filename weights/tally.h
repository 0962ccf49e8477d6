/* Counts which tensors of a model were sent, list by list, when engines receive the bytes
 * themselves. The bytes are never seen here.
 *
 * A name that the model does not have is recorded and is no error; nor is another dtype: the engine
 * decides what it accepts. A tied name (lm_head.weight of a model that ties it) counts for nothing:
 * engines skip it, and wait for the tensor that it is another name of. */
#ifndef BATON_WEIGHTS_TALLY_H
#define BATON_WEIGHTS_TALLY_H

#include "base/err.h"
#include "weights/model_spec.h"

#include <stdbool.h>
#include <stdint.h>

enum { TALLY_NAME_MAX = 80 };

struct tally;

/* tally_new - an empty tally.
 * @m  borrowed until tally_free; NULL: the expected tensors are not known
 * Errors: ERR_NO_MEMORY. Threads: any, one at a time for each tally; so for all functions below. */
int tally_new(struct tally **out, const struct model_spec *m, struct err *e);
void tally_free(struct tally *t); /* accepts NULL */

/* tally_check - may the tensors of `list` be sent next?
 * @shapes  tensors of the model must have the model's shapes
 * @once    no tensor may be sent a second time
 * Errors: ERR_MISMATCH at /shapes/<i>; ERR_PRECONDITION at /names/<i>. */
int tally_check(const struct tally *t, const struct tensor_list *list, bool shapes, bool once,
                struct err *e);

/* tally_add - count the tensors of `list` as sent. Errors: ERR_NO_MEMORY, ERR_TOO_LARGE; after an
 * error some of them are counted. */
int tally_add(struct tally *t, const struct tensor_list *list, struct err *e);

uint32_t tally_n_sent(const struct tally *t); /* names, of the model or not */

/* tally_unknown - how many names were sent that the model does not have; 0 if it is not known.
 * @name  the first of them, at most TALLY_NAME_MAX bytes, borrowed until tally_free; "": none */
uint32_t tally_unknown(const struct tally *t, const char **name);

/* tally_lacks - the first name of `list` that was not sent; NULL: all were. */
const char *tally_lacks(const struct tally *t, const struct tensor_list *list);

/* tally_missing - how many of the model's tensors were not sent; 0 if the model is not known.
 * @out  [cap] receives the first of their names, borrowed from the model spec */
uint32_t tally_missing(const struct tally *t, const char **out, uint32_t cap);

/* tally_model_spec - make a model spec of every name that was sent, without aliases. Only
 * tally_free may follow. Errors: ERR_BAD_REQUEST (nothing was sent), ERR_NO_MEMORY. */
int tally_model_spec(struct model_spec **out, struct tally *t, struct err *e);

#endif
