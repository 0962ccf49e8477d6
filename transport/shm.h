/* Weights from POSIX shared memory that another process wrote. It is read with pread, so that an
 * object that shrinks causes an error and not a signal. */
#ifndef BATON_TRANSPORT_SHM_H
#define BATON_TRANSPORT_SHM_H

#include "base/err.h"
#include "weights/source.h"
#include "weights/tensor_list.h"

#include <stdbool.h>
#include <stdint.h>

struct shm_range {
    const char *name; /* "/name" as for shm_open, or "name" as in Python; no other '/' */
    uint64_t offset;  /* bytes */
    uint64_t nbytes;  /* as the sender gives it; must equal the size in the tensor list */
};

/* shm_source_open - open the objects and check their lengths; nothing is read yet.
 * @ranges       [n_ranges]: 1 = the packed bucket; tensor_list->n_tensors > 1 = one for each tensor
 * @packed       false: one for each tensor, whatever their number
 * @tensor_list  borrowed during the call; fill must be called with the same list
 * Errors: ERR_BAD_REQUEST at /shm/name, /shm/nbytes, /shm/<i>/nbytes...; ERR_NOT_FOUND (no such
 *         object); ERR_UNREADABLE (not permitted, shorter than offset + nbytes). */
int shm_source_open(struct source **out, const struct shm_range *ranges, uint32_t n_ranges,
                    bool packed, const struct tensor_list *tensor_list, struct err *e);

#endif
