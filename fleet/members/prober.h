/* Probes every engine at an interval: a status probe reads its process id, version and readiness; a
 * generation probe asks an idle engine for one token. The outcome goes to the fleet. So the fleet
 * notices engines that restart, and those that accept requests but never answer. */
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

struct prober_cfg {
    struct fleet *fleet; /* borrowed, like the next two; the client uses this loop */
    struct loop *loop;
    struct http_client *client;
    uint64_t interval_us; /* between two probes of one engine */
    uint64_t timeout_us;  /* of a probe */
    unsigned
        generation_probe_every; /* of an idle engine every Nth probe; 0: no generation probes */
};

/* prober_new - start probing. Threads: the loop's, or any before loop_start.
 * Errors: ERR_NO_MEMORY. */
int prober_new(struct prober **out, const struct prober_cfg *cfg, struct err *e);

/* prober_probe_now - probe all engines now, except those with a probe under way. Threads: any; has
 * no effect after loop_stop. */
void prober_probe_now(struct prober *p);

/* prober_round_us - time of the last round of probes (base/clock.h). Threads: any. */
uint64_t prober_round_us(const struct prober *p);

/* prober_free - Accepts NULL. Threads: the loop's, or any after the loop has stopped. */
void prober_free(struct prober *p);

#endif
