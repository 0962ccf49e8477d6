/* `baton serve --check`: would the server start, and with what? */
#ifndef BATON_SERVER_SERVE_CHECK_H
#define BATON_SERVER_SERVE_CHECK_H

#include "base/err.h"

#include <stdio.h>

struct config;

/* serve_check - read what a start would read, bind its addresses for a moment, and write one fact
 * per line, as "what: value".
 * A missing CUDA driver is a fact, not a failure.
 * Threads: main's. Errors: as serve's (nothing is written then), ERR_INTERNAL if `to` fails, or,
 * after the report, if an address is in use. */
int serve_check(const struct config *config, FILE *to, struct err *e);

#endif
