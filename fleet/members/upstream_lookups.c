/* The thread that asks for the addresses of names. Rejected: a thread for each look-up that waits
 * for a deadline. A look-up cannot be cancelled, so those of a broken name server would pile up;
 * here a name has one under way at most, and it counts whenever it ends. */
#include "fleet/members/upstream_names.h"

#include "base/clock.h"
#include "base/log.h"
#include "fleet/members/upstreams_priv.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ASK_MIN_US = 1000000, /* between two look-ups of one name */
    LATE_US = 5000000     /* a look-up that takes longer is reported; it goes on */
};

/* @why  clean: it was answered */
static void name_note(struct upstreams *u, struct upstream_name *n, const struct err *why)
{
    bool changed = strcmp(n->why.msg, why->msg) != 0;
    struct log_rec r;

    mtx_lock(&u->lock);
    n->n_failures += why->code != ERR_NONE;
    n->why = *why;
    if (why->code == ERR_NONE)
        n->answered_us = clock_now_us();
    mtx_unlock(&u->lock);
    if (!changed)
        return;
    log_begin(&r, why->code != ERR_NONE ? LOG_WARN : LOG_INFO, "upstream.name");
    log_str(&r, "name", n->config->url);
    log_u64(&r, "addresses", n->answer.n);
    log_str(&r, "why",
            why->code != ERR_NONE ? why->msg : "its addresses are known again: it was looked up");
    log_event(&r);
}

static void name_drop_new(struct resolve_all *found, const struct resolve_all *before)
{
    size_t n = 0;

    for (size_t i = 0; i < found->n; i++)
        if (resolve_has(before, found->items[i]))
            memmove(found->items[n++], found->items[i], sizeof found->items[0]);
    found->n = n;
}

static void name_take_answer(struct upstreams *u, struct upstream_name *n)
{
    struct resolve_all found;
    struct err why = {0};

    if (resolve_take(n->lookup, &found, &why) == 0) {
        if (upstreams_change_addresses(u, n, &found, &why) != 0)
            name_drop_new(&found, &n->answer); /* they join next time */
        mtx_lock(&u->lock);
        n->answer = found;
        mtx_unlock(&u->lock);
    }
    resolve_drop(n->lookup);
    n->lookup = NULL;
    name_note(u, n, &why);
}

static void name_ask(struct upstreams *u, struct upstream_name *n, uint64_t now)
{
    const char *host = strstr(n->config->url, "://") + strlen("://");
    const char *port = strrchr(host, ':');
    char name[RESOLVE_NAME_LEN_MAX + 1];
    struct err why = {0};

    n->asked_us = now;
    n->due_us = now + u->cfg.dns_interval_us;
    n->late = false;
    (void)snprintf(name, sizeof name, "%.*s", (int)(port - host), host);
    if (resolve_start(&n->lookup, name, (uint16_t)strtoul(port + 1, NULL, 10), u->names_fd, &why) !=
        0)
        name_note(u, n, &why);
}

/* Returns: when it has to be looked at again. */
static uint64_t name_look(struct upstreams *u, struct upstream_name *n, uint64_t now)
{
    struct err why = {0};

    if (n->lookup != NULL && resolve_ended(n->lookup))
        name_take_answer(u, n);
    if (n->lookup == NULL && now >= n->due_us)
        name_ask(u, n, now);
    if (n->lookup == NULL)
        return n->due_us;
    if (!n->late && now >= n->asked_us + LATE_US) {
        n->late = true;
        (void)err_set(&why, ERR_TIMEOUT, "", "no name server has answered for %d s",
                      LATE_US / 1000000);
        name_note(u, n, &why);
    }
    return n->late ? CLOCK_NEVER : n->asked_us + LATE_US;
}

static uint64_t names_look(struct upstreams *u)
{
    uint64_t now = clock_now_us(), at, next = CLOCK_NEVER;
    struct err ignored = {0};
    bool ask;

    if (upstreams_change_begin(u, &ignored) != 0)
        return now + ASK_MIN_US;
    ask = atomic_exchange_explicit(&u->names_ask, false, memory_order_relaxed);
    for (size_t i = 0; i < u->names->n; i++) {
        struct upstream_name *n = &u->names->items[i];

        if (ask && n->due_us > n->asked_us + ASK_MIN_US)
            n->due_us = n->asked_us + ASK_MIN_US;
        at = name_look(u, n, now);
        next = at < next ? at : next;
    }
    upstreams_change_end(u);
    return next;
}

static void *names_main(void *arg)
{
    struct upstreams *u = arg;
    struct pollfd woken = {.fd = u->names_fd, .events = POLLIN};
    uint64_t until_us, now, n;

    while (!atomic_load_explicit(&u->names_stop, memory_order_relaxed)) {
        until_us = names_look(u);
        now = clock_now_us();
        (void)poll(&woken, 1,
                   until_us == CLOCK_NEVER ? -1
                   : until_us > now        ? (int)((until_us - now) / 1000) + 1
                                           : 0);
        (void)!read(u->names_fd, &n, sizeof n);
    }
    return NULL;
}

int upstreams_look_up(struct upstreams *u, struct err *e)
{
    int rc;

    if (u->names_run || u->names->n == 0)
        return 0;
    rc = pthread_create(&u->names_thread, NULL, names_main, u);
    if (rc != 0)
        return err_set_errno(e, ERR_INTERNAL, "", rc, "cannot start a thread for names");
    (void)pthread_setname_np(u->names_thread, "names");
    u->names_run = true;
    return 0;
}
