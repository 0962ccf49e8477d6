/* The query of a request's path. */
#ifndef BATON_CLI_QUERY_H
#define BATON_CLI_QUERY_H

#include "base/buf.h"

/* query_put - append "name=value" with its '?' or '&'; the value is percent-encoded. */
void query_put(struct buf *path, const char *name, const char *value);

#endif
