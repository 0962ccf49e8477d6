/* Authorization: keys with roles, and addresses that need no key.
 *
 * Only the SHA-256 of a key is kept. The key that a client sends is hashed too and compared with
 * all of them in constant time, so that the time reveals nothing. Keys are random text made by a
 * program, not passwords that people choose: a slow hash would protect nothing and stall a loop. */
#ifndef BATON_CONTROL_AUTH_H
#define BATON_CONTROL_AUTH_H

#include "base/err.h"
#include "base/net/actor.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

enum {
    AUTH_KEYS_MAX = 256,
    AUTH_KEY_LEN_MIN = 16, /* below it a key can be guessed */
    AUTH_KEY_LEN_MAX = 256
};

/* Each role includes the ones before it, but for AUTH_WEIGHTS, which stands beside them: it
 * includes none, and is included in none. */
enum auth_role {
    AUTH_ANYONE,
    AUTH_VIEWER,
    AUTH_GENERATE,
    AUTH_CONTROL,
    AUTH_WEIGHTS,
    AUTH_ROLE_COUNT
};

struct auth;

struct auth_cfg {
    const char *key_file;     /* --api-key-file; NULL: there are no keys */
    const char *const *trust; /* [n_trust], of --no-auth-cidr: "10.0.0.0/8", or "unix" for every
                                 peer of a unix socket */
    size_t n_trust;
};

/* auth_new - read the keys and the addresses.
 *
 * A line of the key file is "ROLE KEY" or "ROLE KEY name=NAME", the role one of viewer, generate,
 * control, weights; or is blank, or begins with '#'. A key has AUTH_KEY_LEN_MIN to AUTH_KEY_LEN_MAX
 * visible ASCII characters. A NAME has 1 to ACTOR_KEY_MAX letters, digits, '.', '_' and '-';
 * without one the key is named by the begin of its SHA-256, "sha256:" and eight hexadecimal digits.
 * @cfg  borrowed until auth_free
 *
 * Threads: main's. Blocks: on the disk.
 * Errors:  ERR_BAD_REQUEST  field is --api-key-file or --no-auth-cidr; the message names a line by
 *                           its number only
 *          ERR_NO_MEMORY
 *          *out is then untouched. */
int auth_new(struct auth **out, const struct auth_cfg *cfg, struct err *e);
void auth_free(struct auth *a); /* accepts NULL */

/* auth_reload - read the key file again, all of it or nothing: after a failure the old keys stay
 * valid. Does nothing without a key file.
 * @changed  set if the file was read: are the keys, their roles or their order others than before?
 * Threads: main's. Errors: as auth_new. */
int auth_reload(struct auth *a, bool *changed, struct err *e);

bool auth_asks(const struct auth *a);                    /* keys or addresses are given */
bool auth_has_keys(const struct auth *a);                /* a key file is given */
size_t auth_n_keys(struct auth *a, enum auth_role role); /* of exactly that role */

/* auth_trusts - does a peer at this address need no key? `auth` is a struct auth. Threads: any. */
bool auth_trusts(const void *auth, const struct sockaddr *peer);

/* auth_knows - does the header's value carry a key of this server, of any role?
 * Threads: any; takes MTX_LEAF for a comparison of digests. Blocks: no. */
bool auth_knows(struct auth *a, const char *authorization);

/* auth_check - may this request do what requires the role `need`?
 * @authorization  the header's value, "" without one
 * @trusted        the result of auth_trusts for the peer
 * @name           [ACTOR_KEY_MAX + 1] out: the name of the key that came with the request; "" if it
 *                 carries none of ours, or the route requires none
 *
 * Threads: any; takes MTX_LEAF for a comparison of digests. Blocks: no.
 * Errors: ERR_UNAUTHORIZED  no key, none of ours, or not "Bearer KEY"
 *         ERR_FORBIDDEN     the key's role does not suffice (names both roles); or there are no
 *                           keys at all, and the address is not one of --no-auth-cidr */
int auth_check(struct auth *a, const char *authorization, bool trusted, enum auth_role need,
               char *name, struct err *e);

#endif
