/* A peer on a socket that answers every connection with one text. */
#ifndef BATON_TESTS_UNIT_FLEET_UPSTREAM_PEER_H
#define BATON_TESTS_UNIT_FLEET_UPSTREAM_PEER_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* A peer reads the head of a request and sends `says`; NULL: it sends nothing until the client
 * closes. */
struct peer {
    int fd;
    const char *says;
    char url[64];
    pthread_t thread;
};

static inline void *peer_main(void *arg)
{
    struct peer *p = arg;
    char text[4096];
    int fd;

    while ((fd = accept(p->fd, NULL, NULL)) >= 0) {
        ssize_t n = recv(fd, text, sizeof text, 0);

        if (n > 0 && p->says != NULL)
            (void)send(fd, p->says, strlen(p->says), MSG_NOSIGNAL);
        while (p->says == NULL && n > 0)
            n = recv(fd, text, sizeof text, 0);
        (void)close(fd);
    }
    return NULL;
}

static inline void peer_listen(struct peer *p)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;

    p->fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(p->fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(p->fd, 16), 0);
    assert_int_equal(getsockname(p->fd, (struct sockaddr *)&a, &len), 0);
    (void)snprintf(p->url, sizeof p->url, "http://127.0.0.1:%d", ntohs(a.sin_port));
}

static inline void peer_start(struct peer *p, const char *says)
{
    p->says = says;
    peer_listen(p);
    assert_int_equal(pthread_create(&p->thread, NULL, peer_main, p), 0);
}

static inline void peer_stop(struct peer *p)
{
    (void)shutdown(p->fd, SHUT_RDWR);
    assert_int_equal(pthread_join(p->thread, NULL), 0);
    (void)close(p->fd);
}

#endif
