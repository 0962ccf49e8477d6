/* Writing the head of a safetensors file or stream: what weights/safetensors.h reads. */
#ifndef BATON_WEIGHTS_SAFETENSORS_WRITE_H
#define BATON_WEIGHTS_SAFETENSORS_WRITE_H

#include "base/err.h"
#include "weights/tensor_list.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* safetensors_head_make - the length, the JSON header, and blanks so that the bytes of the tensors,
 * which follow, begin at a multiple of 8.
 * @out       on success malloc'ed, the caller's; the length depends on the arguments alone
 * @tensors   [n]: name, dtype, shape, offset and nbytes are written; the bytes of one end where
 *            those of the next begin
 * @metadata  stolen; an object of strings: "__metadata__". NULL: there was no memory to make it
 * Errors: ERR_NO_MEMORY; *out is then untouched. */
int safetensors_head_make(char **out, size_t *nbytes, const struct tensor_spec *tensors, uint32_t n,
                          json_t *metadata, struct err *e);

/* A file whose head has been made, and whose tensors are elsewhere. */
struct safetensors_parts {
    const char *head;
    uint64_t nbytes_head;
    const struct tensor_list *tensors; /* those of the head */
    /* Copy bytes [offset, offset + n) of tensor i. Errors: any. */
    int (*read)(void *arg, uint32_t i, uint64_t offset, uint64_t n, void *out, struct err *e);
    void *arg;
};

/* safetensors_read_parts - bytes [at, at + n) of the file, which must be in it. Threads, blocking
 * and errors: of `read`; `out` is then undefined. */
int safetensors_read_parts(const struct safetensors_parts *f, uint64_t at, uint64_t n, void *out,
                           struct err *e);

#endif
