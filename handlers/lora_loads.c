/* The threads that load adapters, and how their work ended. */
#include "handlers/lora.h"

#include <stdlib.h>

struct lora_loads {
    struct workers *workers;                        /* owned */
    atomic_bool stop;                               /* relaxed: a load looks again and again */
    atomic_uint_fast64_t n_ended[LORA_ENDED_COUNT]; /* relaxed: counters */
};

int lora_loads_new(struct lora_loads **out, struct err *e)
{
    struct workers_cfg cfg = {"lora", LORA_THREADS, LORA_QUEUE_MAX};
    struct lora_loads *l = calloc(1, sizeof *l);

    if (l == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for loads of adapters");
    if (workers_new(&l->workers, &cfg, e) != 0) {
        free(l);
        return -1;
    }
    *out = l;
    return 0;
}

void lora_loads_stop(struct lora_loads *l)
{
    atomic_store_explicit(&l->stop, true, memory_order_relaxed);
    workers_stop(l->workers);
}

void lora_loads_free(struct lora_loads *l)
{
    if (l == NULL)
        return;
    lora_loads_stop(l);
    workers_free(l->workers);
    free(l);
}

int lora_loads_post(struct lora_loads *l, struct job *job, struct err *e)
{
    return workers_post(l->workers, job, WORKERS_NORMAL, e);
}

const atomic_bool *lora_loads_stopping(const struct lora_loads *l)
{
    return &l->stop;
}

void lora_loads_count(struct lora_loads *l, enum lora_ended how)
{
    (void)atomic_fetch_add_explicit(&l->n_ended[how], 1, memory_order_relaxed);
}

void lora_stats(struct lora_loads *l, struct lora_stats *out)
{
    for (int i = 0; i < LORA_ENDED_COUNT; i++)
        out->n_ended[i] = atomic_load_explicit(&l->n_ended[i], memory_order_relaxed);
    out->n_queued = workers_queued(l->workers);
}
