/* The client of a request as text. */
#include "base/net/actor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static void set_unix_peer(struct actor *out, int fd)
{
    struct ucred who;
    socklen_t len = sizeof who;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0)
        (void)snprintf(out->peer, sizeof out->peer, "unix:uid=%u", (unsigned)who.uid);
    else
        (void)snprintf(out->peer, sizeof out->peer, "unix");
}

void actor_set_peer(struct actor *out, const struct sockaddr *peer, int fd)
{
    char text[INET6_ADDRSTRLEN] = "?";

    if (peer->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)peer;

        (void)inet_ntop(AF_INET, &in->sin_addr, text, sizeof text);
        (void)snprintf(out->peer, sizeof out->peer, "%s:%u", text, ntohs(in->sin_port));
    } else if (peer->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const void *)peer;

        (void)inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof text);
        (void)snprintf(out->peer, sizeof out->peer, "[%s]:%u", text, ntohs(in->sin6_port));
    } else {
        set_unix_peer(out, fd);
    }
}

/* Without the port; a unix socket has none. */
static size_t host_len(const struct actor *a)
{
    const char *port = strncmp(a->peer, "unix", 4) != 0 ? strrchr(a->peer, ':') : NULL;

    return port != NULL ? (size_t)(port - a->peer) : strlen(a->peer);
}

bool actor_is_same_host(const struct actor *a, const struct actor *b)
{
    size_t len = host_len(a);

    return len == host_len(b) && memcmp(a->peer, b->peer, len) == 0 && strcmp(a->key, b->key) == 0;
}

static const char *actor_text_or_null(const char *text)
{
    return text[0] != '\0' ? text : NULL;
}

void log_actor(struct log_rec *r, const struct actor *a)
{
    log_str(r, "request_id", actor_text_or_null(a->request_id));
    log_str(r, "trace_id", actor_text_or_null(a->trace_id));
    log_str(r, "span_id", actor_text_or_null(a->span_id));
    log_str(r, "peer", actor_text_or_null(a->peer));
    log_str(r, "key", actor_text_or_null(a->key));
}
