/* The configuration of upstream engines: parses entries
 * "URL[,DIALECT][,key-file=FILE][,ca-file=FILE]" into an address, an API and a key. An entry of a
 * name, "dns+http://NAME:PORT…", stands for an engine at each address of it (upstream_names.h). */
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
    UPSTREAM_CONFIG_KEY_MAX = 4096, /* bytes of a key */
    UPSTREAM_NAMES_MAX = 8          /* entries of names */
};

struct upstream_config {
    struct http_target target; /* borrows the strings below */
    enum upstream_kind kind;
    char *url, *ca_file, *authorization; /* owned; the last is wiped before it is freed */
    char *key_file, *entry;              /* owned; entry: as it was given */
    char *name_url; /* owned; found at an address of a name: the URL of that; else NULL */
    bool requested; /* added by a request, not by the configuration */
    struct upstream_config *next; /* of those that upstreams_retain keeps */
};
void upstream_config_free(struct upstream_config *s); /* accepts NULL */

/* upstream_config_origin - static: "configuration", "request" or "name". */
const char *upstream_config_origin(const struct upstream_config *s);

/* upstream_config_same - are all members equal? The entries need not be. */
bool upstream_config_same(const struct upstream_config *a, const struct upstream_config *b);

/* upstream_config_same_entry - do both entries say the same: URL, kind, and names of files? */
bool upstream_config_same_entry(const struct upstream_config *a, const struct upstream_config *b);

struct upstream_config_list {
    struct upstream_config *items[FLEET_MAX]; /* each owned; set to NULL to move one out */
    size_t n;
    struct upstream_config *names[UPSTREAM_NAMES_MAX]; /* the same of names: url is that of the name
                                                          without "dns+" */
    size_t n_names;
};
void upstream_config_list_fini(struct upstream_config_list *l); /* accepts a zeroed one */

/* upstream_config_list_read - parse `entries` and the lines of a file, in which '#' begins a
 * comment. Reads the key files and checks that the CA files are readable. Logs a warning for a key
 * file that others can read, for a key that is sent over a network in clear text, and for an http
 * URL without a port, which means port 80. No message quotes what follows '=' in an unknown option:
 * it may be a key.
 * @entries  [n]
 * @file     NULL: none. A file with comments only names no upstream: they come by requests
 * Threads: main. Blocks: on the disk.
 * Errors:  ERR_BAD_REQUEST  at --upstream, or at --upstream-file with the line: a malformed entry,
 * a URL twice, no entry and no file, more than FLEET_MAX ERR_NO_MEMORY *out is empty then. */
int upstream_config_list_read(struct upstream_config_list *out, const char *const *entries,
                              size_t n, const char *file, struct err *e);

/* upstream_config_list_add - add one entry that a request gave. As upstream_config_list_read.
 * @field  for errors
 * upstream_config_list_add_address - add the engine at an address of a name, unless the list has an
 * entry with its URL.
 * @address  of struct resolve_all. Errors: ERR_BAD_REQUEST: more than FLEET_MAX; ERR_NO_MEMORY. */
int upstream_config_list_add_address(struct upstream_config_list *l,
                                     const struct upstream_config *name, const char *address,
                                     struct err *e);
int upstream_config_list_add(struct upstream_config_list *l, const char *entry, const char *field,
                             struct err *e);

/* upstream_authorization - the header's value for the key in a file. @out  owned by the caller
 * Threads: main. Blocks: on the disk. Errors: ERR_BAD_REQUEST (secret_file_read's; the file has not
 * one line with a key), ERR_NO_MEMORY. */
int upstream_authorization(char **out, const char *path, const char *field, struct err *e);

/* upstream_config_check_files - may a request give this entry? The server reads a key or a CA file
 * for it only if may_read says that the configuration names this very file: otherwise a request
 * could find out which files there are.
 * Errors: ERR_BAD_REQUEST, which does not depend on the file. */
int upstream_config_check_files(const char *entry, bool (*may_read)(void *arg, const char *path),
                                void *arg, const char *field, struct err *e);

#endif
