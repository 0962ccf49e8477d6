/* Where the engines of the fleet are, under one leaf lock, and a loop. A configuration is never
 * changed, only replaced, and stays in memory after that, since requests may still use it. A
 * reload that changes nothing keeps no memory.
 *
 * Rejected: reference counts of the targets. They would cost two atomic operations for each proxied
 * request, while keys change a few times in the life of a process. */
#include "fleet/members/upstreams_priv.h"

#include "base/clock.h"
#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

enum {
    LIVE_ROUND_MAX_US = 60000000
}; /* the loop is dead after this time without a round of probes */

static void on_left_rotation(void *arg)
{
    struct upstreams *u = arg;
    void (*left_rotation)(void *arg);
    void *left_rotation_arg;

    mtx_lock(&u->lock);
    left_rotation = u->left_rotation;
    left_rotation_arg = u->left_rotation_arg;
    mtx_unlock(&u->lock);
    if (left_rotation != NULL)
        left_rotation(left_rotation_arg);
}

/* The log tells why requests are rejected. */
static void on_state_changed(void *arg, const struct fleet_state_change *m)
{
    bool bad = m->from == UPSTREAM_SERVING || m->to == UPSTREAM_DOWN ||
               m->to == UPSTREAM_AUTH_FAILED;
    enum log_level level = bad ? LOG_WARN : LOG_INFO;
    struct upstreams *u = arg;
    struct log_rec r;

    log_begin(&r, level, "upstream.state");
    log_str(&r, "upstream", m->name);
    log_str(&r, "from", upstream_state_name(m->from));
    log_str(&r, "to", upstream_state_name(m->to));
    log_str(&r, "why", m->why.code != ERR_NONE ? m->why.msg : NULL);
    log_str(&r, "weight_version", m->label[0] != '\0' ? m->label : NULL);
    if (m->n_unreported > 0)
        log_u64(&r, "unreported", m->n_unreported);
    if (m->is_last)
        log_u64(&r, "suppressed_for_s", FLEET_REPORTS_US / 1000000);
    log_event(&r);
    if (m->to == UPSTREAM_DOWN)
        upstream_names_ask(u);
}

size_t upstreams_n_needed(const struct upstreams *u, size_t n)
{
    size_t all = n > 0 ? n : 1;

    return u->cfg.min_ready > 0 ? u->cfg.min_ready : all;
}

const struct upstream_config *upstreams_retain(struct upstreams *u,
                                               struct upstream_config_list *list, size_t i)
{
    struct upstream_config *config = list->items[i];

    list->items[i] = NULL;
    for (const struct upstream_config *k = u->retained; k != NULL; k = k->next)
        if (upstream_config_same(k, config)) {
            upstream_config_free(config);
            return k;
        }
    config->next = u->retained;
    u->retained = config;
    return config;
}

static int make_fleet(struct upstreams *u, struct upstream_config_list *list, struct err *e)
{
    const struct upstream_config *configs[FLEET_MAX];
    struct fleet_cfg cfg = {.n_upstreams = list->n,
                            .configs = configs,
                            .min_ready = upstreams_n_needed(u, list->n),
                            .staged = u->cfg.staged,
                            .boot_id = u->cfg.boot_id,
                            .left_rotation = on_left_rotation,
                            .state_changed = on_state_changed,
                            .arg = u};

    for (size_t i = 0; i < list->n; i++)
        configs[i] = upstreams_retain(u, list, i);
    memcpy(cfg.n_permits, u->cfg.n_permits, sizeof cfg.n_permits);
    memcpy(cfg.n_queue_max, u->cfg.n_queue_max, sizeof cfg.n_queue_max);
    return fleet_new(&u->fleet, &cfg, e);
}

static int make_prober(struct upstreams *u, struct err *e)
{
    struct prober_cfg cfg = {.fleet = u->fleet,
                             .loop = u->loop,
                             .client = u->client,
                             .interval_us = u->cfg.probe_interval_us,
                             .timeout_us = u->cfg.probe_timeout_us,
                             .generation_probe_every = u->cfg.generation_probe_every};

    return prober_new(&u->prober, &cfg, e);
}

static int init_members(struct upstreams *u, struct upstream_config_list *list, struct err *e)
{
    struct loop_cfg loop = {.name = "upstream"};
    struct upstream_names *names;

    u->names_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (u->names_fd < 0)
        return err_set_errno(e, ERR_INTERNAL, "", errno, "cannot make an event for names");
    if (upstream_names_prepare(u, &names, list, e) != 0)
        return -1;
    upstream_names_replace(u, names, list);
    if (make_fleet(u, list, e) != 0 || loop_new(&u->loop, &loop, e) != 0)
        return -1;
    return http_client_new(&u->client, u->loop, e) == 0 ? make_prober(u, e) : -1;
}

int upstreams_new(struct upstreams **out, const struct upstreams_cfg *cfg, struct err *e)
{
    struct upstream_config_list list;
    struct upstreams *u;
    int rc;

    if (upstream_config_list_read(&list, cfg->entries, cfg->n_entries, cfg->file, e) != 0)
        return -1;
    u = calloc(1, sizeof *u);
    if (u == NULL) {
        upstream_config_list_fini(&list);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the upstreams");
    }
    mtx_init(&u->lock, MTX_LEAF);
    cnd_init(&u->ended);
    cnd_init(&u->changed);
    u->cfg = *cfg;
    u->names_fd = -1;
    u->stop = (struct loop_item){.run = upstreams_fail_calls, .arg = u};
    u->down_check = (struct loop_timer){.fire = upstreams_check_down, .arg = u};
    rc = init_members(u, &list, e);
    upstream_config_list_fini(&list);
    if (rc == 0)
        *out = u;
    else
        upstreams_free(u);
    return rc;
}

int upstreams_start(struct upstreams *u, struct err *e)
{
    return loop_start(u->loop, e);
}

void upstreams_stop(struct upstreams *u)
{
    bool stopped;

    if (u == NULL || u->loop == NULL)
        return;
    upstream_names_stop(u);
    mtx_lock(&u->lock);
    stopped = u->stopped;
    u->stopped = true;
    mtx_unlock(&u->lock);
    if (stopped)
        return;
    if (loop_started(u->loop)) {
        loop_post(u->loop, &u->stop);
        loop_stop(u->loop);
    } else {
        upstreams_fail_calls(u);
    }
}

void upstreams_free(struct upstreams *u)
{
    struct upstream_config *next;

    if (u == NULL)
        return;
    upstreams_stop(u);
    prober_free(u->prober);
    if (u->loop != NULL)
        loop_timer_cancel(u->loop, &u->down_check);
    http_client_free(u->client);
    loop_free(u->loop);
    fleet_free(u->fleet);
    upstream_names_free(u);
    for (struct upstream_config *k = u->retained; k != NULL; k = next) {
        next = k->next;
        upstream_config_free(k);
    }
    cnd_fini(&u->changed);
    cnd_fini(&u->ended);
    mtx_fini(&u->lock);
    free(u);
}

struct fleet *upstreams_fleet(struct upstreams *u)
{
    return u->fleet;
}

int upstreams_on_joined(struct upstreams *u, upstreams_joined_fn *joined, void *arg, struct err *e)
{
    const struct upstream_list *list = u->fleet->list;

    u->joined = joined;
    u->joined_arg = arg;
    for (size_t i = 0; i < list->n; i++)
        if (joined(arg, list->items[i], e) != 0)
            return -1;
    return 0;
}

struct upstream_list *upstreams_list(struct upstreams *u)
{
    return fleet_list(u->fleet);
}

static int set_not_found(const struct upstream_list *all, const char *name, struct err *e)
{
    enum { N_NAMED = 3 };
    const char *some[N_NAMED] = {"", "", ""};
    size_t n_named = 0;

    for (size_t i = 0; i < all->n && n_named < N_NAMED; i++)
        if (!upstream_is_removed(all->items[i]))
            some[n_named++] = upstream_name(all->items[i]);
    if (n_named == 0)
        return err_set(e, ERR_NOT_FOUND, "",
                       "there is no upstream '%.100s', nor any other: none is configured, and none "
                       "was added by POST /v1/upstreams",
                       name);
    return err_set(e, ERR_NOT_FOUND, "",
                   "there is no upstream '%.100s'%s; there are: %.80s%s%.80s%s%.80s", name,
                   strchr(name, ',') != NULL ? ": give its URL alone" : "", some[0],
                   n_named > 1 ? ", " : "", some[1], n_named > 2 ? ", " : "", some[2]);
}

struct upstream *upstreams_find_any(const struct upstream_list *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(upstream_name(list->items[i]), name) == 0)
            return list->items[i];
    return NULL;
}

int upstreams_find(struct upstreams *u, const char *name, struct upstream **out, struct err *e)
{
    upstream_list_auto *all = upstreams_list(u);
    struct upstream *found = upstreams_find_any(all, name);

    if (found == NULL || upstream_is_removed(found))
        return set_not_found(all, name, e);
    *out = upstream_ref(found);
    return 0;
}

int upstreams_send(struct upstreams *u, struct upstream_fanout **out, struct upstream_call *call,
                   upstream_fanout_done_fn *done, void *arg, struct err *e)
{
    return upstream_fanout_start(out, u->client, call, 1, done, arg, e);
}

void upstreams_probe_now(struct upstreams *u)
{
    prober_probe_now(u->prober);
}

int upstreams_live(struct upstreams *u, struct err *why)
{
    uint64_t now = clock_now_us(), round = prober_round_us(u->prober);
    uint64_t age = now > round ? now - round : 0;

    if (age <= u->cfg.probe_interval_us || age - u->cfg.probe_interval_us <= LIVE_ROUND_MAX_US)
        return 0;
    return err_set(why, ERR_INTERNAL, "", "no upstream has been probed for %llu s",
                   (unsigned long long)(age / 1000000));
}

struct loop *upstreams_loop(struct upstreams *u)
{
    return u->loop;
}

void upstreams_on_left_rotation(struct upstreams *u, void (*fn)(void *arg), void *arg)
{
    mtx_lock(&u->lock);
    u->left_rotation = fn;
    u->left_rotation_arg = arg;
    mtx_unlock(&u->lock);
}
