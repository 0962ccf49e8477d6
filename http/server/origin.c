#include "http/server/origin.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char name_bytes[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._";

/* "*", "*.suffix", or a name without port. */
static int origin_check_host(const char *entry, struct err *e)
{
    const char *name = strncmp(entry, "*.", 2) == 0 ? entry + 2 : entry;
    size_t len = strspn(name, name_bytes);

    if (strcmp(entry, "*") == 0)
        return 0;
    if (name[len] == '\0' && len > 0 && len <= ORIGIN_HOST_LEN_MAX && name[0] != '.' &&
        name[len - 1] != '.')
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "--allowed-host",
                   "'%.100s' is not the name of a host; expected NAME without a port, *.SUFFIX, or "
                   "* for any (addresses need no entry)",
                   entry);
}

static bool origin_ends_in(const char *text, const char *suffix)
{
    size_t len = strlen(text), n = strlen(suffix);

    return len >= n && strcmp(text + len - n, suffix) == 0;
}

/* As a browser writes it: one that is written otherwise would never match. */
static int check_origin(const char *entry, struct err *e)
{
    const char *host = strstr(entry, "://");
    bool http = strncasecmp(entry, "http://", 7) == 0;
    bool https = strncasecmp(entry, "https://", 8) == 0;

    if (strcmp(entry, "*") == 0)
        return 0;
    if (host != NULL && host > entry && strlen(entry) <= ORIGIN_LEN_MAX && host[3] != '\0' &&
        strpbrk(host + 3, "/?#@*, ") == NULL && !(http && origin_ends_in(entry, ":80")) &&
        !(https && origin_ends_in(entry, ":443")))
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "--allow-origin",
                   "'%.100s' is not an origin; expected SCHEME://HOST or SCHEME://HOST:PORT as a "
                   "browser writes it, without a path and without the scheme's own port, or * for "
                   "any",
                   entry);
}

int origin_rules_check(const struct origin_rules *rules, struct err *e)
{
    for (size_t i = 0; i < rules->n_hosts; i++)
        if (origin_check_host(rules->hosts[i], e) != 0)
            return -1;
    for (size_t i = 0; i < rules->n_origins; i++)
        if (check_origin(rules->origins[i], e) != 0)
            return -1;
    return 0;
}

void origin_header(struct origin_request *q, const char *name, const char *value)
{
    const struct {
        const char *name;
        const char **slot;
    } rows[] = {
        {"Host", &q->host},
        {"Origin", &q->origin},
        {"Sec-Fetch-Site", &q->fetch_site},
        {"User-Agent", &q->user_agent},
        {"Access-Control-Request-Method", &q->asks_method},
        {"Access-Control-Request-Headers", &q->asks_headers},
        {"Access-Control-Request-Private-Network", &q->asks_private_network},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcasecmp(rows[i].name, name) != 0)
            continue;
        if (*rows[i].slot == NULL)
            *rows[i].slot = value;
        else if (rows[i].slot != &q->user_agent)
            q->repeated = rows[i].name;
    }
}

/* ---- Host ---- */

/* The name in "name", "name:port", "[address]" or "[address]:port", without the dot that may end it
 * (of an address "[" stays before it); NULL: it is none of these. */
static const char *host_name(char out[ORIGIN_HOST_LEN_MAX + 1], const char *text, size_t len)
{
    bool bracket = len > 0 && text[0] == '[';
    const char *end = memchr(text, bracket ? ']' : ':', len), *rest;
    size_t n;

    if (bracket && end == NULL)
        return NULL;
    rest = end == NULL ? text + len : end + bracket;
    n = end == NULL ? len : (size_t)(end - text);
    if (rest < text + len && *rest++ != ':')
        return NULL;
    for (; rest < text + len; rest++)
        if (*rest < '0' || *rest > '9')
            return NULL;
    if (!bracket && n > 0 && text[n - 1] == '.')
        n--;
    if (n == 0 || n > ORIGIN_HOST_LEN_MAX)
        return NULL;
    memcpy(out, text, n);
    out[n] = '\0';
    return out;
}

/* "192.0.2.1"; "[2001:db8::1" and "[fe80::1%eth0", whose closing bracket host_name took. */
static bool is_address(const char *name)
{
    char text[INET6_ADDRSTRLEN];
    struct in6_addr a6;
    struct in_addr a4;
    size_t len;

    if (name[0] != '[')
        return inet_pton(AF_INET, name, &a4) == 1;
    len = strcspn(++name, "%");
    if (len >= sizeof text)
        return false;
    memcpy(text, name, len);
    text[len] = '\0';
    return inet_pton(AF_INET6, text, &a6) == 1;
}

/* Does `pattern` ("*", "*.suffix" or a name) fit? */
static bool host_fits(const char *pattern, const char *name)
{
    size_t len = strlen(name), n = strlen(pattern);

    if (pattern[0] != '*')
        return strcasecmp(pattern, name) == 0;
    /* of "*.suffix", the dot and the rest */
    return n == 1 || (len > n - 1 && strcasecmp(name + len - (n - 1), pattern + 1) == 0);
}

static int check_origin_name(const struct origin_rules *rules, const char *text, size_t len,
                             struct err *e)
{
    char buffer[ORIGIN_HOST_LEN_MAX + 1];
    const char *name = host_name(buffer, text, len);
    bool good = name != NULL && (is_address(name) || host_fits("localhost", name) ||
                                 host_fits("*.localhost", name));

    for (size_t i = 0; name != NULL && !good && i < rules->n_hosts; i++)
        good = host_fits(rules->hosts[i], name);
    if (good)
        return 0;
    if (name == NULL || name[strspn(name, name_bytes)] != '\0')
        return err_set(e, ERR_MISDIRECTED, "",
                       "the request is for host '%.*s', which is no name; send the server's "
                       "address or name as Host",
                       (int)(len < 100 ? len : 100), text);
    return err_set(e, ERR_MISDIRECTED, "",
                   "the request is for host '%.100s', and this server answers, without a key, to "
                   "its address, to localhost and to the names of --allowed-host: if it has that "
                   "name, start it with --allowed-host %.100s",
                   name, name);
}

/* The host of "http://host/path"; NULL: the target is a path. */
static const char *origin_authority_of(const char *target, size_t *len)
{
    const char *colon = strstr(target, "://");

    if (target[0] == '/' || colon == NULL)
        return NULL;
    *len = strcspn(colon + 3, "/?");
    return colon + 3;
}

/* If the target has a host, it and the Host header are both checked: a proxy may use either. */
static int check_hosts(const struct origin_rules *rules, const struct origin_request *q,
                       struct err *e)
{
    size_t len = 0;
    const char *authority = origin_authority_of(q->target, &len);

    if (authority != NULL && check_origin_name(rules, authority, len, e) != 0)
        return -1;
    return q->host != NULL ? check_origin_name(rules, q->host, strlen(q->host), e) : 0;
}

/* ---- Origin ---- */

/* What the answer calls the origin that --allow-origin allows: itself, or "*"; NULL: it does not.
 */
static const char *allowed_as(const struct origin_rules *rules, const char *origin)
{
    for (size_t i = 0; origin != NULL && i < rules->n_origins; i++) {
        if (strcmp(rules->origins[i], "*") == 0)
            return "*";
        if (strcasecmp(rules->origins[i], origin) == 0)
            return origin;
    }
    return NULL;
}

/* Is the page of this very server? */
static bool is_own(const struct origin_request *q)
{
    const char *scheme = q->tls ? "https://" : "http://";
    size_t len = strlen(scheme);

    return q->host != NULL && strncasecmp(q->origin, scheme, len) == 0 &&
           strcasecmp(q->origin + len, q->host) == 0;
}

/* "none": a person opened it. */
static bool is_same_site(const char *fetch_site)
{
    return fetch_site == NULL || strcmp(fetch_site, "same-origin") == 0 ||
           strcmp(fetch_site, "none") == 0;
}

static int check_origins(const struct origin_rules *rules, const struct origin_request *q,
                         struct err *e)
{
    if (allowed_as(rules, q->origin) != NULL)
        return 0;
    if (q->origin != NULL && strcmp(q->origin, "null") == 0)
        return err_set(e, ERR_FORBIDDEN, "",
                       "a web page without an origin of its own (Origin: null) may not use this "
                       "server; serve the page from an origin that --allow-origin names");
    if (q->origin != NULL && !is_own(q))
        return err_set(e, ERR_FORBIDDEN, "",
                       "web pages of '%.100s' may not use this server; if they should, start it "
                       "with --allow-origin %.100s",
                       q->origin, q->origin);
    if (!is_same_site(q->fetch_site))
        return err_set(e, ERR_FORBIDDEN, "",
                       "a web page of another site made this request (Sec-Fetch-Site: %.32s); open "
                       "the address itself, or use fetch() on a page that --allow-origin names",
                       q->fetch_site);
    return 0;
}

/* A server with keys serves only public routes without one: the rule would hide from a client that
 * its key is wrong. A peer of --no-auth-cidr needs no key, so a page in its browser neither.
 */
static bool is_exempt_from_host(const struct origin_rules *rules, const struct origin_request *q)
{
    if (q->unix_socket)
        return true;
    if (rules->knows_key == NULL)
        return false;
    return !q->trusted || rules->knows_key(rules->knows_key_arg, q->authorization);
}

int origin_check(const struct origin_rules *rules, const struct origin_request *q, struct err *e)
{
    if (!is_exempt_from_host(rules, q) && check_hosts(rules, q, e) != 0)
        return -1;
    return check_origins(rules, q, e);
}

/* All browsers begin it so. */
static bool is_browser(const struct origin_request *q)
{
    static const char begins[] = "Mozilla/";

    return q->user_agent != NULL && strncasecmp(q->user_agent, begins, sizeof begins - 1) == 0;
}

int origin_check_act(const struct origin_request *q, struct err *e)
{
    if (q->origin != NULL || q->fetch_site != NULL || !is_browser(q))
        return 0;
    return err_set(e, ERR_FORBIDDEN, "",
                   "a browser made this request and does not say for what page (it has neither "
                   "Origin nor Sec-Fetch-Site): what acts is not done for it by a GET; send it "
                   "with another User-Agent, or open the server by https or on loopback");
}

bool origin_is_preflight(const struct origin_rules *rules, const struct origin_request *q)
{
    return q->options && q->asks_method != NULL && allowed_as(rules, q->origin) != NULL;
}

size_t origin_answer(const struct origin_rules *rules, const struct origin_request *q,
                     struct origin_answer_header out[ORIGIN_ANSWER_HEADERS_MAX])
{
    const char *allowed = allowed_as(rules, q->origin);
    size_t n = 0;

    if (rules->n_origins == 0)
        return 0;
    out[n++] = (struct origin_answer_header){"Vary", "Origin"};
    if (allowed == NULL)
        return n;
    out[n++] = (struct origin_answer_header){"Access-Control-Allow-Origin", allowed};
    if (!origin_is_preflight(rules, q)) {
        out[n++] = (struct origin_answer_header){"Access-Control-Expose-Headers", "*"};
        return n;
    }
    out[n++] = (struct origin_answer_header){"Access-Control-Allow-Methods",
                                             "GET, HEAD, POST, PUT, DELETE"};
    if (q->asks_headers != NULL && strlen(q->asks_headers) <= ORIGIN_ASKED_HEADERS_LEN_MAX)
        out[n++] = (struct origin_answer_header){"Access-Control-Allow-Headers", q->asks_headers};
    out[n++] = (struct origin_answer_header){"Access-Control-Max-Age", "600"};
    if (q->asks_private_network != NULL)
        out[n++] = (struct origin_answer_header){"Access-Control-Allow-Private-Network", "true"};
    return n;
}
