/* The proxy's part of each loop of the HTTP server: its clients and requests, and the notices that
 * reach all loops (an upstream left rotation, the server stops). */
#include "base/clock.h"
#include "fleet/proxy/proxy_priv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* notices */

/* Any thread, no lock held. */
static void proxy_loop_on_left_rotation(void *arg)
{
    struct proxy *proxy = arg;

    mtx_lock(&proxy->lock);
    for (struct proxy_loop *pl = proxy->loops; pl != NULL; pl = pl->next)
        loop_post(pl->loop, &pl->left_rotation);
    mtx_unlock(&proxy->lock);
}

/* fn may free the request. */
static void for_each(struct proxy_loop *pl, void (*fn)(struct proxy_request *r))
{
    for (struct proxy_request *r = pl->requests, *next; r != NULL; r = next) {
        next = r->next;
        fn(r);
    }
}

static void evict_if_lost(struct proxy_request *r)
{
    struct err why;

    if (r->call == NULL || !fleet_is_lost(&r->ticket))
        return;
    fleet_why_unreliable(r->loop->proxy->fleet, r->ticket.upstream, &why);
    proxy_evict(r, &why);
}

static void requeue(struct proxy_request *r)
{
    if (r->stage == PROXY_QUEUED && fleet_permit_cancel(r->loop->proxy->fleet, &r->ticket))
        proxy_readmit(r, NULL);
}

static void handle_left_rotation(void *arg)
{
    struct proxy_loop *pl = arg;
    struct fleet_stats stats;

    for_each(pl, evict_if_lost);
    fleet_stats(pl->proxy->fleet, &stats);
    if (stats.n_serving == 0) /* a queued request fails as a new one does */
        for_each(pl, requeue);
    for_each(pl, proxy_abort);
}

static void fail_stopped(struct proxy_request *r)
{
    if (r->stage != PROXY_ANSWERED)
        PROXY_FAIL(r, ERR_DRAINING, "the server stopped before the reply was complete");
}

static void handle_stop(void *arg)
{
    for_each(arg, fail_stopped);
}

/* the proxy */

int proxy_new(struct proxy **out, struct upstreams *u, struct err *e)
{
    struct proxy *proxy = calloc(1, sizeof *proxy);

    if (proxy == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the proxy");
    mtx_init(&proxy->lock, MTX_PROXY);
    cnd_init(&proxy->grant_posted);
    proxy->upstreams = u;
    proxy->fleet = upstreams_fleet(u);
    upstreams_on_left_rotation(u, proxy_loop_on_left_rotation, proxy);
    *out = proxy;
    return 0;
}

void proxy_stop(struct proxy *proxy)
{
    if (proxy == NULL)
        return;
    mtx_lock(&proxy->lock);
    for (struct proxy_loop *pl = proxy->loops; pl != NULL; pl = pl->next)
        loop_post(pl->loop, &pl->stopped);
    mtx_unlock(&proxy->lock);
}

void proxy_free(struct proxy *proxy)
{
    if (proxy == NULL)
        return;
    assert(proxy->loops == NULL);
    upstreams_on_left_rotation(proxy->upstreams, NULL, NULL);
    cnd_fini(&proxy->grant_posted);
    mtx_fini(&proxy->lock);
    free(proxy);
}

/* a loop */

static void proxy_loop_free(struct proxy_loop *pl)
{
    http_client_free(pl->text);
    for (size_t i = 0; i < PROXY_CLIENTS; i++)
        http_client_free(pl->generate[i]);
    free(pl);
}

static int open_clients(struct proxy_loop *pl, struct err *e)
{
    for (size_t i = 0; i < PROXY_CLIENTS; i++)
        if (http_client_new(&pl->generate[i], pl->loop, e) != 0)
            return -1;
    return http_client_new(&pl->text, pl->loop, e);
}

int proxy_loop_begin(struct proxy *proxy, struct loop *l, void **out, struct err *e)
{
    struct proxy_loop *pl = calloc(1, sizeof *pl);

    if (pl == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a loop of the proxy");
    pl->proxy = proxy;
    pl->loop = l;
    pl->left_rotation = (struct loop_item){.run = handle_left_rotation, .arg = pl};
    pl->stopped = (struct loop_item){.run = handle_stop, .arg = pl};
    if (open_clients(pl, e) != 0) {
        proxy_loop_free(pl);
        return -1;
    }
    mtx_lock(&proxy->lock);
    pl->next = proxy->loops;
    proxy->loops = pl;
    mtx_unlock(&proxy->lock);
    *out = pl;
    return 0;
}

static void unlink_loop(struct proxy_loop *pl)
{
    struct proxy_loop **at = &pl->proxy->loops;

    mtx_lock(&pl->proxy->lock);
    while (*at != pl)
        at = &(*at)->next;
    *at = pl->next;
    mtx_unlock(&pl->proxy->lock);
}

/* A grant was under way when the loop ended, and its thread is about to post it. Wait for that, so
 * that the permit can be given back. */
static void await_grant(struct proxy_request *r)
{
    struct proxy *proxy = r->loop->proxy;

    mtx_lock(&proxy->lock);
    while (!r->grant_posted)
        (void)cnd_wait(&proxy->grant_posted, &proxy->lock, CLOCK_NEVER);
    mtx_unlock(&proxy->lock);
    r->has_permit = true;
}

void proxy_loop_end(void *loop_app)
{
    struct proxy_loop *pl = loop_app;

    unlink_loop(pl);
    while (pl->requests != NULL) {
        struct proxy_request *r = pl->requests;

        if (r->stage != PROXY_ANSWERED)
            proxy_drop(r);
        if (pl->requests != r)
            continue; /* proxy_drop has freed it */
        await_grant(r);
        proxy_request_free(r);
    }
    loop_unpost(pl->loop, &pl->left_rotation);
    loop_unpost(pl->loop, &pl->stopped);
    proxy_loop_free(pl);
}
