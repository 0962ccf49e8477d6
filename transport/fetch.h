/* Files from HTTP servers: the versions that a trainer publishes in an object store. A file is
 * fetched whole, into one without a name, which is then read as any other; after a connection that
 * broke the rest of it, if the server's ETag says which file it is. Where from, the configuration
 * says: nothing else is connected to, and redirects are not followed. */
#ifndef BATON_TRANSPORT_FETCH_H
#define BATON_TRANSPORT_FETCH_H

#include "base/err.h"
#include "base/progress.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FETCH_PATH_MAX = 4096 };

/* Strings are borrowed for as long as the rules. */
struct fetch_cfg {
    const char *const *prefixes; /* [n_prefixes]: "gs://bucket=https://host/path", or "https://…" */
    size_t n_prefixes;
    const char *const *cidrs; /* [n_cidrs]: addresses that no public server has, but may be used */
    size_t n_cidrs;
    const char *ca_file; /* PEM; NULL: the system's */
    const char *dir;     /* for the files without a name */
};

struct fetch_rules;

/* fetch_rules_new - on main's thread. Errors: ERR_BAD_REQUEST at the option, ERR_NO_MEMORY,
 * ERR_INTERNAL. */
int fetch_rules_new(struct fetch_rules **out, const struct fetch_cfg *cfg, struct err *e);
void fetch_rules_free(struct fetch_rules *r); /* accepts NULL */

/* fetch_is_url - is it "SCHEME://…", and no path? */
bool fetch_is_url(const char *text);

struct fetch;

/* fetch_open - begin to fetch files beneath a URL, on a thread of its own.
 * @progress  borrowed until fetch_close: when a fetch has to end
 * @stall_us  longest time without a byte
 * Threads: any. Errors: ERR_FORBIDDEN at /source (it is beneath no prefix), ERR_BAD_REQUEST at
 *         /source (a path that is not plain), ERR_NO_MEMORY, ERR_INTERNAL. */
int fetch_open(struct fetch **out, const struct fetch_rules *r, const char *url,
               const struct progress *progress, uint64_t stall_us, struct err *e);

/* fetch_file - get a file; for struct pull_cfg.
 * @fetch  from fetch_open; one call at a time
 * @fd     the caller's; its content is the whole file
 * Blocks: until it has come, or `progress` ends it.
 * Errors, which name the file and the server; nothing is left of it then:
 *   ERR_NOT_FOUND   404
 *   ERR_UNREADABLE  another status, a redirect, no connection, an address that is not allowed, a
 *                   connection that breaks and brought nothing new, a body in another encoding, no
 *                   room on the disk
 *   ERR_TOO_LARGE   more than nbytes_max
 *   ERR_TIMEOUT, ERR_GONE, ERR_BAD_REQUEST (the name), ERR_NO_MEMORY */
int fetch_file(void *fetch, int *fd, const char *name, uint64_t nbytes_max, struct err *e);
void fetch_close(struct fetch *f); /* accepts NULL */

#endif
