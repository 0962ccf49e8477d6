/* One timer for all; an upstream that still owes an answer is not asked again. */
#include "fleet/members/prober.h"

#include "base/clock.h"
#include "fleet/members/upstream_fanout.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { N_WHO = 3 }; /* requests that tell together who it is and what it serves */

struct probe {
    struct prober *prober;
    size_t upstream;
    struct upstream_fanout *fanout; /* NULL: nothing is asked */
    struct prober_who who;          /* that was asked last */
    enum api_query question;
    uint64_t epoch;     /* of the fleet, when it was asked */
    uint64_t n_granted; /* when it was last asked: the same again means idle */
    unsigned n_asked, tokens_turn;
    bool mute; /* it gave no token when it was asked for one last */
};

struct prober {
    struct prober_cfg cfg; /* immutable */
    struct loop_timer timer;
    struct loop_item look;
    atomic_bool tokens;           /* relaxed: a hint for the next question */
    atomic_uint tokens_turn;      /* relaxed: another one after each prober_tokens */
    atomic_uint_fast64_t beat_us; /* relaxed: it says only when */
    struct probe probes[FLEET_MAX];
};

/* It understood, and said no: whoever does that is there. */
static bool is_answer(const struct upstream_answer *a)
{
    return a->good || (a->status >= 400 && a->status < 500 && a->status != 408 && a->status != 429);
}

static void refused(struct probe *p, enum fleet_refusal what, const struct upstream_answer *a)
{
    struct err why = {0};

    (void)err_set(&why, ERR_UPSTREAM_KEY, "", "it %s: %.300s",
                  api_auth_error_text(a->status, p->who.target->authorization != NULL), a->why.msg);
    fleet_refused(p->prober->cfg.fleet, p->upstream, what, &why);
}

/* What is asked for a token when a pause begins gives none, and that says nothing. */
static void on_token(struct probe *p, const struct upstream_answer *a)
{
    struct prober *prober = p->prober;

    if (p->tokens_turn != atomic_load_explicit(&prober->tokens_turn, memory_order_relaxed))
        return;
    p->mute = !is_answer(a);
    if (api_is_auth_error(a->status))
        refused(p, FLEET_REFUSED_WORK, a);
    else if (p->mute)
        fleet_missed(prober->cfg.fleet, p->upstream, a->unreachable, &a->why);
    else
        fleet_admitted(prober->cfg.fleet, p->upstream);
}

/* Returns -1 with what is wrong with the answers. */
static int read_who(struct upstream_saw *saw, const struct probe *p,
                    const struct upstream_answer *a, struct err *why)
{
    const struct upstream_answer *who = &a[0], *label = &a[1], *release = &a[2];
    bool unasked = !label->asked;

    api_read_status(saw, p->who.kind, who->text != NULL ? who->text : "", who->text_len);
    api_read_release(saw, release->status, release->text != NULL ? release->text : "",
                     release->text_len);
    if (!unasked && label->status == 0) {
        *why = label->why;
        return -1;
    }
    return api_read_probe_version(saw, p->who.kind, label->status,
                                  label->text != NULL ? label->text : "", label->text_len, why);
}

/* @a  of API_GET_STATUS, and behind it of API_GET_PROBE_VERSION and API_GET_RELEASE */
static void on_who(struct probe *p, const struct upstream_answer *a)
{
    struct fleet *fleet = p->prober->cfg.fleet;
    struct upstream_saw saw;
    struct err why = {0};

    for (size_t i = 0; i < 2; i++) /* a release that is not told is not known, no more */
        if (api_is_auth_error(a[i].status)) {
            refused(p, FLEET_REFUSED_STATUS, &a[i]);
            return;
        }
    if (!a[0].good) {
        (void)err_set(&why, a[0].why.code, "", "%.380s%s", a[0].why.msg,
                      api_wrong_kind_hint(p->who.kind, a[0].status));
        fleet_silent(fleet, p->upstream, a[0].unreachable, &why);
        return;
    }
    if (p->mute)
        return; /* that it talks was never the question */
    if (read_who(&saw, p, a, &why) != 0) {
        fleet_silent(fleet, p->upstream, false, &why);
        return;
    }
    saw.is_old = fleet_epoch(fleet) != p->epoch;
    fleet_heard(fleet, p->upstream, &saw);
    if (p->prober->cfg.token_every == 0) /* nothing else would show that its key is taken again */
        fleet_admitted(fleet, p->upstream);
}

static bool lacked_memory(const struct upstream_answer *answers, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (answers[i].why.code == ERR_NO_MEMORY)
            return true;
    return false;
}

static void on_answer(void *arg, struct upstream_answer *answers, size_t n)
{
    struct probe *p = arg;
    const struct prober_cfg *cfg = &p->prober->cfg;
    struct prober_who now;

    p->fanout = NULL;
    if (!cfg->who(cfg->arg, p->upstream, &now) || now.target != p->who.target)
        return; /* it is another's index by now, or spoken to otherwise */
    if (lacked_memory(answers, n))
        return; /* it was not asked, or not heard */
    if (p->question == API_GENERATE_TOKEN)
        on_token(p, answers);
    else
        on_who(p, answers);
}

/* A token only of one in rotation that nobody has asked for any since the last time. One that gave
 * none is asked for nothing else until it does, so that three times in a row can come about; out of
 * rotation it may well be paused. One that refuses our key for work only shows so that it does no
 * more. */
static enum api_query next_question(struct probe *p)
{
    struct prober *prober = p->prober;
    unsigned every = prober->cfg.token_every;
    struct upstream_info info;
    bool idle, serves, may;

    fleet_info(prober->cfg.fleet, p->upstream, &info);
    idle = info.n_granted == p->n_granted && info.n_outstanding[FLEET_GENERATE] == 0;
    p->n_granted = info.n_granted;
    p->n_asked++;
    serves = info.synced && !info.fenced && info.saw.unready[0] == '\0';
    if (!serves)
        p->mute = false;
    may = every > 0 && serves && atomic_load_explicit(&prober->tokens, memory_order_relaxed);
    if (may && (p->mute || (info.refuses_work && p->question != API_GENERATE_TOKEN) ||
                (idle && info.alive && p->n_asked % every == 0)))
        return API_GENERATE_TOKEN;
    return API_GET_STATUS;
}

/* Without memory to ask there is no answer, and nothing is held against the upstream. */
static void ask(struct probe *p)
{
    const struct prober_cfg *cfg = &p->prober->cfg;
    static const enum api_query who[N_WHO] = {API_GET_STATUS, API_GET_PROBE_VERSION,
                                              API_GET_RELEASE};
    struct upstream_question parts[N_WHO];
    struct err ignored = {0};
    size_t n;

    p->question = next_question(p);
    p->epoch = fleet_epoch(cfg->fleet);
    p->tokens_turn = atomic_load_explicit(&p->prober->tokens_turn, memory_order_relaxed);
    n = p->question == API_GET_STATUS ? N_WHO : 1;
    for (size_t i = 0; i < n; i++) {
        parts[i] = (struct upstream_question){.target = p->who.target,
                                              .timeout_us = cfg->timeout_us};
        if (api_make_query(&parts[i].request, p->who.kind, n > 1 ? who[i] : p->question,
                           &ignored) == 0)
            continue;
        while (i-- > 0)
            api_request_fini(&parts[i].request);
        return;
    }
    (void)upstream_fanout_start(&p->fanout, cfg->client, parts, n, on_answer, p, &ignored);
}

static void on_look(void *arg)
{
    struct prober *p = arg;

    for (size_t i = 0; i < FLEET_MAX; i++) {
        struct probe *probe = &p->probes[i];

        if (probe->fanout == NULL && p->cfg.who(p->cfg.arg, i, &probe->who))
            ask(probe);
    }
    atomic_store_explicit(&p->beat_us, clock_now_us(), memory_order_relaxed);
}

static void on_tick(void *arg)
{
    struct prober *p = arg;

    on_look(p);
    loop_timer_set(p->cfg.loop, &p->timer, clock_after_us(p->cfg.interval_us));
}

int prober_new(struct prober **out, const struct prober_cfg *cfg, struct err *e)
{
    struct prober *p = calloc(1, sizeof *p);

    if (p == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to watch the upstreams");
    p->cfg = *cfg;
    atomic_init(&p->tokens, true);
    atomic_init(&p->tokens_turn, 0);
    p->timer = (struct loop_timer){.fire = on_tick, .arg = p};
    p->look = (struct loop_item){.run = on_look, .arg = p};
    atomic_init(&p->beat_us, clock_now_us());
    for (size_t i = 0; i < FLEET_MAX; i++)
        p->probes[i] = (struct probe){.prober = p, .upstream = i};
    loop_timer_set(cfg->loop, &p->timer, clock_now_us());
    *out = p;
    return 0;
}

void prober_look(struct prober *p)
{
    loop_post(p->cfg.loop, &p->look);
}

uint64_t prober_beat_us(const struct prober *p)
{
    return atomic_load_explicit(&p->beat_us, memory_order_relaxed);
}

void prober_tokens(struct prober *p, bool on)
{
    atomic_store_explicit(&p->tokens, on, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->tokens_turn, 1, memory_order_relaxed);
}

void prober_free(struct prober *p)
{
    if (p == NULL)
        return;
    loop_timer_cancel(p->cfg.loop, &p->timer);
    loop_unpost(p->cfg.loop, &p->look);
    for (size_t i = 0; i < FLEET_MAX; i++)
        if (p->probes[i].fanout != NULL)
            upstream_fanout_cancel(p->probes[i].fanout);
    free(p);
}
