/* The directories that paths in requests may refer to (--allow-path). This only finds the root of a
 * path; openat2 with RESOLVE_BENEATH then keeps the opened file below that root. */
#ifndef BATON_TRANSPORT_ROOTS_H
#define BATON_TRANSPORT_ROOTS_H

#include "base/err.h"

#include <stddef.h>

/* roots_open - open the longest of the roots that contain `path`.
 * @roots  [n_roots] absolute directories
 * @path   absolute, or relative to the first root
 * @field  of the member with the path, for errors
 * @dirfd  an O_PATH descriptor, the caller's to close
 * @rest   the rest of the path below the root: a part of `path`, or "."
 * Threads: any. Errors: ERR_BAD_REQUEST (empty), ERR_FORBIDDEN (no roots; below none of them),
 *         ERR_UNREADABLE (the root cannot be opened). Outputs are untouched. */
int roots_open(int *dirfd, const char **rest, const char *const *roots, size_t n_roots,
               const char *path, const char *field, struct err *e);

#endif
