/* What the configuration says about what may be fetched, checked at the start. */
#include "base/utf8.h"
#include "http/client/http.h"
#include "transport/fetch_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX_OPTION "--fetch-prefix"

/* Addresses that no public server has. */
static const char *const private_blocks[] = {
    "0.0.0.0/8",     "10.0.0.0/8",      "100.64.0.0/10",  "127.0.0.0/8",    "169.254.0.0/16",
    "172.16.0.0/12", "192.0.0.0/24",    "192.0.2.0/24",   "192.88.99.0/24", "192.168.0.0/16",
    "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",    "::/3",
    "2001::/32",     "2002::/16",       "4000::/2",       "8000::/1"};

bool fetch_is_url(const char *text)
{
    size_t len = strcspn(text, ":/");

    return len > 0 && strncmp(text + len, "://", 3) == 0;
}

/* What a URL would say otherwise than a path does is refused instead of being escaped. */
bool fetch_path_is_plain(const char *path)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/@:,=";
    bool ok = path[strspn(path, plain)] == '\0';

    while (ok && *path != '\0') {
        size_t len;

        path += *path == '/';
        len = strcspn(path, "/");
        ok = strspn(path, ".") < len;
        path += len;
    }
    return ok;
}

/* The length without '/' at the end. */
static size_t length_of(const char *text, size_t len)
{
    while (len > 0 && text[len - 1] == '/')
        len--;
    return len;
}

static int prefix_read(struct fetch_prefix *p, const char *text, struct err *e)
{
    const char *equals = strchr(text, '='), *to = equals != NULL ? equals + 1 : text;
    const char *host = strstr(to, "://"), *path;

    if (!fetch_is_url(text) || host == NULL ||
        (strncmp(to, "https://", 8) != 0 && strncmp(to, "http://", 7) != 0))
        return err_set(e, ERR_BAD_REQUEST, PREFIX_OPTION,
                       "'%.200s' is neither https://HOST/PATH nor PREFIX=URL, as "
                       "gs://BUCKET=https://HOST/BUCKET",
                       text);
    path = strchrnul(host + 3, '/');
    p->from = strndup(text,
                      length_of(text, equals != NULL ? (size_t)(equals - text) : strlen(text)));
    p->url = strndup(to, (size_t)(path - to));
    p->path = strndup(path, length_of(path, strlen(path)));
    if (p->from == NULL || p->url == NULL || p->path == NULL)
        return err_set(e, ERR_NO_MEMORY, PREFIX_OPTION, "no memory for a prefix");
    if (!fetch_path_is_plain(p->path))
        return fetch_refuse_path(PREFIX_OPTION, to, e);
    return http_target_check(p->url, PREFIX_OPTION, e);
}

int fetch_refuse_path(const char *field, const char *path, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, field,
                   "'%.*s' has a part that is empty, '.' or '..', or a character that is not one "
                   "of letters, digits and -._~@:,=",
                   utf8_cut(path, 200), path);
}

int fetch_rules_new(struct fetch_rules **out, const struct fetch_cfg *cfg, struct err *e)
{
    struct fetch_rules *r = calloc(1, sizeof *r);
    size_t n = sizeof private_blocks / sizeof private_blocks[0];
    int rc = 0;

    if (r != NULL)
        r->prefixes = calloc(cfg->n_prefixes + 1, sizeof *r->prefixes);
    if (r == NULL || r->prefixes == NULL) {
        free(r);
        return err_set(e, ERR_NO_MEMORY, PREFIX_OPTION, "no memory for prefixes");
    }
    r->cfg = *cfg;
    if (cfg->ca_file != NULL && access(cfg->ca_file, R_OK) != 0)
        rc = err_set_errno(e, ERR_BAD_REQUEST, "--fetch-ca-file", errno, "'%.200s' cannot be read",
                           cfg->ca_file);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = cidr_list_add(&r->private, private_blocks[i], "", e);
    for (size_t i = 0; rc == 0 && i < cfg->n_cidrs; i++)
        rc = cidr_list_add(&r->allowed, cfg->cidrs[i], "--fetch-cidr", e);
    for (size_t i = 0; rc == 0 && i < cfg->n_prefixes; i++)
        rc = prefix_read(&r->prefixes[i], cfg->prefixes[i], e);
    if (rc == 0 && cfg->n_prefixes > 0)
        rc = http_init(e);
    if (rc != 0) {
        fetch_rules_free(r);
        return -1;
    }
    *out = r;
    return 0;
}

void fetch_rules_free(struct fetch_rules *r)
{
    if (r == NULL)
        return;
    for (size_t i = 0; i < r->cfg.n_prefixes; i++) {
        free(r->prefixes[i].from);
        free(r->prefixes[i].url);
        free(r->prefixes[i].path);
    }
    free(r->prefixes);
    free(r);
}

bool fetch_address_allowed(const void *rules, const struct sockaddr *addr)
{
    const struct fetch_rules *r = rules;

    return cidr_list_match(&r->allowed, addr) || !cidr_list_match(&r->private, addr);
}

const struct fetch_prefix *fetch_prefix_of(const struct fetch_rules *r, const char *url,
                                           const char **rest)
{
    const struct fetch_prefix *found = NULL;
    size_t longest = 0;

    for (size_t i = 0; r != NULL && i < r->cfg.n_prefixes; i++) {
        size_t len = strlen(r->prefixes[i].from);

        if (len <= longest || strncmp(url, r->prefixes[i].from, len) != 0 ||
            (url[len] != '/' && url[len] != '\0'))
            continue;
        longest = len;
        *rest = url + len;
        found = &r->prefixes[i];
    }
    return found;
}
