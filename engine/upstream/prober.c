/* One timer for all; an upstream that still owes an answer is not asked again. */
#include "engine/upstream/prober.h"

#include "base/clock.h"
#include "engine/upstream/fan.h"

#include <stdatomic.h>
#include <stdlib.h>

struct probe {
    struct prober *prober;
    size_t upstream;
    struct fan *fan; /* NULL: nothing is asked */
    enum wire_question question;
    uint64_t n_granted; /* when it was last asked: the same again means idle */
    unsigned n_asked;
};

struct prober {
    struct prober_cfg cfg; /* immutable */
    struct loop_timer timer;
    atomic_bool tokens;
    struct probe probes[];
};

static void on_answer(void *arg, const struct fan_answer *answers, size_t n)
{
    struct probe *p = arg;
    const struct prober_cfg *cfg = &p->prober->cfg;
    const struct fan_answer *a = &answers[0];
    struct upstream_saw saw;

    (void)n;
    p->fan = NULL;
    if (!a->good) {
        fleet_missed(cfg->fleet, p->upstream, !a->sent, &a->why);
    } else if (p->question == WIRE_WHO) {
        wire_read_who(&saw, cfg->dialects[p->upstream], a->text != NULL ? a->text : "",
                      a->text_len);
        fleet_heard(cfg->fleet, p->upstream, &saw);
    }
}

/* A token only of one that nobody has asked for any since the last time. */
static enum wire_question next_question(struct probe *p)
{
    struct prober *prober = p->prober;
    struct upstream_info info;
    bool idle;

    fleet_info(prober->cfg.fleet, p->upstream, &info);
    idle = info.n_granted == p->n_granted && info.n_outstanding[FLEET_GENERATE] == 0;
    p->n_granted = info.n_granted;
    p->n_asked++;
    if (!idle || !info.alive || prober->cfg.token_every == 0 ||
        p->n_asked % prober->cfg.token_every != 0 ||
        !atomic_load_explicit(&prober->tokens, memory_order_relaxed))
        return WIRE_WHO;
    return WIRE_TOKEN;
}

/* Without memory to ask there is no answer, and nothing is held against the upstream. */
static void ask(struct probe *p)
{
    const struct prober_cfg *cfg = &p->prober->cfg;
    struct fan_part part = {.target = cfg->targets[p->upstream], .timeout_us = cfg->timeout_us};
    struct err ignored = {0};

    p->question = next_question(p);
    if (wire_ask(&part.request, cfg->dialects[p->upstream], p->question, &ignored) != 0)
        return;
    (void)fan_start(&p->fan, cfg->client, &part, 1, on_answer, p, &ignored);
}

static void on_tick(void *arg)
{
    struct prober *p = arg;

    for (size_t i = 0; i < p->cfg.n; i++)
        if (p->probes[i].fan == NULL)
            ask(&p->probes[i]);
    loop_timer_set(p->cfg.loop, &p->timer, clock_after_us(p->cfg.interval_us));
}

int prober_new(struct prober **out, const struct prober_cfg *cfg, struct err *e)
{
    struct prober *p = calloc(1, sizeof *p + cfg->n * sizeof p->probes[0]);

    if (p == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to watch %zu upstreams", cfg->n);
    p->cfg = *cfg;
    atomic_init(&p->tokens, true);
    p->timer = (struct loop_timer){.fire = on_tick, .arg = p};
    for (size_t i = 0; i < cfg->n; i++)
        p->probes[i] = (struct probe){.prober = p, .upstream = i};
    loop_timer_set(cfg->loop, &p->timer, clock_now_us());
    *out = p;
    return 0;
}

void prober_tokens(struct prober *p, bool on)
{
    atomic_store_explicit(&p->tokens, on, memory_order_relaxed);
}

void prober_free(struct prober *p)
{
    if (p == NULL)
        return;
    loop_timer_cancel(p->cfg.loop, &p->timer);
    for (size_t i = 0; i < p->cfg.n; i++)
        if (p->probes[i].fan != NULL)
            fan_cancel(p->probes[i].fan);
    free(p);
}
