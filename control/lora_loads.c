/* The threads that load adapters, and how their work ended. */
#include "control/lora_loads.h"

#include <stdlib.h>

struct lora_loads {
    struct workers *workers[LORA_LANE_COUNT];       /* owned */
    atomic_uint n_open[LORA_LANE_COUNT];            /* relaxed: a bound */
    atomic_bool stop;                               /* relaxed: a load looks again and again */
    atomic_uint_fast64_t n_ended[LORA_ENDED_COUNT]; /* relaxed: counters */
};

int lora_loads_new(struct lora_loads **out, struct err *e)
{
    static const struct workers_cfg cfgs[LORA_LANE_COUNT] = {
        [LORA_LANE_HOST] = {"lora", LORA_THREADS, LORA_OPEN_MAX},
        [LORA_LANE_HANDLES] = {"lora-ipc", 1, LORA_OPEN_MAX},
        [LORA_LANE_GROUP] = {"lora-nccl", 1, LORA_OPEN_MAX}};
    struct lora_loads *l = calloc(1, sizeof *l);

    if (l == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for loads of adapters");
    for (int i = 0; i < LORA_LANE_COUNT; i++) {
        if (workers_new(&l->workers[i], &cfgs[i], e) != 0) {
            while (i-- > 0)
                workers_free(l->workers[i]);
            free(l);
            return -1;
        }
    }
    *out = l;
    return 0;
}

void lora_loads_stop(struct lora_loads *l)
{
    atomic_store_explicit(&l->stop, true, memory_order_relaxed);
    for (int i = 0; i < LORA_LANE_COUNT; i++)
        workers_stop(l->workers[i]);
}

void lora_loads_free(struct lora_loads *l)
{
    if (l == NULL)
        return;
    lora_loads_stop(l);
    for (int i = 0; i < LORA_LANE_COUNT; i++)
        workers_free(l->workers[i]);
    free(l);
}

/* All of a lane go through the pool's urgent queue, which has no bound and takes what a job of its
 * own posts until the end; so they take turns, and ours is the bound. */
int lora_loads_post(struct lora_loads *l, struct job *job, enum lora_lane lane, struct err *e)
{
    unsigned n = atomic_fetch_add_explicit(&l->n_open[lane], 1, memory_order_relaxed);

    if (n >= LORA_OPEN_MAX)
        (void)err_set(e, ERR_OVERLOADED, "", "%u adapters are being loaded; at most %d may be", n,
                      LORA_OPEN_MAX);
    else if (workers_post(l->workers[lane], job, WORKERS_URGENT, e) == 0)
        return 0;
    (void)atomic_fetch_sub_explicit(&l->n_open[lane], 1, memory_order_relaxed);
    return -1;
}

int lora_loads_again(struct lora_loads *l, struct job *job, enum lora_lane lane, struct err *e)
{
    return workers_post(l->workers[lane], job, WORKERS_URGENT, e);
}

const atomic_bool *lora_loads_stopping(const struct lora_loads *l)
{
    return &l->stop;
}

void lora_loads_end(struct lora_loads *l, enum lora_lane lane, enum lora_ended how)
{
    (void)atomic_fetch_sub_explicit(&l->n_open[lane], 1, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&l->n_ended[how], 1, memory_order_relaxed);
}

void lora_stats(struct lora_loads *l, struct lora_stats *out)
{
    for (int i = 0; i < LORA_ENDED_COUNT; i++)
        out->n_ended[i] = atomic_load_explicit(&l->n_ended[i], memory_order_relaxed);
    out->n_queued = 0;
    for (int i = 0; i < LORA_LANE_COUNT; i++)
        out->n_queued += workers_queued(l->workers[i]);
}
