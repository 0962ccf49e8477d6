/* The end of a server: drain, stop, free. */
#include "base/clock.h"
#include "base/jobs/workers.h"
#include "base/log.h"
#include "control/admission.h"
#include "control/event_watch.h"
#include "control/generations.h"
#include "control/history.h"
#include "control/lora_loads.h"
#include "control/metrics.h"
#include "control/pause_controller.h"
#include "control/source_threads.h"
#include "control/weight_transfer.h"
#include "fleet/ask/adapter_dir.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/fleet_root.h"
#include "fleet/handoff/handoff.h"
#include "fleet/members/upstreams.h"
#include "fleet/proxy/proxy.h"
#include "fleet/update/fleet_update.h"
#include "memory/device.h"
#include "server/notify.h"
#include "server/request_log.h"
#include "server/serve_fleet.h"
#include "server/serve_priv.h"
#include "server/signals.h"
#include "server/state_dump.h"
#include "transport/nixl/nixl.h"
#include "weights/delta/pull_chain.h"
#include "weights/state/state_dir.h"
#include "weights/store/leases.h"
#include "weights/update/update.h"

#include <inttypes.h>
#include <stdlib.h>

static void close_admission(struct server *s)
{
    if (s->app.fleet != NULL)
        fleet_permits_close(upstreams_fleet(s->fleet.upstreams));
    if (s->app.weights == NULL)
        return;
    admission_close(s->generate.admission);
    admission_close(s->generate.text_admission);
    admission_close(s->generate.prompt_admission);
    pause_controller_drain(s->app.pause_controller);
}

enum {
    DRAIN_POLL_US = 10000,
    SAME_SIGNAL_US = 1000000, /* a signal so soon after the first is that one again: timeout(1) and
                                 a terminal send it to the process and to its group */
    STOP_SPARE_US = 30000000, /* for the service manager: what a stop takes after the drain */
    UPDATE_IDLE_US = 3000000  /* an open update without a request for so long holds no drain up: its
                                 trainer may have died */
};

struct drain {
    struct server *server;
    uint64_t began_us, deadline_us;
    uint64_t lease_left_us, active_us; /* of the open update, as last seen */
};

enum drain_wait { WAIT_DONE, WAIT_TIMEOUT, WAIT_FORCED };

/* Waits until done(d), the deadline, or a second signal. */
static enum drain_wait drain_wait(struct drain *d, bool (*done)(struct drain *d))
{
    do {
        if (done(d))
            return WAIT_DONE;
        (void)server_watchdog(d->server);
        if (signals_end_within(DRAIN_POLL_US) && clock_passed(d->began_us + SAME_SIGNAL_US))
            return WAIT_FORCED;
    } while (!clock_passed(d->deadline_us));
    return WAIT_TIMEOUT;
}

/* Of --drain-delay, which ends by its deadline. */
static bool is_never_done(struct drain *d)
{
    (void)d;
    return false;
}

static bool has_no_update(struct drain *d)
{
    uint64_t left_us;

    if (!app_update_lease(&d->server->app, &left_us))
        return true;
    if (left_us >= d->lease_left_us)
        d->active_us = clock_now_us();
    d->lease_left_us = left_us;
    if (!clock_passed(d->active_us + UPDATE_IDLE_US))
        return false;
    log_line(LOG_WARN, "drain.update_idle",
             "the open update had no request for %d s: it is aborted", UPDATE_IDLE_US / 1000000);
    return true;
}

static bool is_idle(struct drain *d)
{
    struct server *s = d->server;

    return listeners_wait_idle(&s->listeners, clock_now_us()) &&
           (s->weights.state == NULL || !state_dir_busy(s->weights.state));
}

/* Serves as before, but is not ready. */
static enum drain_wait drain_leave(struct drain *d)
{
    uint64_t delay_ms = d->server->config.drain_delay;

    if (delay_ms == 0)
        return WAIT_TIMEOUT;
    d->deadline_us = clock_after_us(delay_ms * 1000);
    life_set(&d->server->life, LIFE_LEAVING);
    log_event_line(LOG_INFO, "drain.delay", "not ready any more; serving for another %llu ms",
                   (unsigned long long)delay_ms);
    return drain_wait(d, is_never_done);
}

/* An open update may end by requests of new connections, so the listeners stay open for it. */
static enum drain_wait drain_work(struct drain *d)
{
    struct server *s = d->server;
    uint64_t timeout_ms = s->config.drain_timeout;
    enum drain_wait end;

    log_event_line(LOG_INFO, "drain", "stopping: running work may take %llu ms",
                   (unsigned long long)timeout_ms);
    d->deadline_us = clock_after_us(timeout_ms * 1000);
    d->active_us = clock_now_us();
    life_set(&s->life, LIFE_DRAINING);
    close_admission(s);
    event_watch_stop(s->app.events); /* its streams are open requests */
    if (s->weights.file_threads != NULL)
        source_threads_stop(s->weights.file_threads); /* and so are these, which may last long */
    if (app_update_lease(&s->app, &d->lease_left_us))
        log_line(LOG_INFO, "drain.update", "an update is open: it may finish");
    end = drain_wait(d, has_no_update);
    if (end != WAIT_DONE)
        return end;
    listeners_quiesce(&s->listeners);
    return drain_wait(d, is_idle);
}

bool server_drain(struct server *s)
{
    struct drain d = {.server = s, .began_us = clock_now_us()};
    enum drain_wait end;

    notify_send("STOPPING=1\nEXTEND_TIMEOUT_USEC=%" PRIu64
                "\nSTATUS=stopping: running work may end",
                (s->config.drain_delay + s->config.drain_timeout) * 1000 + STOP_SPARE_US);
    end = drain_leave(&d);
    if (end != WAIT_FORCED)
        end = drain_work(&d);
    if (end == WAIT_FORCED)
        log_line(LOG_WARN, "shutdown.forced", "second signal: ending at once");
    else
        log_line(end == WAIT_DONE ? LOG_INFO : LOG_WARN, "drain.end",
                 end == WAIT_DONE ? "all work has ended"
                                  : "the deadline has passed; running work is aborted");
    return end == WAIT_DONE;
}

/* Stops every owner of threads in the order in which work flows, so that every open request is
 * still answered; the listeners' loops end last, because they may ask any part for its state. */
static void server_stop(struct server *s)
{
    struct app *a = &s->app;
    struct app_weights *w = &s->weights;
    struct app_generate *g = &s->generate;
    uint32_t n_leases = 0;

    listeners_stop_health(&s->listeners);
    if (a->events != NULL)
        event_watch_stop(a->events);
    if (a->pause_controller != NULL)
        pause_controller_drain(a->pause_controller);
    if (s->fleet.control != NULL)
        fleet_abort_update_at_stop(s->fleet.control); /* by the loop that upstreams_stop ends */
    upstreams_stop(s->fleet.upstreams); /* executor threads wait for replies of upstreams */
    handoff_stop(s->fleet.handoff);     /* the update worker waits for one of their jobs */
    fleet_proof_stop(s->fleet.control);
    if (s->fleet.executor != NULL) /* its jobs may wait for the next */
        workers_stop(s->fleet.executor);
    if (a->control_executor != NULL)
        workers_stop(a->control_executor);
    if (g->loads != NULL)
        lora_loads_stop(g->loads);
    if (w->source_threads != NULL)
        source_threads_stop(w->source_threads);
    if (w->file_threads != NULL)
        source_threads_stop(w->file_threads);
    if (w->seeder != NULL)
        seeder_stop(w->seeder);
    if (a->pause_controller != NULL)
        pause_controller_stop(a->pause_controller);
    if (w->updates != NULL)
        updates_stop(w->updates);
    if (w->state != NULL)
        state_dir_stop(w->state);
    if (w->transfer != NULL)
        weight_transfer_stop(w->transfer);
    if (w->leases != NULL)
        n_leases = leases_stop(w->leases);
    if (n_leases > 0)
        log_line(LOG_WARN, "leases.cut", "%u processes may still map weights that are freed now",
                 (unsigned)n_leases);
    if (g->engine != NULL)
        g->engine->ops->stop(g->engine);
    generations_cut(g->generations);
    if (a->generate_executor != NULL)
        workers_stop(a->generate_executor);
    if (a->text_executor != NULL)
        workers_stop(a->text_executor);
    proxy_stop(s->fleet.proxy);
    listeners_close(&s->listeners);
}

static void free_executors(struct server *s)
{
    workers_free(s->fleet.executor);
    workers_free(s->app.control_executor);
    workers_free(s->app.generate_executor);
    workers_free(s->app.text_executor);
}

static void free_generate(struct server *s)
{
    struct app_generate *g = &s->generate;

    lora_loads_free(g->loads);
    server_free_engine(s);
    pause_controller_free(s->app.pause_controller);
    generations_free(g->generations);
    admission_free(g->admission);
    admission_free(g->text_admission);
    admission_free(g->prompt_admission);
}

/* The loops of the HTTP servers, which use both, have ended. */
static void free_fleet(struct server *s)
{
    adapter_dir_free(s->fleet.adapter_dir);
    proxy_free(s->fleet.proxy);
    upstreams_free(s->fleet.upstreams);
    handoff_free(s->fleet.handoff);
    fleet_control_free(s->fleet.control);
}

static void free_seed(struct server *s)
{
    for (size_t i = 0; i < CONFIG_LIST_MAX; i++)
        free(s->seed_text[i]);
    if (s->seed_authorization != NULL)
        explicit_bzero(s->seed_authorization, strlen(s->seed_authorization));
    free(s->seed_authorization);
}

static void free_inputs(struct server *s)
{
    free_seed(s);
    model_spec_free(s->model_spec);
    nixl_free(s->nixl);
    for (size_t i = 0; i < CONFIG_LIST_MAX; i++)
        free(s->allow_path[i]);
}

/* A call into NCCL that never returned may still use the library, the GPUs and the store: these and
 * the server itself are then left to the end of the process. */
void server_free(struct server *s)
{
    struct app_weights *w = &s->weights;
    struct err why = {0};
    bool stuck;

    server_stop(s);
    state_dump_free(s->state_dump);
    stuck = w->transfer != NULL && !weight_transfer_live(w->transfer, &why);
    weight_transfer_free(w->transfer);
    source_threads_free(w->source_threads);
    source_threads_free(w->file_threads);
    seeder_free(w->seeder);
    updates_free(w->updates);
    pull_chain_free(w->pulls);
    fetch_rules_free(s->fetch_rules);
    if (s->generate.engine != NULL)
        s->generate.engine->ops->free(s->generate.engine);
    free_executors(s);
    free_generate(s);
    free_fleet(s);
    event_watch_free(s->app.events);
    events_poll_fini(&s->events_poll);
    request_log_free(s->app.request_log);
    history_free(s->app.history);
    metrics_free(s->app.metrics);
    source_close(s->first);
    file_weights_fini(&s->first_weights);
    leases_free(w->leases);
    state_dir_free(w->state);
    if (!stuck) {
        store_free(w->store);
        for (uint32_t rank = w->n_devices; rank > 0; rank--)
            device_free(s->devices[rank - 1]);
    }
    listeners_fini(&s->listeners);
    free_inputs(s);
    if (!stuck)
        free(s);
}
