/* Requests that a web page makes: which of them are served.
 *
 * A browser sends whatever a page asks for, to a server on the loopback interface too, and lets
 * the page read the answer where the page's own name resolves to that server (DNS rebinding). Two
 * rules, which hold on every route of every listener, before anything else looks at a request:
 *
 *   Host    The request names this server by an address, by localhost (or *.localhost) or by a
 *           name of --allowed-host, with or without a port. Exempt are requests over a unix
 *           socket, which no browser reaches, and, where the server has keys, those that have one
 *           of them or need one: a page has none, and reads only what is public. Not exempt is a
 *           peer of --no-auth-cidr without a key. A request of HTTP/1.0 without Host names nothing.
 *   Origin  The page is of this server itself or of --allow-origin. Nothing exempts: a proxy may
 *           add a key to whatever a page sends. Without Origin, which a browser leaves out of an
 *           image's request, Sec-Fetch-Site must not tell of another site.
 *
 * Over plain HTTP beyond loopback a browser sends no Sec-Fetch-Site, and its GET without Origin may
 * be an image's of any page or what a person typed. So where a GET acts, as SGLang's /flush_cache
 * does, one whose User-Agent is a browser's must have one of both. Nothing exempts from that.
 *
 * Programs that are no browser send neither Origin nor Sec-Fetch-Site. X-Forwarded-Host is not
 * read: anyone can send it. */
#ifndef BATON_HTTP_SERVER_ORIGIN_H
#define BATON_HTTP_SERVER_ORIGIN_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    ORIGIN_HOST_LEN_MAX = 255,
    ORIGIN_LEN_MAX = 300,                /* of an entry of --allow-origin */
    ORIGIN_ASKED_HEADERS_LEN_MAX = 1024, /* of a preflight; more are not allowed */
    ORIGIN_ANSWER_HEADERS_MAX = 6
};

/* Immutable once read; a zeroed one allows no name and no other origin. */
struct origin_rules {
    const char *const *hosts; /* [n_hosts], of --allowed-host */
    size_t n_hosts;
    const char *const *origins; /* [n_origins], of --allow-origin */
    size_t n_origins;
    /* Is this one of the server's keys? A request with one is exempt from the rule of Host.
     * NULL: the server has no keys, so none is. */
    bool (*knows_key)(void *arg, const char *authorization);
    void *knows_key_arg; /* borrowed */
};

/* origin_rules_check - are the entries of both lists such as can ever match?
 * Errors: ERR_BAD_REQUEST; field is --allowed-host or --allow-origin. */
int origin_rules_check(const struct origin_rules *rules, struct err *e);

/* What a request says; borrowed. NULL: it has no such header. */
struct origin_request {
    const char *host, *origin, *fetch_site; /* Host, Origin, Sec-Fetch-Site */
    const char *user_agent;                 /* User-Agent */
    /* Of a preflight: Access-Control-Request-Method, -Headers, -Private-Network. */
    const char *asks_method, *asks_headers, *asks_private_network;
    const char *target;        /* as it came: "/path", "http://host/path" */
    const char *authorization; /* "" without one */
    bool tls, unix_socket;
    bool trusted; /* the peer needs no key (--no-auth-cidr) */
    bool options; /* its method */
};

/* origin_header - keep the value, if the header is one of the above. The first of each counts. */
void origin_header(struct origin_request *q, const char *name, const char *value);

/* origin_check - may this request be served?
 *
 * Threads: any; as knows_key. Blocks: no. Allocates nothing.
 * Errors: ERR_MISDIRECTED  the rule of Host
 *         ERR_FORBIDDEN    the rule of Origin */
int origin_check(const struct origin_rules *rules, const struct origin_request *q, struct err *e);

/* origin_check_act - may this GET, which origin_check let pass, act?
 *
 * Threads: any. Blocks: no. Allocates nothing.
 * Errors: ERR_FORBIDDEN  a browser's, which does not say what page made it */
int origin_check_act(const struct origin_request *q, struct err *e);

/* origin_is_preflight - is it a browser's question whether a page of --allow-origin may send what
 * it wants to? It carries no key, and is answered with the headers below alone. */
bool origin_is_preflight(const struct origin_rules *rules, const struct origin_request *q);

struct origin_answer_header {
    const char *name, *value;
};

/* origin_answer - the headers that let the page read an answer: none without --allow-origin.
 * Returns how many; values are static or the request's. */
size_t origin_answer(const struct origin_rules *rules, const struct origin_request *q,
                     struct origin_answer_header out[ORIGIN_ANSWER_HEADERS_MAX]);

#endif
