/* The moves of a pause. What is not a row cannot happen. */
#include "control/pause_state.h"

#include <assert.h>
#include <string.h>

#define BIT(x) (1u << (x))

enum { ANY = BIT(PAUSE_STATES) - 1 };

static const struct {
    unsigned from; /* set */
    enum pause_event event;
    enum pause_state to;
} rules[] = {
    {BIT(PAUSE_OFF) | BIT(PAUSE_PENDING), PAUSE_ON_REQUEST, PAUSE_PENDING},
    {BIT(PAUSE_HELD) | BIT(PAUSE_REPLACING), PAUSE_ON_REQUEST, PAUSE_REPLACING},

    /* Requests that still wait for a pause that is HELD are answered by the next look at it. */
    {BIT(PAUSE_PENDING) | BIT(PAUSE_HELD) | BIT(PAUSE_REPLACING), PAUSE_ON_ACKNOWLEDGE, PAUSE_HELD},

    {BIT(PAUSE_HELD) | BIT(PAUSE_REPLACING), PAUSE_ON_GIVE_UP, PAUSE_HELD},

    {BIT(PAUSE_OFF) | BIT(PAUSE_PENDING), PAUSE_ON_RESUME, PAUSE_OFF},
    {BIT(PAUSE_HELD) | BIT(PAUSE_REPLACING) | BIT(PAUSE_RESUMING), PAUSE_ON_RESUME, PAUSE_RESUMING},
    /* HELD: of two resumes at the same time the other one failed. */
    {BIT(PAUSE_OFF), PAUSE_ON_RESUME_FAILED, PAUSE_OFF},
    {BIT(PAUSE_HELD) | BIT(PAUSE_RESUMING), PAUSE_ON_RESUME_FAILED, PAUSE_HELD},
    {ANY, PAUSE_ON_RESUMED, PAUSE_OFF},
};

/* The state after an event. False: the event cannot happen there. */
static bool pause_next(enum pause_state from, enum pause_event event, enum pause_state *to)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if ((rules[i].from & BIT(from)) == 0 || rules[i].event != event)
            continue;
        *to = rules[i].to;
        return true;
    }
    return false;
}

/* The event happened; the table must have it. */
static void pause_move(struct pause *p, enum pause_event event)
{
    enum pause_state to = p->state;
    bool allowed = pause_next(p->state, event, &to);

    assert(allowed);
    (void)allowed;
    p->state = to;
}

void pause_init(struct pause *p)
{
    *p = (struct pause){0};
    lease_timer_set(&p->lease, 0);
    lease_timer_set(&p->held_lease, 0);
}

bool pause_begins_anew(const struct pause *before, enum lifecycle_pause mode)
{
    return before->state == PAUSE_OFF || (mode == PAUSE_ABORT && before->mode != PAUSE_ABORT);
}

void pause_set(struct pause *p, const struct pause_request *req, struct pause *before)
{
    assert(req->mode != PAUSE_NONE);
    *before = *p;
    if (p->state == PAUSE_OFF) {
        p->since_us = clock_now_us();
        p->since_wall_s = clock_wall_s();
        p->n_pauses++;
    }
    pause_move(p, PAUSE_ON_REQUEST);
    p->mode = req->mode;
    p->reject = req->reject;
    memcpy(p->owner, req->owner, sizeof p->owner);
    lease_timer_set(&p->lease, req->lease_s);
    p->n_aborted = 0;
    p->epoch++;
}

void pause_undo(struct pause *p, const struct pause *before)
{
    uint64_t epoch = p->epoch;

    assert(pause_is_pending(p));
    *p = *before;
    p->epoch = epoch + 1;
}

static void start_lease(struct pause *p)
{
    if (!lease_timer_runs(&p->lease))
        lease_timer_renew(&p->lease);
}

void pause_acknowledge(struct pause *p)
{
    pause_move(p, PAUSE_ON_ACKNOWLEDGE);
    start_lease(p);
    p->held_lease = p->lease;
}

static void fall_back_on_held_lease(struct pause *p)
{
    if (p->lease.length_s == 0)
        p->lease = p->held_lease;
    start_lease(p);
}

void pause_give_up(struct pause *p)
{
    pause_move(p, PAUSE_ON_GIVE_UP);
    fall_back_on_held_lease(p);
}

static void clear(struct pause *p)
{
    uint64_t us = clock_now_us() - p->since_us;

    p->paused_us += us;
    p->ended_us += us;
    p->n_ended[histogram_index(histogram_times, us)]++;
    p->mode = PAUSE_NONE;
    p->reject = false;
    p->owner[0] = '\0';
    lease_timer_set(&p->lease, 0);
    lease_timer_set(&p->held_lease, 0);
    p->epoch++;
}

void pause_begin_resume(struct pause *p)
{
    bool was_off = p->state == PAUSE_OFF;

    pause_move(p, PAUSE_ON_RESUME);
    if (p->state == PAUSE_OFF && !was_off)
        clear(p);
}

void pause_fail_resume(struct pause *p)
{
    pause_move(p, PAUSE_ON_RESUME_FAILED);
    if (p->state == PAUSE_HELD)
        fall_back_on_held_lease(p);
}

void pause_lift(struct pause *p)
{
    if (p->state != PAUSE_OFF)
        clear(p);
    pause_move(p, PAUSE_ON_RESUMED);
}

uint64_t pause_total_us(const struct pause *p)
{
    return p->paused_us + (p->state != PAUSE_OFF ? clock_now_us() - p->since_us : 0);
}

const char *pause_state_name(enum pause_state state)
{
    static const char *const names[PAUSE_STATES] = {
        [PAUSE_OFF] = "off",           [PAUSE_PENDING] = "pending",
        [PAUSE_HELD] = "held",         [PAUSE_REPLACING] = "replacing",
        [PAUSE_RESUMING] = "resuming",
    };

    return names[state];
}
