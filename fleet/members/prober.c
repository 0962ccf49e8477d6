/* One timer starts the probes of all engines. An engine with a probe under way is left out. */
#include "fleet/members/prober.h"

#include "base/clock.h"
#include "fleet/members/fleet_priv.h"
#include "fleet/members/upstream_config.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Of a status probe. */
enum { N_STATUS_CALLS = 5 };
static const enum api_query status_queries[N_STATUS_CALLS] = {
    API_GET_STATUS, API_GET_PROBE_VERSION, API_GET_RELEASE, API_GET_PAUSED, API_GET_ASLEEP};

struct prober {
    struct prober_cfg cfg; /* immutable */
    struct loop_timer timer;
    struct loop_item probe_now;
    struct upstream_fanout *under_way; /* the loop's thread */
    atomic_uint_fast64_t round_us;     /* relaxed: only a time */
};

/* A removed engine is probed until its last request, and the update that it has part in, have
 * ended: nothing else would show that it is restarted. */
static bool is_probed(const struct prober *p, struct upstream *upstream)
{
    struct upstream_info info;

    if (!upstream_is_removed(upstream) || !upstream_is_idle(upstream))
        return true;
    fleet_info(p->cfg.fleet, upstream, &info);
    return info.n_outstanding[FLEET_GENERATE] + info.n_outstanding[FLEET_TEXT] > 0;
}

/* An engine that rejects a request is alive. */
static bool prober_is_alive(const struct upstream_reply *a)
{
    return a->good || (a->status >= 400 && a->status < 500 && a->status != 408 && a->status != 429);
}

static void auth_failed(struct probe *p, enum fleet_auth what, const struct upstream_reply *a)
{
    struct err why = {0};

    (void)err_set(&why, ERR_UPSTREAM_KEY, "", "it %s: %.300s",
                  api_auth_error_text(a->status, p->config->authorization != NULL), a->why.msg);
    fleet_auth_failed(p->prober->cfg.fleet, p->upstream, what, &why);
}

/* Has a pause or a sleep by this server begun or ended since the probe was sent? */
static bool change_since(const struct probe *p, const struct upstream_info *now)
{
    return p->still_order != now->still_order;
}

/* A generation probe that was sent before a pause began may fail because of the pause: ignore it.
 * One that fails at an engine that may sleep says nothing either. */
static void on_token(struct probe *p, const struct upstream_reply *a)
{
    struct prober *prober = p->prober;
    struct upstream_info info;

    fleet_info(prober->cfg.fleet, p->upstream, &info);
    if (change_since(p, &info))
        return;
    p->no_token = !p->awakes && !prober_is_alive(a);
    if (api_is_auth_error(a->status))
        auth_failed(p, FLEET_AUTH_REQUEST, a);
    else if (p->awakes && a->good)
        fleet_found_awake(prober->cfg.fleet, p->upstream, p->have_change);
    else if (p->awakes)
        return;
    else if (p->no_token)
        fleet_request_failed(prober->cfg.fleet, p->upstream, a->unreachable, &a->why);
    else
        fleet_auth_ok(prober->cfg.fleet, p->upstream);
}

/* Returns -1 with `why` set if the replies are malformed or incomplete. */
static int read_report(struct upstream_report *report, const struct probe *p,
                       const struct upstream_reply *a, struct err *why)
{
    const struct upstream_reply *label = &a[1];

    for (size_t i = 0; i < N_STATUS_CALLS; i++)
        if (api_read_report(report, p->config->kind, status_queries[i], a[i].status, a[i].text,
                            a[i].text_len, why) != 0)
            return -1;
    if (!label->requested || label->status != 0)
        return 0;
    *why = label->why;
    return -1;
}

/* A baton in front of engines refuses a generation probe while none of them serves, and its status
 * says so. It is not down then: an update through this server is what they wait for. */
static bool is_asked_in_turn(const struct probe *p)
{
    return p->config->kind == UPSTREAM_BATON;
}

/* Else the token that failed says nothing of the process that is there. */
static bool is_same_process(const struct upstream_info *info, const struct upstream_report *now)
{
    return info->report.process[0] == '\0' || strcmp(info->report.process, now->process) == 0;
}

/* While this server holds the engines they are asked for no token, and a token that failed before
 * says nothing: whatever waits for the engine, as a wake, would wait for ever.
 * @a  in the order of status_queries */
static void on_status(struct probe *p, const struct upstream_reply *a)
{
    struct fleet *fleet = p->prober->cfg.fleet;
    struct upstream_report report;
    struct upstream_info info;
    struct err why = {0};
    bool no_token;

    fleet_info(fleet, p->upstream, &info);
    no_token = p->no_token && !info.no_probes;

    if (a[0].process[0] != '\0' && fleet_reject_alias(fleet, p->upstream, a[0].process))
        return;
    for (size_t i = 0; i < 2; i++) /* the release is optional */
        if (api_is_auth_error(a[i].status)) {
            auth_failed(p, FLEET_AUTH_PROBE, &a[i]);
            return;
        }
    if (!a[0].good) {
        (void)err_set(&why, a[0].why.code, "", "%.380s%s", a[0].why.msg,
                      api_wrong_kind_hint(p->config->kind, a[0].status));
        fleet_probe_failed(fleet, p->upstream, a[0].unreachable, &why);
        return;
    }
    if (no_token && !is_asked_in_turn(p))
        return; /* a status probe does not show that it generates */
    if (read_report(&report, p, a, &why) != 0) {
        fleet_probe_failed(fleet, p->upstream, false, &why);
        return;
    }
    if (p->incarnation != info.incarnation && !is_same_process(&info, &report))
        return; /* it may be of an earlier one (fleet_check_process) */
    if (no_token && report.not_ready[0] == '\0' && is_same_process(&info, &report))
        return;
    report.sent_epoch = p->weights_epoch;
    report.have_change = p->have_change;
    if (change_since(p, &info) || info.no_probes)
        report.held = NULL; /* this server itself may have done it */
    fleet_probe_ok(fleet, p->upstream, &report);
    /* Without generation probes nothing else would show that our key is accepted again. */
    if (p->prober->cfg.generation_probe_every == 0)
        fleet_auth_ok(fleet, p->upstream);
}

static bool was_out_of_memory(const struct upstream_reply *replies, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (replies[i].why.code == ERR_NO_MEMORY)
            return true;
    return false;
}

static void prober_on_replies(void *arg, struct upstream_reply *replies, size_t n)
{
    struct probe *p = arg;
    /* Its configuration may have changed; and memory may be short, which is this server's fault. */
    bool counts = is_probed(p->prober, p->upstream) && upstream_config(p->upstream) == p->config &&
                  !was_out_of_memory(replies, n);

    if (counts && p->query == API_GENERATE_TOKEN)
        on_token(p, replies);
    else if (counts)
        on_status(p, replies);
}

/* A generation probe goes only to an engine that could serve and that had no generate request since
 * the last probe. After a failed one only generation probes follow until one succeeds, so that
 * FLEET_FAILURES_DOWN in a row can happen, for a baton in turn with status probes; but not for an
 * engine that could not serve, which may be paused. An engine that rejects our key for requests
 * gets them in turn with status probes: nothing else would show that it accepts the key again. So
 * does one that may sleep. */
static enum api_query next_query(struct probe *p)
{
    struct prober *prober = p->prober;
    unsigned every = prober->cfg.generation_probe_every;
    struct upstream_info info;
    bool idle, serves;

    fleet_info(prober->cfg.fleet, p->upstream, &info);
    idle = info.n_granted == p->n_granted && info.n_outstanding[FLEET_GENERATE] == 0;
    p->n_granted = info.n_granted;
    p->have_change = info.have.change;
    p->incarnation = info.incarnation;
    p->still_order = info.still_order;
    p->n_probes++;
    serves = info.in_step && info.report.not_ready[0] == '\0' && info.report.held == NULL;
    if (!serves)
        p->no_token = false;
    p->awakes = !info.no_probes && p->query != API_GENERATE_TOKEN && info.needs_token &&
                info.alive && !info.removed && info.report.not_ready[0] == '\0' &&
                !have_may_be_paused(&info.have);
    if (p->awakes)
        return API_GENERATE_TOKEN;
    if (every > 0 && serves && !info.no_probes &&
        ((p->no_token && !(is_asked_in_turn(p) && p->query == API_GENERATE_TOKEN)) ||
         (info.request_auth_failed && p->query != API_GENERATE_TOKEN) ||
         (idle && info.alive && p->n_probes % every == 0)))
        return API_GENERATE_TOKEN;
    return API_GET_STATUS;
}

/* If there is no memory for the requests, the engine is not probed this time. */
static void send_probe(struct probe *p)
{
    const struct prober_cfg *cfg = &p->prober->cfg;
    struct upstream_call calls[N_STATUS_CALLS];
    struct err ignored = {0};
    size_t n;

    p->config = upstream_config(p->upstream);
    p->query = next_query(p);
    p->weights_epoch = fleet_weights_epoch(cfg->fleet);
    n = p->query == API_GET_STATUS ? N_STATUS_CALLS : 1;
    for (size_t i = 0; i < n; i++) {
        calls[i] = (struct upstream_call){.target = &p->config->target,
                                          .timeout_us = cfg->timeout_us};
        if (api_make_query(&calls[i].request, p->config->kind, n > 1 ? status_queries[i] : p->query,
                           &ignored) == 0)
            continue;
        while (i-- > 0)
            api_request_fini(&calls[i].request);
        return;
    }
    if (upstream_fanout_start(&p->fanout, cfg->client, calls, n, prober_on_replies, p, &ignored) ==
        0)
        upstream_fanout_keep(&p->fanout, &p->prober->under_way, p->upstream);
}

static void probe_all(void *arg)
{
    struct prober *p = arg;

    upstream_list_auto *all = fleet_list(p->cfg.fleet);

    for (size_t i = 0; i < all->n; i++) {
        struct probe *probe = &all->items[i]->probe;

        probe->prober = p;
        probe->upstream = all->items[i];
        if (probe->fanout == NULL && is_probed(p, probe->upstream))
            send_probe(probe);
    }
    atomic_store_explicit(&p->round_us, clock_now_us(), memory_order_relaxed);
}

static void on_tick(void *arg)
{
    struct prober *p = arg;

    probe_all(p);
    loop_timer_set(p->cfg.loop, &p->timer, clock_after_us(p->cfg.interval_us));
}

int prober_new(struct prober **out, const struct prober_cfg *cfg, struct err *e)
{
    struct prober *p = calloc(1, sizeof *p);

    if (p == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the probes");
    p->cfg = *cfg;
    p->timer = (struct loop_timer){.fire = on_tick, .arg = p};
    p->probe_now = (struct loop_item){.run = probe_all, .arg = p};
    atomic_init(&p->round_us, clock_now_us());
    loop_timer_set(cfg->loop, &p->timer, clock_now_us());
    *out = p;
    return 0;
}

void prober_probe_now(struct prober *p)
{
    loop_post(p->cfg.loop, &p->probe_now);
}

uint64_t prober_round_us(const struct prober *p)
{
    return atomic_load_explicit(&p->round_us, memory_order_relaxed);
}

void prober_free(struct prober *p)
{
    if (p == NULL)
        return;
    loop_timer_cancel(p->cfg.loop, &p->timer);
    loop_unpost(p->cfg.loop, &p->probe_now);
    while (p->under_way != NULL)
        upstream_fanout_cancel(p->under_way);
    free(p);
}
