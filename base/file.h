/* Small files that are read whole: configurations, keys, descriptions of models. */
#ifndef BATON_BASE_FILE_H
#define BATON_BASE_FILE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct file_cfg {
    const char *dir;   /* of `path`; NULL: the working directory */
    const char *path;  /* how errors call the file, too */
    const char *field; /* of errors: "--config"; NULL: "" */
    size_t nbytes_max;
    bool optional; /* that there is none is no error */
    bool pipes;    /* may be a pipe or a device, whose writer is waited for */
};

/* file_read - the whole of a file, with a NUL byte behind it.
 * @out  owned by the caller, for free(); NULL for an optional file that is not there; untouched on
 *       failure
 *
 * Threads: any. Blocks: on the disk; on a pipe only where `pipes` permits it.
 * Errors:  ERR_NOT_FOUND    there is none
 *          ERR_UNREADABLE   cannot be opened or read, or is no regular file
 *          ERR_BAD_REQUEST  is longer than nbytes_max
 *          ERR_NO_MEMORY
 * They name the path, never a byte of what is in it: that is overwritten before it is freed. */
int file_read(char **out, size_t *len, const struct file_cfg *f, struct err *e);

#endif
