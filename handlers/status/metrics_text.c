/* Gauges and counters of other modules, read at the moment of the scrape. */
#include "handlers/status/metrics_text.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/prometheus.h"
#include "base/workers.h"
#include "control/admission.h"
#include "control/life.h"
#include "control/lora_loads.h"
#include "control/metrics.h"
#include "control/pause_controller.h"
#include "control/weight_transfer.h"
#include "engine/engine.h"
#include "engine/lora/adapters.h"
#include "handlers/app.h"
#include "handlers/dialect.h"
#include "http/server/http_server.h"
#include "transport/ipc/cuda_ipc.h"
#include "weights/store/store.h"
#include "weights/update/update.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LABELS(...) ((const struct prom_label[]){__VA_ARGS__, {NULL, NULL}})

static uint64_t age_us(uint64_t since_us)
{
    uint64_t now = clock_now_us();

    return now > since_us ? now - since_us : 0;
}

static void put_life(struct app *app, struct buf *out)
{
    struct err ignored = {0};

    prom_head(out, "baton_info", "gauge", "Always 1; labels tell which build and which start");
    prom_u64(out, "baton_info", LABELS({"version", BATON_VERSION}, {"boot_id", app->life->boot_id}),
             1);
    prom_one_seconds(out, "baton_uptime_seconds", "gauge", "Time since the start",
                     age_us(app->life->started_us));
    prom_head(out, "baton_life_state", "gauge", "1 for the state of the life cycle");
    for (int s = LIFE_STARTING; s <= LIFE_DRAINING; s++)
        prom_u64(out, "baton_life_state", LABELS({"state", life_state_name((enum life_state)s)}),
                 life_state(app->life) == (enum life_state)s);
    if (app->fleet == NULL && (app->weights == NULL || app->generate == NULL))
        return; /* live and ready are not known */
    prom_one(out, "baton_live", "gauge", "1 while the process can do its work",
             app_live(app, &ignored) ? 1 : 0);
    err_clear(&ignored);
    prom_one(out, "baton_ready", "gauge", "1 when a generate sent now would be served",
             app_ready(app, &ignored) ? 1 : 0);
}

static void put_dialects(struct buf *out)
{
    prom_head(out, "baton_dialect_unknown_members_total", "counter",
              "Members of requests in another server's form that were ignored");
    for (int d = DIALECT_NATIVE + 1; d < DIALECT_COUNT; d++)
        prom_u64(out, "baton_dialect_unknown_members_total",
                 LABELS({"dialect", dialect_name((enum route_dialect)d)}),
                 dialect_n_unknown((enum route_dialect)d));
}

static void put_pause_controller(struct pause_controller *pause_controller, struct buf *out)
{
    struct lifecycle_state s;
    struct pause_controller_info info;

    pause_controller_info(pause_controller, &info);
    pause_controller_state(pause_controller, &s);
    prom_head(out, "baton_pause", "gauge", "1 for how generation is paused now, or none");
    for (int p = PAUSE_NONE; p < PAUSE_COUNT; p++)
        prom_u64(out, "baton_pause",
                 LABELS({"mode", lifecycle_pause_name((enum lifecycle_pause)p)}),
                 info.pause.mode == (enum lifecycle_pause)p);
    prom_one(out, "baton_pauses_total", "counter", "Pauses begun", info.pause.n_pauses);
    prom_one(out, "baton_pauses_expired_total", "counter", "Pauses ended by their lease",
             info.pause.n_expired);
    prom_one_seconds(out, "baton_paused_seconds_total", "counter", "Time spent paused",
                     info.pause.paused_us);
    if (lease_timer_runs(&info.pause.lease))
        prom_one_seconds(out, "baton_pause_lease_left_seconds", "gauge",
                         "Time until the pause ends by itself",
                         lease_timer_left_us(&info.pause.lease));
    prom_one(out, "baton_kv_cache_released", "gauge", "1 while the KV cache's memory is given back",
             s.kv_released ? 1 : 0);
}

static void put_weights(struct store *store, struct buf *out)
{
    struct store_info info = {0};

    store_info(store, &info);
    prom_one(out, "baton_weights_serial", "gauge", "Serial of the served version, 0 for none",
             info.serial);
    prom_head(out, "baton_weights_state", "gauge", "1 for the state of the weights");
    for (int s = STORE_UNSYNCED; s < STORE_STATE_COUNT; s++)
        prom_u64(out, "baton_weights_state",
                 LABELS({"state", store_state_name((enum store_state)s)}),
                 info.state == (enum store_state)s);
    prom_one(out, "baton_weights_bytes", "gauge", "Bytes of the served version", info.nbytes);
    prom_one(out, "baton_weights_versions_alive", "gauge", "Versions alive, readers' old ones too",
             info.n_live);
    prom_one(out, "baton_weights_commits_total", "counter", "Versions committed", info.n_commits);
    if (info.committed_at_us > 0)
        prom_one_seconds(out, "baton_weights_age_seconds", "gauge", "Time since the last commit",
                         age_us(info.committed_at_us));
}

static void put_update(struct updates *updates, struct buf *out)
{
    struct update_info info = {0};

    updates_current(updates, &info);
    prom_head(out, "baton_update_phase", "gauge", "1 for the phase of the open update");
    for (int p = UPDATE_NONE; p <= UPDATE_VERIFIED; p++)
        prom_u64(out, "baton_update_phase",
                 LABELS({"phase", update_phase_name((enum update_phase)p)}),
                 info.phase == (enum update_phase)p);
    prom_one(out, "baton_update_received_bytes", "gauge", "Bytes that the open update has received",
             info.nbytes_done);
    prom_one(out, "baton_update_expected_bytes", "gauge", "Bytes that the open update will bring",
             info.nbytes_total);
    prom_one_seconds(out, "baton_update_lease_seconds", "gauge",
                     "Time until the open update's lease ends", info.lease_left_us);
}

static void put_updates(struct updates *updates, struct buf *out)
{
    static const char spent[] = "baton_update_seconds_total";
    struct updates_stats s = {0};

    updates_stats(updates, &s);
    prom_one(out, "baton_updates_started_total", "counter", "Updates started", s.n_started);
    prom_one(out, "baton_updates_committed_total", "counter", "Updates committed", s.n_committed);
    prom_one(out, "baton_updates_aborted_total", "counter", "Updates aborted", s.n_aborted);
    prom_one(out, "baton_updates_received_bytes_total", "counter", "Tensor bytes received",
             s.nbytes_received);
    prom_head(out, spent, "counter", "Time spent on updates, by phase");
    prom_seconds(out, spent, LABELS({"phase", "receive"}), s.receive_us);
    prom_seconds(out, spent, LABELS({"phase", "verify"}), s.verify_us);
    prom_seconds(out, spent, LABELS({"phase", "commit"}), s.commit_us);
}

static void put_ipc(struct cuda_ipc_stats *s, struct buf *out)
{
#define LOAD(field) atomic_load_explicit(&s->field, memory_order_relaxed)
    prom_one(out, "baton_ipc_mappings_opened_total", "counter", "Mappings of trainers' memory made",
             LOAD(n_opened));
    prom_one(out, "baton_ipc_mappings_closed_total", "counter",
             "Mappings of trainers' memory undone", LOAD(n_closed));
    prom_one(out, "baton_ipc_mapped", "gauge", "Mappings of trainers' memory now", LOAD(n_mapped));
    prom_one(out, "baton_ipc_exports_released_total", "counter",
             "Exports whose counter was taken down", LOAD(n_exports_released));
    prom_one(out, "baton_ipc_exports_stuck_total", "counter",
             "Exports whose counter could not be reached: their trainer keeps that memory",
             LOAD(n_exports_stuck));
#undef LOAD
}

static void put_transfer(struct weight_transfer *t, struct buf *out)
{
    static const char *const states[] = {"none", "joining", "joined", "failed", "stuck"};
    const struct nccl_join_stats *s = weight_transfer_stats(t);
    const char *state = weight_transfer_state(t);

#define LOAD(field) atomic_load_explicit(&s->field, memory_order_relaxed)
    prom_head(out, "baton_nccl_group_state", "gauge", "1 for the state of the trainer's group");
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        prom_u64(out, "baton_nccl_group_state", LABELS({"state", states[i]}),
                 strcmp(state, states[i]) == 0);
    prom_one(out, "baton_nccl_joins_begun_total", "counter", "Invitations to a group taken up",
             LOAD(n_begun));
    prom_one(out, "baton_nccl_joins_total", "counter", "Groups joined", LOAD(n_joined));
    prom_one(out, "baton_nccl_failures_total", "counter",
             "Groups that failed, before or after they were joined", LOAD(n_failed));
    prom_one(out, "baton_nccl_received_bytes_total", "counter", "Bytes that broadcasts brought",
             LOAD(nbytes_received));
    prom_one(out, "baton_nccl_broadcasts_total", "counter", "Broadcasts received",
             LOAD(n_broadcasts));
#undef LOAD
}

static void put_lora_loads(struct lora_loads *loads, struct buf *out)
{
    static const char name[] = "baton_lora_loads_total";
    struct lora_stats s;

    lora_stats(loads, &s);
    prom_head(out, name, "counter", "Loads of adapters, by how they ended");
    prom_u64(out, name, LABELS({"result", "loaded"}), s.n_ended[LORA_LOADED]);
    prom_u64(out, name, LABELS({"result", "unchanged"}), s.n_ended[LORA_UNCHANGED]);
    prom_u64(out, name, LABELS({"result", "failed"}), s.n_ended[LORA_FAILED]);
    prom_one(out, "baton_lora_loads_queued", "gauge", "Loads of adapters that wait for a thread",
             s.n_queued);
}

static void put_lora(struct adapters *set, struct buf *out)
{
    struct adapters_gauges g;

    adapters_gauges(set, &g);
    prom_one(out, "baton_lora_loaded", "gauge", "Adapters that requests may name", g.n_loaded);
    prom_one(out, "baton_lora_loading", "gauge", "Loads of adapters under way", g.n_loading);
    prom_one(out, "baton_lora_users", "gauge", "Requests that use a revision of an adapter",
             g.n_pinned_refs);
    prom_one(out, "baton_lora_older_revisions", "gauge",
             "Revisions that serve no more, but are used to the end of requests", g.n_older);
    prom_one(out, "baton_lora_bytes", "gauge", "Bytes of all revisions in memory", g.nbytes);
    prom_one(out, "baton_lora_reserved_bytes", "gauge", "Bytes set aside for loads under way",
             g.nbytes_reserved);
    prom_one(out, "baton_lora_limit_bytes", "gauge", "Bytes that revisions and loads may take",
             adapters_config_of(set)->nbytes_max);
}

enum { N_QUEUES = 3 };

struct queues {
    struct admission_stats s[N_QUEUES];
    size_t n;
};

static void put_admission_family(struct buf *out, const struct queues *q, const char *name,
                                 const char *type, const char *help, const uint64_t *values)
{
    prom_head(out, name, type, help);
    for (size_t i = 0; i < q->n; i++)
        prom_u64(out, name, LABELS({"queue", q->s[i].name}), values[i]);
}

static void put_admission(const struct app_generate *g, struct buf *out)
{
    static const char waited[] = "baton_admission_wait_seconds_total",
                      longest[] = "baton_admission_wait_seconds_max";
    struct admission *const all[N_QUEUES] = {g->admission, g->text_admission, g->prompt_admission};
    struct queues q = {0};

    while (q.n < N_QUEUES && all[q.n] != NULL) {
        admission_stats(all[q.n], &q.s[q.n]);
        q.n++;
    }
#define FAMILY(name, type, help, field)                                                            \
    put_admission_family(out, &q, "baton_admission_" name, type, help,                             \
                         (const uint64_t[]){q.s[0].field, q.s[1].field, q.s[2].field})
    FAMILY("running", "gauge", "Permits in use", n_running);
    FAMILY("permits", "gauge", "Permits there are", n_permits);
    FAMILY("waiting", "gauge", "Requests in the queue", n_waiting);
    FAMILY("queue_limit", "gauge", "Requests that the queue takes", n_queue_max);
    FAMILY("granted_total", "counter", "Permits granted", n_granted);
    FAMILY("refused_total", "counter", "Requests refused over the queue's limit", n_refused);
    FAMILY("cancelled_total", "counter", "Queued requests whose client went away", n_cancelled);
#undef FAMILY
    prom_head(out, waited, "counter", "Time that granted requests have waited");
    for (size_t i = 0; i < q.n; i++)
        prom_seconds(out, waited, LABELS({"queue", q.s[i].name}), q.s[i].wait_us_sum);
    prom_head(out, longest, "gauge", "Longest wait of a granted request");
    for (size_t i = 0; i < q.n; i++)
        prom_seconds(out, longest, LABELS({"queue", q.s[i].name}), q.s[i].wait_us_max);
}

static void put_engine(struct buf *out, const struct engine_stats *s)
{
    prom_one_seconds(out, "baton_engine_heartbeat_age_seconds", "gauge",
                     "Time since the step loop last turned", age_us(s->heartbeat_us));
    prom_one(out, "baton_engine_running", "gauge", "Sequences in the batch", s->n_running);
    prom_one(out, "baton_engine_waiting", "gauge", "Sequences waiting for the batch", s->n_waiting);
    prom_one(out, "baton_engine_prompt_tokens_total", "counter", "Prompt tokens processed",
             s->n_prompt_tokens);
    prom_one(out, "baton_engine_generated_tokens_total", "counter", "Tokens generated",
             s->n_generated_tokens);
    prom_one(out, "baton_engine_recomputed_tokens_total", "counter",
             "Tokens whose KV was made again after a commit", s->n_recomputed_tokens);
    prom_one(out, "baton_engine_steps_total", "counter", "Steps of the batch", s->n_steps);
    prom_one_seconds(out, "baton_engine_step_seconds_max", "gauge", "Longest step since the start",
                     s->step_us_max);
    prom_one(out, "baton_engine_kv_tokens_used", "gauge", "Tokens that the KV cache holds",
             s->kv_tokens_used);
    prom_one(out, "baton_engine_kv_tokens_limit", "gauge", "Tokens that the KV cache can hold",
             s->kv_tokens_max);
}

static void put_engine_vllm(const struct app_generate *g, struct buf *out,
                            const struct engine_stats *s)
{
    const struct prom_label labels[] = {
        {"model_name", g->model_name}, {"engine", "0"}, {NULL, NULL}};
    struct admission_stats queue = {0};
    double used = s->kv_tokens_max > 0 ? (double)s->kv_tokens_used / (double)s->kv_tokens_max : 0.0;

    admission_stats(g->admission, &queue);
    prom_head(out, "vllm:num_requests_running", "gauge", "Sequences in the batch");
    prom_u64(out, "vllm:num_requests_running", labels, s->n_running);
    prom_head(out, "vllm:num_requests_waiting", "gauge", "Waiting for admission or for the batch");
    prom_u64(out, "vllm:num_requests_waiting", labels, s->n_waiting + (uint64_t)queue.n_waiting);
    prom_head(out, "vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache in use, 0 to 1");
    prom_f64(out, "vllm:kv_cache_usage_perc", labels, used);
    prom_head(out, "vllm:prompt_tokens_total", "counter", "Prompt tokens processed");
    prom_u64(out, "vllm:prompt_tokens_total", labels, s->n_prompt_tokens);
    prom_head(out, "vllm:generation_tokens_total", "counter", "Tokens generated");
    prom_u64(out, "vllm:generation_tokens_total", labels, s->n_generated_tokens);
    prom_head(out, "vllm:num_preemptions_total", "counter", "None: what was admitted can end");
    prom_u64(out, "vllm:num_preemptions_total", labels, 0);
    prom_head(out, "vllm:prefix_cache_queries_total", "counter", "None: there is no prefix cache");
    prom_u64(out, "vllm:prefix_cache_queries_total", labels, 0);
    prom_head(out, "vllm:prefix_cache_hits_total", "counter", "None: there is no prefix cache");
    prom_u64(out, "vllm:prefix_cache_hits_total", labels, 0);
}

static void put_http_server(const struct app *app, struct buf *out)
{
    struct http_server_stats s = {0};

    app_http_server_stats(app, &s);
    prom_one(out, "baton_front_connections", "gauge", "Open connections", s.n_connections);
    prom_one(out, "baton_front_accepted_total", "counter", "Connections accepted", s.n_accepted);
    prom_one(out, "baton_front_requests_total", "counter", "Requests whose headers came",
             s.n_requests);
    prom_one(out, "baton_front_rejected_total", "counter",
             "Requests refused before a handler saw them", s.n_rejected);
    prom_one(out, "baton_front_client_disconnects_total", "counter",
             "Clients that went before their answer", s.n_gone);
    prom_one(out, "baton_front_timeouts_total", "counter", "Connections closed for being too slow",
             s.n_timeouts);
    prom_one_seconds(out, "baton_front_lag_seconds_max", "gauge",
                     "Longest turn of an event loop since somebody last asked", s.lag_us_max);
}

static void put_pools(struct app *app, struct buf *out)
{
    const struct app_fleet none = {0}, *fleet = app->fleet != NULL ? app->fleet : &none;
    const struct {
        const char *name;
        struct workers *pool;
    } rows[] = {{"control", app->control_executor}, {"generate", app->generate_executor},
                {"text", app->text_executor},       {"operation", fleet->operation_executor},
                {"pause", fleet->pause_executor},   {"resume", fleet->resume_executor},
                {"abort", fleet->abort_executor}};

    prom_head(out, "baton_pool_queued", "gauge", "Jobs that wait for a thread");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].pool != NULL)
            prom_u64(out, "baton_pool_queued", LABELS({"pool", rows[i].name}),
                     workers_queued(rows[i].pool));
    }
}

/* Resident bytes, or 0 if /proc cannot be read. */
static uint64_t resident_nbytes(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    uint64_t n_pages = 0;

    if (f == NULL)
        return 0;
    if (fscanf(f, "%*u %" SCNu64, &n_pages) != 1)
        n_pages = 0;
    (void)fclose(f);
    return n_pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Open descriptors, without the one that counts them; 0 if /proc cannot be read. */
static uint64_t open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    const struct dirent *entry;
    uint64_t n = 0;

    if (dir == NULL)
        return 0;
    while ((entry = readdir(dir)) != NULL)
        n += entry->d_name[0] != '.';
    (void)closedir(dir);
    return n > 0 ? n - 1 : 0;
}

static void put_process(struct buf *out)
{
    prom_one(out, "baton_log_dropped_total", "counter", "Log lines dropped over the ring's limit",
             log_dropped());
    prom_one(out, "process_resident_memory_bytes", "gauge", "Resident memory", resident_nbytes());
    prom_one(out, "process_open_fds", "gauge", "Open file descriptors", open_fds());
}

static void put_own_weights(const struct app_weights *w, struct buf *out)
{
    put_weights(w->store, out);
    put_update(w->updates, out);
    put_updates(w->updates, out);
    if (w->ipc_stats != NULL)
        put_ipc(w->ipc_stats, out);
    if (w->transfer != NULL)
        put_transfer(w->transfer, out);
}

static bool answers_vllm(const struct app *app)
{
    return app->generate != NULL && app->generate->engine != NULL &&
           (app->settings.dialects & 1U << DIALECT_VLLM) != 0;
}

static void put_generate(const struct app *app, struct buf *out)
{
    const struct app_generate *g = app->generate;
    struct engine_stats stats = {0};

    put_admission(g, out);
    if (g->engine != NULL) {
        g->engine->ops->stats(g->engine, &stats);
        put_engine(out, &stats);
        if (answers_vllm(app))
            put_engine_vllm(g, out, &stats);
    }
    if (g->adapters != NULL)
        put_lora(g->adapters, out);
    if (g->loads != NULL)
        put_lora_loads(g->loads, out);
}

static void put_parts(struct app *app, struct buf *out)
{
    if (app->life != NULL)
        put_life(app, out);
    put_dialects(out);
    if (app->pause_controller != NULL)
        put_pause_controller(app->pause_controller, out);
    if (app->weights != NULL)
        put_own_weights(app->weights, out);
    if (app->generate != NULL)
        put_generate(app, out);
    if (app->fleet != NULL)
        app->fleet->metrics(app, out);
    if (app->http_server != NULL)
        put_http_server(app, out);
    put_pools(app, out);
    put_process(out);
}

void metrics_text(const struct metrics *m, struct app *app, struct buf *out)
{
    put_parts(app, out);
    metrics_put(m, out);
    if (answers_vllm(app))
        metrics_put_vllm(m, app->generate->model_name, out);
}
