/* Metrics of upstream engines at the moment of the scrape. Labels are URLs of the configuration, so
 * the number of series is bounded. */
#include "handlers/fleet/status.h"

#include "base/clock.h"
#include "base/loop.h"
#include "base/prometheus.h"
#include "fleet/ask/adapter_dir.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/handoff/handoff.h"
#include "fleet/members/upstreams.h"
#include "handlers/app.h"

#include <stdlib.h>
#include <string.h>

#define LABELS(...) ((const struct prom_label[]){__VA_ARGS__, {NULL, NULL}})

/* A copy of all engines first, so that the lines of a metric stand together. */
struct rows {
    size_t n;
    struct row {
        const char *name;
        struct upstream_info info;
        uint64_t n_proofs[PROOF_STATES];
    } items[FLEET_MAX];
};

static void read_rows(struct app *app, struct rows *out)
{
    upstream_list_auto *all = upstreams_list(app->fleet->upstreams);

    for (size_t i = 0; i < all->n; i++) {
        struct upstream *it = all->items[i];
        struct fleet_prover proof;

        if (upstream_is_removed(it))
            continue;
        out->items[out->n].name = upstream_name(it);
        fleet_info(upstreams_fleet(app->fleet->upstreams), it, &out->items[out->n].info);
        (void)fleet_proof_get(app->fleet->control, it, &proof);
        memcpy(out->items[out->n++].n_proofs, proof.n_results, sizeof proof.n_results);
    }
}

static void put_states(const struct rows *rows, struct buf *out)
{
    static const char name[] = "baton_upstream_state";
    static const enum upstream_state states[] = {
        UPSTREAM_SERVING,     UPSTREAM_NOT_READY, UPSTREAM_UNSYNCED, UPSTREAM_FENCED,
        UPSTREAM_AUTH_FAILED, UPSTREAM_DOWN,      UPSTREAM_JOINING};

    prom_head(out, name, "gauge", "1 for the state of an upstream");
    for (size_t i = 0; i < rows->n; i++)
        for (size_t s = 0; s < sizeof states / sizeof states[0]; s++)
            prom_u64(out, name,
                     LABELS({"upstream", rows->items[i].name},
                            {"state", upstream_state_name(states[s])}),
                     rows->items[i].info.state == states[s]);
}

static void put_outstanding(const struct rows *rows, struct buf *out)
{
    static const char name[] = "baton_upstream_outstanding";

    prom_head(out, name, "gauge", "Requests that an upstream has not ended yet");
    for (size_t i = 0; i < rows->n; i++)
        for (size_t lane = 0; lane < FLEET_QUEUES; lane++)
            prom_u64(out, name,
                     LABELS({"upstream", rows->items[i].name}, {"lane", fleet_queue_name(lane)}),
                     rows->items[i].info.n_outstanding[lane]);
}

static void put_counts(const struct rows *rows, struct buf *out)
{
    static const char heard[] = "baton_upstream_last_heard_seconds";
    uint64_t now = clock_now_us();

#define FAMILY(metric, type, help, field)                                                          \
    prom_head(out, metric, type, help);                                                            \
    for (size_t i = 0; i < rows->n; i++)                                                           \
    prom_u64(out, metric, LABELS({"upstream", rows->items[i].name}), rows->items[i].info.field)
    FAMILY("baton_upstream_granted_total", "counter", "Requests that went to an upstream",
           n_granted);
    FAMILY("baton_upstream_failures_total", "counter",
           "Probes and requests that an upstream did not answer, or answered wrongly", n_failures);
    FAMILY("baton_upstream_serial", "gauge",
           "Serial of the version that an upstream was given last", serial);
#undef FAMILY
    prom_head(
        out, heard, "gauge",
        "Time since an upstream last answered a probe or another request of this server's own");
    for (size_t i = 0; i < rows->n; i++) {
        uint64_t at = rows->items[i].info.probe_ok_us;

        if (at > 0)
            prom_seconds(out, heard, LABELS({"upstream", rows->items[i].name}),
                         now > at ? now - at : 0);
    }
}

static void put_seeds(const struct rows *rows, struct buf *out)
{
    static const char name[] = "baton_upstream_seeding";

    prom_head(out, name, "gauge", "1 while an upstream reads a version from another one");
    for (size_t i = 0; i < rows->n; i++)
        if (rows->items[i].info.report.seeding_from[0] != '\0')
            prom_u64(out, name,
                     LABELS({"upstream", rows->items[i].name},
                            {"from", rows->items[i].info.report.seeding_from}),
                     1);
}

static void put_proofs(const struct rows *rows, struct buf *out)
{
    static const char name[] = "baton_upstream_proofs_total";

    prom_head(out, name, "counter", "Results of the proof of an upstream after an update");
    for (size_t i = 0; i < rows->n; i++)
        for (int s = PROOF_PROVEN; s < PROOF_STATES; s++)
            prom_u64(out, name,
                     LABELS({"upstream", rows->items[i].name},
                            {"result", proof_state_name((enum proof_state)s)}),
                     rows->items[i].n_proofs[s]);
}

static void put_names(struct upstreams *u, struct buf *out)
{
    static const char found[] = "baton_upstream_name_addresses",
                      failed[] = "baton_upstream_name_failures_total",
                      answered[] = "baton_upstream_name_last_answered_seconds";
    struct upstream_name_info info;
    uint64_t now = clock_now_us();

    prom_head(out, found, "gauge", "Addresses of a name of upstreams, in its last answer");
    for (size_t i = 0; upstreams_name(u, i, &info); i++)
        prom_u64(out, found, LABELS({"name", info.name}), info.n_addresses);
    prom_head(out, failed, "counter",
              "Look-ups of a name that failed, were late, or found no address");
    for (size_t i = 0; upstreams_name(u, i, &info); i++)
        prom_u64(out, failed, LABELS({"name", info.name}), info.n_failures);
    prom_head(out, answered, "gauge", "Time since the last answer of a name");
    for (size_t i = 0; upstreams_name(u, i, &info); i++)
        if (info.answered_us > 0)
            prom_seconds(out, answered, LABELS({"name", info.name}),
                         now > info.answered_us ? now - info.answered_us : 0);
}

static void put_lanes(const struct fleet_stats *s, struct buf *out)
{
#define FAMILY(name, type, help, field)                                                            \
    prom_head(out, name, type, help);                                                              \
    for (size_t lane = 0; lane < FLEET_QUEUES; lane++)                                             \
    prom_u64(out, name, LABELS({"lane", fleet_queue_name(lane)}), s->field[lane])
    FAMILY("baton_fleet_running", "gauge", "Requests at upstreams", n_running);
    FAMILY("baton_fleet_waiting", "gauge", "Requests that wait for an upstream", n_waiting);
    FAMILY("baton_fleet_rejected_total", "counter",
           "Requests refused: none serves, or too many wait", n_refused);
    FAMILY("baton_fleet_cancelled_total", "counter", "Waiting requests whose client disconnected",
           n_cancelled);
#undef FAMILY
}

static void put_handoff(struct handoff *h, struct buf *out)
{
    struct handoff_info now;

    handoff_info_get(h, &now);
    prom_one(out, "baton_handoffs_total", "counter",
             "Versions handed to upstreams after they were committed here", now.n_handoffs);
    prom_one(out, "baton_handoff_repairs_total", "counter",
             "Repairs: upstreams that lacked the version got it again", now.n_repairs);
    prom_one(out, "baton_handoff_failures_total", "counter",
             "Hand-offs and repairs that failed, and are tried again", now.n_failed);
    prom_one(out, "baton_handoff_behind", "gauge",
             "1 while the last committed version is not handed over", now.done < now.wanted);
    prom_one_seconds(out, "baton_handoff_last_seconds", "gauge",
                     "How long the last hand-off took, from its first request to its last",
                     now.last_us);
}

void metrics_fleet(struct app *app, struct buf *out)
{
    struct rows *rows = calloc(1, sizeof *rows);
    struct fleet_stats s;

    fleet_stats(upstreams_fleet(app->fleet->upstreams), &s);
    prom_one(out, "baton_fleet_serial", "gauge", "Serial of the fleet's version, 0 for none",
             s.serial);
    prom_one(out, "baton_fleet_upstreams", "gauge", "Upstreams that are configured", s.n_upstreams);
    prom_one(out, "baton_fleet_serving", "gauge", "Upstreams in rotation", s.n_serving);
    prom_one(out, "baton_fleet_min_ready", "gauge", "Upstreams that must serve to be ready",
             s.min_ready);
    prom_one_seconds(
        out, "baton_fleet_lag_seconds_max", "gauge",
        "Longest iteration of the loop of control requests in the last 30 to 60 seconds",
        loop_lag_max_us(upstreams_loop(app->fleet->upstreams)));
    put_lanes(&s, out);
    put_names(app->fleet->upstreams, out);
    if (app->fleet->adapter_dir != NULL)
        prom_one(out, "baton_adapter_dir_bytes", "gauge",
                 "Bytes of adapters in --adapter-dir, which upstreams that lack them load again",
                 adapter_dir_nbytes(app->fleet->adapter_dir));
    if (app->fleet->handoff != NULL)
        put_handoff(app->fleet->handoff, out);
    if (rows == NULL) {
        out->failed = true;
        return;
    }
    read_rows(app, rows);
    put_states(rows, out);
    put_outstanding(rows, out);
    put_counts(rows, out);
    put_seeds(rows, out);
    put_proofs(rows, out);
    free(rows);
}
