/* SIGHUP: each file that may have changed is read again, and one log line has the result of each.
 * Each is taken or kept on its own: a key file with a mistake does not keep a new certificate out.
 */
#include "base/clock.h"
#include "base/log.h"
#include "server/notify.h"
#include "server/serve_fleet.h"
#include "server/serve_priv.h"

#include <inttypes.h>
#include <stdio.h>

enum { RELOAD_TEXT_MAX = 384 }; /* so that all of them fit into a line */

struct reload {
    bool good, any;
    bool pending; /* options changed that take effect at the next start */
    char config[RELOAD_TEXT_MAX], log_level[RELOAD_TEXT_MAX], certificate[RELOAD_TEXT_MAX],
        keys[RELOAD_TEXT_MAX], upstreams[RELOAD_TEXT_MAX]; /* "": there is no such file */
};

/* Of the configuration only the log level takes effect now. */
static bool reload_config(const struct server *s, struct reload *r)
{
    char names[RELOAD_TEXT_MAX / 2];
    struct config fresh = {0};
    struct err e = {0};
    enum log_level level = LOG_INFO, before;

    if (config_reload(&fresh, s->given, &e) != 0) {
        (void)snprintf(r->config, sizeof r->config, "kept: %.120s: %.240s", e.field, e.msg);
        return false;
    }
    r->pending = config_changes(names, sizeof names, s->given, &fresh, "log-level") > 0;
    if (r->pending)
        (void)snprintf(r->config, sizeof r->config, "changed, from the next start on: %s", names);
    else
        (void)snprintf(r->config, sizeof r->config, "unchanged");
    (void)log_level_parse(&level, fresh.log_level); /* config checked it */
    before = log_level_set(level);
    (void)snprintf(r->log_level, sizeof r->log_level, "%s: %s",
                   before == level ? "unchanged" : "changed", log_level_name(level));
    config_fini(&fresh);
    return true;
}

static void reload_files(struct server *s, struct reload *r)
{
    const struct config *c = &s->config;

    r->any = config_has_file(s->given) || c->tls_cert != NULL || c->api_key_file != NULL ||
             s->app.fleet != NULL;
    r->good = true;
    if (config_has_file(s->given))
        r->good = reload_config(s, r);
    if (c->tls_cert != NULL)
        r->good = listeners_reload_tls(&s->listeners, r->certificate, sizeof r->certificate) &&
                  r->good;
    if (c->api_key_file != NULL)
        r->good = listeners_reload_keys(&s->listeners, r->keys, sizeof r->keys) && r->good;
    if (s->app.fleet != NULL)
        r->good = serve_fleet_reload(&s->fleet, r->upstreams, sizeof r->upstreams) && r->good;
}

static void log_part(struct log_rec *rec, const char *name, const char *text)
{
    log_str(rec, name, text[0] != '\0' ? text : NULL);
}

/* At the level that is in use afterwards: a failure is an error, so that it is always written, and
 * a change that has no effect yet a warning. */
static void log_reload(const struct reload *r)
{
    struct log_rec rec;

    log_begin(&rec, !r->good ? LOG_ERROR : r->pending ? LOG_WARN : LOG_INFO, "reload");
    log_str(&rec, "message",
            !r->any      ? "SIGHUP: there is no file to read again"
            : !r->good   ? "SIGHUP: not every file could be used; what was kept says why"
            : r->pending ? "SIGHUP: the files were read again; changed options take effect at the "
                           "next start"
                         : "SIGHUP: the files were read again");
    log_part(&rec, "config", r->config);
    log_part(&rec, "log_level", r->log_level);
    log_part(&rec, "certificate", r->certificate);
    log_part(&rec, "keys", r->keys);
    log_part(&rec, "upstreams", r->upstreams);
    log_end(&rec);
}

void server_reload(struct server *s)
{
    struct reload r = {0};

    notify_send("RELOADING=1\nMONOTONIC_USEC=%" PRIu64 "\nSTATUS=reading files again",
                clock_now_us());
    reload_files(s, &r);
    log_reload(&r);
    server_notify_ready(s, r.good ? "" : "; the last reload kept something, the log says what");
}
