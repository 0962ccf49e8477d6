/* The queue of jobs and the two threads of updates: the worker, the only thread that moves,
 * verifies and commits bytes (update_jobs.c), and the watchdog of leases. */
#include "base/clock.h"
#include "weights/update/update_priv.h"

#include <assert.h>
#include <stdlib.h>

void job_queue_locked(struct updates *u, struct update_job *job)
{
    mtx_assert_held(&u->lock);
    job->next = NULL;
    *u->queue_tail = job;
    u->queue_tail = &job->next;
    u->n_queued++;
    job->session->n_jobs++;
    cnd_signal(&u->work);
}

/* Queued before all other jobs: the next update may need the memory that an aborted one still
 * holds. */
void job_queue_first_locked(struct updates *u, struct update_job *job)
{
    mtx_assert_held(&u->lock);
    job->next = u->queue;
    if (u->queue == NULL)
        u->queue_tail = &job->next;
    u->queue = job;
    u->n_queued++;
    job->session->n_jobs++;
    cnd_signal(&u->work);
}

static struct update_job *job_take_locked(struct updates *u)
{
    struct update_job *job = u->queue;

    u->queue = job->next;
    if (u->queue == NULL)
        u->queue_tail = &u->queue;
    u->n_queued--;
    return job;
}

void job_free(struct update_job *job)
{
    if (job == NULL)
        return;
    assert(job->fill == NULL);
    update_chunk_free(job->chunk);
    job_layouts_free(job);
    free(job->sums);
    free(job);
}

void *update_worker_main(void *arg)
{
    static void (*const run[])(struct updates *, struct update_job *) = {
        [JOB_CHUNK] = job_run_chunk,
        [JOB_FINISH] = job_run_finish,
        [JOB_ANSWER] = job_run_answer,
        [JOB_DISPOSE] = job_run_dispose,
    };
    struct updates *u = arg;
    struct update_job *job;

    for (;;) {
        mtx_lock(&u->lock);
        while (u->queue == NULL && !u->stopping)
            (void)cnd_wait(&u->work, &u->lock, CLOCK_NEVER);
        job = u->queue != NULL ? job_take_locked(u) : NULL;
        mtx_unlock(&u->lock);
        if (job == NULL)
            return NULL;
        run[job->kind](u, job);
        mtx_assert_none();
    }
}

/* Ends the open session if its lease has expired and it has no jobs. */
static bool lease_ended_locked(struct updates *u, struct update_info *info,
                               struct session **to_free)
{
    struct session *s = u->open;
    struct err why = {0};

    if (s == NULL || s->n_jobs > 0 || !lease_timer_expired(&s->lease))
        return false;
    (void)err_set(&why, ERR_TIMEOUT, "", "the lease of %u s expired without use or renewal",
                  s->lease.length_s);
    *to_free = session_end_locked(u, s, UPDATE_ABORTED, &why);
    session_info_locked(u, s, info);
    return true;
}

void *update_watchdog_main(void *arg)
{
    struct updates *u = arg;

    mtx_lock(&u->lock);
    while (!u->stopping) {
        struct session *to_free = NULL;
        struct update_info info;

        if (lease_ended_locked(u, &info, &to_free)) {
            mtx_unlock(&u->lock);
            session_free(to_free);
            updates_ended(u, &info);
            updates_changed(u);
            mtx_lock(&u->lock);
            continue;
        }
        (void)cnd_wait(&u->tick, &u->lock,
                       u->open != NULL && u->open->n_jobs == 0 ? u->open->lease.end_us
                                                               : CLOCK_NEVER);
    }
    mtx_unlock(&u->lock);
    return NULL;
}
