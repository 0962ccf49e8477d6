/* An address is of this host if a socket can be bound to it. */
#include "server/serve_stage.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/net/resolve.h"
#include "base/progress.h"
#include "fleet/members/upstreams.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* "http://host:port", "https://[::1]:port", … Returns false for a unix socket. */
static bool host_of(const char *url, char out[RESOLVE_NAME_LEN_MAX + 1])
{
    const char *host = strstr(url, "://");
    size_t n;

    if (host == NULL)
        return false;
    host += strlen("://");
    host += *host == '[';
    n = strcspn(host, host[-1] == '[' ? "]" : ":/");
    if (n == 0 || n > RESOLVE_NAME_LEN_MAX)
        return false;
    (void)snprintf(out, RESOLVE_NAME_LEN_MAX + 1, "%.*s", (int)n, host);
    return true;
}

static bool is_here(const struct resolve_addr *at)
{
    int fd = socket(at->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool here = fd < 0 || bind(fd, (const struct sockaddr *)&at->addr, at->len) == 0 ||
                errno != EADDRNOTAVAIL;

    if (fd >= 0)
        (void)close(fd);
    return here;
}

static bool is_elsewhere(const char *url)
{
    char host[RESOLVE_NAME_LEN_MAX + 1];
    struct progress p = {.deadline_us = clock_after_us(STAGE_LOOKUP_S * UINT64_C(1000000))};
    struct resolve_addrs found;
    struct err e = {0};

    if (!host_of(url, host) || resolve_host(&found, host, 0, "", &p, &e) != 0)
        return false;
    for (uint32_t i = 0; i < found.n; i++)
        if (is_here(&found.items[i]))
            return false;
    return true;
}

void serve_stage_warn(struct upstreams *u)
{
    struct upstream_list *all = upstreams_list(u);

    for (size_t i = 0; i < all->n; i++) {
        struct log_rec r;

        if (!is_elsewhere(upstream_name(all->items[i])))
            continue;
        log_begin(&r, LOG_WARN, "upstream.elsewhere");
        log_str(&r, "upstream", upstream_name(all->items[i]));
        log_str(&r, "why",
                "its address is of no interface of this host, and an engine can map the memory of "
                "--stage on this host only: run a baton with --stage on the host of the engine; "
                "if the address leads to an engine here, as that of a proxy may, ignore this");
        log_event(&r);
    }
    upstream_list_unref(all);
}
