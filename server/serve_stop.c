/* The end of a server: drain, stop, free. */
#include "base/clock.h"
#include "base/log.h"
#include "base/workers.h"
#include "control/admission.h"
#include "control/event_watch.h"
#include "control/generations.h"
#include "control/lora_loads.h"
#include "control/metrics.h"
#include "control/pause_controller.h"
#include "control/weight_transfer.h"
#include "control/zmq_updates.h"
#include "engine/lora/adapters.h"
#include "fleet/fleet_control.h"
#include "fleet/members/upstreams.h"
#include "fleet/proxy/proxy.h"
#include "memory/device.h"
#include "server/serve_fleet.h"
#include "server/serve_priv.h"
#include "server/signals.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "weights/state/state_dir.h"
#include "weights/store/leases.h"
#include "weights/update/update.h"

#include <stdlib.h>

static void close_admission(struct server *s)
{
    if (s->app.fleet != NULL) {
        fleet_permits_close(upstreams_fleet(s->fleet.upstreams));
        return;
    }
    admission_close(s->generate.admission);
    admission_close(s->generate.text_admission);
    admission_close(s->generate.prompt_admission);
    pause_controller_drain(s->app.pause_controller);
}

void server_drain(struct server *s)
{
    enum { POLL_US = 20000 };
    uint64_t timeout_ms = s->config.drain_timeout;
    uint64_t deadline = clock_after_us(timeout_ms * 1000);
    bool idle = false;

    log_event_line(LOG_INFO, "drain", "stopping: running work may take %llu ms",
                   (unsigned long long)timeout_ms);
    life_set(&s->life, LIFE_DRAINING);
    listeners_quiesce(&s->listeners);
    close_admission(s);
    event_watch_stop(s->app.events); /* its streams are open requests */
    while (!idle && !clock_passed(deadline)) {
        bool snapshot = s->weights.state != NULL && state_dir_busy(s->weights.state);

        if (signals_end_within(snapshot ? POLL_US : 1)) {
            log_line(LOG_WARN, "shutdown.forced", "second signal: ending at once");
            return;
        }
        idle = listeners_wait_idle(&s->listeners, clock_after_us(POLL_US)) && !snapshot;
    }
    log_line(idle ? LOG_INFO : LOG_WARN, "drain.end",
             idle ? "all work has ended" : "the deadline has passed; running work is aborted");
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
    upstreams_stop(s->fleet.upstreams); /* executor threads wait for replies of upstreams */
    if (a->control_executor != NULL)
        workers_stop(a->control_executor);
    serve_fleet_stop_executors(&s->fleet);
    if (g->loads != NULL)
        lora_loads_stop(g->loads);
    if (w->zmq != NULL)
        zmq_updates_stop(w->zmq);
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
    workers_free(s->app.control_executor);
    serve_fleet_free_executors(&s->fleet);
    workers_free(s->app.generate_executor);
    workers_free(s->app.text_executor);
}

static void free_generate(struct server *s)
{
    struct app_generate *g = &s->generate;

    lora_loads_free(g->loads);
    adapters_free(g->adapters);
    pause_controller_free(s->app.pause_controller);
    generations_free(g->generations);
    admission_free(g->admission);
    admission_free(g->text_admission);
    admission_free(g->prompt_admission);
}

/* The loops of the HTTP servers, which use both, have ended. */
static void free_fleet(struct server *s)
{
    proxy_free(s->fleet.proxy);
    upstreams_free(s->fleet.upstreams);
    fleet_control_free(s->fleet.control);
}

static void free_inputs(struct server *s)
{
    model_spec_free(s->model_spec);
    tokenizer_free(s->tokenizer);
    chat_template_free(s->chat);
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
    stuck = w->transfer != NULL && !weight_transfer_live(w->transfer, &why);
    weight_transfer_free(w->transfer);
    zmq_updates_free(w->zmq);
    updates_free(w->updates);
    if (s->generate.engine != NULL)
        s->generate.engine->ops->free(s->generate.engine);
    free_executors(s);
    free_generate(s);
    free_fleet(s);
    event_watch_free(s->app.events);
    events_poll_fini(&s->events_poll);
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
