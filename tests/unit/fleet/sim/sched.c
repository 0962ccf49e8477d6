#include "tests/unit/fleet/sim/sched.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/id.h"
#include "base/jobs/stack.h"
#include "base/jobs/workers.h"
#include "base/loop.h"
#include "base/mtx.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JOBS_MAX = 96, EVENTS_MAX = 1024, STACK_NBYTES = 2 << 20, START_US = 100000000 };

enum place_state { PLACE_FREE, PLACE_READY, PLACE_WAITS };

struct place {
    enum place_state state;
    struct stack *stack;
    void (*run)(void *arg);
    void *arg, *local;
    const struct cnd *cnd; /* that it waits for; NULL: only for the time */
    uint64_t deadline_us;
    bool in_time;
};

struct event {
    uint64_t due_us, number;
    void (*run)(void *arg);
    void *arg;
};

struct workers {
    int none;
};

struct loop {
    struct loop_item *items, **tail;
    struct loop_timer *timers;
};

static struct {
    uint64_t random, now_us, n_events, n_ids;
    unsigned yield_percent, n_locks;
    bool ordered;
    struct stack *home;
    struct place places[JOBS_MAX], *now; /* NULL: on the loop's stack */
    size_t n_places, n_jobs, next;
    struct event events[EVENTS_MAX];
    size_t n;
    struct loop loop;
    bool loop_exists;
} s;

static struct workers pool;

static void drop_jobs(void)
{
    for (size_t i = 0; i < s.n_places; i++)
        stack_free(s.places[i].stack);
    s.n_places = s.n_jobs = 0;
    s.loop = (struct loop){.items = NULL};
    s.loop_exists = false;
}

void sched_begin(uint64_t seed, unsigned yield_percent, bool ordered)
{
    if (s.home == NULL)
        s.home = stack_of_thread();
    assert(s.home != NULL && s.n_locks == 0);
    if (s.n_jobs > 0 || s.loop_exists)
        drop_jobs();
    s.random = seed * 0x9e3779b97f4a7c15u + 1;
    s.now_us = START_US;
    s.n_events = s.n_ids = 0;
    s.n = s.next = 0;
    s.yield_percent = yield_percent;
    s.ordered = ordered;
    for (int i = 0; i < 8; i++)
        (void)sched_draw(2);
}

unsigned sched_draw(unsigned n)
{
    s.random ^= s.random << 13;
    s.random ^= s.random >> 7;
    s.random ^= s.random << 17;
    return (unsigned)((s.random >> 11) % n);
}

bool sched_chance(unsigned percent)
{
    return percent > 0 && sched_draw(100) < percent;
}

size_t sched_n_jobs(void)
{
    return s.n_jobs;
}

/* ---- jobs ---- */

static void leave(void)
{
    struct place *p = s.now;

    assert(p != NULL && s.n_locks == 0);
    s.now = NULL;
    stack_change(p->stack, s.home);
}

static struct stack *run_place(void *arg)
{
    struct place *p = arg;

    for (;;) {
        p->run(p->arg);
        mtx_assert_none();
        p->state = PLACE_FREE;
        s.n_jobs--;
        leave();
    }
    return NULL;
}

void sched_spawn(void (*run)(void *arg), void *arg)
{
    size_t i = 0;

    while (i < s.n_places && s.places[i].state != PLACE_FREE)
        i++;
    assert(i < JOBS_MAX);
    if (i == s.n_places) {
        s.places[i].stack = stack_new(STACK_NBYTES, run_place, &s.places[i]);
        assert(s.places[i].stack != NULL);
        s.n_places++;
    }
    s.places[i].state = PLACE_READY;
    s.places[i].run = run;
    s.places[i].arg = arg;
    s.places[i].local = NULL;
    s.n_jobs++;
}

static void enter(struct place *p)
{
    s.now = p;
    stack_change(s.home, p->stack);
}

static bool wait_for(const struct cnd *c, uint64_t deadline_us)
{
    struct place *p = s.now;

    assert(p != NULL);
    p->state = PLACE_WAITS;
    p->cnd = c;
    p->deadline_us = deadline_us;
    leave();
    return p->in_time;
}

void sched_sleep(uint64_t us)
{
    (void)wait_for(NULL, s.now_us + us);
}

static void wake(struct place *p, bool in_time)
{
    p->state = PLACE_READY;
    p->in_time = in_time;
}

/* ---- what happens at a time ---- */

void sched_after(uint64_t delay_us, void (*run)(void *arg), void *arg)
{
    assert(s.n < EVENTS_MAX);
    s.events[s.n++] = (struct event){s.now_us + delay_us, s.n_events++, run, arg};
}

void sched_cancel(const void *arg)
{
    for (size_t i = s.n; i-- > 0;)
        if (s.events[i].arg == arg)
            s.events[i] = s.events[--s.n];
}

static size_t first_event(void)
{
    size_t first = 0;

    for (size_t i = 1; i < s.n; i++)
        if (s.events[i].due_us < s.events[first].due_us ||
            (s.events[i].due_us == s.events[first].due_us &&
             s.events[i].number < s.events[first].number))
            first = i;
    return first;
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Returns: false: nothing will happen. */
static bool pass_time(void)
{
    uint64_t due_us = CLOCK_NEVER;
    struct event e;
    size_t first = first_event();

    if (s.n > 0)
        due_us = s.events[first].due_us;
    if (s.loop.timers != NULL)
        due_us = earlier(due_us, s.loop.timers->due_us);
    for (size_t i = 0; i < s.n_places; i++)
        if (s.places[i].state == PLACE_WAITS)
            due_us = earlier(due_us, s.places[i].deadline_us);
    if (due_us == CLOCK_NEVER)
        return false;
    if (s.now_us < due_us)
        s.now_us = due_us;
    for (size_t i = 0; i < s.n_places; i++)
        if (s.places[i].state == PLACE_WAITS && s.places[i].deadline_us <= s.now_us)
            wake(&s.places[i], false);
    if (s.n > 0 && s.events[first].due_us <= s.now_us) {
        e = s.events[first];
        s.events[first] = s.events[--s.n];
        e.run(e.arg);
    } else if (s.loop.timers != NULL && s.loop.timers->due_us <= s.now_us) {
        struct loop_timer *t = s.loop.timers;

        loop_timer_cancel(&s.loop, t);
        t->fire(t->arg);
    }
    return true;
}

static void run_item(void)
{
    struct loop_item *item = s.loop.items;

    loop_unpost(&s.loop, item);
    item->run(item->arg);
}

/* What is ready: the jobs, and the loop. */
bool sched_step(void)
{
    size_t ready[JOBS_MAX], n = 0, k;
    bool item = s.loop.items != NULL;

    for (size_t i = 0; i < s.n_places; i++)
        if (s.places[i].state == PLACE_READY)
            ready[n++] = i;
    if (n == 0 && !item)
        return pass_time();
    k = s.ordered ? s.next++ % (n + item) : sched_draw((unsigned)(n + item));
    if (k == n)
        run_item();
    else
        enter(&s.places[ready[k]]);
    return true;
}

/* ---- base/clock.h, base/id.h ---- */

uint64_t __wrap_clock_now_us(void);
uint64_t __wrap_clock_after_us(uint64_t delay_us);
void __wrap_id_make(char out[ID_LEN + 1]);

uint64_t __wrap_clock_now_us(void)
{
    return s.now_us;
}

uint64_t __wrap_clock_after_us(uint64_t delay_us)
{
    return delay_us > CLOCK_NEVER - s.now_us ? CLOCK_NEVER : s.now_us + delay_us;
}

void __wrap_id_make(char out[ID_LEN + 1])
{
    (void)snprintf(out, ID_LEN + 1, "%032llx", (unsigned long long)++s.n_ids);
}

/* ---- base/mtx.h ---- */

__typeof__(mtx_lock) __wrap_mtx_lock, __real_mtx_lock;
__typeof__(mtx_unlock) __wrap_mtx_unlock, __real_mtx_unlock;
__typeof__(mtx_lock_by) __wrap_mtx_lock_by, __real_mtx_lock_by;
__typeof__(cnd_wait) __wrap_cnd_wait;
__typeof__(cnd_signal) __wrap_cnd_signal;
__typeof__(cnd_broadcast) __wrap_cnd_broadcast;

void __wrap_mtx_lock(struct mtx *m)
{
    __real_mtx_lock(m);
    s.n_locks++;
}

int __wrap_mtx_lock_by(struct mtx *m, uint64_t deadline_us, struct err *e)
{
    int rc = __real_mtx_lock_by(m, deadline_us, e);

    s.n_locks += rc == 0;
    return rc;
}

void __wrap_mtx_unlock(struct mtx *m)
{
    __real_mtx_unlock(m);
    if (--s.n_locks == 0 && s.now != NULL && sched_chance(s.yield_percent)) {
        s.now->state = PLACE_READY;
        leave();
    }
}

bool __wrap_cnd_wait(struct cnd *c, struct mtx *m, uint64_t deadline_us)
{
    bool in_time;

    __real_mtx_unlock(m);
    s.n_locks--;
    in_time = wait_for(c, deadline_us);
    __wrap_mtx_lock(m);
    return in_time;
}

void __wrap_cnd_broadcast(struct cnd *c)
{
    for (size_t i = 0; i < s.n_places; i++)
        if (s.places[i].state == PLACE_WAITS && s.places[i].cnd == c)
            wake(&s.places[i], true);
}

void __wrap_cnd_signal(struct cnd *c)
{
    __wrap_cnd_broadcast(c); /* spurious wake-ups may happen */
}

/* ---- base/jobs/workers.h ---- */

__typeof__(workers_new) __wrap_workers_new;
__typeof__(workers_post) __wrap_workers_post;
__typeof__(workers_call) __wrap_workers_call;
__typeof__(workers_self) __wrap_workers_self;
__typeof__(workers_local) __wrap_workers_local;

int __wrap_workers_new(struct workers **out, const struct workers_cfg *cfg, struct err *e)
{
    (void)cfg;
    (void)e;
    *out = &pool;
    return 0;
}

int __wrap_workers_post(struct workers *w, struct job *job, enum workers_lane lane, struct err *e)
{
    (void)w;
    (void)lane;
    (void)e;
    sched_spawn(job->run, job->arg);
    return 0;
}

void __wrap_workers_call(struct workers *w, void (*run)(void *arg), void *arg)
{
    (void)w;
    run(arg);
}

const void *__wrap_workers_self(void)
{
    return s.now != NULL ? (const void *)s.now : (const void *)&s;
}

void **__wrap_workers_local(void)
{
    static void *of_loop;

    return s.now != NULL ? &s.now->local : &of_loop;
}

/* ---- base/loop.h ---- */

__typeof__(loop_new) __wrap_loop_new;
__typeof__(loop_start) __wrap_loop_start;
__typeof__(loop_stop) __wrap_loop_stop;
__typeof__(loop_free) __wrap_loop_free;
__typeof__(loop_started) __wrap_loop_started;
__typeof__(loop_is_current) __wrap_loop_is_current;
__typeof__(loop_post) __wrap_loop_post;
__typeof__(loop_unpost) __wrap_loop_unpost;
__typeof__(loop_timer_set) __wrap_loop_timer_set;
__typeof__(loop_timer_cancel) __wrap_loop_timer_cancel;

int __wrap_loop_new(struct loop **out, const struct loop_cfg *cfg, struct err *e)
{
    (void)cfg;
    (void)e;
    assert(!s.loop_exists);
    s.loop = (struct loop){.items = NULL, .tail = &s.loop.items};
    s.loop_exists = true;
    *out = &s.loop;
    return 0;
}

int __wrap_loop_start(struct loop *l, struct err *e)
{
    (void)l;
    (void)e;
    return 0;
}

void __wrap_loop_stop(struct loop *l)
{
    while (l->items != NULL)
        run_item();
}

void __wrap_loop_free(struct loop *l)
{
    if (l == NULL)
        return;
    l->timers = NULL;
    s.loop_exists = false;
}

bool __wrap_loop_started(const struct loop *l)
{
    return l != NULL;
}

bool __wrap_loop_is_current(const struct loop *l)
{
    (void)l;
    return s.now == NULL;
}

void __wrap_loop_post(struct loop *l, struct loop_item *item)
{
    if (item->prev_next != NULL)
        return;
    item->next = NULL;
    item->prev_next = l->tail;
    *l->tail = item;
    l->tail = &item->next;
}

void __wrap_loop_unpost(struct loop *l, struct loop_item *item)
{
    if (item->prev_next == NULL)
        return;
    *item->prev_next = item->next;
    if (item->next != NULL)
        item->next->prev_next = item->prev_next;
    else
        l->tail = item->prev_next;
    item->next = NULL;
    item->prev_next = NULL;
}

void __wrap_loop_timer_cancel(struct loop *l, struct loop_timer *t)
{
    (void)l;
    if (t->prev_next == NULL)
        return;
    *t->prev_next = t->next;
    if (t->next != NULL)
        t->next->prev_next = t->prev_next;
    t->next = NULL;
    t->prev_next = NULL;
}

void __wrap_loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t due_us)
{
    struct loop_timer **at = &l->timers;

    __wrap_loop_timer_cancel(l, t);
    while (*at != NULL && (*at)->due_us <= due_us)
        at = &(*at)->next;
    t->due_us = due_us;
    t->next = *at;
    t->prev_next = at;
    if (t->next != NULL)
        t->next->prev_next = &t->next;
    *at = t;
}
