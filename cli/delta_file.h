/* Delta files (docs/delta.md): what changed between two checkpoints, and a checkpoint from another
 * and what changed. */
#ifndef BATON_CLI_DELTA_FILE_H
#define BATON_CLI_DELTA_FILE_H

#include "base/err.h"
#include "cli/out_file.h"
#include "cli/weight_files.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct delta_file_cfg {
    const struct weight_files *base, *to;
    const char *base_version, *version; /* labels for its metadata; NULL: not known */
    bool partial;                       /* `to` may lack tensors of `base` */
};

/* A delta that was made. */
struct delta_file {
    uint64_t offset, nbytes; /* where the safetensors file lies in what was written */
    uint64_t nbytes_whole;   /* of the tensors of `to` */
    uint32_t n_changed;      /* tensors */
    json_t *checksums;       /* owned: {name: checksum} of all tensors of `to`: those that
                                did not change prove the base */
};

/* delta_file_make - compare the tensors and write what changed. If nothing did, the delta is the
 * smallest tensor, whole: there is no update of nothing.
 * @to  written from `offset` on; the head comes last, and ends where the tensors begin
 * Errors: ERR_MISMATCH (a tensor that is not in both, or not alike; it is named), ERR_UNREADABLE
 *         (the file), ERR_NO_MEMORY, ERR_CANCELLED after an interrupt; *out is untouched.
 * Blocks: on the disk. */
int delta_file_make(struct delta_file *out, struct out_file *to, const struct delta_file_cfg *cfg,
                    struct err *e);
void delta_file_fini(struct delta_file *d); /* accepts a zeroed one */

struct delta_applied {
    uint32_t n_changed; /* tensors of the delta */
    uint32_t n_proven;  /* tensors of the checkpoint: by a checksum of the delta */
};

/* delta_file_apply - write the checkpoint that `delta` makes of `base`: the tensors of `base` in
 * their order, each with the bytes that it then has. Those with a checksum in `delta` are proven.
 * Errors: ERR_PRECONDITION (a file of `base` says that it is another version than the delta builds
 *         on), ERR_MISMATCH, ERR_BAD_REQUEST (of the delta, which names the tensor), ERR_CHECKSUM,
 *         ERR_UNREADABLE, ERR_NO_MEMORY, ERR_CANCELLED after an interrupt. Blocks: on the disk. */
int delta_file_apply(struct out_file *to, const struct weight_files *base,
                     const struct weight_file *delta, struct delta_applied *out, struct err *e);

#endif
