/* The listeners of the server: addresses, keys, TLS. */
#ifndef BATON_SERVER_LISTENERS_H
#define BATON_SERVER_LISTENERS_H

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

/* The PEM texts of --tls-cert and --tls-key; NULL without TLS. */
struct tls_files {
    char *cert, *key; /* owned */
    size_t cert_len, key_len;
};

/* Zeroed: nothing is open. */
struct listeners {
    const struct config *config;     /* borrowed */
    struct app *app;                 /* borrowed; has these HTTP servers */
    struct auth *auth;               /* owned */
    struct health_watch *health;     /* owned; NULL without --health-listen */
    struct config_listen at;         /* --listen */
    struct config_listen control_at; /* --control-listen, if it is given */
    struct config_listen health_at;  /* --health-listen, if it is given */
    struct origin_rules origins;     /* of all of them */
    struct listener_ctx listener_ctx, control_listener_ctx;
    struct tls_files tls;  /* wiped once the HTTP servers have read them */
    int64_t tls_expires_s; /* of the certificate that listeners_read read */
};

/* listeners_read - read and check addresses, keys and certificate, before anything listens.
 * Errors: ERR_BAD_REQUEST (the field is the option); ERR_FORBIDDEN: an address beyond loopback
 *         without keys, --no-auth-cidr or --insecure. */
int listeners_read(struct listeners *l, const struct config *c, struct err *e);

/* listeners_open_health - open the health listener, if there is one; before anything that takes
 * long. Errors: of health_watch_new. */
int listeners_open_health(struct listeners *l, const char *boot_id, struct err *e);

/* listeners_open - open the other listeners: set app->http_server and app->control_http_server of
 * an app that is otherwise complete; the health listener checks it from now on. Errors: of
 * http_server_new and health_watch_start. */
int listeners_open(struct listeners *l, struct app *app, const char *boot_id, struct err *e);

/* listeners_reload_keys, listeners_reload_tls - read the key file, or the certificate and its key,
 * again. After a failure the old ones stay in use. Connections that are open keep the certificate
 * with which they began.
 * @text  of the result, for the log: "changed: ...", "unchanged: ..." or "kept: " and the reason
 * Threads: main's. Returns: was it read? */
bool listeners_reload_keys(struct listeners *l, char *text, size_t cap);
bool listeners_reload_tls(struct listeners *l, char *text, size_t cap);

/* listeners_quiesce - accept no more connections, except of health. listeners_wait_idle -
 * http_server_wait_idle of both. */
void listeners_quiesce(struct listeners *l);
bool listeners_wait_idle(struct listeners *l, uint64_t deadline_us);

/* listeners_put - write the listeners' part of --check: addresses, each of which is bound for a
 * moment, certificate, keys, and what requests may name.
 * @l     of listeners_read
 * @busy  set if an address is in use: a start would fail now, whatever else is right
 * Errors: of http_server_try, at the option; nothing is written then. */
int listeners_put(struct listeners *l, FILE *to, struct err *busy, struct err *e);

/* listeners_time_text - "2026-12-01T10:00:00Z". */
enum { LISTENERS_TIME_MAX = 32 };
void listeners_time_text(char *out, size_t cap, int64_t wall_s);

/* listeners_log - add the addresses to the log line "serving". */
void listeners_log(const struct listeners *l, struct log_rec *r);

/* listeners_stop_health - check the app no more: it is about to be freed.
 * listeners_close - close the HTTP servers and the health listener.
 * listeners_fini - free keys and certificate. */
void listeners_stop_health(struct listeners *l);
void listeners_close(struct listeners *l);
void listeners_fini(struct listeners *l);

#endif
