/* Small files that are read whole: configurations, keys, descriptions of models. And files below a
 * directory that nothing may lead out of: neither "..", nor a symbolic link, nor a rename
 * meanwhile. The kernel enforces it (openat2). A link with a relative path that stays below the
 * directory is followed: the cache of huggingface_hub is made of such links. */
#ifndef BATON_BASE_FILE_H
#define BATON_BASE_FILE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct file_cfg {
    const char *dir;   /* of `path`; NULL: the working directory */
    const char *path;  /* also the file's name in errors */
    const char *field; /* of errors: "--config"; NULL: "" */
    size_t nbytes_max;
    bool optional; /* a missing file is not an error */
    bool pipes;    /* the file may be a pipe or a device; the read then waits for its writer, up to
                      FILE_PIPE_WAIT_US for all of it */
};

enum { FILE_PIPE_WAIT_US = 5000000 };

/* file_read - read a whole file and append a NUL byte.
 * @out  owned by the caller, for free(); NULL for an optional file that is not there; untouched on
 *       failure
 *
 * Threads: any. Blocks: on the disk; on a pipe only if `pipes` is set.
 * Errors:  ERR_NOT_FOUND    the file does not exist
 *          ERR_UNREADABLE   it cannot be opened or read, or is not a regular file, or is a pipe
 * whose writer has not ended in time ERR_BAD_REQUEST  it is longer than nbytes_max ERR_NO_MEMORY
 * They name the path, never a byte of the content. The content is overwritten before it is freed.
 */
int file_read(char **out, size_t *len, const struct file_cfg *f, struct err *e);

/* file_open_beneath - openat() of a path that does not lead out of rootfd.
 * @rootfd  of a directory; AT_FDCWD: no restriction, as openat()
 * Returns: a descriptor, the caller's to close; or -1 with errno, EXDEV if the path or a link on it
 *          leads out of the directory, or if a link has an absolute path.
 * Threads: any. Blocks: as open(). */
int file_open_beneath(int rootfd, const char *path, int flags);

/* file_open_in - the same for a file of a directory that file_open_beneath returned: a link that
 * the file is may lead out of that directory, but not out of rootfd.
 * @name  a plain file name */
int file_open_in(int rootfd, int dirfd, const char *name, int flags);

#endif
