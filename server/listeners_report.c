/* What --check and the log line "serving" report of the listeners. */
#include "base/log.h"
#include "control/auth.h"
#include "http/server/http_server.h"
#include "server/health_watch.h"
#include "server/listeners.h"

#include <stdio.h>
#include <string.h>

static void put_list(const struct config_list *list, FILE *to)
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

int listeners_put(const struct config *c, FILE *to, struct err *e)
{
    const struct listener_row rows[] = {{"--listen", c->listen},
                                        {"--control-listen", c->control_listen},
                                        {"--health-listen", c->health_listen}};
    static const char *const words[] = {
        [HTTP_SERVER_FREE] = "is free",
        [HTTP_SERVER_IN_USE] = "is in use: a start would fail until the other listener is closed",
        [HTTP_SERVER_LEFT_OVER] = "is a socket without a listener: a start would replace it",
    };
    enum http_server_place places[sizeof rows / sizeof rows[0]] = {HTTP_SERVER_FREE};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].text != NULL && try_listener(&rows[i], &places[i], e) != 0)
            return -1;
    (void)fprintf(to, "configuration: ok, would listen on %s\n", c->listen);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].text != NULL)
            (void)fprintf(to, "%s: %s %s\n", rows[i].option + 2, rows[i].text, words[places[i]]);
    (void)fputs("allowed hosts of requests without a key: addresses, localhost", to);
    put_list(&c->allowed_host, to);
    (void)fputs("allowed origins of web pages: its own", to);
    put_list(&c->allow_origin, to);
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
