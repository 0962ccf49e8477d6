/* A file that is complete or not there: it is written beside its place and renamed. */
#ifndef BATON_CLI_OUT_FILE_H
#define BATON_CLI_OUT_FILE_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct out_file {
    const char *path; /* borrowed */
    char *unfinished; /* owned; NULL: the file has no name yet */
    int fd;
};

/* out_file_open - in the directory of `path`.
 * @named  false: a file without a name, for out_file_copy(); it is gone when it is closed
 * Errors: ERR_UNREADABLE, ERR_BAD_REQUEST (the path is too long), ERR_NO_MEMORY. */
int out_file_open(struct out_file *out, const char *path, bool named, struct err *e);

/* out_file_memory - one in memory, without a name. Errors: ERR_NO_MEMORY. */
int out_file_memory(struct out_file *out, struct err *e);

/* out_file_write - at `offset`. out_file_copy - append `nbytes` of another file from `offset` on.
 * Errors: ERR_UNREADABLE. Block: on the disk. */
int out_file_write(struct out_file *f, const void *data, uint64_t nbytes, uint64_t offset,
                   struct err *e);
int out_file_copy(struct out_file *f, int from, uint64_t offset, uint64_t nbytes, struct err *e);

/* out_file_finish - onto the disk, and to its name; what was there is replaced.
 * Errors: ERR_UNREADABLE. */
int out_file_finish(struct out_file *f, struct err *e);
void out_file_close(struct out_file *f); /* unless finished, it is removed; accepts a zeroed one */

#endif
