/* A fleet without upstreams: what is said of them, who asks for them, and what came of it. */
#ifndef BATON_TESTS_UNIT_FLEET_UPSTREAM_FLEET_WORLD_H
#define BATON_TESTS_UNIT_FLEET_UPSTREAM_FLEET_WORLD_H

#include "fleet/members/fleet.h"

#include "base/mtx.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 4, PERMITS = 3, QUEUE = 5, NOBODY = 999 };

static size_t left[N];  /* how often each was said to have left rotation */
static size_t n_nobody; /* how often it was said that nobody is in rotation */

static inline void on_left(void *arg, size_t upstream)
{
    (void)arg;
    mtx_assert_none();
    if (upstream == FLEET_MAX)
        n_nobody++;
    else
        left[upstream]++;
}

/* What was told of states; the last ones. */
static struct fleet_state_change changes[64];
static size_t n_changes;

static inline void on_state_changed(void *arg, const struct fleet_state_change *m)
{
    (void)arg;
    mtx_assert_none();
    assert_true(n_changes < sizeof changes / sizeof changes[0]);
    changes[n_changes++] = *m;
}

static inline struct fleet *fleet_with(const char *const *names, size_t n)
{
    struct fleet_cfg cfg = {.n_upstreams = n,
                            .names = names,
                            .n_permits = {PERMITS, 1},
                            .n_queue_max = {QUEUE, QUEUE},
                            .min_ready = n < 2 ? n : 2,
                            .left_rotation = on_left,
                            .state_changed = on_state_changed};
    struct fleet *f = NULL;
    struct err e = {0};

    memset(left, 0, sizeof left);
    n_nobody = 0;
    n_changes = 0;
    assert_int_equal(fleet_new(&f, &cfg, &e), 0);
    return f;
}

static inline struct fleet *fleet_of(size_t n)
{
    return fleet_with(NULL, n);
}

static inline void report_ok(struct fleet *f, size_t i, const char *process, const char *label)
{
    struct upstream_report report;

    memset(&report, 0, sizeof report);
    (void)snprintf(report.process, sizeof report.process, "%s", process);
    (void)snprintf(report.label, sizeof report.label, "%s", label);
    fleet_probe_ok(f, i, &report);
}

/* Somebody vouches for one that says this. */
static inline int vouch(struct fleet *f, size_t i, const char *label, struct err *e)
{
    struct upstream_report report;

    memset(&report, 0, sizeof report);
    (void)snprintf(report.process, sizeof report.process, "p");
    (void)snprintf(report.label, sizeof report.label, "%s", label);
    return fleet_resync(f, i, &report, e);
}

static inline struct fleet *fleet_alive(size_t n)
{
    struct fleet *f = fleet_of(n);

    for (size_t i = 0; i < n; i++)
        report_ok(f, i, "p", "");
    return f;
}

static inline struct fleet *fleet_alive_named(const char *const *names, size_t n)
{
    struct fleet *f = fleet_with(names, n);

    for (size_t i = 0; i < n; i++)
        report_ok(f, i, "p", "");
    return f;
}

static inline void fail_request(struct fleet *f, size_t i, bool refused)
{
    struct err why = {0};

    (void)err_set(&why, ERR_INTERNAL, "", "nobody is there");
    fleet_request_failed(f, i, refused, &why);
}

struct asker {
    struct fleet_ticket ticket;
    size_t got;
    int n_granted;
};

static inline void on_granted(void *arg, size_t upstream)
{
    struct asker *a = arg;

    mtx_assert_none();
    a->got = upstream;
    a->n_granted++;
}

static inline void make_asker(struct asker *a, const char *session)
{
    *a = (struct asker){.got = NOBODY};
    a->ticket = (struct fleet_ticket){.queue = FLEET_GENERATE,
                                      .affinity = fleet_affinity(session),
                                      .granted = on_granted,
                                      .arg = a};
}

static size_t enter(struct fleet *f, struct asker *a, const char *session)
{
    struct err e = {0};

    make_asker(a, session);
    assert_int_equal(fleet_permit_acquire(f, &a->ticket, &e), 0);
    return a->got;
}

static inline const char *state(struct fleet *f, size_t i)
{
    struct upstream_info info;

    fleet_info(f, i, &info);
    return upstream_state_name(info.state);
}

#endif
