/* Checks of --model before its files are read, so that common mistakes get a clear message: the
 * name of a model on a hub, a file instead of a directory, weights in another format. */
#ifndef BATON_SERVER_MODEL_DIR_H
#define BATON_SERVER_MODEL_DIR_H

#include "base/err.h"

#include <stdbool.h>

/* model_dir_check - is this a directory with a config.json?
 * Threads: any. Blocks: on the file system.
 * Errors: ERR_NOT_FOUND, ERR_UNREADABLE; the message names `dir` and what is expected. */
int model_dir_check(const char *dir, struct err *e);

/* model_dir_weights - *out: does it hold weights that can be read?
 * @otherwise  for the message: what to do instead of converting the weights
 * Errors: ERR_BAD_REQUEST when it has none but has some in another format. */
int model_dir_weights(bool *out, const char *dir, const char *otherwise, struct err *e);

#endif
