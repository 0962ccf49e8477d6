/* Sleep and wake: what runs ends, or is frozen already; then memory goes back, and comes again. */
#include "control/gate_priv.h"

#include "base/clock.h"
#include "base/log.h"
#include "control/admission.h"
#include "control/generations.h"
#include "engine/engine.h"
#include "weights/store/leases.h"

static int check(struct gate *g, unsigned tags, enum lifecycle_call weights, enum lifecycle_call kv,
                 struct err *e)
{
    if ((tags & GATE_WEIGHTS) != 0 && gate_allows(g, weights, e) != 0)
        return -1;
    return (tags & GATE_KV) != 0 ? gate_allows(g, kv, e) : 0;
}

/* Another process reads them where they lie. */
static int check_leases(const struct gate *g, struct err *e)
{
    struct lease_info lease;

    if (g->cfg.leases == NULL || !leases_first(g->cfg.leases, &lease))
        return 0;
    return err_set(e, ERR_CONFLICT, "",
                   "lease %s holds version '%.100s' of the weights (serial %llu); DELETE "
                   "/v1/weights/handles/%s, or wait until it ends",
                   lease.id, lease.label, (unsigned long long)lease.serial, lease.id);
}

static int wait_idle(struct gate *g, uint64_t deadline_us, struct err *e)
{
    bool idle = false;

    while (!idle && !clock_passed(deadline_us)) {
        mtx_lock(&g->lock);
        idle = gate_idle(g); /* asked under the lock that the last one out takes to say so */
        if (!idle)
            (void)cnd_wait(&g->changed, &g->lock, deadline_us);
        mtx_unlock(&g->lock);
    }
    if (idle)
        return 0;
    return err_set(e, ERR_TIMEOUT, "", "what was aborted did not end in time");
}

/* Within an operation, with the doors shut. What is frozen stays. */
static int end_running(struct gate *g, uint64_t deadline_us, uint32_t *n_aborted, struct err *e)
{
    struct lifecycle_state s;

    gate_state(g, &s);
    if (s.pause == PAUSE_KEEP)
        return 0;
    *n_aborted = generations_abort_granted(g->cfg.generations, g->cfg.generate);
    return wait_idle(g, deadline_us, e);
}

static int put_away(struct gate *g, int level, unsigned tags, struct gate_slept *out, struct err *e)
{
    uint64_t deadline_us = clock_after_us(g->cfg.sleep_timeout_us);
    struct engine *en = g->cfg.engine;

    if (end_running(g, deadline_us, &out->n_aborted, e) != 0)
        return -1;
    if ((tags & GATE_WEIGHTS) != 0 &&
        store_sleep(g->cfg.store, level, deadline_us, &out->weights, e) != 0)
        return -1;
    if ((tags & GATE_KV) != 0 && en != NULL)
        return en->ops->kv_release(en, deadline_us, &out->nbytes_kv, e);
    return 0;
}

static void log_sleep(int level, unsigned tags, const struct gate_slept *slept)
{
    struct log_rec r;

    log_begin(&r, LOG_INFO, "sleep");
    log_u64(&r, "level", (uint64_t)level);
    log_str(&r, "tags", tags == GATE_WEIGHTS ? "weights" : tags == GATE_KV ? "kv_cache" : "all");
    log_u64(&r, "bytes_device", slept->weights.nbytes_device);
    log_u64(&r, "bytes_host", slept->weights.nbytes_host);
    log_u64(&r, "bytes_kv", slept->nbytes_kv);
    log_u64(&r, "aborted", slept->n_aborted);
    log_end(&r);
}

int gate_sleep(struct gate *g, int level, unsigned tags, struct gate_slept *out, struct err *e)
{
    struct gate_slept slept = {0};
    int rc;

    gate_begin(g);
    rc = check(g, tags, level == 1 ? CALL_SLEEP_WEIGHTS_1 : CALL_SLEEP_WEIGHTS_2, CALL_SLEEP_KV, e);
    if (rc == 0 && (tags & GATE_WEIGHTS) != 0)
        rc = check_leases(g, e);
    if (rc == 0) {
        struct gate_info now;

        gate_info(g, &now);
        if (now.pause == PAUSE_NONE)
            admission_hold(g->cfg.generate, NULL);
        rc = put_away(g, level, tags, &slept, e);
        gate_doors(g);
    }
    gate_end(g);
    if (rc != 0)
        return -1;
    log_sleep(level, tags, &slept);
    *out = slept;
    return 0;
}

int gate_wake(struct gate *g, unsigned tags, uint64_t *nbytes, struct err *e)
{
    uint64_t deadline_us = clock_after_us(g->cfg.sleep_timeout_us), n = 0;
    struct engine *en = g->cfg.engine;
    int rc;

    gate_begin(g);
    rc = check(g, tags, CALL_WAKE_WEIGHTS, CALL_WAKE_KV, e);
    if (rc == 0 && (tags & GATE_WEIGHTS) != 0)
        rc = store_wake(g->cfg.store, deadline_us, &n, e);
    if (rc == 0 && (tags & GATE_KV) != 0 && en != NULL)
        rc = en->ops->kv_restore(en, deadline_us, e);
    gate_end(g);
    if (rc != 0)
        return -1;
    log_line(LOG_INFO, "wake", "%s",
             tags == GATE_WEIGHTS ? "weights"
             : tags == GATE_KV    ? "kv_cache"
                                  : "weights, kv_cache");
    *nbytes = n;
    return 0;
}
