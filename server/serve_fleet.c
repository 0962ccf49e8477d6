/* The server in front of a fleet: from the configuration to its upstreams. */
#include "server/serve_fleet.h"

#include "base/log.h"
#include "fleet/ask/adapter_dir.h"
#include "fleet/calls/fleet_control.h"
#include "fleet/fleet_root.h"
#include "fleet/handoff/handoff.h"
#include "fleet/members/upstream_config.h"
#include "fleet/members/upstreams.h"
#include "fleet/proxy/proxy.h"
#include "fleet/update/fleet_coverage.h"
#include "handlers/fleet/handlers.h"
#include "handlers/fleet/status.h"
#include "server/listeners.h"
#include "server/model_dir.h"
#include "server/serve.h"
#include "server/serve_priv.h"
#include "server/serve_stage.h"
#include "transport/file.h"
#include "weights/model/model_config.h"

#include <string.h>

enum { GENERATION_PROBE_EVERY = 5 }; /* every fifth probe of an idle upstream generates a token */

static struct upstreams_cfg cfg_of(const struct config *c)
{
    return (struct upstreams_cfg){
        .entries = c->upstream.items,
        .n_entries = c->upstream.n,
        .file = c->upstream_file,
        .min_ready = c->min_ready,
        .staged = config_has_stage(c),
        .n_permits =
            {[FLEET_GENERATE] = c->generate_concurrency, [FLEET_TEXT] = c->detokenize_concurrency},
        .n_queue_max = {[FLEET_GENERATE] = c->generate_queue, [FLEET_TEXT] = c->detokenize_queue},
        .probe_interval_us = c->probe_interval * 1000,
        .probe_timeout_us = c->probe_timeout * 1000,
        .dns_interval_us = c->dns_interval * 1000,
        .generation_probe_every = GENERATION_PROBE_EVERY,
    };
}

static const char otherwise[] =
    "give --manifest FILE instead of --model, a .safetensors file of the model, or a JSON file "
    "with the arrays names, dtypes and shapes; or neither";

/* Without weights in the directory only config.json could say which tensors there are. */
static void explain_no_weights(struct err *e)
{
    struct err cause = *e;

    err_clear(e);
    (void)err_set(e, cause.code, cause.field,
                  "%.300s, and there is no '*.safetensors' file that names the tensors: %s",
                  cause.msg, otherwise);
}

/* Reads only the headers of the files. */
static int spec_of_dir(struct model_spec **out, const char *dir, struct err *e)
{
    struct file_weights stored = {0};
    struct source *source = NULL;
    bool has = false;
    int rc;

    if (model_dir_check(dir, e) != 0 || model_dir_weights(&has, dir, otherwise, e) != 0 ||
        (has && file_source_open_local(&source, &stored, dir, e) != 0))
        return -1;
    rc = model_spec_of_dir(out, dir, stored.tensor_list, e);
    if (rc != 0 && !has)
        explain_no_weights(e);
    source_close(source);
    file_weights_fini(&stored);
    return rc;
}

int serve_fleet_spec(struct model_spec **out, const char **from, const struct config *c,
                     struct err *e)
{
    *out = NULL;
    *from = c->model_spec != NULL ? "--manifest" : c->model != NULL ? "--model" : NULL;
    if (c->model_spec != NULL && model_spec_load(out, c->model_spec, e) != 0)
        return serve_option_error(e, *from, c->model_spec);
    if (c->model_spec == NULL && c->model != NULL && spec_of_dir(out, c->model, e) != 0)
        return serve_option_error(e, *from, c->model);
    return 0;
}

static int open_upstreams(struct server *s, struct err *e)
{
    struct upstreams_cfg cfg = cfg_of(&s->config);

    cfg.boot_id = s->life.boot_id;
    s->fleet.ready = fleet_ready;
    s->fleet.status = fleet_status_json;
    s->fleet.update = fleet_update_json;
    s->fleet.handed = fleet_handed_json;
    s->fleet.rename = fleet_rename;
    s->fleet.metrics = metrics_fleet;
    if (http_init(e) != 0 || upstreams_new(&s->fleet.upstreams, &cfg, e) != 0)
        return -1;
    return proxy_new(&s->fleet.proxy, s->fleet.upstreams, e);
}

/* Batons prove what they serve; others may be added later. */
static void warn_of_batons_only(struct upstreams *u, enum fleet_prove prove)
{
    struct upstream_list *all = upstreams_list(u);
    size_t n = all->n, n_batons = 0;

    for (size_t i = 0; i < n; i++) {

        n_batons += upstream_kind(all->items[i]) == UPSTREAM_BATON;
    }
    upstream_list_unref(all);
    if (prove == FLEET_PROVE_CHECKSUMS && n > 0 && n_batons == n)
        log_line(LOG_WARN, "prove.unused",
                 "all upstreams are batons, which prove each update before they serve it: --prove "
                 "checksums has no effect here; give it to the batons that have engines behind "
                 "them");
}

/* Engines may be added later, so it is no error. */
static void warn_of_min_ready(struct upstreams *u)
{
    struct upstream_name_info name;
    struct fleet_stats s;
    size_t n_missing;

    fleet_stats(upstreams_fleet(u), &s);
    if (s.n_upstreams >= s.min_ready || upstreams_name(u, 0, &name))
        return; /* those of names come later */
    n_missing = s.min_ready - s.n_upstreams;
    log_line(
        LOG_WARN, "upstreams.too_few",
        "there are %zu upstreams, and %zu must serve (--min-ready; by default all, and at least "
        "one): this server is not ready, and an update is refused (with --stage: committed, "
        "and handed over once they are here), until %zu more %s added (POST /v1/upstreams, or "
        "--upstream-file and SIGHUP)",
        s.n_upstreams, s.min_ready, n_missing, n_missing == 1 ? "is" : "are");
}

static int serve_fleet_open_control(struct server *s, struct err *e)
{
    const struct settings *settings = &s->app.settings;
    struct fleet_control_cfg cfg = {.upstreams = s->fleet.upstreams,
                                    .executor = s->fleet.executor,
                                    .blocking = s->app.control_executor,
                                    .history = s->app.history,
                                    .store = s->weights.store,
                                    .model_dir = s->config.model,
                                    .update_us = settings->update_timeout_ms * 1000,
                                    .recomputes = settings->on_update != GEN_ON_UPDATE_CONTINUE,
                                    .finishes = settings->on_update == GEN_ON_UPDATE_FINISH,
                                    .pause_fenced = s->config.pause_fenced,
                                    .allow_unseen = s->config.allow_unseen_tensors};

    if (fleet_prove_parse(&cfg.prove, s->config.prove, "--prove", e) != 0)
        return -1;
    warn_of_batons_only(s->fleet.upstreams, cfg.prove);
    warn_of_min_ready(s->fleet.upstreams);
    return fleet_control_new(&s->fleet.control, &cfg, e);
}

static int open_adapter_dir(struct server *s, struct err *e)
{
    const struct config *c = &s->config;

    if (c->adapter_dir == NULL ||
        adapter_dir_new(&s->fleet.adapter_dir, c->adapter_dir, c->max_lora_bytes,
                        s->app.control_executor, e) == 0)
        return 0;
    return serve_option_error(e, "--adapter-dir", c->adapter_dir);
}

/* What each update must contain, if --model or --manifest say it. */
static int open_spec(struct server *s, struct err *e)
{
    struct model_spec *spec;
    const char *from;

    if (serve_fleet_spec(&spec, &from, &s->config, e) != 0)
        return -1;
    return spec != NULL ? fleet_spec_set(s->fleet.control, spec, from, e) : 0;
}

/* The parts of a server in front of a fleet, without listeners and before probes begin. */
static int server_build_upstreams(struct server *s, struct err *e)
{
    s->app.fleet = &s->fleet;
    if (server_build_executors(s, e) != 0 || open_adapter_dir(s, e) != 0 ||
        open_upstreams(s, e) != 0 || serve_fleet_open_control(s, e) != 0)
        return -1;
    return open_spec(s, e);
}

/* Probes begin last: their results go to parts that must exist by then. */
static int serve_upstreams(struct server *s, struct err *e)
{
    if (listeners_open(&s->listeners, &s->app, s->life.boot_id, e) != 0)
        return -1;
    fleet_control_watch(s->fleet.control);
    return upstreams_start(s->fleet.upstreams, e) == 0 ? upstreams_look_up(s->fleet.upstreams, e)
                                                       : -1;
}

int server_build_fleet(struct server *s, struct err *e)
{
    return server_build_upstreams(s, e) == 0 ? serve_upstreams(s, e) : -1;
}

/* It serves first weights, or what an earlier process served; or waits for them. */
static bool has_version(const struct server *s)
{
    const struct state_dir *state = s->weights.state;

    return s->first != NULL || (state != NULL && state_dir_found(state)->journal != JOURNAL_NONE);
}

int server_build_staged(struct server *s, struct err *e)
{
    struct handoff_cfg cfg = {.cuda = &s->cuda, .window_nbytes = s->window_nbytes};

    if (server_build_weights(s, e) != 0 || server_build_upstreams(s, e) != 0)
        return -1;
    serve_stage_warn(s->fleet.upstreams);
    cfg.control = s->fleet.control;
    cfg.store = s->weights.store;
    if (handoff_new(&s->fleet.handoff, &cfg, e) != 0)
        return -1;
    if (has_version(s))
        fleet_await_commit(upstreams_fleet(s->fleet.upstreams), "");
    return serve_upstreams(s, e);
}

bool serve_fleet_reload(struct app_fleet *fleet, char *text, size_t cap)
{
    struct fleet_stats s;
    struct err e = {0};

    if (upstreams_reload(fleet->upstreams, &e) != 0 ||
        upstreams_look_up(fleet->upstreams, &e) != 0) {
        (void)snprintf(text, cap, "kept: %.120s: %.240s", e.field, e.msg);
        return false;
    }
    warn_of_min_ready(fleet->upstreams);
    fleet_control_watch(fleet->control);
    fleet_stats(upstreams_fleet(fleet->upstreams), &s);
    (void)snprintf(text, cap, "read: %zu upstreams, of which %zu must serve", s.n_upstreams,
                   s.min_ready);
    return true;
}

void serve_fleet_log(const struct app_fleet *fleet, struct log_rec *r)
{
    struct fleet_stats s;

    fleet_stats(upstreams_fleet(fleet->upstreams), &s);
    log_u64(r, "upstreams", s.n_upstreams);
    log_u64(r, "min_ready", s.min_ready);
}

static void put_upstream(const struct upstream *it, FILE *to)
{
    unsigned port;

    port = http_target_port_meant(upstream_name(it));
    (void)fprintf(to, "upstream: %s, %s%s%s", upstream_name(it),
                  upstream_kind_name(upstream_kind(it)),
                  upstream_target(it)->authorization != NULL ? ", with a key" : "",
                  upstream_target(it)->ca_file != NULL ? ", with a CA of its own" : "");
    if (port > 0)
        (void)fprintf(to, ", at the default port %u", port);
    (void)fputc('\n', to);
}

static void put_upstreams(struct upstreams *u, FILE *to)
{
    struct upstream_list *all = upstreams_list(u);
    struct upstream_name_info name;

    for (size_t i = 0; i < all->n; i++)
        put_upstream(all->items[i], to);
    upstream_list_unref(all);
    for (size_t i = 0; upstreams_name(u, i, &name); i++)
        (void)fprintf(to,
                      "upstreams: those at the addresses of %s: not checked, it is looked up "
                      "when the server runs\n",
                      name.name);
}

static void put_spec(const struct model_spec *spec, const char *from, FILE *to)
{
    if (spec != NULL)
        (void)fprintf(to, "updates: each must contain the %u tensors of %s\n",
                      (unsigned)spec->tensor_list->n_tensors, from);
    else
        (void)fputs("updates: each must contain the tensors of the one before; the first is not "
                    "checked (--model or --manifest would name its tensors)\n",
                    to);
}

int serve_fleet_check(struct listeners *l, FILE *to, struct err *busy, struct err *e)
{
    const struct config *c = l->config;
    struct upstreams_cfg cfg = cfg_of(c);
    struct upstreams *u = NULL;
    struct model_spec *spec = NULL;
    struct fleet_stats s;
    const char *from;
    bool written;

    if (c->adapter_dir != NULL && adapter_dir_check(c->adapter_dir, e) != 0)
        return serve_option_error(e, "--adapter-dir", c->adapter_dir);
    if (serve_fleet_spec(&spec, &from, c, e) != 0)
        return -1;
    if (http_init(e) != 0 || upstreams_new(&u, &cfg, e) != 0) {
        model_spec_free(spec);
        return -1;
    }
    if (listeners_put(l, to, busy, e) != 0) {
        model_spec_free(spec);
        upstreams_free(u);
        return -1;
    }
    fleet_stats(upstreams_fleet(u), &s);
    (void)fprintf(to, "upstreams: %zu, of which %zu must serve the current version\n",
                  s.n_upstreams, s.min_ready);
    put_upstreams(u, to);
    warn_of_min_ready(u);
    if (config_has_stage(c))
        serve_stage_warn(u);
    put_spec(spec, from, to);
    if (c->adapter_dir != NULL)
        (void)fprintf(to, "adapters: sent ones are kept in %s\n", c->adapter_dir);
    model_spec_free(spec);
    upstreams_free(u);
    written = fflush(to) == 0 && !ferror(to);
    return written ? 0 : err_set(e, ERR_INTERNAL, "", "the report could not be written");
}
