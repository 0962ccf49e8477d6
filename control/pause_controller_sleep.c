/* Sleep and wake. Before a sleep, running generations are frozen already or are aborted; then
 * memory is released, and wake allocates it again. */
#include "control/pause_controller_priv.h"

#include "base/clock.h"
#include "base/log.h"
#include "control/admission.h"
#include "control/engine.h"
#include "control/generations.h"
#include "weights/store/leases.h"

static int sleep_check(struct pause_controller *g, unsigned tags, enum lifecycle_call weights,
                       enum lifecycle_call kv, struct err *e)
{
    if ((tags & PAUSE_WEIGHTS) != 0 && pause_controller_allows(g, weights, e) != 0)
        return -1;
    return (tags & PAUSE_KV) != 0 ? pause_controller_allows(g, kv, e) : 0;
}

/* Another process has mapped the weights. */
static int check_leases(const struct pause_controller *g, struct err *e)
{
    struct lease_info lease;

    if (g->cfg.leases == NULL || !leases_first(g->cfg.leases, &lease))
        return 0;
    return err_set(e, ERR_CONFLICT, "",
                   "lease %s holds version '%.100s' of the weights (serial %llu); DELETE "
                   "/v1/weights/handles/%s, or wait until it ends",
                   lease.id, lease.label, (unsigned long long)lease.serial, lease.id);
}

static int wait_idle(struct pause_controller *g, uint64_t deadline_us, struct err *e)
{
    bool idle = false;

    while (!idle && !clock_passed(deadline_us)) {
        mtx_lock(&g->lock);
        idle = pause_controller_idle(
            g); /* checked under the lock that generate_idle takes before it signals */
        if (!idle)
            (void)cnd_wait(&g->changed, &g->lock, deadline_us);
        mtx_unlock(&g->lock);
    }
    if (idle)
        return 0;
    return err_set(e, ERR_TIMEOUT, "", "the aborted generations did not end in time");
}

/* Within an operation, with admission closed. Frozen generations stay, and what a pause keeps
 * waiting. */
static int abort_running(struct pause_controller *g, uint64_t deadline_us, uint32_t *n_aborted,
                         struct err *e)
{
    struct lifecycle_state s;

    pause_controller_state(g, &s);
    if (s.pause == PAUSE_KEEP)
        return 0;
    *n_aborted = generations_abort_before(g->cfg.generations);
    return wait_idle(g, deadline_us, e);
}

static int release_memory(struct pause_controller *g, int level, unsigned tags,
                          struct pause_controller_slept *out, struct err *e)
{
    uint64_t deadline_us = clock_after_us(g->cfg.sleep_timeout_us);
    struct engine *en = g->cfg.engine;

    if (abort_running(g, deadline_us, &out->n_aborted, e) != 0)
        return -1;
    if ((tags & PAUSE_WEIGHTS) != 0 &&
        store_sleep(g->cfg.store, level, deadline_us, &out->weights, e) != 0)
        return -1;
    if ((tags & PAUSE_KV) != 0 && en != NULL)
        return en->ops->kv_release(en, deadline_us, &out->nbytes_kv, e);
    return 0;
}

static void pause_controller_log_sleep(int level, unsigned tags,
                                       const struct pause_controller_slept *slept)
{
    struct log_rec r;

    log_begin(&r, LOG_INFO, "sleep");
    log_u64(&r, "level", (uint64_t)level);
    log_str(&r, "tags", tags == PAUSE_WEIGHTS ? "weights" : tags == PAUSE_KV ? "kv_cache" : "all");
    log_u64(&r, "bytes_device", slept->weights.nbytes_device);
    log_u64(&r, "bytes_host", slept->weights.nbytes_host);
    log_u64(&r, "bytes_kv", slept->nbytes_kv);
    log_u64(&r, "aborted", slept->n_aborted);
    log_event(&r);
}

int pause_controller_sleep(struct pause_controller *g, int level, unsigned tags,
                           struct pause_controller_slept *out, struct err *e)
{
    struct pause_controller_slept slept = {0};
    int rc;

    pause_controller_begin(g);
    rc = sleep_check(g, tags, level == 1 ? CALL_SLEEP_WEIGHTS_1 : CALL_SLEEP_WEIGHTS_2,
                     CALL_SLEEP_KV, e);
    if (rc == 0 && (tags & PAUSE_WEIGHTS) != 0)
        rc = check_leases(g, e);
    if (rc == 0) {
        struct pause_controller_info now;

        pause_controller_info(g, &now);
        if (now.pause.state == PAUSE_OFF) {
            admission_hold(g->cfg.generate, NULL);
            g->line = generations_draw_line(g->cfg.generations);
        }
        rc = release_memory(g, level, tags, &slept, e);
        pause_controller_apply_admission(g);
    }
    pause_controller_end(g);
    if (rc != 0)
        return -1;
    pause_controller_log_sleep(level, tags, &slept);
    *out = slept;
    return 0;
}

int pause_controller_wake(struct pause_controller *g, unsigned tags, uint64_t *nbytes,
                          struct err *e)
{
    uint64_t deadline_us = clock_after_us(g->cfg.sleep_timeout_us), n = 0;
    struct engine *en = g->cfg.engine;
    int rc;

    pause_controller_begin(g);
    rc = sleep_check(g, tags, CALL_WAKE_WEIGHTS, CALL_WAKE_KV, e);
    if (rc == 0 && (tags & PAUSE_WEIGHTS) != 0)
        rc = store_wake(g->cfg.store, deadline_us, &n, e);
    if (rc == 0 && (tags & PAUSE_KV) != 0 && en != NULL)
        rc = en->ops->kv_restore(en, deadline_us, e);
    pause_controller_end(g);
    if (rc != 0)
        return -1;
    log_event_line(LOG_INFO, "wake", "%s",
                   tags == PAUSE_WEIGHTS ? "weights"
                   : tags == PAUSE_KV    ? "kv_cache"
                                         : "weights, kv_cache");
    *nbytes = n;
    return 0;
}
