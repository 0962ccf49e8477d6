/* Where the server is in the versions that a trainer publishes: which one is served, as the commit
 * of which serial, and which one is pulled and waits for its commit. An update by other means ends
 * it: what is served is then no version of the trainer's. */
#ifndef BATON_WEIGHTS_DELTA_PULL_CHAIN_H
#define BATON_WEIGHTS_DELTA_PULL_CHAIN_H

#include "base/err.h"
#include "weights/delta/pull.h"
#include "weights/update/update.h"

#include <stdbool.h>
#include <stdint.h>

enum { PULL_PATH_MAX = 4096 };

/* Where versions are. */
struct pull_place {
    enum pull_form form;
    char source[PULL_PATH_MAX]; /* the directory with them, without '/' at its end; "": any */
    char name[PULL_PATH_MAX];   /* by which a request commits what is pulled; "": there is none */
};

struct pull_state {
    uint64_t version;        /* served; PULL_NO_VERSION: not known */
    struct pull_place place; /* where it was pulled from */
    uint64_t serial;         /* of the store, under which it is served */
    bool base_unchecked;     /* version 0 was taken for the trainer's base without a comparison */
    uint64_t ended;          /* with no such version: the one that was served before an update by
                                other means; PULL_NO_VERSION: there was none */

    uint64_t pulled; /* waits for its commit; PULL_NO_VERSION: none does */
    struct pull_place pulled_place;
    bool pulled_whole;                 /* it has all tensors: it needs no base */
    char update_id[UPDATE_ID_MAX + 1]; /* its update; "": nothing changes but the name */
    uint64_t waits_until_us;           /* without an update: so long a session is for it */

    bool session;   /* a client that starts and finishes updates has started one for it */
    bool committed; /* ... and it was committed since */
};

struct pull_chain;

/* pull_chain_new - no version is known. Errors: ERR_NO_MEMORY. */
int pull_chain_new(struct pull_chain **out, struct err *e);
void pull_chain_free(struct pull_chain *c); /* accepts NULL */

/* pull_chain_is_named - is this the name of what is pulled, or of the version that is served?
 * @serial  that is served. Threads: any. */
bool pull_chain_is_named(struct pull_chain *c, const char *name, uint64_t serial);

/* pull_chain_take - take the state, to change it: nobody else gets it until pull_chain_put, which
 * may be on another thread. Threads: any. Blocks: no.
 * Errors: ERR_CONFLICT (somebody has it: a pull or its commit is under way). */
int pull_chain_take(struct pull_chain *c, struct pull_state *out, struct err *e);
void pull_chain_put(struct pull_chain *c, const struct pull_state *state);

#endif
