/* Seeds: what other servers (peers) have committed becomes this server's version, by an update that
 * any other update ends. A thread asks the peers one after the other; each is left when it fails,
 * and what came of it stays, as far as the next one lists the same. */
#ifndef BATON_TRANSPORT_PEER_SEEDER_H
#define BATON_TRANSPORT_PEER_SEEDER_H

#include "base/err.h"
#include "base/net/cidr.h"
#include "weights/version_label.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SEED_PEERS_MAX = 64,
    SEED_URL_MAX = 512,
    SEED_ROUNDS_MAX = 3, /* versions of a peer that are taken, each when it has committed it */
    SEED_RETRY_S = 5     /* after every peer has failed */
};

struct store;
struct updates;
struct seeder;
struct pass;

/* Strings are borrowed for as long as the seeder. */
struct seeder_cfg {
    struct store *store;
    struct updates *updates;
    const char *boot_id;      /* this server's */
    const char *const *peers; /* [n_peers] --seed */
    size_t n_peers;
    const char *authorization;     /* or NULL */
    const char *ca_file;           /* or NULL */
    const struct cidr_list *cidrs; /* where peers of a request may be */
    unsigned n_connections;
    uint64_t rate_max; /* bytes a second; 0: no limit */
    uint64_t stall_us; /* longest time without a byte */
};

/* seeder_check_url - may it be a peer? Errors: ERR_BAD_REQUEST at `field`. */
int seeder_check_url(const char *url, const char *field, struct err *e);

/* seeder_new - the thread starts, and waits. @cfg  its peers are checked
 * Errors: ERR_NO_MEMORY, ERR_INTERNAL. */
int seeder_new(struct seeder **out, const struct seeder_cfg *cfg, struct err *e);

/* seeder_stop - end what it reads, and join. Repeating is harmless. seeder_free - stops first.
 * Threads: the owner's, before the updates end. Blocks: for a second and what the update worker
 * takes to notice. */
void seeder_stop(struct seeder *s);
void seeder_free(struct seeder *s); /* accepts NULL */

/* seeder_begin - ask these peers, until one has nothing newer or another update is committed. While
 * others are asked: once each of those has been, and then no longer those.
 * @peers      [n] copied; NULL: those of --seed
 * @if_serial  what must be served; NULL: anything
 * Threads: any. Blocks: no.
 * Errors: ERR_BAD_REQUEST at /peers (none), /peers/<i> (no URL), ERR_FORBIDDEN at /peers/<i>
 * (neither of --seed, nor is there a --seed-cidr), ERR_CONFLICT at /if_serial, ERR_DRAINING,
 * ERR_NO_MEMORY. */
int seeder_begin(struct seeder *s, const char *const *peers, size_t n, const uint64_t *if_serial,
                 struct err *e);

enum seeder_state {
    SEED_NONE,    /* nothing was asked for */
    SEED_SEEDING, /* peers are asked, or will be */
    SEED_DONE,    /* a peer's version is served, or was served already */
    SEED_ENDED    /* another update was committed first */
};

struct seeder_info {
    enum seeder_state state;
    char peer[SEED_URL_MAX + 1]; /* asked last; "": none */
    struct err error;            /* why the last peer that failed was left */
    uint64_t n_versions, n_failures, nbytes_read;
    /* The version of a peer that was committed last; serial 0: none. */
    uint64_t serial, peer_serial; /* that it has here, and at the peer */
    char from[SEED_URL_MAX + 1], label[VERSION_LABEL_MAX + 1];
    char boot_id[65], digest[65];
};
void seeder_info(struct seeder *s, struct seeder_info *out); /* any thread */
const char *seeder_state_name(enum seeder_state state);

/* seeder_pass - what is being read, for others; NULL: nothing is, or only where it cannot be passed
 * on (weights that are on GPUs alone). @s  or NULL; @out  one reference, the caller's; or NULL
 * Threads: any. Errors: ERR_SEEDING (it has not begun, and was told to by a request, or serves
 * nothing besides). */
int seeder_pass(struct seeder *s, struct pass **out, struct err *e);

/* seeder_is_seeding - is that its state? Threads: any. */
bool seeder_is_seeding(struct seeder *s); /* accepts NULL */

#endif
