/* The digest of a version's weights, and what a file of it says in its head. */
#ifndef BATON_WEIGHTS_STATE_VERSION_CONTENT_H
#define BATON_WEIGHTS_STATE_VERSION_CONTENT_H

#include "base/err.h"
#include "memory/checksum.h"
#include "weights/state/journal.h"
#include "weights/store/store.h"

#include <jansson.h>
#include <nettle/sha2.h>

/* content_of_version - the digest of a version's weights: of the model spec and of the checksums of
 * all tensors in its order. Reads every byte whose checksum is not known yet.
 * Threads: any that has the version pinned. Errors: ERR_CUDA, ERR_NO_MEMORY. */
int content_of_version(struct store *s, const struct version *v, char out[CONTENT_LEN + 1],
                       struct err *e);

/* content_of - the same of known checksums. @sums  [spec->n_tensors] */
void content_of(const struct tensor_list *spec, const struct checksum *sums,
                char out[CONTENT_LEN + 1]);

/* content_text - a digest in hexadecimal. */
void content_text(struct sha256_ctx *ctx, char out[CONTENT_LEN + 1]);

/* content_metadata - "__metadata__" of a file of a version: its label, and the checksums of its
 * tensors. New; NULL without memory. @label  NULL: none; @sums  [spec->n_tensors] */
json_t *content_metadata(const char *label, const struct tensor_list *spec,
                         const struct checksum *sums);

#endif
