/* What the configuration says of upstreams: from "URL[,DIALECT][,key-file=FILE][,ca-file=FILE]" to
 * where it is, how it is spoken to and with which key. */
#ifndef BATON_FLEET_MEMBERS_UPSTREAM_CONFIG_H
#define BATON_FLEET_MEMBERS_UPSTREAM_CONFIG_H

#include "base/err.h"
#include "fleet/api/upstream_api.h"
#include "fleet/members/fleet.h"
#include "http/client/http.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    UPSTREAM_CONFIG_LEN_MAX = 4096, /* bytes of one spec */
    UPSTREAM_CONFIG_KEY_MAX = 4096  /* bytes of a key */
};

struct upstream_config {
    struct http_target target; /* its strings are the spec's own */
    enum upstream_kind kind;
    char *url, *ca_file, *authorization; /* owned; the last is wiped when it goes */
};
void upstream_config_free(struct upstream_config *s); /* accepts NULL */

/* upstream_config_same - would the same be sent to the same place? */
bool upstream_config_same(const struct upstream_config *a, const struct upstream_config *b);

struct upstream_config_list {
    struct upstream_config *items[FLEET_MAX]; /* each owned; who takes one leaves NULL */
    size_t n;
};
void upstream_config_list_fini(struct upstream_config_list *l); /* accepts a zeroed one */

/* upstream_config_list_read - the specs given, and those of a file: one a line, '#' begins a
 * comment.
 * @specs  [n]; @file  NULL: none
 * Key files are read, and logged as a warning if others may read them; CA files must be readable.
 * So is a key that would cross a network in clear text, and an http URL without a port: 80 is
 * meant. Threads: main's. Blocks: on the disk. No message has a word of a spec behind '=' in it
 * that names no file: it may be a key. Errors: ERR_BAD_REQUEST at --upstream or --upstream-file
 * (then with the line): what is no spec, one twice, none at all, more than FLEET_MAX;
 * ERR_NO_MEMORY. *out is empty then. */
int upstream_config_list_read(struct upstream_config_list *out, const char *const *entries,
                              size_t n, const char *file, struct err *e);

#endif
