/* A revision of an adapter as a delta of another: which of its tensors the parts change, and how.
 * What a part is, weights/delta/delta.h says. Its parts are in host memory. One thread at a time.
 */
#ifndef BATON_ENGINE_LORA_ADAPTER_DELTA_H
#define BATON_ENGINE_LORA_ADAPTER_DELTA_H

#include "base/err.h"
#include "weights/tensor_list.h"

#include <stdbool.h>
#include <stdint.h>

struct adapter_delta;

/* adapter_delta_new - read the names of the parts.
 * @base   the tensors that they change; one reference is taken
 * @parts  borrowed as long as the delta
 * Errors: those of delta_of_parts. */
int adapter_delta_new(struct adapter_delta **out, struct tensor_list *base,
                      const struct tensor_list *parts, struct err *e);
void adapter_delta_free(struct adapter_delta *d); /* accepts NULL */

/* adapter_delta_reserve - take memory for the parts: as many bytes as their list has.
 * Errors: ERR_NO_MEMORY. */
int adapter_delta_reserve(struct adapter_delta *d, struct err *e);

/* adapter_delta_place - where the bytes of part i go. */
void *adapter_delta_place(const struct adapter_delta *d, uint32_t i);

/* adapter_delta_make - make tensor i of the base anew; one that no part names is copied.
 * @base, @out  its bytes. Blocks: no. Errors: those of delta_apply, at field "". */
int adapter_delta_make(struct adapter_delta *d, uint32_t i, const void *base, void *out,
                       struct err *e);

/* adapter_delta_check - does what a file says of itself fit the load?
 * @file_base  safetensors.delta_base
 * @base       the digest of the revision that the load builds on; NULL: the load is whole
 * @must_say   a delta has to say that it is one
 * Errors at @field: ERR_BAD_REQUEST (only one of both is a delta), ERR_PRECONDITION (it builds on
 *         another one: both are named). */
int adapter_delta_check(const char *file_base, const char *base, bool must_say, const char *field,
                        struct err *e);

#endif
