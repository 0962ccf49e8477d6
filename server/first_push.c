/* Commits the first weights: the main thread waits for the update worker. */
#include "server/first_push.h"

#include "base/clock.h"
#include "base/mtx.h"
#include "weights/update/update.h"

#include <signal.h>
#include <unistd.h>

struct first_push {
    struct mtx lock; /* rank MTX_LEAF; guards down to the end */
    struct cnd done;
    bool ended;
    struct err error;
};

static void first_push_done(void *arg, const struct update_info *info, const struct err *e)
{
    struct first_push *p = arg;

    (void)info;
    mtx_lock(&p->lock);
    p->ended = true;
    p->error = *e;
    cnd_signal(&p->done);
    mtx_unlock(&p->lock);
}

/* Waits until the worker has answered. A signal stops the updates, so that it answers at once. */
static void await_done(struct updates *updates, struct first_push *p,
                       bool (*ended_within)(uint64_t timeout_us))
{
    enum { POLL_US = 100000 };

    mtx_lock(&p->lock);
    while (!p->ended) {
        if (cnd_wait(&p->done, &p->lock, clock_after_us(POLL_US)))
            continue;
        mtx_unlock(&p->lock);
        if (ended_within(1)) {
            updates_stop(updates);
            (void)kill(getpid(),
                       SIGTERM); /* again, for the wait that follows: ended_within took it */
        }
        mtx_lock(&p->lock);
    }
    mtx_unlock(&p->lock);
}

int first_push(struct updates *updates, struct update_chunk *chunk,
               bool (*ended_within)(uint64_t timeout_us), struct err *e)
{
    struct first_push p = {0};
    int rc;

    chunk->done = first_push_done;
    chunk->done_arg = &p;
    mtx_init(&p.lock, MTX_LEAF);
    cnd_init(&p.done);
    rc = updates_submit(updates, chunk, e);
    if (rc != 0)
        update_chunk_free(chunk);
    else
        await_done(updates, &p, ended_within);
    cnd_fini(&p.done);
    mtx_fini(&p.lock);
    if (rc == 0 && p.error.code != ERR_NONE) {
        *e = p.error;
        rc = -1;
    }
    return rc;
}
