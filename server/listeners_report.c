/* What --check and the log line "serving" report of the listeners. */
#include "base/clock.h"
#include "base/log.h"
#include "control/auth.h"
#include "http/server/http_server.h"
#include "server/health_watch.h"
#include "server/listeners.h"

#include <stdio.h>
#include <string.h>

static void listeners_report_put_list(const struct config_list *list, FILE *to)
{
    for (size_t i = 0; i < list->n; i++)
        (void)fprintf(to, ", %s", list->items[i]);
    (void)fputc('\n', to);
}

struct listener_row {
    const char *option, *text; /* NULL: not given */
};

/* Port 0 is never in use. */
static int try_listener(const struct listener_row *row, enum http_server_place *out, struct err *e)
{
    struct config_listen at;
    struct err cause = {0};

    if (config_listen_parse(&at, row->text, row->option, e) != 0)
        return -1;
    if (http_server_try(at.address, at.port, at.path[0] != '\0' ? at.path : NULL, out, &cause) != 0)
        return err_set(e, cause.code, row->option, "%.400s", cause.msg);
    return 0;
}

enum { N_LISTENERS = 3 };

static void put_addresses(const struct listener_row *rows, const enum http_server_place *places,
                          FILE *to, struct err *busy)
{
    static const char *const words[] = {
        [HTTP_SERVER_FREE] = "is free",
        [HTTP_SERVER_IN_USE] = "is in use",
        [HTTP_SERVER_LEFT_OVER] = "is a socket without a listener: a start would replace it",
    };

    for (size_t i = 0; i < N_LISTENERS; i++) {
        if (rows[i].text == NULL)
            continue;
        (void)fprintf(to, "%s: %s %s\n", rows[i].option + 2, rows[i].text, words[places[i]]);
        if (places[i] == HTTP_SERVER_IN_USE && busy->code == ERR_NONE)
            (void)err_set(
                busy, ERR_INTERNAL, "",
                "%s: %.200s is in use: stop what listens there, or choose another address",
                rows[i].option, rows[i].text);
    }
}

static void put_tls(const struct listeners *l, FILE *to)
{
    char end[LISTENERS_TIME_MAX];

    if (l->config->tls_cert == NULL) {
        (void)fputs("tls: none, plain HTTP\n", to);
        return;
    }
    listeners_time_text(end, sizeof end, l->tls_expires_s);
    (void)fprintf(to, "tls: certificate %s, %s %s; key %s\n", l->config->tls_cert,
                  l->tls_expires_s > clock_wall_s() ? "it expires at" : "it has expired at", end,
                  l->config->tls_key);
}

static void put_keys(const struct listeners *l, FILE *to)
{
    if (l->config->api_key_file == NULL)
        (void)fputs("keys: none\n", to);
    else
        (void)fprintf(to, "keys: %zu viewer, %zu generate, %zu control, %zu weights\n",
                      auth_n_keys(l->auth, AUTH_VIEWER), auth_n_keys(l->auth, AUTH_GENERATE),
                      auth_n_keys(l->auth, AUTH_CONTROL), auth_n_keys(l->auth, AUTH_WEIGHTS));
}

int listeners_put(struct listeners *l, FILE *to, struct err *busy, struct err *e)
{
    const struct config *c = l->config;
    const struct listener_row rows[N_LISTENERS] = {{"--listen", c->listen},
                                                   {"--control-listen", c->control_listen},
                                                   {"--health-listen", c->health_listen}};
    enum http_server_place places[N_LISTENERS] = {HTTP_SERVER_FREE};

    for (size_t i = 0; i < N_LISTENERS; i++)
        if (rows[i].text != NULL && try_listener(&rows[i], &places[i], e) != 0)
            return -1;
    (void)fprintf(to, "configuration: ok, would listen on %s\n", c->listen);
    put_addresses(rows, places, to, busy);
    put_tls(l, to);
    put_keys(l, to);
    (void)fputs("allowed hosts of requests without a key: addresses, localhost", to);
    listeners_report_put_list(&c->allowed_host, to);
    (void)fputs("allowed origins of web pages: its own", to);
    listeners_report_put_list(&c->allow_origin, to);
    return 0;
}

/* "127.0.0.1:8701", "[::1]:8701", "unix:/run/baton.sock". */
static void log_address(struct log_rec *r, const char *name, const struct config_listen *at,
                        uint16_t port)
{
    char text[sizeof at->path + 16];

    if (at->path[0] != '\0')
        (void)snprintf(text, sizeof text, "unix:%s", at->path);
    else
        (void)snprintf(text, sizeof text, strchr(at->address, ':') != NULL ? "[%s]:%u" : "%s:%u",
                       at->address, (unsigned)port);
    log_str(r, name, text);
}

void listeners_log(const struct listeners *l, struct log_rec *r)
{
    const struct app *app = l->app;

    if (l->at.path[0] != '\0') {
        log_address(r, "address", &l->at, 0);
    } else {
        log_str(r, "address", l->at.address);
        log_u64(r, "port", http_server_port(app->http_server));
    }
    if (app->control_http_server != NULL)
        log_address(r, "control", &l->control_at, http_server_port(app->control_http_server));
    if (l->health != NULL)
        log_address(r, "health", &l->health_at, health_watch_port(l->health));
    log_str(r, "scheme", l->config->tls_cert != NULL ? "https" : "http");
    log_str(r, "auth",
            l->config->api_key_file != NULL ? "keys"
            : auth_asks(l->auth)            ? "trust"
                                            : "none");
}
