/* The directories beneath which paths of requests may lie (--allow-path). What is opened then is
 * held beneath them by openat2 with RESOLVE_BENEATH; here a path only finds its root. */
#ifndef BATON_TRANSPORT_ROOTS_H
#define BATON_TRANSPORT_ROOTS_H

#include "base/err.h"

#include <stddef.h>

/* roots_open - open the longest of the roots that hold `path`.
 * @roots  [n_roots] absolute directories
 * @path   absolute, or relative to the first root
 * @field  of the member that it came in, for errors
 * @dirfd  an O_PATH descriptor, the caller's to close
 * @rest   what is left of the path beneath it: a part of `path`, or "."
 * Threads: any. Errors: ERR_BAD_REQUEST (empty), ERR_FORBIDDEN (no roots; beneath none of them),
 *         ERR_UNREADABLE (the root cannot be opened). Outputs are untouched. */
int roots_open(int *dirfd, const char **rest, const char *const *roots, size_t n_roots,
               const char *path, const char *field, struct err *e);

#endif
