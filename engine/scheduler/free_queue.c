/* One job that is posted when there is something to free and no job under way. */
#include "engine/scheduler/free_queue.h"

#include "base/jobs/workers.h"
#include "base/mtx.h"

#include <assert.h>
#include <stdlib.h>

struct free_queue {
    struct mtx lock;  /* rank MTX_LEAF; guards down to the blank line */
    struct seq *dead; /* owned list */
    bool posted;      /* the job is queued and has not read `dead` yet */

    struct store *store;     /* borrowed; immutable, as all below */
    struct workers *workers; /* owned; one thread */
    struct job job;
};

static void queue_clean(void *arg)
{
    struct free_queue *j = arg;
    struct seq *q, *next;

    mtx_lock(&j->lock);
    q = j->dead;
    j->dead = NULL;
    j->posted = false;
    mtx_unlock(&j->lock);
    for (; q != NULL; q = next) {
        next = q->next;
        seq_free(q);
    }
    store_reap(j->store);
}

int free_queue_new(struct free_queue **out, struct store *store, struct err *e)
{
    struct workers_cfg cfg = {.name = "free_queue", .n_threads = 1, .n_queue_max = 1};
    struct free_queue *j = calloc(1, sizeof *j);

    if (j == NULL)
        return err_set(e, ERR_NO_MEMORY, "",
                       "no memory for the engine's queue of what is to be freed");
    if (workers_new(&j->workers, &cfg, e) != 0) {
        free(j);
        return -1;
    }
    mtx_init(&j->lock, MTX_LEAF);
    j->store = store;
    j->job = (struct job){.run = queue_clean, .arg = j};
    *out = j;
    return 0;
}

void free_queue_free(struct free_queue *j)
{
    if (j == NULL)
        return;
    workers_free(j->workers); /* runs what is queued */
    assert(j->dead == NULL);
    mtx_fini(&j->lock);
    free(j);
}

static void queue_post(struct free_queue *j, struct seq *dead)
{
    struct err e = {0};
    bool posted;
    int rc;

    mtx_lock(&j->lock);
    if (dead != NULL) {
        dead->next = j->dead;
        j->dead = dead;
    }
    posted = j->posted;
    j->posted = true;
    mtx_unlock(&j->lock);
    if (posted)
        return;
    rc = workers_post(j->workers, &j->job, WORKERS_URGENT, &e);
    assert(rc == 0); /* the urgent lane has no bound, and the owner's thread stops it */
    (void)rc;
}

void free_queue_add(struct free_queue *j, struct seq *q)
{
    queue_post(j, q);
}

void free_queue_reap(struct free_queue *j)
{
    queue_post(j, NULL);
}
