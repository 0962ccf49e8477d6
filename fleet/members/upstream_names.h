/* Engines by name: an entry "dns+http://NAME:PORT" of the configuration stands for an engine at
 * each address of NAME. The names are asked at an interval, and when an engine has failed. An
 * engine joins when its address is new in the answer of a name, and leaves when no name has it any
 * more, as by requests (upstreams_add, upstreams_remove). So one that a request removed comes back
 * only when its address was away meanwhile, or by SIGHUP; and one that the configuration lists
 * itself, or that a request added, is not touched.
 *
 * Only an answer with addresses changes anything: a name server that fails, does not answer, or has
 * no address, looks the same as one that is broken, and engines are not removed for that. It is
 * logged, and shown in the status and the metrics.
 *
 * One thread for all names asks, waits for look-ups (base/net/resolve.h), and makes the changes:
 * they wait for other changes, which no event loop may. */
#ifndef BATON_FLEET_MEMBERS_UPSTREAM_NAMES_H
#define BATON_FLEET_MEMBERS_UPSTREAM_NAMES_H

#include "base/net/resolve.h"
#include "fleet/members/upstream_config.h"

struct upstreams;

/* One name. Of the thread of the change; what others read is changed under the lock of struct
 * upstreams too: the second part. */
struct upstream_name {
    struct resolve_lookup *lookup; /* owned; NULL: none is under way */
    uint64_t asked_us, due_us;
    bool late; /* the look-up under way was reported */

    struct upstream_config *config; /* owned; of its entry */
    struct resolve_all answer;      /* the last one; n is 0: none yet */
    uint64_t answered_us;           /* 0: never */
    uint64_t n_failures;
    struct err why; /* clean: the last look-up succeeded */
};

struct upstream_names {
    size_t n;
    struct upstream_name items[]; /* [n] */
};

/* upstream_names_find - the name with this URL of its entry, or NULL. Threads: of the change. */
const struct upstream_name *upstream_names_find(const struct upstreams *u, const char *url);

/* upstream_names_prepare - the names of a list, with what is known of those that are there already.
 * Errors: ERR_NO_MEMORY. upstream_names_replace makes them the ones there are, and moves the names
 * out of the list; else free() ends them. Threads: of the change. */
int upstream_names_prepare(const struct upstreams *u, struct upstream_names **out,
                           const struct upstream_config_list *list, struct err *e);
void upstream_names_replace(struct upstreams *u, struct upstream_names *next,
                            struct upstream_config_list *list);

/* upstream_names_stop - end the thread (upstreams_look_up). Blocks: up to UPSTREAMS_CHANGE_WAIT_US,
 * for another change. upstream_names_free - after that. Threads: main. */
void upstream_names_stop(struct upstreams *u);
void upstream_names_free(struct upstreams *u);

/* upstream_names_ask - an engine has failed: ask soon. Threads: any. */
void upstream_names_ask(struct upstreams *u);

#endif
