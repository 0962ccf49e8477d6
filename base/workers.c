/* A fixed pool of threads with two FIFO lanes. */
#include "base/workers.h"

#include "base/clock.h"
#include "base/mtx.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKERS_STACK_NBYTES = 2 << 20, WORKERS_NAME_MAX = 16 };

struct lane {
    struct job *head;
    struct job **tail;
    size_t n;
};

struct workers {
    struct mtx lock; /* rank MTX_WORKERS; guards down to the blank line */
    struct cnd posted;
    struct lane lanes[2]; /* by enum workers_lane */
    bool stopping;
    size_t n_alive; /* threads that will look for a job once more */

    size_t n_queue_max;          /* immutable */
    char name[WORKERS_NAME_MAX]; /* immutable */
    size_t n_threads;            /* owner's thread only */
    pthread_t *threads;          /* owned; owner's thread only */
};

static void lane_put(struct lane *l, struct job *job)
{
    job->next = NULL;
    *l->tail = job;
    l->tail = &job->next;
    l->n++;
}

static struct job *lane_take(struct lane *l)
{
    struct job *job = l->head;

    if (job == NULL)
        return NULL;
    l->head = job->next;
    if (l->head == NULL)
        l->tail = &l->head;
    l->n--;
    return job;
}

/* The next job, or NULL if the pool stops and the queues are empty. */
static struct job *next_job(struct workers *w)
{
    struct job *job;

    mtx_lock(&w->lock);
    for (;;) {
        job = lane_take(&w->lanes[WORKERS_URGENT]);
        if (job == NULL)
            job = lane_take(&w->lanes[WORKERS_NORMAL]);
        if (job != NULL || w->stopping)
            break;
        (void)cnd_wait(&w->posted, &w->lock, CLOCK_NEVER);
    }
    if (job == NULL)
        w->n_alive--;
    mtx_unlock(&w->lock);
    return job;
}

static void *worker_main(void *arg)
{
    struct workers *w = arg;
    struct job *job;

    while ((job = next_job(w)) != NULL) {
        job->run(job->arg);
        mtx_assert_none();
    }
    return NULL;
}

static int start_thread(struct workers *w, size_t i, struct err *e)
{
    char name[WORKERS_NAME_MAX];
    pthread_attr_t attr;
    int rc;

    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setstacksize(&attr, WORKERS_STACK_NBYTES);
    rc = pthread_create(&w->threads[i], &attr, worker_main, w);
    (void)pthread_attr_destroy(&attr);
    if (rc != 0)
        return err_set_errno(e, ERR_INTERNAL, "", rc, "cannot start a %s thread", w->name);
    (void)snprintf(name, sizeof name, "%.11s/%zu", w->name, i % 1000);
    (void)pthread_setname_np(w->threads[i], name);
    return 0;
}

int workers_new(struct workers **out, const struct workers_cfg *cfg, struct err *e)
{
    struct workers *w = calloc(1, sizeof *w);

    assert(cfg->n_threads >= 1);
    if (w == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the %s threads", cfg->name);
    w->threads = calloc(cfg->n_threads, sizeof *w->threads);
    if (w->threads == NULL) {
        free(w);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the %s threads", cfg->name);
    }
    mtx_init(&w->lock, MTX_WORKERS);
    cnd_init(&w->posted);
    for (int lane = 0; lane < 2; lane++)
        w->lanes[lane].tail = &w->lanes[lane].head;
    w->n_queue_max = cfg->n_queue_max;
    (void)snprintf(w->name, sizeof w->name, "%s", cfg->name);
    w->n_alive = cfg->n_threads;
    for (; w->n_threads < cfg->n_threads; w->n_threads++) {
        if (start_thread(w, w->n_threads, e) != 0) {
            workers_free(w);
            return -1;
        }
    }
    *out = w;
    return 0;
}

void workers_stop(struct workers *w)
{
    mtx_lock(&w->lock);
    w->stopping = true;
    cnd_broadcast(&w->posted);
    mtx_unlock(&w->lock);
    for (; w->n_threads > 0; w->n_threads--)
        (void)pthread_join(w->threads[w->n_threads - 1], NULL);
}

void workers_free(struct workers *w)
{
    if (w == NULL)
        return;
    workers_stop(w);
    cnd_fini(&w->posted);
    mtx_fini(&w->lock);
    free(w->threads);
    free(w);
}

int workers_post(struct workers *w, struct job *job, enum workers_lane lane, struct err *e)
{
    int rc = 0;

    mtx_lock(&w->lock);
    if (w->stopping && (lane == WORKERS_NORMAL || w->n_alive == 0)) {
        rc = err_set(e, ERR_DRAINING, "", "the server is stopping");
    } else if (lane == WORKERS_NORMAL && w->lanes[lane].n >= w->n_queue_max) {
        rc = err_set(e, ERR_OVERLOADED, "", "the %s queue is full (%zu waiting)", w->name,
                     w->lanes[lane].n);
    } else {
        lane_put(&w->lanes[lane], job);
        cnd_signal(&w->posted);
    }
    mtx_unlock(&w->lock);
    return rc;
}

size_t workers_queued(struct workers *w)
{
    size_t n;

    mtx_lock(&w->lock);
    n = w->lanes[WORKERS_NORMAL].n + w->lanes[WORKERS_URGENT].n;
    mtx_unlock(&w->lock);
    return n;
}
