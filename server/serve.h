/* Building and taking down the server: the only code that knows every room. */
#ifndef BATON_SERVER_SERVE_H
#define BATON_SERVER_SERVE_H

#include "base/err.h"

struct config;

/* serve - run until SIGTERM or SIGINT, drain, and return.
 * Threads: main's, with SIGTERM and SIGINT blocked before any other thread starts.
 * Errors:  whatever kept it from starting; after a failure nothing is left running. */
int serve(const struct config *config, struct err *e);

#endif
