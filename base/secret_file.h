/* Keys and certificates: small text files, read whole, bounded, and overwritten when freed. */
#ifndef BATON_BASE_SECRET_FILE_H
#define BATON_BASE_SECRET_FILE_H

#include "base/err.h"

#include <stddef.h>

enum { SECRET_FILE_NBYTES_MAX = 1 << 20 };

/* secret_file_read - read the whole file as text and append a NUL.
 * @option  "--api-key-file": the field of errors, and the name in the warning when others may read
 *          the file
 * @out     owned by the caller, for secret_file_free; untouched on failure
 *
 * A file that users outside its group may read or write is used, and logged as a warning: refusing
 * it would break mounted secrets, whose modes the operator cannot choose.
 *
 * Threads: main's. Blocks: on the disk; on the writer of a pipe up to FILE_PIPE_WAIT_US.
 * Errors:  file_read's; ERR_BAD_REQUEST also: it is empty or has a NUL byte */
int secret_file_read(char **out, size_t *len, const char *path, const char *option, struct err *e);

/* public_file_read - the same for a file that every user may read. */
int public_file_read(char **out, size_t *len, const char *path, const char *option, struct err *e);

/* secret_file_free - overwrite and free. Accepts NULL. */
void secret_file_free(char *text, size_t len);

#endif
