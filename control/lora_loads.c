/* The threads that load adapters, the states of a load, and counters of how loads ended. */
#include "control/lora_loads.h"

#include <assert.h>
#include <stdlib.h>

struct lora_loads {
    struct workers *workers[LORA_POOL_COUNT];  /* owned */
    atomic_uint n_open[LORA_POOL_COUNT];       /* relaxed: a bound */
    atomic_bool stop;                          /* relaxed: running loads poll it */
    atomic_uint_fast64_t n_ended[LORA_STATES]; /* relaxed: counters */
};

static const struct {
    enum lora_state from;
    enum lora_event event;
    enum lora_state to;
} rules[] = {
    {LORA_NEW, LORA_ON_POST, LORA_QUEUED},       {LORA_QUEUED, LORA_ON_START, LORA_RUNNING},
    {LORA_RUNNING, LORA_ON_WAIT, LORA_WAITING},  {LORA_WAITING, LORA_ON_START, LORA_RUNNING},
    {LORA_RUNNING, LORA_ON_LOADED, LORA_LOADED}, {LORA_RUNNING, LORA_ON_UNCHANGED, LORA_UNCHANGED},
    {LORA_RUNNING, LORA_ON_FAILED, LORA_FAILED},
};

/* The state after an event. False: the event cannot happen there. */
static bool lora_next(enum lora_state from, enum lora_event event, enum lora_state *to)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (rules[i].from != from || rules[i].event != event)
            continue;
        *to = rules[i].to;
        return true;
    }
    return false;
}

/* The event happened; the table must have it. */
static void lora_move(struct lora_job *job, enum lora_event event)
{
    bool allowed = lora_next(job->state, event, &job->state);

    assert(allowed);
    (void)allowed;
}

int lora_loads_new(struct lora_loads **out, struct err *e)
{
    static const struct workers_cfg cfgs[LORA_POOL_COUNT] = {
        [LORA_POOL_HOST] = {"lora", LORA_THREADS, LORA_OPEN_MAX, false},
        [LORA_POOL_HANDLES] = {"lora-ipc", 1, LORA_OPEN_MAX, false},
        [LORA_POOL_GROUP] = {"lora-nccl", 1, LORA_OPEN_MAX, false}};
    struct lora_loads *l = calloc(1, sizeof *l);

    if (l == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for loads of adapters");
    for (int i = 0; i < LORA_POOL_COUNT; i++) {
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
    for (int i = 0; i < LORA_POOL_COUNT; i++)
        workers_stop(l->workers[i]);
}

void lora_loads_free(struct lora_loads *l)
{
    if (l == NULL)
        return;
    lora_loads_stop(l);
    for (int i = 0; i < LORA_POOL_COUNT; i++)
        workers_free(l->workers[i]);
    free(l);
}

static void job_run(void *arg)
{
    struct lora_job *job = arg;

    lora_move(job, LORA_ON_START);
    job->run(job->arg);
}

/* The state changes before the job is queued: from then on another thread may have it. */
static int lora_loads_queue(struct lora_loads *l, struct lora_job *job, enum lora_event event,
                            struct err *e)
{
    enum lora_state before = job->state;

    lora_move(job, event);
    job->job = (struct job){.run = job_run, .arg = job};
    if (workers_post(l->workers[job->pool], &job->job, WORKERS_URGENT, e) == 0)
        return 0;
    job->state = before;
    return -1;
}

/* All jobs go through the pool's urgent queue, which takes what a job of its own posts until the
 * end. So jobs take turns, and the bound is counted here, because that queue has none. */
int lora_loads_post(struct lora_loads *l, struct lora_job *job, struct err *e)
{
    atomic_uint *n_open = &l->n_open[job->pool];
    unsigned n = atomic_fetch_add_explicit(n_open, 1, memory_order_relaxed);

    if (n >= LORA_OPEN_MAX)
        (void)err_set(e, ERR_OVERLOADED, "", "%u adapters are being loaded; the limit is %d", n,
                      LORA_OPEN_MAX);
    else if (lora_loads_queue(l, job, LORA_ON_POST, e) == 0)
        return 0;
    (void)atomic_fetch_sub_explicit(n_open, 1, memory_order_relaxed);
    return -1;
}

int lora_loads_again(struct lora_loads *l, struct lora_job *job, struct err *e)
{
    return lora_loads_queue(l, job, LORA_ON_WAIT, e);
}

const atomic_bool *lora_loads_stopping(const struct lora_loads *l)
{
    return &l->stop;
}

void lora_loads_end(struct lora_loads *l, struct lora_job *job, enum lora_event how)
{
    lora_move(job, how);
    (void)atomic_fetch_sub_explicit(&l->n_open[job->pool], 1, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&l->n_ended[job->state], 1, memory_order_relaxed);
}

void lora_stats(struct lora_loads *l, struct lora_stats *out)
{
    for (int i = 0; i < LORA_STATES; i++)
        out->n_ended[i] = atomic_load_explicit(&l->n_ended[i], memory_order_relaxed);
    out->n_queued = 0;
    for (int i = 0; i < LORA_POOL_COUNT; i++)
        out->n_queued += workers_queued(l->workers[i]);
}
