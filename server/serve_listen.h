/* Where the server listens, and who may come in there. */
#ifndef BATON_SERVER_SERVE_LISTEN_H
#define BATON_SERVER_SERVE_LISTEN_H

#include "base/err.h"
#include "handlers/app.h"
#include "http/server/origin.h"
#include "server/config/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct auth;
struct health_watch;
struct log_rec;

/* A zeroed one has nothing open. */
struct listeners {
    const struct config *config;     /* borrowed */
    struct app *app;                 /* borrowed; whose HTTP servers these are */
    struct auth *auth;               /* owned */
    struct health_watch *health;     /* owned; NULL without --health-listen */
    struct config_listen at;         /* --listen */
    struct config_listen control_at; /* --control-listen, if it is given */
    struct config_listen health_at;  /* --health-listen, if it is given */
    struct origin_rules origins;     /* of all of them */
    struct listener_ctx listener_ctx, control_listener_ctx;
    char *cert, *key; /* owned, wiped once the HTTP servers have read them; NULL without TLS */
    size_t cert_len, key_len;
};

/* listeners_read - addresses, keys, certificate: all that can be refused before anything listens.
 * Errors: ERR_BAD_REQUEST (the option is the field); ERR_FORBIDDEN: an address beyond loopback, and
 *         nothing says who may come in there. */
int listeners_read(struct listeners *l, const struct config *c, struct err *e);

/* listeners_open_health - before anything that takes long. */
int listeners_open_health(struct listeners *l, const char *boot_id, struct err *e);

/* listeners_open - sets app->http_server and app->control_http_server, and lets health look at the
 * app, which is complete but for these two. */
int listeners_open(struct listeners *l, struct app *app, const char *boot_id, struct err *e);

/* listeners_reload - read the key file again; logs how that went. */
void listeners_reload(struct listeners *l);

/* listeners_quiesce - accept nothing more, but on health. listeners_wait_idle -
 * http_server_wait_idle of all. */
void listeners_quiesce(struct listeners *l);
bool listeners_wait_idle(struct listeners *l, uint64_t deadline_us);

/* listeners_put - what --check says of them; each is bound for a moment, unless
 * something is there.
 * @c  that listeners_read has taken
 * Errors: http_server_try's, at the option; nothing is written then. */
int listeners_put(const struct config *c, FILE *to, struct err *e);

/* listeners_log - "address", "port", and what else there is, of the line that says it serves. */
void listeners_log(const struct listeners *l, struct log_rec *r);

/* listeners_stop_health - look at the app no more: it is about to be taken down.
 * listeners_close - close the HTTP servers and health. listeners_fini - the rest. */
void listeners_stop_health(struct listeners *l);
void listeners_close(struct listeners *l);
void listeners_fini(struct listeners *l);

#endif
