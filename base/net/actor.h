/* The client that sent a request, for log lines and the status: its address, and the name of its
 * key. */
#ifndef BATON_BASE_NET_ACTOR_H
#define BATON_BASE_NET_ACTOR_H

#include "base/log.h"
#include "base/net/trace.h"

#include <sys/socket.h>

enum {
    ACTOR_PEER_MAX = 63, /* "[IPv6 address]:65535" */
    ACTOR_KEY_MAX = 32,
    ACTOR_REQUEST_ID_MAX = TRACE_REQUEST_ID_MAX
};

struct actor {
    char peer[ACTOR_PEER_MAX + 1];             /* "10.0.0.7:41234", "[::1]:41234", "unix:uid=1000";
                                                      "" if no client asked: the first weights */
    char key[ACTOR_KEY_MAX + 1];               /* the key's name, or "sha256:" and eight digits; "":
                                                      none was sent, or none was required */
    char request_id[ACTOR_REQUEST_ID_MAX + 1]; /* X-Request-Id */
    char trace_id[TRACE_ID_LEN + 1];           /* "": its client sent no traceparent */
    char span_id[TRACE_SPAN_ID_LEN + 1];       /* of the request in this server; or "" */
};

/* actor_set_peer - write the address of an accepted socket.
 * @fd  of a unix socket: its peer's user is written. Threads: any. Blocks: no. */
void actor_set_peer(struct actor *out, const struct sockaddr *peer, int fd);

/* actor_is_same_host - do both have the same address, whatever the port, and the same key? */
bool actor_is_same_host(const struct actor *a, const struct actor *b);

/* log_actor - add the members request_id, trace_id, span_id, peer and key, those that are not "".
 */
void log_actor(struct log_rec *r, const struct actor *a);

#endif
