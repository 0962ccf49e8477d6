/* With --control-listen, control routes have an HTTP server of their own: many generates on
 * --listen cannot delay a trainer's requests. */
#include "server/listeners.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/secret_file.h"
#include "control/auth.h"
#include "fleet/proxy/proxy.h"
#include "handlers/route.h"
#include "http/server/http_server.h"
#include "server/health_watch.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum {
    FDS_RESERVED = 576, /* descriptors kept free of connections */
    SMALL_SHARE = 16,   /* control and health get at most 1/16 of all descriptors each, */
    CONTROL_CONNECTIONS_MAX = 1024,
    HEALTH_CONNECTIONS_MAX = 256 /* and at most this many connections */
};

#define ROLE_BIT(role) (1U << (role))
#define ROLES_ANYWHERE (ROLE_BIT(ROLE_HEALTH) | ROLE_BIT(ROLE_VIEWER))
#define ROLES_CONTROL  (ROLE_BIT(ROLE_PAGE) | ROLE_BIT(ROLE_CONTROL) | ROLE_BIT(ROLE_WEIGHTS))

static int read_address(struct config_listen *out, const char *text, const char *option, bool asks,
                        bool insecure, struct err *e)
{
    struct config_listen l;

    if (config_listen_parse(&l, text, option, e) != 0)
        return -1;
    if (!l.loopback && !asks && !insecure)
        return err_set(e, ERR_FORBIDDEN, option,
                       "'%.64s' is beyond loopback: it needs --api-key-file or --no-auth-cidr, or "
                       "--insecure if the network itself is trusted",
                       text);
    *out = l;
    return 0;
}

static int read_addresses(struct listeners *l, const struct config *c, struct err *e)
{
    bool asks = auth_asks(l->auth);

    if (read_address(&l->at, c->listen, "--listen", asks, c->insecure, e) != 0)
        return -1;
    if (c->control_listen != NULL && read_address(&l->control_at, c->control_listen,
                                                  "--control-listen", asks, c->insecure, e) != 0)
        return -1;
    /* Health needs no key: it reveals only that the server is there. */
    if (c->health_listen != NULL)
        return config_listen_parse(&l->health_at, c->health_listen, "--health-listen", e);
    return 0;
}

/* A PEM file may contain both. */
static bool has_certificate(const char *pem)
{
    return strstr(pem, "-----BEGIN CERTIFICATE-----") != NULL ||
           strstr(pem, "-----BEGIN X509 CERTIFICATE-----") != NULL;
}

static bool has_key(const char *pem)
{
    return strstr(pem, "PRIVATE KEY-----") != NULL;
}

static bool is_locked(const char *pem)
{
    return strstr(pem, "-----BEGIN ENCRYPTED PRIVATE KEY-----") != NULL ||
           strstr(pem, "Proc-Type: 4,ENCRYPTED") != NULL;
}

/* The messages of GnuTLS only say that something is missing. */
static int check_pem(const struct tls_files *t, const struct config *c, struct err *e)
{
    bool swapped = has_key(t->cert) && has_certificate(t->key);

    if (!has_certificate(t->cert) && swapped)
        return err_set(e, ERR_BAD_REQUEST, "--tls-cert",
                       "'%.150s' is a private key, and '%.150s' of --tls-key is a certificate: "
                       "swap the two",
                       c->tls_cert, c->tls_key);
    if (!has_certificate(t->cert))
        return err_set(
            e, ERR_BAD_REQUEST, "--tls-cert",
            "'%.200s' %s; a certificate in PEM is expected (-----BEGIN CERTIFICATE-----)",
            c->tls_cert, has_key(t->cert) ? "is a private key" : "has no certificate");
    if (!has_key(t->key))
        return err_set(
            e, ERR_BAD_REQUEST, "--tls-key",
            "'%.200s' %s; a private key in PEM is expected (-----BEGIN PRIVATE KEY-----)",
            c->tls_key, has_certificate(t->key) ? "is a certificate" : "has no private key");
    if (is_locked(t->key))
        return err_set(e, ERR_BAD_REQUEST, "--tls-key",
                       "'%.200s' is encrypted with a password; a key without one is expected, as "
                       "'openssl pkey -in FILE -out FILE' writes",
                       c->tls_key);
    return 0;
}

/* @identity  a reference to what was read; NULL without TLS */
static int read_tls(struct tls_files *t, struct tls_identity **identity, const struct config *c,
                    struct err *e)
{
    struct err why = {0};

    *identity = NULL;
    if ((c->tls_cert != NULL) != (c->tls_key != NULL))
        return err_set(e, ERR_BAD_REQUEST, c->tls_cert != NULL ? "--tls-key" : "--tls-cert",
                       "--tls-cert and --tls-key are given together or not at all");
    if (c->tls_cert == NULL)
        return 0;
    if (secret_file_read(&t->key, &t->key_len, c->tls_key, "--tls-key", e) != 0)
        return -1;
    /* A certificate is public: its file may have any mode. Its size is bounded as the key's is. */
    if (public_file_read(&t->cert, &t->cert_len, c->tls_cert, "--tls-cert", e) != 0)
        return -1;
    if (check_pem(t, c, e) != 0)
        return -1;
    if (tls_identity_new(identity, t->cert, t->key, &why) == 0)
        return 0;
    return err_set(e, why.code, "--tls-key", "'%.100s' with the certificate '%.100s': %s",
                   c->tls_key, c->tls_cert, why.msg);
}

static bool knows_key(void *arg, const char *authorization)
{
    return auth_knows(arg, authorization);
}

int listeners_read(struct listeners *l, const struct config *c, struct err *e)
{
    struct auth_cfg cfg = {c->api_key_file, c->no_auth_cidr.items, c->no_auth_cidr.n};
    struct tls_identity *identity;

    l->config = c;
    if (auth_new(&l->auth, &cfg, e) != 0 || read_addresses(l, c, e) != 0)
        return -1;
    l->origins = (struct origin_rules){.hosts = c->allowed_host.items,
                                       .n_hosts = c->allowed_host.n,
                                       .origins = c->allow_origin.items,
                                       .n_origins = c->allow_origin.n,
                                       .knows_key = auth_has_keys(l->auth) ? knows_key : NULL,
                                       .knows_key_arg = l->auth};
    if (origin_rules_check(&l->origins, e) != 0)
        return -1;
    if (read_tls(&l->tls, &identity, c, e) != 0)
        return -1;
    l->tls_expires_s = identity != NULL ? tls_identity_expires_s(identity) : 0;
    tls_identity_unref(identity);
    return 0;
}

/* Descriptors for the connections of each HTTP server. */
struct shares {
    size_t data, control, health;
};

static size_t listeners_at_most(size_t n, size_t max)
{
    return n < max ? n : max;
}

/* In front of a fleet each connection may need a second one, to an upstream. */
static size_t share_upstream(size_t n, const struct config *c)
{
    size_t clients = (size_t)c->http_server_threads * PROXY_LOOP_NFDS;

    return (n > 2 * clients ? n - clients : n / 2) / 2;
}

static struct shares share_descriptors(const struct config *c)
{
    struct rlimit lim;
    size_t all = 2 * FDS_RESERVED;
    struct shares s;

    if (getrlimit(RLIMIT_NOFILE, &lim) == 0)
        all = lim.rlim_max == RLIM_INFINITY ? SIZE_MAX : (size_t)lim.rlim_max;
    s.control = listeners_at_most(all / SMALL_SHARE, CONTROL_CONNECTIONS_MAX);
    s.health = listeners_at_most(all / SMALL_SHARE, HEALTH_CONNECTIONS_MAX);
    s.data = all < 2 * FDS_RESERVED ? FDS_RESERVED : all - FDS_RESERVED;
    if (c->control_listen != NULL)
        s.data -= listeners_at_most(s.control, s.data / 2);
    if (c->health_listen != NULL)
        s.data -= listeners_at_most(s.health, s.data / 2);
    if (config_has_upstreams(c))
        s.data = share_upstream(s.data, c);
    if (c->max_connections > 0)
        s.data = c->max_connections;
    return s;
}

static struct http_server_cfg http_server_at(const struct listeners *l,
                                             const struct config_listen *at, const char *boot_id)
{
    const struct config *c = l->config;

    return (struct http_server_cfg){
        .address = at->address,
        .port = at->port,
        .unix_path = at->path[0] != '\0' ? at->path : NULL,
        .n_shards = 1,
        .header_timeout_us = c->header_timeout * 1000,
        .body_timeout_us = c->body_timeout * 1000,
        .idle_timeout_us = c->idle_timeout * 1000,
        .drop_timeout_us = c->body_stall_timeout * 1000,
        .boot_id = boot_id,
        .origins = &l->origins,
    };
}

int listeners_open_health(struct listeners *l, const char *boot_id, struct err *e)
{
    struct http_server_cfg cfg = http_server_at(l, &l->health_at, boot_id);

    if (l->config->health_listen == NULL)
        return 0;
    cfg.n_connections_max = share_descriptors(l->config).health;
    return health_watch_new(&l->health, &cfg, e);
}

static void give_keys(const struct listeners *l, struct http_server_cfg *cfg,
                      struct listener_ctx *listener_ctx)
{
    cfg->app = &app_http_server;
    cfg->app_arg = listener_ctx;
    cfg->trusts = auth_trusts;
    cfg->trusts_arg = l->auth;
    cfg->tls_cert = l->tls.cert;
    cfg->tls_key = l->tls.key;
}

static int open_http_server(struct listeners *l, const char *boot_id, struct err *e)
{
    const struct config *c = l->config;
    struct http_server_cfg cfg = http_server_at(l, &l->at, boot_id);
    struct http_server *made;

    l->listener_ctx = (struct listener_ctx){l->app, l->auth,
                                            ROLES_ANYWHERE | ROLE_BIT(ROLE_GENERATE)};
    if (c->control_listen == NULL)
        l->listener_ctx.roles |= ROLES_CONTROL;
    cfg.n_shards = c->http_server_threads;
    cfg.n_connections_max = share_descriptors(c).data;
    give_keys(l, &cfg, &l->listener_ctx);
    if (http_server_new(&made, &cfg, e) != 0)
        return -1;
    l->app->http_server = made;
    return 0;
}

static int listeners_open_control(struct listeners *l, const char *boot_id, struct err *e)
{
    const struct config *c = l->config;
    struct http_server_cfg cfg = http_server_at(l, &l->control_at, boot_id);
    struct http_server *made;

    if (c->control_listen == NULL)
        return 0;
    l->control_listener_ctx = (struct listener_ctx){l->app, l->auth,
                                                    ROLES_ANYWHERE | ROLES_CONTROL};
    cfg.name = "http-ctl";
    cfg.n_connections_max = share_descriptors(c).control;
    give_keys(l, &cfg, &l->control_listener_ctx);
    if (http_server_new(&made, &cfg, e) != 0)
        return -1;
    l->app->control_http_server = made;
    return 0;
}

static void wipe_tls(struct tls_files *t)
{
    secret_file_free(t->key, t->key_len);
    secret_file_free(t->cert, t->cert_len);
    t->key = t->cert = NULL;
}

/* Warns of settings that are allowed but risky. */
static void listeners_warn(const struct listeners *l)
{
    bool keys = l->config->api_key_file != NULL;
    bool beyond = !l->at.loopback || (l->config->control_listen != NULL && !l->control_at.loopback);

    if (keys && beyond && l->tls.cert == NULL)
        log_line(LOG_WARN, "listen.plain",
                 "keys are sent in clear text; --tls-cert and --tls-key encrypt them");
    if (keys && l->config->no_auth_cidr.n == 0 && auth_n_keys(l->auth, AUTH_CONTROL) == 0)
        log_line(LOG_WARN, "keys.no_control",
                 "there is no control key, so no request can update the weights");
}

/* Opens the control HTTP server first: its requests may run while app->http_server is NULL. */
int listeners_open(struct listeners *l, struct app *app, const char *boot_id, struct err *e)
{
    l->app = app;
    if (listeners_open_control(l, boot_id, e) != 0 || open_http_server(l, boot_id, e) != 0)
        return -1;
    listeners_warn(l);
    wipe_tls(&l->tls);
    return l->health != NULL ? health_watch_start(l->health, app, e) : 0;
}

bool listeners_reload_keys(struct listeners *l, char *text, size_t cap)
{
    struct err e = {0};
    bool changed = false;

    if (auth_reload(l->auth, &changed, &e) != 0) {
        (void)snprintf(text, cap, "kept: %.360s", e.msg);
        return false;
    }
    (void)snprintf(text, cap, "%s: %zu viewer, %zu generate, %zu control, %zu weights",
                   changed ? "changed" : "unchanged", auth_n_keys(l->auth, AUTH_VIEWER),
                   auth_n_keys(l->auth, AUTH_GENERATE), auth_n_keys(l->auth, AUTH_CONTROL),
                   auth_n_keys(l->auth, AUTH_WEIGHTS));
    return true;
}

void listeners_time_text(char *out, size_t cap, int64_t wall_s)
{
    time_t t = (time_t)wall_s;
    struct tm tm;

    if (gmtime_r(&t, &tm) == NULL || strftime(out, cap, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        (void)snprintf(out, cap, "%lld", (long long)wall_s);
}

/* @now  a reference, consumed */
static void use_tls(struct listeners *l, struct tls_identity *now, char *text, size_t cap)
{
    struct tls_identity *before = http_server_tls_identity(l->app->http_server);
    char end[LISTENERS_TIME_MAX];
    int64_t expires_s = tls_identity_expires_s(now);

    http_server_tls_replace(l->app->http_server, now);
    if (l->app->control_http_server != NULL)
        http_server_tls_replace(l->app->control_http_server, now);
    listeners_time_text(end, sizeof end, expires_s);
    (void)snprintf(text, cap, "%s: %s %s", tls_identity_same(before, now) ? "unchanged" : "changed",
                   expires_s > clock_wall_s() ? "it expires at" : "it has expired at", end);
    tls_identity_unref(before);
    tls_identity_unref(now);
}

bool listeners_reload_tls(struct listeners *l, char *text, size_t cap)
{
    struct tls_files files = {0};
    struct tls_identity *now;
    struct err e = {0};
    bool good = read_tls(&files, &now, l->config, &e) == 0;

    if (good)
        use_tls(l, now, text, cap);
    else
        (void)snprintf(text, cap, "kept: %.40s: %.320s", e.field, e.msg);
    wipe_tls(&files);
    return good;
}

void listeners_quiesce(struct listeners *l)
{
    http_server_quiesce(l->app->http_server);
    if (l->app->control_http_server != NULL)
        http_server_quiesce(l->app->control_http_server);
}

bool listeners_wait_idle(struct listeners *l, uint64_t deadline_us)
{
    return http_server_wait_idle(l->app->http_server, deadline_us) &&
           (l->app->control_http_server == NULL ||
            http_server_wait_idle(l->app->control_http_server, deadline_us));
}

void listeners_stop_health(struct listeners *l)
{
    health_watch_stop(l->health);
}

/* Both are stopped before either is freed: a status request to one of them reads both. */
void listeners_close(struct listeners *l)
{
    if (l->app != NULL) {
        http_server_stop(l->app->http_server);
        http_server_stop(l->app->control_http_server);
        http_server_free(l->app->http_server);
        http_server_free(l->app->control_http_server);
        l->app->http_server = NULL;
        l->app->control_http_server = NULL;
    }
    health_watch_free(l->health);
    l->health = NULL;
}

void listeners_fini(struct listeners *l)
{
    wipe_tls(&l->tls);
    auth_free(l->auth);
    l->auth = NULL;
}
