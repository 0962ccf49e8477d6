/* Name resolution, on threads that may outlive the call. */
#include "base/net/resolve.h"

#include "base/clock.h"
#include "base/net/poll_wait.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { PORT_TEXT_CAP = 6 };

/* Shared by the caller and the thread; the last one frees it. */
struct resolve_lookup {
    char host[RESOLVE_NAME_LEN_MAX + 1]; /* immutable down to event_fd */
    char port[PORT_TEXT_CAP];
    int family;   /* asked for first; AF_INET: then for the other, if there is none */
    int event_fd; /* owned; counts up when done */

    int rc, errnum;         /* the thread's; published by `done` */
    struct addrinfo *found; /* owned; as above */

    atomic_bool done;  /* release by the thread, acquire by the caller */
    atomic_int n_refs; /* acquire-release: the last one out sees all writes */
};

/* Look-ups that have not returned yet; relaxed: only a bound. */
static atomic_uint n_running;

static void lookup_unref(struct resolve_lookup *l)
{
    if (atomic_fetch_sub_explicit(&l->n_refs, 1, memory_order_acq_rel) != 1)
        return;
    if (l->found != NULL)
        freeaddrinfo(l->found);
    (void)close(l->event_fd);
    free(l);
}

static int resolver_ask(struct addrinfo **found, const char *host, const char *port, int family,
                        int flags)
{
    struct addrinfo hints = {
        .ai_family = family, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};

    return getaddrinfo(host, port, &hints, found);
}

static bool has_no_address(int rc)
{
    return rc == EAI_NONAME || rc == EAI_NODATA || rc == EAI_ADDRFAMILY;
}

static void *lookup_main(void *arg)
{
    struct resolve_lookup *l = arg;
    uint64_t one = 1;

    l->rc = resolver_ask(&l->found, l->host, l->port, l->family, 0);
    if (has_no_address(l->rc) && l->family == AF_INET)
        l->rc = resolver_ask(&l->found, l->host, l->port, AF_INET6, 0);
    l->errnum = errno;
    atomic_store_explicit(&l->done, true, memory_order_release);
    (void)!write(l->event_fd, &one, sizeof one); /* a fresh counter has room for it */
    lookup_unref(l);
    (void)atomic_fetch_sub_explicit(&n_running, 1, memory_order_relaxed);
    return NULL;
}

/* @event_fd  moved in */
static int lookup_new(struct resolve_lookup **out, const char *host, uint16_t port, int family,
                      int event_fd, struct err *e)
{
    struct resolve_lookup *l = calloc(1, sizeof *l);

    if (event_fd < 0) {
        free(l);
        return err_set_errno(e, ERR_INTERNAL, "", errno, "cannot look up a host name");
    }
    if (l == NULL) {
        (void)close(event_fd);
        return err_set(e, ERR_NO_MEMORY, "", "no memory to look up a host name");
    }
    l->family = family;
    l->event_fd = event_fd;
    (void)snprintf(l->host, sizeof l->host, "%s", host);
    (void)snprintf(l->port, sizeof l->port, "%u", port);
    atomic_init(&l->done, false);
    atomic_init(&l->n_refs, 1);
    *out = l;
    return 0;
}

static int lookup_start(struct resolve_lookup *l, struct err *e)
{
    pthread_attr_t attr;
    pthread_t thread;
    int rc;

    if (atomic_fetch_add_explicit(&n_running, 1, memory_order_relaxed) >= RESOLVE_RUNNING_MAX) {
        (void)atomic_fetch_sub_explicit(&n_running, 1, memory_order_relaxed);
        return err_set(e, ERR_OVERLOADED, "",
                       "%d look-ups of host names have not returned yet; a numeric address needs "
                       "none",
                       (int)RESOLVE_RUNNING_MAX);
    }
    (void)atomic_fetch_add_explicit(&l->n_refs, 1, memory_order_relaxed);
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    rc = pthread_create(&thread, &attr, lookup_main, l);
    (void)pthread_attr_destroy(&attr);
    if (rc != 0) {
        lookup_unref(l);
        (void)atomic_fetch_sub_explicit(&n_running, 1, memory_order_relaxed);
        return err_set_errno(e, ERR_INTERNAL, "", rc, "cannot start a thread for a look-up");
    }
    return 0;
}

static int resolver_refuse(const char *host, int rc, int errnum, const char *field, struct err *e)
{
    if (has_no_address(rc))
        return err_set(e, ERR_BAD_REQUEST, field, "host '%s' has no address: %s", host,
                       gai_strerror(rc));
    if (rc == EAI_MEMORY)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to look up a host name");
    if (rc == EAI_SYSTEM)
        return err_set_errno(e, ERR_UNREADABLE, field, errnum, "host '%s' cannot be looked up",
                             host);
    return err_set(e, ERR_UNREADABLE, field, "host '%s' cannot be looked up: %s", host,
                   gai_strerror(rc));
}

static int copy_out(struct resolve_addrs *out, const char *host, const struct addrinfo *found,
                    const char *field, struct err *e)
{
    struct resolve_addrs all = {0};

    for (const struct addrinfo *a = found; a != NULL && all.n < RESOLVE_ADDRS_MAX; a = a->ai_next) {
        struct resolve_addr *to = &all.items[all.n];
        if ((a->ai_family != AF_INET && a->ai_family != AF_INET6) ||
            a->ai_addrlen > sizeof to->addr)
            continue;
        memcpy(&to->addr, a->ai_addr, a->ai_addrlen);
        to->len = a->ai_addrlen;
        all.n++;
    }
    if (all.n == 0)
        return err_set(e, ERR_BAD_REQUEST, field, "host '%s' has no IP address", host);
    *out = all;
    return 0;
}

static int look_up(struct resolve_addrs *out, const char *host, uint16_t port, const char *field,
                   const struct progress *p, struct err *e)
{
    struct resolve_lookup *l = NULL;
    enum poll_end end;
    int rc = -1;

    if (lookup_new(&l, host, port, AF_UNSPEC, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), e) != 0)
        return -1;
    if (lookup_start(l, e) != 0)
        goto unref;
    end = poll_wait(l->event_fd, POLLIN, CLOCK_NEVER, p);
    if (atomic_load_explicit(&l->done, memory_order_acquire))
        rc = l->rc != 0 ? resolver_refuse(host, l->rc, l->errnum, field, e)
                        : copy_out(out, host, l->found, field, e);
    else
        rc = poll_refuse(end, field, e, "host '%s' was looked up", host);
unref:
    lookup_unref(l);
    return rc;
}

int resolve_host(struct resolve_addrs *out, const char *host, uint16_t port, const char *field,
                 const struct progress *p, struct err *e)
{
    size_t len = strnlen(host, RESOLVE_NAME_LEN_MAX + 1);
    char port_text[PORT_TEXT_CAP];
    struct addrinfo *found = NULL;
    int rc;

    if (len == 0 || len > RESOLVE_NAME_LEN_MAX)
        return err_set(e, ERR_BAD_REQUEST, field, "a host has 1 to %d characters",
                       (int)RESOLVE_NAME_LEN_MAX);
    for (size_t i = 0; i < len; i++)
        if (host[i] <= ' ' || host[i] > '~')
            return err_set(e, ERR_BAD_REQUEST, field,
                           "byte 0x%02x at %zu does not belong into a host name or address",
                           (unsigned char)host[i], i);
    (void)snprintf(port_text, sizeof port_text, "%u", port);
    if (resolver_ask(&found, host, port_text, AF_UNSPEC, AI_NUMERICHOST) != 0)
        return look_up(out, host, port, field, p, e);
    rc = copy_out(out, host, found, field, e);
    freeaddrinfo(found);
    return rc;
}

/* all of a name, without waiting */

int resolve_start(struct resolve_lookup **out, const char *host, uint16_t port, int event_fd,
                  struct err *e)
{
    struct resolve_lookup *l;

    if (lookup_new(&l, host, port, AF_INET, fcntl(event_fd, F_DUPFD_CLOEXEC, 0), e) != 0)
        return -1;
    if (lookup_start(l, e) != 0) {
        lookup_unref(l);
        return -1;
    }
    *out = l;
    return 0;
}

bool resolve_ended(const struct resolve_lookup *l)
{
    return atomic_load_explicit(&l->done, memory_order_acquire);
}

bool resolve_has(const struct resolve_all *all, const char *address)
{
    for (size_t i = 0; i < all->n; i++)
        if (strcmp(all->items[i], address) == 0)
            return true;
    return false;
}

static int add_address(struct resolve_all *out, const struct addrinfo *a, struct err *e)
{
    char text[CIDR_ADDR_TEXT_CAP];

    if (a->ai_family != AF_INET && a->ai_family != AF_INET6)
        return 0;
    if (resolve_has(out, cidr_addr_text(a->ai_addr, text)))
        return 0;
    if (out->n == RESOLVE_ALL_MAX)
        return err_set(e, ERR_TOO_LARGE, "", "the name has more than %d addresses",
                       (int)RESOLVE_ALL_MAX);
    memcpy(out->items[out->n++], text, sizeof text);
    return 0;
}

int resolve_take(const struct resolve_lookup *l, struct resolve_all *out, struct err *e)
{
    out->n = 0;
    if (l->rc != 0)
        return resolver_refuse(l->host, l->rc, l->errnum, "", e);
    for (const struct addrinfo *a = l->found; a != NULL; a = a->ai_next)
        if (add_address(out, a, e) != 0)
            return -1;
    return out->n > 0 ? 0 : err_set(e, ERR_BAD_REQUEST, "", "host '%s' has no IP address", l->host);
}

void resolve_drop(struct resolve_lookup *l)
{
    if (l != NULL)
        lookup_unref(l);
}
