/* model.safetensors.index.json: maps each tensor of a checkpoint to the file that contains it. */
#ifndef BATON_TRANSPORT_FILE_INDEX_H
#define BATON_TRANSPORT_FILE_INDEX_H

#include "base/err.h"
#include "base/names.h"

#include <stdint.h>

enum { FILE_INDEX_NBYTES_MAX = 256 << 20, FILE_INDEX_DEPTH_MAX = 8, FILE_INDEX_FILES_MAX = 4096 };

struct file_index {
    struct names tensors; /* of weight_map, in its order */
    struct names files;   /* plain names, in order of first mention */
    uint32_t *file;       /* owned; [tensors.n]: number in files */
    uint32_t cap;         /* of file */
};

/* file_index_read - read and check an index; `total_size` and other members are ignored.
 * @fd    an open file, borrowed; read with pread
 * Errors: ERR_BAD_REQUEST (with the tensor or byte), ERR_UNREADABLE, ERR_TOO_LARGE,
 *         ERR_NO_MEMORY; all at /path. *out is untouched. */
int file_index_read(struct file_index *out, int fd, struct err *e);
void file_index_fini(struct file_index *x); /* accepts a zeroed one */

#endif
