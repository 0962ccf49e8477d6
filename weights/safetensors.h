/* Reading the header of a safetensors file or stream, strictly.
 *
 * Layout: u64 little-endian N | N bytes of JSON | tensor bytes to the end. Holes, overlaps,
 * duplicate names and trailing bytes are refused, as the format says. */
#ifndef BATON_WEIGHTS_SAFETENSORS_H
#define BATON_WEIGHTS_SAFETENSORS_H

#include "base/err.h"
#include "base/names.h"
#include "memory/checksum.h"
#include "weights/tensor_list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SAFETENSORS_PREFIX = 8, SAFETENSORS_HEADER_MAX = 100000000, SAFETENSORS_DEPTH_MAX = 8 };

#define SAFETENSORS_DELTA "baton-delta-1" /* docs/delta.md */

/* Checksums of the tensors that a delta makes. */
struct made_sums {
    struct names names;    /* zeroed while there are none */
    struct checksum *sums; /* owned; [names.n] */
    uint32_t cap;
};
void made_sums_fini(struct made_sums *m); /* accepts a zeroed one */

/* made_sums_add - @name  is copied
 * Errors: ERR_BAD_REQUEST (it has another checksum already; field ""), ERR_NO_MEMORY. */
int made_sums_add(struct made_sums *m, const char *name, struct checksum sum, struct err *e);

struct safetensors {
    struct tensor_list *tensor_list; /* tensors in the order of their bytes; one reference, owned */
    uint64_t nbytes_head;            /* 8 + N: where the tensor bytes start */
    uint64_t nbytes_total;           /* of the whole file or stream */
    struct checksum *checksums; /* owned; [n_tensors] from __metadata__ "baton.checksum.<name>" */
    bool *has_checksum;         /* owned; [n_tensors] */
    char *weight_version;       /* owned; __metadata__ "baton.weight_version", or NULL */
    char *snapshot;             /* owned; __metadata__ "baton.snapshot", or NULL */
    char *delta_base;           /* owned; __metadata__ "base_version" of a delta, whose "format" is
                                   SAFETENSORS_DELTA ("" if it says none); NULL: it is no delta.
                                   Its "version" then is weight_version */
    struct made_sums made;      /* owned; of a delta: its "checksum.<name>" */
};

/* safetensors_head_nbytes - how long the head (8 + N bytes) is.
 * @data  the first `have` bytes
 * @out   0 while have < 8 (read more), else 8 + N
 * Errors: ERR_BAD_REQUEST when N is 0 or over SAFETENSORS_HEADER_MAX. */
int safetensors_head_nbytes(const void *data, size_t have, uint64_t *out, struct err *e);

/* safetensors_parse - validate a whole head.
 * @head          8 + N bytes
 * @nbytes_total  length of the file or of the body: must be exactly what the header describes;
 *                UINT64_MAX when not known yet (a chunked body)
 * Empty tensors at the same offset are ordered by name.
 * Errors: ERR_BAD_REQUEST (field "") naming the tensor, or the byte of the header; ERR_TOO_LARGE
 *         (TENSOR_LIST_TENSORS_MAX); ERR_NO_MEMORY. *out is untouched. */
int safetensors_parse(struct safetensors *out, const void *head, uint64_t nbytes_head,
                      uint64_t nbytes_total, struct err *e);
void safetensors_fini(struct safetensors *s); /* accepts a zeroed one */

/* safetensors_open - read and parse the head of a regular file.
 * @dirfd, @path  as openat; opened O_RDONLY | O_CLOEXEC
 * @fd            the open file, the caller's to close; pread tensor bytes from nbytes_head on
 * Errors: ERR_NOT_FOUND, ERR_UNREADABLE (not a regular file, not permitted, shrank meanwhile), and
 *         those above. */
int safetensors_open(struct safetensors *out, int *fd, int dirfd, const char *path, struct err *e);

/* safetensors_read - the same for a file that is open already. @name is for messages. */
int safetensors_read(struct safetensors *out, int fd, const char *name, struct err *e);

#endif
