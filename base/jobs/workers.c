/* A fixed pool of threads with two FIFO lanes.
 *
 * A thread has several stacks, and on each of them the loop that takes jobs (run_jobs). A job that
 * waits leaves its stack as it is, and the thread goes on with the loop on another one; so a job
 * that does not wait costs nothing more. Rejected: jobs as chains of callbacks, which turn what
 * happens one after the other into many functions, each of which may be the last. */
#include "base/jobs/workers.h"

#include "base/clock.h"
#include "base/jobs/stack.h"
#include "base/mtx.h"

#include <assert.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORKERS_STACK_NBYTES = 2 << 20,
    WORKERS_SPARE_MAX = 8, /* stacks of a thread that are kept for jobs to come */
    WORKERS_NAME_MAX = 16
};

struct lane {
    struct job *head;
    struct job **tail;
    size_t n;
};

struct thread;

/* A stack of a thread: it runs, or its job waits, or it is spare. */
struct place {
    struct waiter waiter; /* of the job that waits here; the first member */
    struct thread *thread;
    struct stack *stack;            /* owned; NULL: there was no memory for that of the thread */
    void *local;                    /* of the job here */
    uint64_t since_us, deadline_us; /* of its wait */
    bool woken;                     /* guarded by the pool's lock, and so is the next one */
    struct place *next;             /* in a list of the thread */
};

/* Of the thread itself, but for what a line says. */
struct thread {
    struct workers *pool; /* immutable */
    pthread_t id;         /* of the pool's owner */
    struct cnd wakeup;    /* there is something to do */
    bool sleeps;          /* guarded by the pool's lock, and so are the next two */
    size_t n_waiting;
    struct place *waiting, **waiting_tail; /* the longest first */

    struct place home, *now;     /* on the thread's own stack; the one that runs */
    struct place *spare, *ended; /* the latter is freed next; NULL: none */
    size_t n_spare;
    struct waiting how; /* its jobs wait */
    bool ending;
};

struct workers {
    struct mtx lock;      /* rank MTX_WORKERS; guards down to the blank line */
    struct lane lanes[2]; /* by enum workers_lane; WORKERS_PRIOR waits in the urgent one */
    bool stopping;
    size_t n_alive; /* threads that will look for a job once more */
    size_t n_waiting;

    size_t n_queue_max; /* immutable, and so is the next one */
    bool waits;
    char name[WORKERS_NAME_MAX]; /* immutable */
    size_t n_threads;            /* immutable, and so is the next one */
    struct thread *threads;      /* owned; [n_threads] */
    size_t n_started;            /* owner's thread only */
};

static _Thread_local struct thread *own;
static _Thread_local void *own_local; /* of a thread that is in no pool */

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

/* A job that was woken, or whose deadline is over. */
static struct place *take_woken_locked(struct thread *t)
{
    uint64_t now_us = t->waiting != NULL ? clock_now_us() : 0;

    for (struct place **at = &t->waiting; *at != NULL; at = &(*at)->next) {
        struct place *p = *at;

        if (!p->woken && p->deadline_us > now_us)
            continue;
        *at = p->next;
        if (p->next == NULL)
            t->waiting_tail = at;
        t->n_waiting--;
        t->pool->n_waiting--;
        return p;
    }
    return NULL;
}

static struct job *take_job_locked(struct workers *w)
{
    struct job *job = lane_take(&w->lanes[WORKERS_URGENT]);

    return job != NULL ? job : lane_take(&w->lanes[WORKERS_NORMAL]);
}

static uint64_t first_deadline_locked(const struct thread *t)
{
    uint64_t first_us = CLOCK_NEVER;

    for (const struct place *p = t->waiting; p != NULL; p = p->next)
        if (p->deadline_us < first_us)
            first_us = p->deadline_us;
    return first_us;
}

static size_t n_queued_locked(const struct workers *w)
{
    return w->lanes[WORKERS_NORMAL].n + w->lanes[WORKERS_URGENT].n;
}

static void wake_thread_locked(struct thread *t)
{
    t->sleeps = false;
    cnd_signal(&t->wakeup);
}

/* That with the fewest jobs that wait: what it takes next may keep them waiting. */
static void wake_any_locked(struct workers *w)
{
    struct thread *best = NULL;

    for (size_t i = 0; i < w->n_threads; i++) {
        struct thread *t = &w->threads[i];

        if (t->sleeps && (best == NULL || t->n_waiting < best->n_waiting))
            best = t;
    }
    if (best != NULL)
        wake_thread_locked(best);
}

/* What a thread does next: it goes on with `place`, or begins `job`. */
struct work {
    struct place *place;
    struct job *job;
};

/* Returns: false if the pool stops, and there is nothing left to do.
 * @begins  may it begin a job? One that waits then must not keep it from those that wait already */
static bool next_work(struct thread *t, bool begins, struct work *out)
{
    struct workers *w = t->pool;
    bool any = true;

    mtx_lock(&w->lock);
    for (;;) {
        *out = (struct work){.place = take_woken_locked(t)};
        if (out->place == NULL && begins)
            out->job = take_job_locked(w);
        else if (n_queued_locked(w) > 0) /* for which it may have been woken */
            wake_any_locked(w);
        any = out->place != NULL || out->job != NULL;
        if (any || (w->stopping && t->waiting == NULL))
            break;
        t->sleeps = true;
        (void)cnd_wait(&t->wakeup, &w->lock, first_deadline_locked(t));
        t->sleeps = false;
    }
    if (!any)
        w->n_alive--;
    mtx_unlock(&w->lock);
    return any;
}

/* jobs that wait */

static void free_ended(struct thread *t)
{
    if (t->ended == NULL)
        return;
    stack_free(t->ended->stack);
    free(t->ended);
    t->ended = NULL;
}

static void change_place(struct thread *t, struct place *to)
{
    struct place *from = t->now;

    t->now = to;
    stack_change(from->stack, to->stack);
    free_ended(t);
}

static struct place *run_jobs(struct thread *t);

/* The first time that a thread changes to a place. */
static struct stack *run_place(void *arg)
{
    struct thread *t = arg;
    struct place *next;

    free_ended(t);
    next = run_jobs(t);
    t->ended = t->now;
    t->now = next;
    return next->stack;
}

static bool add_spare(struct thread *t)
{
    struct place *p = t->home.stack != NULL ? calloc(1, sizeof *p) : NULL;

    if (p != NULL)
        p->stack = stack_new(WORKERS_STACK_NBYTES, run_place, t);
    if (p == NULL || p->stack == NULL) {
        free(p);
        return false;
    }
    p->thread = t;
    t->spare = p;
    t->n_spare = 1;
    return true;
}

static void on_wake(struct waiter *waiter)
{
    struct place *p = (struct place *)waiter;
    struct thread *t = p->thread;

    mtx_lock(&t->pool->lock);
    p->woken = true;
    if (t->sleeps)
        wake_thread_locked(t);
    mtx_unlock(&t->pool->lock);
}

/* Without memory for a spare stack a job keeps its thread. */
static struct waiter *wait_begin(void *arg)
{
    struct thread *t = arg;

    if (t->spare == NULL && !add_spare(t))
        return NULL;
    t->now->waiter = (struct waiter){.wake = on_wake};
    t->now->woken = false;
    return &t->now->waiter;
}

static void wait_here(void *arg, struct waiter *waiter, uint64_t deadline_us)
{
    struct thread *t = arg;
    struct place *p = (struct place *)waiter, *spare = t->spare;

    p->since_us = clock_now_us();
    p->deadline_us = deadline_us;
    p->next = NULL;
    mtx_lock(&t->pool->lock);
    *t->waiting_tail = p;
    t->waiting_tail = &p->next;
    t->n_waiting++;
    t->pool->n_waiting++;
    mtx_unlock(&t->pool->lock);
    t->spare = spare->next;
    t->n_spare--;
    cnd_set_waiting(NULL);
    change_place(t, spare);
    cnd_set_waiting(&t->how);
}

/* threads */

static void run_job(struct thread *t, struct job *job)
{
    t->now->local = NULL;
    cnd_set_waiting(t->pool->waits ? &t->how : NULL);
    job->run(job->arg);
    cnd_set_waiting(NULL);
    mtx_assert_none();
}

static void make_spare(struct thread *t, struct place *p)
{
    p->next = t->spare;
    t->spare = p;
    t->n_spare++;
}

static void unlink_spare(struct thread *t, const struct place *p)
{
    struct place **at = &t->spare;

    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    t->n_spare--;
}

/* Without memory for a spare stack the next job might keep the thread from those that wait. */
static bool may_begin(struct thread *t)
{
    return t->waiting == NULL || t->spare != NULL || add_spare(t);
}

/* On each stack of a thread. Returns when this one ends: to which it goes on. */
static struct place *run_jobs(struct thread *t)
{
    struct work work;

    while (!t->ending && next_work(t, may_begin(t), &work)) {
        struct place *here = t->now;

        if (work.place == NULL) {
            run_job(t, work.job);
            continue;
        }
        if (here != &t->home && t->n_spare >= WORKERS_SPARE_MAX)
            return work.place;
        make_spare(t, here);
        change_place(t, work.place);
    }
    if (!t->ending && t->now != &t->home)
        unlink_spare(t, &t->home);
    t->ending = true;
    return &t->home;
}

/* Each ends on its own stack. */
static void end_spare(struct thread *t)
{
    while (t->spare != NULL) {
        struct place *p = t->spare;

        t->spare = p->next;
        change_place(t, p);
    }
}

static void *pool_thread_main(void *arg)
{
    struct thread *t = arg;

    own = t;
    if (t->pool->waits)
        t->home.stack = stack_of_thread();
    (void)run_jobs(t);
    end_spare(t);
    stack_free(t->home.stack);
    return NULL;
}

const void *workers_self(void)
{
    return own != NULL ? (const void *)own->now : &own;
}

void **workers_local(void)
{
    return own != NULL ? &own->now->local : &own_local;
}

static void thread_init(struct workers *w, struct thread *t)
{
    cnd_init(&t->wakeup);
    t->pool = w;
    t->home.thread = t;
    t->now = &t->home;
    t->waiting_tail = &t->waiting;
    t->how = (struct waiting){.begin = wait_begin, .wait = wait_here, .arg = t};
}

static int start_thread(struct workers *w, size_t i, struct err *e)
{
    char name[WORKERS_NAME_MAX];
    pthread_attr_t attr;
    int rc;

    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setstacksize(&attr, WORKERS_STACK_NBYTES);
    rc = pthread_create(&w->threads[i].id, &attr, pool_thread_main, &w->threads[i]);
    (void)pthread_attr_destroy(&attr);
    if (rc != 0)
        return err_set_errno(e, ERR_INTERNAL, "", rc, "cannot start a %s thread", w->name);
    (void)snprintf(name, sizeof name, "%.11s/%zu", w->name, i % 1000);
    (void)pthread_setname_np(w->threads[i].id, name);
    return 0;
}

int workers_new(struct workers **out, const struct workers_cfg *cfg, struct err *e)
{
    struct workers *w = calloc(1, sizeof *w);

    assert(cfg->n_threads >= 1);
    if (w != NULL)
        w->threads = calloc(cfg->n_threads, sizeof *w->threads);
    if (w == NULL || w->threads == NULL) {
        free(w);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the %s threads", cfg->name);
    }
    mtx_init(&w->lock, MTX_WORKERS);
    for (int lane = 0; lane < 2; lane++)
        w->lanes[lane].tail = &w->lanes[lane].head;
    w->n_queue_max = cfg->n_queue_max;
    w->waits = cfg->waits;
    (void)snprintf(w->name, sizeof w->name, "%s", cfg->name);
    w->n_alive = w->n_threads = cfg->n_threads;
    for (size_t i = 0; i < w->n_threads; i++)
        thread_init(w, &w->threads[i]);
    for (; w->n_started < w->n_threads; w->n_started++) {
        if (start_thread(w, w->n_started, e) != 0) {
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
    for (size_t i = 0; i < w->n_threads; i++)
        wake_thread_locked(&w->threads[i]);
    mtx_unlock(&w->lock);
    for (; w->n_started > 0; w->n_started--)
        (void)pthread_join(w->threads[w->n_started - 1].id, NULL);
}

void workers_free(struct workers *w)
{
    if (w == NULL)
        return;
    workers_stop(w);
    for (size_t i = 0; i < w->n_threads; i++)
        cnd_fini(&w->threads[i].wakeup);
    mtx_fini(&w->lock);
    free(w->threads);
    free(w);
}

static size_t workers_max_of(const struct workers *w, enum workers_lane lane)
{
    return lane == WORKERS_NORMAL  ? w->n_queue_max
           : lane == WORKERS_PRIOR ? 2 * w->n_queue_max
                                   : SIZE_MAX;
}

int workers_post(struct workers *w, struct job *job, enum workers_lane lane, struct err *e)
{
    size_t n_open;
    int rc = 0;

    job->queued_us = clock_now_us();
    mtx_lock(&w->lock);
    n_open = w->n_waiting + w->lanes[lane == WORKERS_PRIOR ? WORKERS_URGENT : lane].n;
    if (w->stopping && (lane != WORKERS_URGENT || w->n_alive == 0)) {
        rc = err_set(e, ERR_DRAINING, "", "the server is stopping");
    } else if (n_open >= workers_max_of(w, lane)) {
        rc = err_set(e, ERR_OVERLOADED, "", "the %s queue is full (%zu waiting)", w->name, n_open);
    } else {
        lane_put(&w->lanes[lane == WORKERS_NORMAL ? WORKERS_NORMAL : WORKERS_URGENT], job);
        wake_any_locked(w);
    }
    mtx_unlock(&w->lock);
    return rc;
}

/* A job, and the thread that waits until it has run. */
struct call {
    struct job job;
    void (*run)(void *arg);
    void *arg;
    struct mtx lock; /* rank MTX_LEAF; guards `ended` */
    struct cnd changed;
    bool ended;
};

static void workers_run_call(void *arg)
{
    struct call *c = arg;

    c->run(c->arg);
    mtx_lock(&c->lock);
    c->ended = true;
    cnd_broadcast(&c->changed);
    mtx_unlock(&c->lock);
}

void workers_call(struct workers *w, void (*run)(void *arg), void *arg)
{
    struct call c = {.job = {.run = workers_run_call, .arg = &c}, .run = run, .arg = arg};
    struct err stopping = {0};

    mtx_init(&c.lock, MTX_LEAF);
    cnd_init(&c.changed);
    if (workers_post(w, &c.job, WORKERS_URGENT, &stopping) != 0)
        workers_run_call(&c);
    mtx_lock(&c.lock);
    while (!c.ended)
        (void)cnd_wait(&c.changed, &c.lock, CLOCK_NEVER);
    mtx_unlock(&c.lock);
    cnd_fini(&c.changed);
    mtx_fini(&c.lock);
}

size_t workers_queued(struct workers *w)
{
    size_t n;

    mtx_lock(&w->lock);
    n = n_queued_locked(w);
    mtx_unlock(&w->lock);
    return n;
}

size_t workers_waiting(struct workers *w)
{
    size_t n;

    mtx_lock(&w->lock);
    n = w->n_waiting;
    mtx_unlock(&w->lock);
    return n;
}

/* The earlier of two times of which 0 is none. */
static uint64_t earlier(uint64_t a_us, uint64_t b_us)
{
    return b_us != 0 && (a_us == 0 || b_us < a_us) ? b_us : a_us;
}

int workers_info_by(struct workers *w, uint64_t deadline_us, struct workers_info *out,
                    struct err *e)
{
    struct workers_info info = {.n_threads = w->n_threads};

    if (mtx_lock_by(&w->lock, deadline_us, e) != 0)
        return -1;
    info.n_queued = n_queued_locked(w);
    info.n_waiting = w->n_waiting;
    for (int lane = 0; lane < 2; lane++)
        if (w->lanes[lane].head != NULL)
            info.queued_us = earlier(info.queued_us, w->lanes[lane].head->queued_us);
    for (size_t i = 0; i < w->n_threads; i++) {
        const struct thread *t = &w->threads[i];

        info.n_idle += t->sleeps;
        if (t->waiting != NULL)
            info.waiting_us = earlier(info.waiting_us, t->waiting->since_us);
    }
    mtx_unlock(&w->lock);
    *out = info;
    return 0;
}
