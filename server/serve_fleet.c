/* From the configuration to the room of the upstreams. */
#include "server/serve_fleet.h"

#include "base/log.h"
#include "engine/upstream/spec.h"
#include "engine/upstream/upstreams.h"
#include "handlers/relay.h"

#include <string.h>

enum { TOKEN_EVERY = 5 }; /* of an idle upstream's questions, one in so many is for a token */

bool fleet_wanted(const struct config *c)
{
    return c->upstream.n > 0 || c->upstream_file != NULL;
}

static struct upstreams_cfg cfg_of(const struct config *c)
{
    return (struct upstreams_cfg){
        .specs = c->upstream.items,
        .n_specs = c->upstream.n,
        .file = c->upstream_file,
        .min_ready = c->min_ready,
        .n_permits =
            {[FLEET_GENERATE] = c->generate_concurrency, [FLEET_TEXT] = c->detokenize_concurrency},
        .n_queue_max = {[FLEET_GENERATE] = c->generate_queue, [FLEET_TEXT] = c->detokenize_queue},
        .probe_interval_us = c->probe_interval * 1000,
        .probe_timeout_us = c->probe_timeout * 1000,
        .token_every = TOKEN_EVERY,
    };
}

int fleet_open(struct app *app, const struct config *c, struct err *e)
{
    struct upstreams_cfg cfg = cfg_of(c);

    if (http_init(e) != 0 || upstreams_new(&app->upstreams, &cfg, e) != 0)
        return -1;
    return relays_new(&app->relays, app->upstreams, e);
}

void fleet_reload(struct app *app)
{
    struct fleet_stats s;
    struct err e = {0};

    if (upstreams_reload(app->upstreams, &e) != 0) {
        log_line(LOG_ERROR, "upstreams.kept", "the upstreams stay as they were: %s: %s", e.field,
                 e.msg);
        return;
    }
    fleet_stats(upstreams_fleet(app->upstreams), &s);
    log_line(LOG_INFO, "upstreams.read", "%zu upstreams, %zu of them must serve", s.n_upstreams,
             s.min_ready);
}

void fleet_log(const struct app *app, struct log_rec *r)
{
    struct fleet_stats s;

    fleet_stats(upstreams_fleet(app->upstreams), &s);
    log_u64(r, "upstreams", s.n_upstreams);
    log_u64(r, "min_ready", s.min_ready);
}

static void put_upstream(struct upstreams *u, size_t i, FILE *to)
{
    struct upstream_at at;
    unsigned port;

    upstreams_at(u, i, &at);
    port = http_target_port_meant(at.name);
    (void)fprintf(to, "upstream: %s, %s%s%s", at.name, wire_dialect_name(at.dialect),
                  at.target->authorization != NULL ? ", with a key" : "",
                  at.target->ca_file != NULL ? ", with a CA of its own" : "");
    if (port > 0)
        (void)fprintf(to, ", at port %u since none is named", port);
    (void)fputc('\n', to);
}

int fleet_check(const struct config *c, FILE *to, struct err *e)
{
    struct upstreams_cfg cfg = cfg_of(c);
    struct upstreams *u = NULL;
    struct fleet_stats s;
    bool written;

    if (http_init(e) != 0 || upstreams_new(&u, &cfg, e) != 0)
        return -1;
    fleet_stats(upstreams_fleet(u), &s);
    (void)fprintf(to, "configuration: ok, would listen on %s\n", c->listen);
    (void)fprintf(to, "upstreams: %zu, of which %zu must serve the current version\n",
                  s.n_upstreams, s.min_ready);
    for (size_t i = 0; i < s.n_upstreams; i++)
        put_upstream(u, i, to);
    upstreams_free(u);
    written = fflush(to) == 0 && !ferror(to);
    return written ? 0 : err_set(e, ERR_INTERNAL, "", "the report could not be written");
}
