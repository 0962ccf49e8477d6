/* Has a baton that lacks the fleet's version read it from others that serve it. It says itself
 * where a version came from, and fleet_probe_ok decides by that whether it serves the fleet's. */
#include "base/log.h"
#include "fleet/calls/fleet_priv.h"

enum {
    SEED_SOURCES_MAX = 4, /* it goes on to the next when one fails */
    SEEDED_BY_ONE_MAX = 2,
    SEED_AGAIN_US = 3000000, /* it is asked again: it may have given up, or been restarted */
    SEED_REQUEST_US = 2000000
};

bool fleet_seed_differs_locked(struct fleet_control *fc, struct upstream *upstream,
                               const struct upstream_info *info)
{
    return info->alive && !info->removed && info->wants_seed && !info->may_sleep &&
           !fc->sleep.weights && fc->session == NULL &&
           !fleet_engine_is_held_locked(fc, upstream) &&
           retry_is_due(&fleet_engine(upstream)->seed.retry);
}

/* How many others are seeded by this one first. */
static uint32_t n_seeded_locked(const struct upstream_list *all, const struct upstream *from,
                                const struct upstream *but)
{
    uint32_t n = 0;

    for (size_t i = 0; i < all->n; i++) {
        const struct fleet_seed *s = &fleet_engine(all->items[i])->seed;

        n += all->items[i] != but && s->from == from && !clock_passed(s->until_us);
    }
    return n;
}

/* Those that serve the fleet's version, the least busy first; one that is busy only as another. */
static size_t find_sources(struct fleet_control *fc, struct upstream *upstream,
                           const struct upstream_list *all, const char **urls)
{
    mtx_auto held = mtx_hold(&fc->lock);
    struct fleet_seed *seed = &fleet_engine(upstream)->seed;
    uint32_t fewest = SEEDED_BY_ONE_MAX;
    size_t n = 0;

    seed->from = NULL;
    for (size_t i = 0; i < all->n && n < SEED_SOURCES_MAX; i++) {
        struct upstream *it = all->items[i];
        uint32_t n_seeded = n_seeded_locked(all, it, upstream);
        struct upstream_info info;

        fleet_info(fleet_of(fc), it, &info);
        if (it == upstream || info.out != 0 || info.report.serial == 0)
            continue;
        urls[n] = upstream_name(it);
        if (n_seeded < fewest) {
            fewest = n_seeded;
            urls[n] = urls[0];
            urls[0] = upstream_name(it);
            seed->from = it;
        }
        n++;
    }
    if (seed->from != NULL)
        seed->until_us = clock_after_us(SEED_AGAIN_US + SEED_REQUEST_US);
    return seed->from != NULL ? n : 0;
}

static void log_seed(struct upstream *upstream, const char *from, const struct err *why)
{
    struct log_rec r;

    log_begin(&r, why->code == ERR_NONE ? LOG_INFO : LOG_WARN, "fleet.seed");
    log_str(&r, "upstream", upstream_name(upstream));
    log_str(&r, "from", from);
    log_str(&r, "error", why->code != ERR_NONE ? why->msg : NULL);
    log_event(&r);
}

bool fleet_give_version(struct fleet_control *fc, struct upstream *upstream)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    struct fleet_seed *seed = &fleet_engine(upstream)->seed;
    const char *urls[SEED_SOURCES_MAX];
    const struct api_args args = {.ids = urls, .n_ids = find_sources(fc, upstream, all, urls)};
    const struct fleet_target target = {.upstream = upstream, .args = &args};
    fleet_results_auto results = {0};
    struct err why = {0};
    bool seeds = false;

    if (args.n_ids > 0 &&
        fleet_request(fc, API_SEED, &target, 1, SEED_REQUEST_US, &results, &why) == 0) {
        why = results.list[0].why;
        seeds = results.list[0].status == err_http_status(ERR_CONFLICT); /* it does already */
        if (!seeds)
            log_seed(upstream, urls[0], &why);
    }
    mtx_lock(&fc->lock);
    if (args.n_ids > 0 && (seeds || why.code == ERR_NONE)) {
        seed->retry = (struct retry){.due_us = clock_after_us(SEED_AGAIN_US)};
    } else {
        seed->from = NULL;
        fleet_aspect_tried_locked(&seed->retry, false);
    }
    mtx_unlock(&fc->lock);
    return false; /* its next probe shows what came of it */
}
