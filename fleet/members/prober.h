/* Asks every upstream, at an interval, who it is and what it serves, and while it is idle for one
 * token; what it says, or does not, goes to the fleet. One that accepts and never answers is found
 * so, and one that was restarted. */
#ifndef BATON_FLEET_MEMBERS_PROBER_H
#define BATON_FLEET_MEMBERS_PROBER_H

#include "base/err.h"
#include "base/loop.h"
#include "fleet/api/upstream_api.h"
#include "fleet/members/fleet.h"
#include "http/client/http.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct prober;

/* How an upstream is asked. */
struct probe_peer {
    const struct http_target *target; /* longer than the prober */
    enum upstream_kind kind;
};

struct prober_cfg {
    struct fleet *fleet; /* borrowed, and so are the next two; of one loop */
    struct loop *loop;
    struct http_client *client;
    /* Who has index i now, of [0, FLEET_MAX)? False: nobody, or nobody who is to be asked. Called
     * on the loop's thread, before each question. */
    bool (*find_peer)(void *arg, size_t i, struct probe_peer *out);
    void *arg;
    uint64_t interval_us; /* between two questions to one upstream */
    uint64_t timeout_us;  /* of an answer */
    unsigned
        generation_probe_every; /* which question is for a token, of an idle one; 0: none ever is */
};

/* prober_new - begins at once. Threads: the loop's, or any before loop_start.
 * Errors: ERR_NO_MEMORY. */
int prober_new(struct prober **out, const struct prober_cfg *cfg, struct err *e);

/* prober_probe_now - ask all that owe no answer, now. Threads: any; after loop_stop nothing
 * comes of it. */
void prober_probe_now(struct prober *p);

/* prober_round_us - when it last went round, of base/clock.h. Threads: any. */
uint64_t prober_round_us(const struct prober *p);

/* prober_enable_generation_probes - may tokens be asked for? Not while the fleet is paused or
 * asleep: none would come. Threads: any. */
void prober_enable_generation_probes(struct prober *p, bool on);

/* prober_free - Accepts NULL. Threads: the loop's, or any when it has stopped. */
void prober_free(struct prober *p);

#endif
