/* The configuration of upstream engines: parses entries
 * "URL[,DIALECT][,key-file=FILE][,ca-file=FILE]" into an address, an API and a key. */
#ifndef BATON_FLEET_MEMBERS_UPSTREAM_CONFIG_H
#define BATON_FLEET_MEMBERS_UPSTREAM_CONFIG_H

#include "base/err.h"
#include "fleet/api/upstream_api.h"
#include "fleet/members/fleet.h"
#include "http/client/http.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    UPSTREAM_CONFIG_LEN_MAX = 4096, /* bytes of one entry */
    UPSTREAM_CONFIG_KEY_MAX = 4096  /* bytes of a key */
};

struct upstream_config {
    struct http_target target; /* borrows the strings below */
    enum upstream_kind kind;
    char *url, *ca_file, *authorization; /* owned; the last is wiped before it is freed */
};
void upstream_config_free(struct upstream_config *s); /* accepts NULL */

/* upstream_config_same - are all members equal? */
bool upstream_config_same(const struct upstream_config *a, const struct upstream_config *b);

struct upstream_config_list {
    struct upstream_config *items[FLEET_MAX]; /* each owned; set to NULL to move one out */
    size_t n;
};
void upstream_config_list_fini(struct upstream_config_list *l); /* accepts a zeroed one */

/* upstream_config_list_read - parse `entries` and the lines of a file, in which '#' begins a
 * comment. Reads the key files and checks that the CA files are readable. Logs a warning for a key
 * file that others can read, for a key that is sent over a network in clear text, and for an http
 * URL without a port, which means port 80. No message quotes what follows '=' in an unknown option:
 * it may be a key.
 * @entries  [n]
 * @file     NULL: none
 * Threads: main. Blocks: on the disk.
 * Errors:  ERR_BAD_REQUEST  at --upstream, or at --upstream-file with the line: a malformed entry,
 * a URL twice, no entry, more than FLEET_MAX ERR_NO_MEMORY *out is empty then. */
int upstream_config_list_read(struct upstream_config_list *out, const char *const *entries,
                              size_t n, const char *file, struct err *e);

#endif
