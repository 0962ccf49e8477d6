/* A fleet without engines behind it: tests report on them, acquire permits, and record callbacks.
 */
#ifndef BATON_TESTS_UNIT_FLEET_UPSTREAM_FLEET_WORLD_H
#define BATON_TESTS_UNIT_FLEET_UPSTREAM_FLEET_WORLD_H

#include "fleet/members/fleet_priv.h"
#include "fleet/members/upstream_config.h"
#include "tests/unit/fleet/upstream_at.h"

#include "base/mtx.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 4, PERMITS = 3, QUEUE = 5, NO_ENGINE = 999 };

static size_t n_left; /* calls of left_rotation */

static inline void on_left(void *arg)
{
    (void)arg;
    mtx_assert_none();
    n_left++;
}

/* Batons. */
static char usual_names[N][8] = {"u://1", "u://2", "u://3", "u://4"};
static const struct upstream_config usual[N] = {{.url = usual_names[0]},
                                                {.url = usual_names[1]},
                                                {.url = usual_names[2]},
                                                {.url = usual_names[3]}};
static const struct upstream_config *const usual_configs[N] = {&usual[0], &usual[1], &usual[2],
                                                               &usual[3]};

/* A baton of this name, for the rest of the program; one struct for each name. */
static inline const struct upstream_config *config_of(const char *name)
{
    enum { NAMES_MAX = 32 };
    static struct upstream_config configs[NAMES_MAX];
    static char urls[NAMES_MAX][32];
    size_t i = 0;

    while (i < NAMES_MAX && configs[i].url != NULL && strcmp(configs[i].url, name) != 0)
        i++;
    assert_true(i < NAMES_MAX && strlen(name) < sizeof urls[0]);
    (void)snprintf(urls[i], sizeof urls[i], "%s", name);
    configs[i].url = urls[i];
    return &configs[i];
}

/* How often what ran there became unreliable. */
static inline size_t n_lost(struct fleet *f, size_t i)
{
    return atomic_load(&engine_at(f, i)->n_lost);
}

/* A new engine at the end of the list. @drop  leaves it; NULL: none */
static inline void add_new(struct fleet *f, const char *name, const struct upstream *drop)
{
    struct upstream *u = upstream_new(config_of(name));
    struct upstream_list *grown = upstream_list_new(N + 1);

    assert_true(u != NULL && grown != NULL);
    fleet_add(f, u, grown, drop);
    upstream_unref(u);
}

/* That one again, which was removed. */
static inline void add_again(struct fleet *f, size_t i)
{
    fleet_add(f, engine_at(f, i), NULL, NULL);
}

/* @done, @named  of each engine; @named  NULL: none */
static inline uint64_t commit(struct fleet *f, const char *label, uint64_t serial, const bool *done,
                              const bool *named)
{
    struct upstream *parts[N + 1];
    size_t n = 0;
    uint64_t made;

    for (size_t i = 0; i < n_engines(f); i++)
        if (done[i])
            parts[n++] = engine_at(f, i);
    fleet_begin_switch(f, parts, n);
    made = fleet_switch_version(f, label, serial);
    for (size_t i = 0; i < n_engines(f); i++)
        if (done[i])
            fleet_confirm_version(f, engine_at(f, i), named != NULL && named[i]);
    fleet_set_updating(f, false);
    return made;
}

static inline uint64_t repair(struct fleet *f, const char *label, const bool *done,
                              const bool *named)
{
    uint64_t serial = 0;

    for (size_t i = 0; i < n_engines(f); i++)
        if (done[i])
            serial = fleet_repair_version(f, label, engine_at(f, i), named != NULL && named[i]);
    return serial;
}

static inline uint64_t name_them(struct fleet *f, const char *label, const bool *named)
{
    const struct upstream *list[N + 1];
    size_t n = 0;

    for (size_t i = 0; i < n_engines(f); i++)
        if (named[i])
            list[n++] = engine_at(f, i);
    return fleet_set_label(f, label, list, n);
}

static inline void quiesce(struct fleet *f, bool on, uint64_t order)
{
    fleet_set_still(f, &(struct fleet_still){.quiesced = on, .order = order});
}

/* Calls of state_changed. */
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
    const struct upstream_config *configs[FLEET_MAX];
    struct fleet_cfg cfg = {.n_upstreams = n,
                            .configs = configs,
                            .n_permits = {PERMITS, 1},
                            .n_queue_max = {QUEUE, QUEUE},
                            .min_ready = n < 2 ? n : 2,
                            .left_rotation = on_left,
                            .state_changed = on_state_changed};
    struct fleet *f = NULL;
    struct err e = {0};

    for (size_t i = 0; i < n; i++)
        configs[i] = names != NULL ? config_of(names[i]) : usual_configs[i];
    n_left = 0;
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
    fleet_probe_ok(f, engine_at(f, i), &report);
}

static inline uint64_t incarnation(struct fleet *f, size_t i)
{
    struct upstream_info info;

    fleet_info(f, engine_at(f, i), &info);
    return info.incarnation;
}

/* A resync of an engine that reports this label. */
static inline int resync(struct fleet *f, size_t i, const char *label, struct err *e)
{
    struct upstream_report report;
    struct upstream_info before;

    memset(&report, 0, sizeof report);
    (void)snprintf(report.process, sizeof report.process, "p");
    (void)snprintf(report.label, sizeof report.label, "%s", label);
    fleet_info(f, engine_at(f, i), &before);
    return fleet_resync(f, engine_at(f, i), &before, &report, e);
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

    (void)err_set(&why, ERR_INTERNAL, "", "connection refused");
    fleet_request_failed(f, engine_at(f, i), refused, &why);
}

struct requester {
    struct fleet *f;
    struct fleet_ticket ticket;
    size_t got;
    int n_granted;
};

static inline void on_granted(void *arg)
{
    struct requester *a = arg;

    mtx_assert_none();
    a->got = index_of(a->f, a->ticket.upstream);
    a->n_granted++;
}

static inline void make_requester(struct fleet *f, struct requester *a, const char *session)
{
    *a = (struct requester){.f = f, .got = NO_ENGINE};
    a->ticket = (struct fleet_ticket){.ticket = {.granted = on_granted, .arg = a},
                                      .queue = FLEET_GENERATE,
                                      .affinity = fleet_affinity(session)};
}

static inline size_t acquire(struct fleet *f, struct requester *a, const char *session)
{
    struct err e = {0};

    make_requester(f, a, session);
    assert_int_equal(fleet_permit_acquire(f, &a->ticket, &e), 0);
    return a->got;
}

static inline const char *state(struct fleet *f, size_t i)
{
    struct upstream_info info;

    fleet_info(f, engine_at(f, i), &info);
    return upstream_state_name(info.state);
}

#endif
