/* What each loop of the HTTP server has for its relays, and how they all are told: that an upstream
 * left rotation, that the server ends. */
#include "base/clock.h"
#include "fleet/proxy/proxy_priv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Any thread, no lock held. FLEET_MAX: none in particular. */
static void on_left(void *arg, size_t upstream)
{
    struct proxy *rs = arg;

    mtx_lock(&rs->lock);
    for (struct proxy_loop *rl = rs->loops; rl != NULL; rl = rl->next) {
        if (upstream < FLEET_MAX)
            rl->has_left[upstream] = true;
        loop_post(rl->loop, &rl->left);
    }
    mtx_unlock(&rs->lock);
}

static void cut_all(struct proxy_loop *rl, size_t upstream)
{
    struct upstream_info info;

    fleet_info(rl->all->fleet, upstream, &info);
    for (struct proxy_request *r = rl->requests, *next; r != NULL; r = next) {
        next = r->next;
        if (r->call != NULL && r->ticket.upstream == upstream)
            proxy_evict(r, &info.error);
    }
}

/* Where nobody serves nobody waits either: as for those who come now. */
static void refuse_waiting(struct proxy_loop *rl)
{
    struct fleet *fleet = rl->all->fleet;
    struct fleet_stats stats;

    fleet_stats(fleet, &stats);
    if (stats.n_serving > 0)
        return;
    for (struct proxy_request *r = rl->requests, *next; r != NULL; r = next) {
        struct err e = {0};

        next = r->next;
        if (r->stage != PROXY_QUEUED || !fleet_permit_cancel(fleet, &r->ticket))
            continue;
        if (proxy_admit(r, &e) == 0)
            continue;
        r->stage = PROXY_SENT;
        proxy_fail(r, &e);
    }
}

/* The loop's thread: some upstreams have left rotation, or the last one has. */
static void left(void *arg)
{
    struct proxy_loop *rl = arg;
    bool has_left[FLEET_MAX];

    mtx_lock(&rl->all->lock);
    memcpy(has_left, rl->has_left, sizeof has_left);
    memset(rl->has_left, 0, sizeof rl->has_left);
    mtx_unlock(&rl->all->lock);
    for (size_t i = 0; i < FLEET_MAX; i++)
        if (has_left[i])
            cut_all(rl, i);
    refuse_waiting(rl);
}

/* The loop's thread: the server ends. */
static void end(void *arg)
{
    struct proxy_loop *rl = arg;
    struct err e = {0};

    (void)err_set(&e, ERR_DRAINING, "", "the server ended before the answer was whole");
    for (struct proxy_request *r = rl->requests, *next; r != NULL; r = next) {
        next = r->next;
        if (r->stage != PROXY_ANSWERED)
            proxy_fail(r, &e);
    }
}

int proxy_new(struct proxy **out, struct upstreams *u, struct err *e)
{
    struct proxy *rs = calloc(1, sizeof *rs);

    if (rs == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for what is relayed");
    mtx_init(&rs->lock, MTX_PROXY);
    cnd_init(&rs->told);
    rs->upstreams = u;
    rs->fleet = upstreams_fleet(u);
    upstreams_on_left_rotation(u, on_left, rs);
    *out = rs;
    return 0;
}

void proxy_stop(struct proxy *rs)
{
    if (rs == NULL)
        return;
    mtx_lock(&rs->lock);
    for (struct proxy_loop *rl = rs->loops; rl != NULL; rl = rl->next)
        loop_post(rl->loop, &rl->end);
    mtx_unlock(&rs->lock);
}

void proxy_free(struct proxy *rs)
{
    if (rs == NULL)
        return;
    assert(rs->loops == NULL);
    upstreams_on_left_rotation(rs->upstreams, NULL, NULL);
    cnd_fini(&rs->told);
    mtx_fini(&rs->lock);
    free(rs);
}

static void loop_ctx_free(struct proxy_loop *rl)
{
    http_client_free(rl->text);
    for (size_t i = 0; i < PROXY_CLIENTS; i++)
        http_client_free(rl->generate[i]);
    free(rl);
}

static int open_clients(struct proxy_loop *rl, struct err *e)
{
    for (size_t i = 0; i < PROXY_CLIENTS; i++)
        if (http_client_new(&rl->generate[i], rl->loop, e) != 0)
            return -1;
    return http_client_new(&rl->text, rl->loop, e);
}

int proxy_loop_begin(struct proxy *rs, struct loop *l, void **out, struct err *e)
{
    struct proxy_loop *rl = calloc(1, sizeof *rl);

    if (rl == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for what a loop relays");
    rl->all = rs;
    rl->loop = l;
    rl->left = (struct loop_item){.run = left, .arg = rl};
    rl->end = (struct loop_item){.run = end, .arg = rl};
    if (open_clients(rl, e) != 0) {
        loop_ctx_free(rl);
        return -1;
    }
    mtx_lock(&rs->lock);
    rl->next = rs->loops;
    rs->loops = rl;
    mtx_unlock(&rs->lock);
    *out = rl;
    return 0;
}

static void unlink_loop(struct proxy_loop *rl)
{
    struct proxy_loop **at = &rl->all->loops;

    mtx_lock(&rl->all->lock);
    while (*at != rl)
        at = &(*at)->next;
    *at = rl->next;
    mtx_unlock(&rl->all->lock);
}

/* A grant that was under way when the loop ended: its thread is about to say so. */
static void await_grant(struct proxy_request *r)
{
    struct proxy *all = r->loop->all;

    mtx_lock(&all->lock);
    while (!r->told)
        (void)cnd_wait(&all->told, &all->lock, CLOCK_NEVER);
    mtx_unlock(&all->lock);
    r->has_permit = true;
}

void proxy_loop_end(void *loop_app)
{
    struct proxy_loop *rl = loop_app;

    unlink_loop(rl);
    while (rl->requests != NULL) {
        struct proxy_request *r = rl->requests;

        if (r->stage != PROXY_ANSWERED)
            proxy_drop(r);
        if (rl->requests != r)
            continue; /* it has ended */
        await_grant(r);
        proxy_request_free(r);
    }
    loop_unpost(rl->loop, &rl->left);
    loop_unpost(rl->loop, &rl->end);
    loop_ctx_free(rl);
}
