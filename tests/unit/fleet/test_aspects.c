/* The table of aspects, enumerated: facts of an engine, wants, and goals of an update, for each
 * kind. Of each state: is there always a request, a time, or a reason that a person can act on; do
 * good answers lead to what is wanted; and is nothing sent that the facts do not allow? What is
 * allowed is written here a second time, from the engines' point of view. */
#include "tests/unit/fleet/model/aspects_priv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MARKER FLEET_DIRTY_MARKER "7"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STATES_STEP = 17 }; /* that all states are right, release shows */
#else
enum { STATES_STEP = 1 };
#endif
enum { ANSWERS_MAX = 12, SERIAL_BEFORE = 1, SERIAL_NOW = 2, SERIAL_NEXT = 3, UPDATE = 7 };

/* One state. The parts that are copied while its answers are followed. */
struct state {
    struct engine_have have;
    struct adapter_have adapter;
    struct part_want part;
};

struct world {
    struct state s;
    struct wants w;
    struct adapter_want adapter;
    enum upstream_kind kind;
    size_t n;                /* states so far */
    size_t n_sent[REQUESTS]; /* in how many of them each request was planned */
};

static const struct {
    bool read, no_route;
    const char *text;
} labels[] = {
    {true, false, "now"},         {true, false, MARKER},
    {true, false, "next"},        {true, false, FLEET_DIRTY_MARKER "6"},
    {true, false, "of another"},  {false, false, MARKER},
    {false, false, "of another"}, {false, true, ""},
};
static const struct {
    enum sleep_fact weights, kv;
} sleeps[] = {
    {SLEEP_AWAKE, SLEEP_AWAKE},   {SLEEP_UNKNOWN, SLEEP_UNKNOWN}, {SLEEP_NOT_OURS, SLEEP_NOT_OURS},
    {SLEEP_ASLEEP, SLEEP_ASLEEP}, {SLEEP_AWAKE, SLEEP_ASLEEP},    {SLEEP_UNKNOWN, SLEEP_ASLEEP},
    {SLEEP_AWAKE, SLEEP_UNKNOWN},
};
static const struct {
    enum own_fact state;
    uint64_t update;
} owns[] = {{OWN_CLOSED, 0},    {OWN_UNKNOWN, UPDATE}, {OWN_NOT_OURS, 0},
            {OWN_OPEN, UPDATE}, {OWN_OPEN, 6},         {OWN_NO_ROUTE, 0}};
static const struct {
    enum weights_fact state;
    uint64_t serial;
} weights[] = {{WEIGHTS_SERIAL, SERIAL_NOW},    {WEIGHTS_UNKNOWN, 0}, {WEIGHTS_SERIAL, SERIAL_NEXT},
               {WEIGHTS_SERIAL, SERIAL_BEFORE}, {WEIGHTS_OTHER, 0},   {WEIGHTS_TORN, 0},
               {WEIGHTS_WERE_DROPPED, 0},       {WEIGHTS_WRONG, 0}};
/* Caches and adapters do not depend on each other. */
static const struct {
    struct cache_facts caches;
    struct adapter_have adapter;
} rests[] = {{{2, 2, 2, 2}, {ADAPTER_THIS, 1}},
             {{2, 0, 0, 0}, {ADAPTER_UNKNOWN, 0}},
             {{2, 2, 1, 1}, {ADAPTER_REFUSED, 1}},
             {{2, 2, 2, 1}, {ADAPTER_NONE, 0}}};
static const enum gate_fact gates[] = {GATE_RUNNING, GATE_UNKNOWN, GATE_NOT_OURS, GATE_KEPT};

#define LENGTH(array) (sizeof(array) / sizeof *(array))

static struct engine_now now_of(struct world *x)
{
    x->s.have.adapters = &x->s.adapter;
    return (struct engine_now){
        .kind = x->kind, .reachable = true, .serves = true, .have = &x->s.have, .part = &x->s.part};
}

static void fail_state(const struct world *x, const char *what)
{
    const struct engine_have *h = &x->s.have;

    fail_msg(
        "%s: %s pause=%d sleep=%d/%d own=%d(%d) weights=%d(%d) label=%d%d'%s' caches=%d/%d/%d/%d "
        "adapter=%d; wants pause=%d sleep=%d stage=%d, goal=%d sent=%d",
        what, upstream_kind_name(x->kind), h->pause, h->sleep.weights, h->sleep.kv, h->own.state,
        (int)h->own.update, h->weights.state, (int)h->weights.serial, h->label.read,
        h->label.no_route, h->label.text, (int)h->caches.needed, (int)h->caches.tried,
        (int)h->caches.emptied, (int)h->caches.second, x->s.adapter.state, x->w.pause, x->w.sleep,
        x->w.stage, x->s.part.goal, (int)x->s.part.n_sent);
}

/* ---- what may be sent ---- */

static bool is_in_part(const struct world *x)
{
    const struct engine_have *h = &x->s.have;

    return h->own.state == OWN_NO_ROUTE || (h->own.state == OWN_OPEN && h->own.update == UPDATE);
}

static bool two_phase(const struct world *x)
{
    return x->kind == UPSTREAM_BATON;
}

static bool stands_still(const struct world *x)
{
    return x->s.have.pause >= GATE_KEPT;
}

static bool knows_marker(const struct world *x)
{
    const struct engine_have *h = &x->s.have;

    return h->label.no_route ||
           (strcmp(h->label.text, MARKER) == 0 && (h->label.read || x->kind == UPSTREAM_VLLM));
}

static bool may_change(const struct world *x)
{
    return is_in_part(x) && x->s.have.sleep.weights == SLEEP_AWAKE &&
           (two_phase(x) || (stands_still(x) && knows_marker(x)));
}

static bool serves_now(const struct world *x)
{
    const struct engine_have *h = &x->s.have;

    return h->weights.state == WEIGHTS_SERIAL && h->weights.serial == SERIAL_NOW;
}

/* Tokens after a resume name the version. */
static bool has_label_for_resume(const struct world *x)
{
    const struct engine_have *h = &x->s.have;

    return h->label.no_route ||
           (h->label.read && (!serves_now(x) || strcmp(h->label.text, "now") == 0));
}

static bool may_resume(const struct world *x)
{
    const struct engine_have *h = &x->s.have;
    bool closed = h->own.state != OWN_OPEN && h->own.state != OWN_UNKNOWN;

    if (two_phase(x))
        return true;
    return h->weights.state != WEIGHTS_TORN && closed &&
           !(h->weights.state == WEIGHTS_SERIAL && h->weights.serial == SERIAL_NEXT) &&
           has_label_for_resume(x) && h->caches.tried == h->caches.needed &&
           (x->s.part.goal < GOAL_PREPARED || x->s.part.goal > GOAL_FINISHED);
}

/* Twice to sleep, or twice awake, ends an SGLang. */
static bool may_change_sleep(const struct world *x, const struct call *call)
{
    enum sleep_fact from = call->request == REQUEST_SLEEP ? SLEEP_AWAKE : SLEEP_ASLEEP;

    return x->kind != UPSTREAM_SGLANG ||
           ((!(call->sleep_of & SLEEP_OF_WEIGHTS) || x->s.have.sleep.weights == from) &&
            (!(call->sleep_of & SLEEP_OF_KV) || x->s.have.sleep.kv == from));
}

static bool may_set_label(const struct world *x, const struct call *call)
{
    const struct engine_have *h = &x->s.have;
    bool marker = strcmp(call->label, MARKER) == 0;

    if (!h->label.read || h->label.no_route)
        return false;
    if (marker)
        return x->s.part.goal == GOAL_PREPARED && stands_still(x) && !two_phase(x);
    return h->weights.state != WEIGHTS_TORN && h->weights.state != WEIGHTS_UNKNOWN;
}

static bool may_send(const struct world *x, const struct call *call)
{
    const struct engine_have *h = &x->s.have;

    switch (call->request) {
    case REQUEST_TENSORS:
        return may_change(x) && x->s.part.goal == GOAL_SENT && x->s.part.n_sent == 0;
    case REQUEST_FINISH:
        return may_change(x) && x->s.part.goal == GOAL_FINISHED && x->s.part.n_sent == 1;
    case REQUEST_SLEEP:
    case REQUEST_WAKE:
        return may_change_sleep(x, call);
    case REQUEST_READ_SLEEP:
        return x->kind != UPSTREAM_SGLANG;
    case REQUEST_RESUME:
        return may_resume(x);
    case REQUEST_SET_LABEL:
        return may_set_label(x, call);
    case REQUEST_START:
        return h->own.state == OWN_CLOSED && (two_phase(x) || (stands_still(x) && knows_marker(x)));
    case REQUEST_CLOSE:
        return two_phase(x) || h->weights.state != WEIGHTS_TORN || x->s.part.goal == GOAL_PREPARED;
    case REQUEST_VERIFY:
        return two_phase(x) && is_in_part(x);
    case REQUEST_REPAIR:
        return x->w.stage && x->s.part.goal == GOAL_NONE;
    case REQUEST_LOAD:
    case REQUEST_UNLOAD:
        return two_phase(x) || x->s.part.goal < GOAL_PREPARED || x->s.part.goal > GOAL_FINISHED;
    default:
        return true;
    }
}

/* I4: every fact of an engine that gets requests is known, and as wanted. */
static void check_rotation(struct world *x)
{
    struct engine_now e = now_of(x);
    const struct engine_have *h = &x->s.have;
    bool holds = x->s.part.goal >= GOAL_PREPARED && x->s.part.goal <= GOAL_RELEASED;
    bool good = serves_now(x) && has_label_for_resume(x) && h->sleep.weights >= SLEEP_NOT_OURS &&
                h->sleep.weights <= SLEEP_AWAKE && h->sleep.kv >= SLEEP_NOT_OURS &&
                h->sleep.kv <= SLEEP_AWAKE &&
                (h->pause == GATE_RUNNING || h->pause == GATE_NOT_OURS) &&
                x->w.pause == GATE_RUNNING && x->w.sleep == WANT_AWAKE &&
                x->s.adapter.state == ADAPTER_THIS && x->s.adapter.revision == 1;

    if (!two_phase(x))
        good = good && !holds && h->own.state != OWN_OPEN && h->own.state != OWN_UNKNOWN &&
               h->caches.emptied == h->caches.needed && h->caches.second == h->caches.needed;
    else
        good = good && x->s.part.goal != GOAL_FINISHED;
    if ((aspects_out(&e, &x->w) == 0) != good)
        fail_state(x, good ? "out of rotation" : "in rotation");
}

/* ---- what good answers lead to ---- */

static uint64_t serial_of(const char *label)
{
    return strcmp(label, "now") == 0 ? SERIAL_NOW : strcmp(label, "next") == 0 ? SERIAL_NEXT : 0;
}

static void repaired(struct world *x)
{
    struct engine_have *h = &x->s.have;

    h->weights.state = WEIGHTS_SERIAL;
    h->weights.serial = SERIAL_NOW;
    (void)snprintf(h->label.text, sizeof h->label.text, "now");
    h->label.read = true;
}

static void answer_call(struct world *x, const struct call *call)
{
    struct have_before before;
    char text[API_VERSION_MAX + 1];
    struct reply reply = {.weights_awake = true, .kv_awake = true, .label = text};

    (void)snprintf(text, sizeof text, "%s", x->s.have.label.text);
    reply.serial = serial_of(text);
    have_doubt(&x->s.have, x->kind, call, &before);
    have_answer(&x->s.have, x->kind, call, ANSWER_GOOD, &before, &reply);
    x->s.part.n_sent += call->request == REQUEST_TENSORS;
    x->s.part.verified |= call->request == REQUEST_VERIFY;
    if (call->request == REQUEST_REPAIR)
        repaired(x);
}

static void check_goal(struct world *x)
{
    struct engine_now e = now_of(x);
    const struct engine_have *h = &x->s.have;
    bool reached = true;

    if (x->s.part.goal == GOAL_OPENED)
        reached = !two_phase(x) || is_in_part(x);
    else if (x->s.part.goal == GOAL_PREPARED)
        reached = may_change(x);
    else if (x->s.part.goal == GOAL_SENT)
        reached = x->s.part.n_sent == 1;
    else if (x->s.part.goal == GOAL_FINISHED)
        reached = h->weights.state == WEIGHTS_SERIAL && h->weights.serial == SERIAL_NEXT &&
                  (two_phase(x) || h->label.no_route || strcmp(h->label.text, "next") == 0);
    else if (!part_holds(&e))
        reached = engine_reason(&e, &x->w) == REASON_NONE || x->w.pause != GATE_RUNNING ||
                  x->w.sleep != WANT_AWAKE || x->s.part.goal == GOAL_RELEASED;
    if (!reached)
        fail_state(x, "good answers lead elsewhere");
}

/* I11: what is not sent has a reason. A stuck aspect has a text; a blocked one cannot be the only
 * one, since nothing would ever unblock it. */
static void check_reason(struct world *x, const struct plan *plan)
{
    struct engine_now e = now_of(x);
    enum reason why = engine_reason(&e, &x->w);

    if (plan->aspect != ASPECTS && plan->step.is != STEP_STUCK)
        fail_state(x, "blocked by nothing that is driven");
    if (plan->aspect != ASPECTS && reason_text(plan->step.why)[0] == '\0')
        fail_state(x, "stuck without a reason");
    if (why != REASON_NONE && reason_text(why)[0] == '\0')
        fail_state(x, "out of rotation without a reason");
}

/* Each row by itself, as if all before it were not due: none is safe only by their order. */
static void check_rows(struct world *x)
{
    static aspect_next_fn *const nexts[ASPECTS] = {
        sleep_next, packing_next, label_read_next, pause_next,    label_set_next,
        own_next,   weights_next, caches_next,     adapters_next, proof_next};
    struct engine_now e = now_of(x);

    for (int row = 0; row < ASPECTS; row++) {
        struct step step = nexts[row](&e, &x->w);

        for (size_t i = 0; step.is == STEP_CALL && i < step.n_calls; i++)
            if (!may_send(x, &step.calls[i]))
                fail_state(x, engine_request_name(step.calls[i].request));
    }
}

static void follow(struct world *x)
{
    static const struct retry at_once[ASPECTS];
    const struct state start = x->s;
    struct plan plan;

    for (int n = 0;; n++) {
        struct engine_now e = now_of(x);

        check_rows(x);
        if (!aspect_next(&e, &x->w, 0, at_once, 0, &plan))
            break;
        for (size_t i = 0; i < plan.step.n_calls; i++)
            x->n_sent[plan.step.calls[i].request]++;
        if (n == ANSWERS_MAX) {
            x->s = start;
            fail_state(x, "too many answers");
        }
        for (size_t i = 0; i < plan.step.n_calls; i++)
            answer_call(x, &plan.step.calls[i]);
    }
    check_reason(x, &plan);
    if (plan.aspect == ASPECTS)
        check_goal(x);
    x->s = start;
}

/* ---- lanes and times ---- */

/* What must not run beside each other, from the engines' point of view. */
static bool excludes(enum engine_request a, enum engine_request b)
{
    bool gate = a == REQUEST_PAUSE || a == REQUEST_RESUME || b == REQUEST_PAUSE ||
                b == REQUEST_RESUME;
    bool load_a = a == REQUEST_LOAD || a == REQUEST_UNLOAD;
    bool load_b = b == REQUEST_LOAD || b == REQUEST_UNLOAD;

    if (a == b)
        return true;
    if (gate || a == REQUEST_PROVE || b == REQUEST_PROVE)
        return false;
    return !((load_a && b == REQUEST_TENSORS) || (load_b && a == REQUEST_TENSORS));
}

static void check_lanes(struct world *x)
{
    static const struct retry at_once[ASPECTS];
    enum engine_request busy = x->n % REQUESTS;
    struct engine_now e = now_of(x);
    struct plan plan;

    if (aspect_next(&e, &x->w, 1u << busy, at_once, 0, &plan))
        for (size_t i = 0; i < plan.step.n_calls; i++)
            if (excludes(busy, plan.step.calls[i].request))
                fail_state(x, "two requests that exclude each other");
}

static void check_due(struct world *x)
{
    struct engine_now e = now_of(x);
    struct retry later[ASPECTS];
    struct plan plan, at_once;

    memset(later, 0, sizeof later);
    if (!aspect_next(&e, &x->w, 0, later, 0, &at_once))
        return;
    for (int i = 0; i < ASPECTS; i++)
        later[i] = (struct retry){.due_us = 100};
    if (aspect_next(&e, &x->w, 0, later, 99, &plan) || plan.due_us != 100)
        fail_state(x, "something can be sent, and there is no time for it");
    if (!aspect_next(&e, &x->w, 0, later, 100, &plan) || plan.aspect != at_once.aspect)
        fail_state(x, "due, and not sent");
}

/* ---- the enumeration ---- */

static void check_state(struct world *x)
{
    if (x->n++ % STATES_STEP != 0)
        return;
    check_lanes(x);
    check_due(x);
    check_rotation(x);
    follow(x);
}

static void set_label(struct engine_have *h, size_t i)
{
    h->label.read = labels[i].read;
    h->label.no_route = labels[i].no_route;
    (void)snprintf(h->label.text, sizeof h->label.text, "%s", labels[i].text);
    (void)snprintf(h->label.before, sizeof h->label.before, "%s", labels[i].text);
    (void)snprintf(h->label.old, sizeof h->label.old, "%s", "now");
}

static void each_rest(struct world *x)
{
    struct engine_have *h = &x->s.have;
    size_t n = two_phase(x) ? 2 : LENGTH(rests);

    for (size_t rest = 0; rest < n; rest++)
        for (size_t gate = 0; gate < LENGTH(gates); gate++) {
            h->caches = rests[rest].caches;
            x->s.adapter = rests[rest].adapter;
            h->pause = gates[gate];
            check_state(x);
        }
}

/* A baton knows neither markers nor releases without routes. */
static bool is_possible(const struct world *x, size_t label, size_t own)
{
    return !two_phase(x) || (!labels[label].no_route && !label_is_marker(labels[label].text) &&
                             owns[own].state != OWN_NO_ROUTE);
}

static void each_fact(struct world *x)
{
    struct engine_have *h = &x->s.have;
    size_t n_sleeps = x->s.part.goal == GOAL_NONE ? LENGTH(sleeps) : LENGTH(sleeps) - 2;

    for (size_t label = 0; label < LENGTH(labels); label++)
        for (size_t sleep = 0; sleep < n_sleeps; sleep++)
            for (size_t own = 0; own < LENGTH(owns); own++)
                for (size_t i = 0; i < LENGTH(weights) && is_possible(x, label, own); i++) {
                    set_label(h, label);
                    h->sleep.weights = sleeps[sleep].weights;
                    h->sleep.kv = sleeps[sleep].kv;
                    h->own.state = owns[own].state;
                    h->own.update = owns[own].update;
                    h->weights.state = weights[i].state;
                    h->weights.serial = weights[i].serial;
                    each_rest(x);
                }
}

/* No update is open while the fleet sleeps. */
static void each_want(struct world *x)
{
    static const enum gate_fact pauses[] = {GATE_RUNNING, GATE_KEPT};

    for (int goal = GOAL_NONE; goal <= GOAL_ABORTED; goal++)
        for (int sleep = WANT_AWAKE; sleep <= (goal == GOAL_NONE ? WANT_ASLEEP : WANT_AWAKE);
             sleep++)
            for (size_t pause = 0; pause < 3; pause++) {
                bool nothing = pause == 2; /* of the update has arrived */

                if (nothing && goal != GOAL_FINISHED)
                    continue;
                x->s.part = (struct part_want){.goal = goal,
                                               .update = UPDATE,
                                               .serial = SERIAL_NEXT,
                                               .marker = MARKER,
                                               .label = "next",
                                               .n_wanted = 1,
                                               .n_sent = goal > GOAL_SENT && !nothing,
                                               .packing = 3};
                x->w.sleep = sleep;
                x->w.pause = pauses[pause % 2];
                x->w.stage = x->w.pauses_fenced = (goal + sleep + pause) % 2;
                each_fact(x);
            }
}

static struct world *world_new(enum upstream_kind kind)
{
    struct world *x = calloc(1, sizeof *x);

    assert_non_null(x);
    x->kind = kind;
    have_init(&x->s.have, &x->s.adapter, 1);
    x->adapter = (struct adapter_want){.revision = 1, .required = true};
    x->w = (struct wants){.pause = GATE_RUNNING,
                          .adapters = &x->adapter,
                          .n_adapters = 1,
                          .proof = 1,
                          .sleep_level = 2};
    x->w.version.decided = true;
    x->w.version.serial = SERIAL_NOW;
    (void)snprintf(x->w.version.label, sizeof x->w.version.label, "now");
    return x;
}

/* Facts that were just begun: what others did is shown, and nothing undoes it. */
static void test_first_contact(void **state)
{
    static const struct retry at_once[ASPECTS];

    (void)state;
    for (int kind = 0; kind < UPSTREAM_KINDS; kind++) {
        struct world *x = world_new(kind);
        struct engine_now e = now_of(x);
        struct plan plan;

        e.reachable = false;
        assert_false(aspect_next(&e, &x->w, 0, at_once, 0, &plan));
        assert_int_equal(engine_reason(&e, &x->w), REASON_DOWN);
        e.reachable = true;
        e.serves = false;
        while (aspect_next(&e, &x->w, 0, at_once, 0, &plan)) {
            assert_true(plan.aspect == ASPECT_LABEL_READ || plan.aspect == ASPECT_CACHES ||
                        plan.aspect == ASPECT_ADAPTERS);
            (void)snprintf(x->s.have.label.text, sizeof x->s.have.label.text, "now");
            for (size_t i = 0; i < plan.step.n_calls; i++)
                answer_call(x, &plan.step.calls[i]);
        }
        assert_int_equal(engine_reason(&e, &x->w), REASON_NOT_READY);
        e.serves = true;
        assert_int_equal(aspects_out(&e, &x->w), 0);
        x->w.version.decided = false;
        assert_int_equal(engine_reason(&e, &x->w), REASON_NO_VERSION);
        free(x);
    }
}

/* The name before an update is that of the weights before it. If the update fails after an engine
 * has ended it, that engine keeps the marker, and stands still. */
static void test_failed_version_gets_no_old_name(void **state)
{
    struct world *x = world_new(UPSTREAM_SGLANG);
    struct engine_now e = now_of(x);
    struct call finish = {.request = REQUEST_FINISH, .label = "next", .serial = SERIAL_NEXT};

    (void)state;
    have_reset(&x->s.have, x->kind, 0);
    set_label(&x->s.have, 1);
    x->s.have.pause = GATE_KEPT;
    x->s.have.weights.state = WEIGHTS_OTHER;
    assert_string_equal(want_label(&e, &x->w), "now");
    answer_call(x, &finish);
    assert_null(want_label(&e, &x->w));
    x->s.have.label.read = true;
    assert_false(pause_next(&e, &x->w).is == STEP_CALL);
    assert_int_equal(engine_reason(&e, &x->w), REASON_SLEEP_UNKNOWN);
    have_token(&x->s.have, true);
    assert_int_equal(engine_reason(&e, &x->w), REASON_OTHER_WEIGHTS);
    free(x);
}

static void test_every_state(void **state)
{
    struct world *x = world_new(0);

    (void)state;
    for (int kind = 0; kind < UPSTREAM_KINDS; kind++) {
        x->kind = kind;
        have_init(&x->s.have, &x->s.adapter, 1);
        each_want(x);
    }
    print_message("%zu states\n", x->n);
    for (int i = 0; i < REQUESTS; i++)
        assert_true(x->n_sent[i] > 0); /* no row is dead */
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_first_contact),
                                       cmocka_unit_test(test_failed_version_gets_no_old_name),
                                       cmocka_unit_test(test_every_state)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
