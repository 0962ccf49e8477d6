/* Gauges and counters of other modules, read at the moment of the scrape. */
#include "handlers/status/metrics_text_priv.h"

#include "base/clock.h"
#include "base/jobs/workers.h"
#include "base/log.h"
#include "base/prometheus.h"
#include "control/histogram.h"
#include "control/life.h"
#include "control/metrics.h"
#include "control/pause_controller.h"
#include "fleet/want/fleet_pause.h"
#include "handlers/app.h"
#include "handlers/dialect.h"
#include "http/server/http_server.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

uint64_t metrics_text_age_us(uint64_t since_us)
{
    uint64_t now = clock_now_us();

    return now > since_us ? now - since_us : 0;
}

bool metrics_text_has_vllm(const struct app *app)
{
    return app->generate != NULL && app->generate->engine != NULL &&
           (app->settings.dialects & 1U << DIALECT_VLLM) != 0;
}

static void put_life(struct app *app, struct buf *out)
{
    struct err ignored = {0};

    prom_head(out, "baton_info", "gauge", "Always 1; labels have the version and the boot id");
    prom_u64(out, "baton_info", LABELS({"version", BATON_VERSION}, {"boot_id", app->life->boot_id}),
             1);
    prom_one_seconds(out, "baton_uptime_seconds", "gauge", "Time since the start",
                     metrics_text_age_us(app->life->started_us));
    prom_head(out, "baton_life_state", "gauge", "1 for the state of the life cycle");
    for (int s = LIFE_STARTING; s <= LIFE_DRAINING; s++)
        prom_u64(out, "baton_life_state", LABELS({"state", life_state_name((enum life_state)s)}),
                 life_state(app->life) == (enum life_state)s);
    if (app->fleet == NULL && (app->weights == NULL || app->generate == NULL))
        return; /* live and ready are not known */
    prom_one(out, "baton_live", "gauge", "1 while the process can do its work",
             app_live(app, &ignored) ? 1 : 0);
    err_clear(&ignored);
    if (app->fleet != NULL || app->generate->engine != NULL) /* a store is never ready */
        prom_one(out, "baton_ready", "gauge", "1 if a generation request sent now would be served",
                 app_ready(app, &ignored) ? 1 : 0);
    err_clear(&ignored);
    prom_one(out, "baton_control_ready", "gauge",
             "1 if an update, a resume or a wake sent now would be served",
             app_control_ready(app, &ignored) ? 1 : 0);
}

static void put_certificate(struct app *app, struct buf *out)
{
    struct http_server *server = app->http_server;
    struct tls_identity *t = server != NULL ? http_server_tls_identity(server) : NULL;

    if (t == NULL)
        return;
    prom_one(out, "baton_tls_certificate_expiry_timestamp_seconds", "gauge",
             "When the first certificate of --tls-cert expires, in seconds since the Unix epoch",
             (uint64_t)tls_identity_expires_s(t));
    tls_identity_unref(t);
}

static void put_dialects(struct buf *out)
{
    prom_head(out, "baton_dialect_unknown_members_total", "counter",
              "Members of requests that were ignored, as the API of their route asks; native: "
              "routes in OpenAI's form");
    for (int d = DIALECT_NATIVE; d < DIALECT_COUNT; d++)
        prom_u64(out, "baton_dialect_unknown_members_total",
                 LABELS({"dialect", dialect_name((enum route_dialect)d)}),
                 dialect_n_unknown((enum route_dialect)d));
}

/* @p  paused_us with the current pause */
static void put_pause(const struct pause *p, struct buf *out)
{
    static const char duration[] = "baton_pause_duration_seconds";

    prom_head(out, "baton_pause", "gauge", "1 for the mode of the pause, or none");
    for (int mode = PAUSE_NONE; mode < PAUSE_COUNT; mode++)
        prom_u64(out, "baton_pause",
                 LABELS({"mode", lifecycle_pause_name((enum lifecycle_pause)mode)}),
                 p->mode == (enum lifecycle_pause)mode);
    prom_one(out, "baton_pauses_total", "counter", "Pauses begun", p->n_pauses);
    prom_one(out, "baton_pauses_expired_total", "counter", "Pauses ended by their lease",
             p->n_expired);
    prom_one_seconds(out, "baton_paused_seconds_total", "counter", "Time spent paused",
                     p->paused_us);
    prom_head(out, duration, "histogram", "Pauses that ended, from the request to the resume");
    prom_buckets(
        out, duration, NULL,
        &(struct prom_histogram){histogram_times, p->n_ended, HISTOGRAM_N_BOUNDS, p->ended_us});
    if (lease_timer_runs(&p->lease))
        prom_one_seconds(out, "baton_pause_lease_left_seconds", "gauge",
                         "Time until the pause ends by itself", lease_timer_left_us(&p->lease));
}

/* The trainer's pauses, which are the fleet's where there is one; an update's own pause of engines
 * that overwrite their weights is none. */
static void put_pauses(const struct app *app, struct buf *out)
{
    struct lifecycle_state s;
    struct pause_controller_info info;

    if (app->fleet != NULL)
        fleet_get_pause(app->fleet->control, &info.pause);
    else
        pause_controller_info(app->pause_controller, &info);
    put_pause(&info.pause, out);
    if (app->pause_controller == NULL)
        return;
    pause_controller_state(app->pause_controller, &s);
    prom_one(out, "baton_kv_cache_released", "gauge", "1 while the KV cache's memory is released",
             s.kv_released ? 1 : 0);
}

static void put_http_server(const struct app *app, struct buf *out)
{
    struct http_server_stats s = {0};

    app_http_server_stats(app, &s);
    prom_one(out, "baton_front_connections", "gauge", "Open connections", s.n_connections);
    prom_one(out, "baton_front_accepted_total", "counter", "Connections accepted", s.n_accepted);
    prom_one(out, "baton_front_requests_total", "counter", "Requests whose headers were received",
             s.n_requests);
    prom_one(out, "baton_front_rejected_total", "counter",
             "Requests refused before a handler saw them", s.n_rejected);
    prom_one(out, "baton_front_client_disconnects_total", "counter",
             "Clients that disconnected before their reply", s.n_gone);
    prom_one(out, "baton_front_timeouts_total", "counter", "Connections closed for being too slow",
             s.n_timeouts);
    prom_one_seconds(out, "baton_front_lag_seconds_max", "gauge",
                     "Longest iteration of an event loop in the last 30 to 60 seconds",
                     s.lag_us_max);
}

static void put_pools(struct app *app, struct buf *out)
{
    const struct {
        const char *name;
        struct workers *pool;
    } rows[] = {{"control", app->control_executor},
                {"generate", app->generate_executor},
                {"text", app->text_executor},
                {"fleet", app->fleet != NULL ? app->fleet->executor : NULL}};
    const size_t n = sizeof rows / sizeof rows[0];

    prom_head(out, "baton_pool_queued", "gauge", "Jobs that wait for a thread");
    for (size_t i = 0; i < n; i++)
        if (rows[i].pool != NULL)
            prom_u64(out, "baton_pool_queued", LABELS({"pool", rows[i].name}),
                     workers_queued(rows[i].pool));
    prom_head(out, "baton_pool_waiting", "gauge",
              "Jobs that wait without a thread, as for an upstream or another operation");
    for (size_t i = 0; i < n; i++)
        if (rows[i].pool != NULL)
            prom_u64(out, "baton_pool_waiting", LABELS({"pool", rows[i].name}),
                     workers_waiting(rows[i].pool));
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

static void put_process(const struct app *app, struct buf *out)
{
    struct rlimit files;
    struct timespec cpu;

    prom_one(out, "baton_log_dropped_total", "counter", "Log lines dropped over the ring's limit",
             log_dropped());
    prom_one(out, "process_resident_memory_bytes", "gauge", "Resident memory", resident_nbytes());
    prom_one(out, "process_open_fds", "gauge", "Open file descriptors", open_fds());
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        prom_one(out, "process_max_fds", "gauge", "Limit of open file descriptors", files.rlim_cur);
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0)
        prom_one_seconds(out, "process_cpu_seconds_total", "counter", "CPU time used",
                         (uint64_t)cpu.tv_sec * 1000000 + (uint64_t)cpu.tv_nsec / 1000);
    if (app->life != NULL)
        prom_one(out, "process_start_time_seconds", "gauge", "Start, in seconds since 1970",
                 app->life->started_wall_s);
}

static void put_parts(struct app *app, struct buf *out)
{
    if (app->life != NULL)
        put_life(app, out);
    put_certificate(app, out);
    put_dialects(out);
    if (app->pause_controller != NULL || app->fleet != NULL)
        put_pauses(app, out);
    if (app->weights != NULL)
        metrics_text_weights(app->weights, out);
    if (app->generate != NULL)
        metrics_text_generate(app, out);
    if (app->fleet != NULL)
        app->fleet->metrics(app, out);
    if (app->http_server != NULL)
        put_http_server(app, out);
    put_pools(app, out);
    put_process(app, out);
}

void metrics_text(const struct metrics *m, struct app *app, struct buf *out)
{
    put_parts(app, out);
    metrics_put(m, out);
    if (metrics_text_has_vllm(app))
        metrics_put_vllm(m, app->generate->model_name, out);
}
