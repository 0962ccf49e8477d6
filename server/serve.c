/* The server from start to end: it is built from the bottom up (serve_embedded.c, serve_fleet.c),
 * its listeners start last, and everything is stopped in the order in which work flows
 * (serve_stop.c). */
#include "server/serve.h"

#include "base/clock.h"
#include "base/events.h"
#include "base/jobs/workers.h"
#include "base/log.h"
#include "control/event_watch.h"
#include "control/history.h"
#include "control/metrics.h"
#include "handlers/dialect.h"
#include "handlers/route.h"
#include "server/health_watch.h"
#include "server/notify.h"
#include "server/request_log.h"
#include "server/serve_fleet.h"
#include "server/serve_priv.h"
#include "server/signals.h"
#include "server/state_dump.h"
#include "weights/update/coverage.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Between two reports to the service manager, as loops must have turned since the last look. */
enum { WATCHDOG_US_MAX = WATCH_LIVE_AGE_MAX_MS / 3 * 1000 };

static enum routed_experts_mode routed_experts_of(const struct config *c)
{
    if (strcmp(c->return_routed_experts, "vllm") == 0)
        return ROUTED_EXPERTS_VLLM;
    return strcmp(c->return_routed_experts, "prime-rl") == 0 ? ROUTED_EXPERTS_PRIME_RL
                                                             : ROUTED_EXPERTS_ON_REQUEST;
}

static struct settings settings_of(const struct config *c)
{
    return (struct settings){
        .allow_path = c->allow_path.items,
        .n_allow_path = c->allow_path.n,
        .json_body_max = c->json_body_max,
        .update_timeout_ms = c->update_timeout,
        .body_stall_timeout_ms = c->body_stall_timeout,
        .join_timeout_ms = c->join_timeout,
        .generate_concurrency = c->generate_concurrency,
        .generate_queue = c->generate_queue,
        .detokenize_concurrency = c->detokenize_concurrency,
        .detokenize_queue = c->detokenize_queue,
        .on_update = config_has_upstreams(c) ? GEN_ON_UPDATE_RECOMPUTE : GEN_ON_UPDATE_CONTINUE,
        .logprobs_mode = strcmp(c->logprobs_mode, gen_logprobs_mode_name(GEN_LOGPROBS_PROCESSED)) ==
                                 0
                             ? GEN_LOGPROBS_PROCESSED
                             : GEN_LOGPROBS_RAW,
        .max_logprobs = c->max_logprobs,
        .max_unread_nbytes = c->max_unread_bytes,
        .routed_experts = routed_experts_of(c),
        .listen = c->listen,
        .has_tls = c->tls_cert != NULL && c->tls_cert[0] != '\0',
        .sglang_memory_saver = c->sglang_memory_saver,
        .sglang_base_gpu_id = c->sglang_base_gpu_id,
    };
}

/* What both servers have first: settings, life, the health listener. */
static const char *route_operation_id(size_t i)
{
    return routes[i].operation_id;
}

static int server_build_common(struct server *s, struct err *e)
{
    const struct config *c = &s->config;
    struct settings *settings = &s->app.settings;

    events_open();
    *settings = settings_of(c);
    s->app.life = &s->life;
    life_init(&s->life);
    if (dialects_parse(&settings->dialects, c->compat, "--compat", e) != 0)
        return -1;
    if (c->on_update != NULL &&
        gen_on_update_parse(&settings->on_update, c->on_update, "--on-update", e) != 0)
        return -1;
    if (metrics_new(&s->app.metrics, n_routes, route_operation_id, e) != 0 ||
        history_new(&s->app.history, s->app.metrics, e) != 0 ||
        request_log_new(&s->app.request_log, c->access_log, s->app.history, e) != 0)
        return -1;
    return listeners_open_health(&s->listeners, s->life.boot_id, e);
}

int server_build_executors(struct server *s, struct err *e)
{
    const struct config *c = &s->config;
    struct app *a = &s->app;
    struct workers_cfg control = {"control", c->control_threads, c->control_queue, false};
    struct workers_cfg fleet = {"fleet", c->control_threads, c->control_queue, true};
    struct workers_cfg generate = {"generate", c->generate_threads,
                                   c->generate_queue + c->generate_concurrency, false};
    struct workers_cfg text = {"text", c->detokenize_concurrency, 1, false};
    struct event_watch_cfg events = {events_poll, &s->events_poll};

    s->events_poll.app = a;
    if (a->fleet != NULL) { /* steps of updates */
        generate.n_queue_max = c->control_queue;
        generate.waits = true;
    }
    if (event_watch_new(&a->events, &events, e) != 0 ||
        workers_new(&a->control_executor, &control, e) != 0 ||
        workers_new(&a->generate_executor, &generate, e) != 0 ||
        workers_new(&a->text_executor, &text, e) != 0)
        return -1;
    return a->fleet != NULL ? workers_new(&a->fleet->executor, &fleet, e) : 0;
}

static void log_embedded(const struct server *s, struct log_rec *r)
{
    struct store_info info;

    store_info(s->weights.store, &info);
    log_str(r, "model", s->generate.model_name);
    log_str(r, "weights", store_state_name(info.state));
    log_str(r, "weight_version", info.label);
    log_u64(r, "cuda_devices", s->cuda.n_devices);
    log_str(r, "device", s->config.device);
    log_str(r, "cuda", s->cuda.available ? s->cuda.driver_version : s->cuda.reason);
    log_str(r, "nccl", s->nccl.available ? s->nccl.version : s->nccl.reason);
    if (s->nixl != NULL)
        log_str(r, "nixl", s->config.nixl_devices);
}

static void log_serving(const struct server *s)
{
    struct log_rec r;

    log_begin(&r, LOG_INFO, "serving");
    listeners_log(&s->listeners, &r);
    log_str(&r, "boot_id", s->life.boot_id);
    log_str(&r, "version", BATON_VERSION);
    if (s->app.fleet != NULL)
        serve_fleet_log(&s->fleet, &r);
    if (s->app.weights != NULL)
        log_embedded(s, &r);
    log_event(&r);
}

static int server_start(struct server *s, struct err *e)
{
    if (listeners_read(&s->listeners, &s->config, e) != 0)
        return -1;
    if (config_has_upstreams(&s->config) && !config_has_stage(&s->config))
        return server_build_common(s, e) == 0 ? server_build_fleet(s, e) : -1;
    if (server_read_inputs(s, e) != 0 || server_check_room(s, e) != 0 ||
        server_build_common(s, e) != 0 ||
        (config_has_stage(&s->config) ? server_build_staged(s, e) : server_build_embedded(s, e)) !=
            0)
        return -1;
    return server_push_first(s, e);
}

static struct server *server_new(const struct config *config, struct err *e)
{
    struct server *s = calloc(1, sizeof *s);

    if (s == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the server");
        return NULL;
    }
    s->given = config;
    s->config = *config; /* its strings stay the caller's */
    if (config_has_stage(config)) {
        s->config.engine = "none";
        s->config.device = config_stage_device(config);
    }
    return s;
}

void server_notify_ready(const struct server *s, const char *more)
{
    notify_send("READY=1\nSTATUS=serving on %.200s%s", s->config.listen, more);
}

uint64_t server_watchdog(struct server *s)
{
    uint64_t period_us = notify_watchdog_us(), now_us = clock_now_us();
    struct err why = {0};

    if (period_us == 0)
        return CLOCK_NEVER;
    if (now_us < s->watchdog_us)
        return s->watchdog_us - now_us;
    if (health_is_live(&s->app, &why))
        notify_send("WATCHDOG=1");
    else
        log_line(LOG_ERROR, "watchdog.withheld", "the server is not live: %s", why.msg);
    period_us = period_us < WATCHDOG_US_MAX ? period_us : WATCHDOG_US_MAX;
    s->watchdog_us = now_us + period_us;
    return period_us;
}

static void serve_until_signal(struct server *s)
{
    int sig;

    do {
        sig = signals_wait(server_watchdog(s));
        if (sig == SIGHUP)
            server_reload(s);
    } while (sig == 0 || sig == SIGHUP);
}

int serve(const struct config *config, bool *drained, struct err *e)
{
    struct server *s = server_new(config, e);
    int rc;

    if (s == NULL)
        return -1;
    notify_send("STATUS=reading the model and the first weights");
    rc = state_dump_new(&s->state_dump, s, e) == 0 ? server_start(s, e) : -1;
    if (rc == 0) {
        state_dump_built(s->state_dump);
        life_set(&s->life, LIFE_SERVING);
        server_begin_seed(s);
        log_serving(s);
        server_notify_ready(s, "");
        serve_until_signal(s);
        *drained = server_drain(s);
    }
    server_free(s);
    return rc;
}

/* Would a start accept the first weights? */
static int check_first(const struct server *s, struct value_report *values, struct err *e)
{
    const struct config *c = &s->config;
    const struct tensor_list *list = s->first_weights.tensor_list;
    const char *missing = "";
    uint32_t n = 0;
    int rc;

    if (s->first == NULL)
        return 0;
    rc = tensor_list_coverage(s->model_spec, list, true, &missing, 1, &n, e);
    if (rc == 0 && n > 0)
        rc = err_set(e, ERR_INCOMPLETE, "", "%u tensors are missing, the first is %.150s", n,
                     missing);
    if (rc == 0 && value_check(s->first, list, c->non_finite, values, e) == 0)
        return 0;
    return serve_option_error(e, c->weights != NULL ? "--weights" : "--model",
                              c->weights != NULL ? c->weights : c->model);
}

static int fill_report(const struct server *s, struct serve_report *r, struct err *e)
{
    r->n_tensors = s->model_spec->tensor_list->n_tensors;
    r->nbytes = s->model_spec->tensor_list->nbytes;
    r->vocab_size = s->model.vocab_size;
    r->has_weights = s->first != NULL;
    if (r->has_weights)
        (void)snprintf(r->label, sizeof r->label, "%s", server_first_label(s));
    r->cuda = s->cuda;
    r->nccl = s->nccl;
    if (s->nixl != NULL)
        nixl_info(s->nixl, &r->nixl);
    r->devices = s->device_list;
    r->window_nbytes = s->window_nbytes;
    r->mirror = s->device_list.n > 0 && server_has_engine(s);
    r->sharded = config_is_sharded(&s->config);
    (void)server_check_room(s, &r->room);
    return server_share_nbytes(s, r->share_nbytes, e);
}

int serve_inspect(const struct config *config, struct serve_report *out, struct err *e)
{
    struct server *s = server_new(config, e);
    struct serve_report r = {0};
    int rc = -1;

    if (s == NULL)
        return -1;
    if (server_read_inputs(s, e) == 0 && check_first(s, &r.values, e) == 0 &&
        server_inspect_state(s, &r.state, e) == 0 && fill_report(s, &r, e) == 0) {
        *out = r;
        rc = 0;
    }
    server_free(s);
    return rc;
}
