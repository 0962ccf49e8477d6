/* Has a baton that lacks the fleet's version read it from another that serves it, or is reading it
 * itself: so ten that lack it read it one from the other, each at the rate of its own link. It says
 * itself what it serves then, and fleet_probe_ok decides by that whether it is the fleet's. */
#include "base/log.h"
#include "fleet/calls/fleet_priv.h"

#include <stdlib.h>

enum {
    SEED_SOURCES_MAX = 64, /* of a request; it goes on to the next when one fails */
    SEEDED_BY_ONE_MAX = 2,
    SEED_AGAIN_US = 3000000, /* it is asked again: it may have given up, or been restarted */
    SEED_REQUEST_US = 2000000
};

bool fleet_seed_differs_locked(struct fleet_control *fc, struct upstream *upstream,
                               const struct upstream_info *info)
{
    const struct fleet_seed *seed = &fleet_engine(upstream)->seed;

    if (info->report.seeding_from[0] != '\0' && info->report.seed_failures == seed->n_failures)
        return false; /* it reads */
    return info->alive && !info->removed && info->wants_seed && !info->may_sleep &&
           !fc->sleep.weights && fc->session == NULL &&
           !fleet_engine_is_held_locked(fc, upstream) &&
           retry_is_due(&fleet_engine(upstream)->retry[ASPECT_VERSION]);
}

/* The engines, and who reads from whom. */
struct seeded {
    struct upstream *it;
    bool serves, passes, differs;
    size_t from; /* index of that which it reads from; the number of them: of none */
    uint64_t n_failures, serial;
};

/* As it was told just now, or as it says. */
static size_t read_from_locked(const struct upstream_list *all, struct upstream *it,
                               const struct upstream_info *info)
{
    const struct fleet_seed *seed = &fleet_engine(it)->seed;
    bool told = seed->from != NULL && !clock_passed(seed->until_us);
    size_t i = told || info->report.seeding_from[0] != '\0' ? 0 : all->n;

    while (i < all->n &&
           (told ? all->items[i] != seed->from
                 : strcmp(upstream_name(all->items[i]), info->report.seeding_from) != 0))
        i++;
    return i;
}

/* Returns whether one differs. */
static bool look(struct fleet_control *fc, const struct upstream_list *all, struct seeded *out)
{
    bool differ = false;

    for (size_t i = 0; i < all->n; i++) {
        struct upstream *it = all->items[i];
        struct upstream_info info;

        fleet_info(fleet_of(fc), it, &info);
        mtx_lock(&fc->lock);
        out[i] = (struct seeded){.it = it,
                                 .serves = info.out == 0 && info.report.serial != 0,
                                 .passes = info.alive && !info.removed && info.report.passes_seeds,
                                 .differs = fleet_seed_differs_locked(fc, it, &info),
                                 .from = read_from_locked(all, it, &info),
                                 .n_failures = info.report.seed_failures,
                                 .serial = info.report.serial};
        mtx_unlock(&fc->lock);
        differ = differ || out[i].differs;
    }
    return differ;
}

/* Does what an engine reads come from one that serves the version, and not from `which`? */
static bool has_source(const struct seeded *s, size_t n, size_t i, size_t which)
{
    for (size_t hops = 0; hops < n && i < n && i != which && !s[i].serves; hops++)
        i = s[i].passes ? s[i].from : n;
    return i < n && i != which;
}

/* The least busy first, of those that serve the version before those that are reading it; then
 * others that serve it. After peers that failed it begins further on, where that makes no
 * difference. */
static size_t find_sources(struct seeded *s, size_t n, size_t which, const char **urls)
{
    uint32_t least = 2 * SEEDED_BY_ONE_MAX;
    size_t n_urls = 1, first = n;

    for (size_t j = 0; j < n; j++) {
        size_t i = (s[which].n_failures + j) % n;
        uint32_t busy = !s[i].serves;

        for (size_t k = 0; k < n; k++)
            busy += k != which && s[k].from == i ? 2 : 0;
        if (busy < least && has_source(s, n, i, which)) {
            least = busy;
            first = i;
        }
    }
    s[which].from = first;
    if (first == n)
        return 0;
    urls[0] = upstream_name(s[first].it);
    for (size_t j = 0; j < n && n_urls < SEED_SOURCES_MAX; j++) {
        size_t i = (s[which].n_failures + j) % n;

        if (i != which && i != first && s[i].serves)
            urls[n_urls++] = upstream_name(s[i].it);
    }
    return n_urls;
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

static void note_told_locked(struct fleet_control *fc, const struct seeded *it,
                             const struct upstream *from)
{
    struct fleet_engine *engine = fleet_engine(it->it);

    mtx_assert_held(&fc->lock);
    engine->seed = (struct fleet_seed){.from = from,
                                       .until_us = clock_after_us(SEED_AGAIN_US + SEED_REQUEST_US),
                                       .n_failures = it->n_failures};
    fleet_aspect_tried_locked(&engine->retry[ASPECT_VERSION], from != NULL);
    if (from != NULL)
        engine->retry[ASPECT_VERSION].due_us = clock_after_us(SEED_AGAIN_US);
}

/* A request that comes late, when another version is served, is refused. */
static void give_version(struct fleet_control *fc, struct seeded *s, size_t n, size_t which)
{
    const char *urls[SEED_SOURCES_MAX];
    const struct api_args args = {
        .ids = urls, .n_ids = find_sources(s, n, which, urls), .if_serial = s[which].serial};
    const struct fleet_target target = {.upstream = s[which].it, .args = &args};
    fleet_results_auto results = {0};
    struct err why = {0};
    bool ok = false;

    if (args.n_ids > 0 &&
        fleet_request(fc, API_SEED, &target, 1, SEED_REQUEST_US, &results, &why) == 0) {
        why = results.list[0].why;
        ok = why.code == ERR_NONE;
        log_seed(s[which].it, urls[0], &why);
    }
    if (!ok)
        s[which].from = n;
    mtx_lock(&fc->lock);
    note_told_locked(fc, &s[which], ok ? s[s[which].from].it : NULL);
    mtx_unlock(&fc->lock);
}

void fleet_seed_drive(struct fleet_control *fc)
{
    upstream_list_auto *all = upstreams_list(fc->upstreams);
    struct seeded *s = calloc(all->n, sizeof *s);

    if (s != NULL && look(fc, all, s))
        for (size_t i = 0; i < all->n; i++)
            if (s[i].differs)
                give_version(fc, s, all->n, i);
    free(s); /* without memory it is tried again */
}
