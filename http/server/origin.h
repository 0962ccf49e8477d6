/* Which requests of web pages are served.
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
 *   Origin  The page is of this server itself or of --allow-origin. There are no exemptions: a
 *           proxy may add a key to whatever a page sends. Without Origin, which a browser omits
 *           when it loads an image, Sec-Fetch-Site must not name another site.
 *
 * Over plain HTTP beyond loopback a browser sends no Sec-Fetch-Site, and its GET without Origin may
 * come from an image on any page or from the address bar. So where a GET changes something, as
 * SGLang's /flush_cache does, a GET whose User-Agent is a browser's must have one of the two
 * headers. There are no exemptions from that either.
 *
 * Programs other than browsers send neither Origin nor Sec-Fetch-Site. X-Forwarded-Host is not
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

/* origin_rules_check - can each entry of both lists ever match?
 * Errors: ERR_BAD_REQUEST; field is --allowed-host or --allow-origin. */
int origin_rules_check(const struct origin_rules *rules, struct err *e);

/* The headers of a request; borrowed. NULL: it has no such header. */
struct origin_request {
    const char *host, *origin, *fetch_site; /* Host, Origin, Sec-Fetch-Site */
    const char *user_agent;                 /* User-Agent */
    /* Of a preflight: Access-Control-Request-Method, -Headers, -Private-Network. */
    const char *asks_method, *asks_headers, *asks_private_network;
    const char *repeated;      /* name of one of these that came twice, not User-Agent; or NULL */
    const char *target;        /* as it came: "/path", "http://host/path" */
    const char *authorization; /* "" without one */
    bool tls, unix_socket;
    bool trusted; /* the peer needs no key (--no-auth-cidr) */
    bool options; /* its method */
};

/* origin_header - store the value if the header is one of the above. The first of each is stored; a
 * request with a second one is to be refused (`repeated`): a proxy may have judged by that. */
void origin_header(struct origin_request *q, const char *name, const char *value);

/* origin_check - may this request be served?
 *
 * Threads: any; as knows_key. Blocks: no. Allocates nothing.
 * Errors: ERR_MISDIRECTED  the rule of Host
 *         ERR_FORBIDDEN    the rule of Origin */
int origin_check(const struct origin_rules *rules, const struct origin_request *q, struct err *e);

/* origin_check_act - may this GET, which has passed origin_check, change something?
 *
 * Threads: any. Blocks: no. Allocates nothing.
 * Errors: ERR_FORBIDDEN  it is a browser's and does not name the page that made it */
int origin_check_act(const struct origin_request *q, struct err *e);

/* origin_is_preflight - does a browser ask whether a page of --allow-origin may send its request?
 * Such a preflight carries no key; its answer is the headers below alone. */
bool origin_is_preflight(const struct origin_rules *rules, const struct origin_request *q);

struct origin_answer_header {
    const char *name, *value;
};

/* origin_answer - make the headers that let the page read an answer: none without --allow-origin.
 * Returns how many; values are static or the request's. */
size_t origin_answer(const struct origin_rules *rules, const struct origin_request *q,
                     struct origin_answer_header out[ORIGIN_ANSWER_HEADERS_MAX]);

#endif
