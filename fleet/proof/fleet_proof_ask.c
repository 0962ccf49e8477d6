/* A proof on demand: what follows an update anyway is begun now, and waited for. */
#include "control/life.h"
#include "fleet/calls/fleet_priv.h"
#include "fleet/proof/fleet_proof_priv.h"

#include <inttypes.h>

enum { ASK_LOOK_US = 100000 }; /* between two looks at whether the client is still there */

static bool is_decided_locked(const struct upstream_list *all, const uint64_t *asked)
{
    for (size_t i = 0; i < all->n; i++) {
        const struct fleet_prover *p = &fleet_engine(all->items[i])->proof;

        if (asked[i] != 0 && p->wanted == asked[i] && p->state == PROOF_UNPROVEN)
            return false;
    }
    return true;
}

static int await(struct fleet_control *fc, struct http_request *x,
                 const struct fleet_proof_request *r, const uint64_t *asked, uint64_t deadline_us,
                 struct err *e)
{
    bool decided = false, gone = false, stopping = false;

    while (!decided && !gone && !stopping && !clock_passed(deadline_us)) {
        mtx_lock(&fc->lock);
        decided = is_decided_locked(r->all, asked);
        if (!decided)
            (void)cnd_wait(&fc->changed, &fc->lock, clock_after_us(ASK_LOOK_US));
        mtx_unlock(&fc->lock);
        gone = http_request_disconnected(x);
        stopping = life_state(r->life) == LIFE_DRAINING ||
                   atomic_load_explicit(&fc->proof.stopping, memory_order_relaxed);
    }
    if (gone)
        return err_set(e, ERR_GONE, "", "the client disconnected before the upstreams were proven");
    if (stopping)
        return err_set(e, ERR_DRAINING, "", "the server is draining");
    return 0;
}

static bool may_be_asked(struct fleet_control *fc, struct upstream *upstream)
{
    struct upstream_info info;

    fleet_info(fleet_of(fc), upstream, &info);
    return !upstream_is_removed(upstream) && !upstream_caps_of(upstream)->two_phase && info.alive &&
           info.in_step;
}

static int refuse_one(struct upstream *upstream, struct err *e)
{
    if (upstream_caps_of(upstream)->two_phase)
        return err_set(e, ERR_BAD_REQUEST, "/upstream",
                       "%.150s is a baton, which proves each update before it serves it: send "
                       "POST /v1/weights/check to it for its checksums",
                       upstream_name(upstream));
    return err_set(e, ERR_CONFLICT, "/upstream",
                   "%.150s does not serve the current version: GET /v1/upstreams says why, and a "
                   "whole update helps",
                   upstream_name(upstream));
}

/* @one  NULL: each that may be asked */
static int begin_some(struct fleet_control *fc, const struct fleet_proof_request *r,
                      const struct upstream *one, uint64_t *asked, struct err *e)
{
    struct fleet_stats stats;
    size_t n_asked = 0;

    fleet_stats(fleet_of(fc), &stats);
    if (fleet_check_serving(fc, &stats, e) != 0)
        return -1;
    for (size_t i = 0; i < r->all->n; i++) {
        struct upstream *it = r->all->items[i];

        if ((one != NULL && it != one) || !may_be_asked(fc, it))
            continue;
        asked[i] = fleet_proof_begin(fc, it, r->checksums);
        n_asked += asked[i] != 0;
    }
    if (n_asked == 0)
        return err_set(e, ERR_CONFLICT, "",
                       "no vLLM or SGLang serves the fleet's version: GET /v1/upstreams says why; "
                       "batons prove each update before they serve it");
    return 0;
}

static int proof_ask_begin(struct fleet_control *fc, const struct fleet_proof_request *r,
                           uint64_t *asked, struct err *e)
{
    struct upstream *one = NULL;
    int rc;

    if (r->upstream != NULL && upstreams_find(fc->upstreams, r->upstream, &one, e) != 0)
        return -1;
    if (one != NULL && !may_be_asked(fc, one))
        rc = refuse_one(one, e);
    else
        rc = begin_some(fc, r, one, asked, e);
    upstream_unref(one);
    return rc;
}

static int refuse_second(uint64_t other_us, struct err *e)
{
    uint64_t now_us = clock_now_us();

    return err_set(e, ERR_CONFLICT, "",
                   "another request proves the upstreams, for at most %" PRIu64
                   " s more (its timeout_s): retry then, or end that request by closing its "
                   "connection",
                   other_us > now_us ? (other_us - now_us + 999999) / 1000000 : 0);
}

int fleet_proof_ask(struct fleet_control *fc, struct http_request *x,
                    const struct fleet_proof_request *r, uint64_t *asked, struct err *e)
{
    uint64_t deadline_us = clock_after_us(r->timeout_us);
    uint64_t other_us;
    int rc;

    mtx_lock(&fc->lock);
    other_us = fc->proof.asking_until_us;
    if (other_us == 0)
        fc->proof.asking_until_us = deadline_us;
    mtx_unlock(&fc->lock);
    if (other_us != 0)
        return refuse_second(other_us, e);
    rc = proof_ask_begin(fc, r, asked, e);
    if (rc == 0)
        rc = await(fc, x, r, asked, deadline_us, e);
    mtx_lock(&fc->lock);
    fc->proof.asking_until_us = 0;
    mtx_unlock(&fc->lock);
    return rc;
}
