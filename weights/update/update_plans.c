/* Plans that were checked once and are named by their digest from then on; plans that such make
 * when several come in one request; plans that came in words; and with each how it lands, which no
 * update changes. */
#include "weights/update/update_priv.h"

#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct plan_kept *find_locked(struct plan_kept *kept, uint32_t n, const char *key)
{
    for (uint32_t i = 0; i < n; i++)
        if (kept[i].plan != NULL && strcmp(kept[i].key, key) == 0)
            return &kept[i];
    return NULL;
}

/* A free place, or the one that was used longest ago. */
static struct plan_kept *room_locked(struct plan_kept *kept, uint32_t n)
{
    struct plan_kept *room = &kept[0];

    for (uint32_t i = 0; i < n; i++) {
        if (kept[i].plan == NULL)
            return &kept[i];
        if (kept[i].used < room->used)
            room = &kept[i];
    }
    return room;
}

/* References are taken. Returns what had to make room, for let_go outside the lock. */
static struct plan_kept keep_locked(struct updates *u, struct plan_kept *among, uint32_t n,
                                    const char *key, struct plan *plan)
{
    struct plan_kept *kept = find_locked(among, n, key), evicted = {0};

    if (kept == NULL) {
        kept = room_locked(among, n);
        evicted = *kept;
        *kept = (struct plan_kept){.plan = plan_ref(plan)};
        (void)snprintf(kept->key, sizeof kept->key, "%s", key);
    }
    kept->used = ++u->plans_clock;
    return evicted;
}

static void let_go(struct plan_kept *kept)
{
    plan_unref(kept->plan);
    layout_unref(kept->layouts[false]);
    layout_unref(kept->layouts[true]);
}

static struct plan *get(struct updates *u, struct plan_kept *among, uint32_t n, const char *key)
{
    struct plan *plan = NULL;
    struct plan_kept *kept;

    mtx_lock(&u->lock);
    kept = find_locked(among, n, key);
    if (kept != NULL) {
        kept->used = ++u->plans_clock;
        plan = plan_ref(kept->plan);
    }
    mtx_unlock(&u->lock);
    return plan;
}

/* The kept one that is this very plan, or NULL. */
static struct plan_kept *same_locked(struct updates *u, const struct plan *plan)
{
    for (uint32_t i = 0; i < UPDATE_PLANS_MAX; i++)
        if (u->plans[i].plan == plan)
            return &u->plans[i];
    for (uint32_t i = 0; i < UPDATE_JOINED_MAX; i++)
        if (u->joined[i].plan == plan)
            return &u->joined[i];
    for (uint32_t i = 0; i < UPDATE_SAID_MAX; i++)
        if (u->said[i].plan == plan)
            return &u->said[i];
    return NULL;
}

static struct layout *layout_ref(struct layout *l)
{
    (void)atomic_fetch_add_explicit(&l->refs, 1, memory_order_relaxed);
    return l;
}

int plan_layout(struct updates *u, struct plan *plan, bool convert, struct layout **out,
                struct err *e)
{
    struct layout *layout = NULL;
    struct plan_kept *kept;

    mtx_lock(&u->lock);
    kept = same_locked(u, plan);
    if (kept != NULL && kept->layouts[convert] != NULL)
        layout = layout_ref(kept->layouts[convert]);
    mtx_unlock(&u->lock);
    if (layout == NULL) {
        if (layout_make(&layout, u->manifest, plan, convert, e) != 0)
            return -1;
        mtx_lock(&u->lock);
        kept = same_locked(u, plan);
        if (kept != NULL && kept->layouts[convert] == NULL)
            kept->layouts[convert] = layout_ref(layout);
        mtx_unlock(&u->lock);
    }
    *out = layout;
    return 0;
}

int updates_plan_put(struct updates *u, struct plan *plan, bool convert, struct err *e)
{
    struct plan_kept evicted;
    struct layout *layout;

    if (layout_make(&layout, u->manifest, plan, convert, e) != 0)
        return -1;
    layout_unref(layout); /* who uses the plan first keeps it: it may convert or not */
    mtx_lock(&u->lock);
    evicted = keep_locked(u, u->plans, UPDATE_PLANS_MAX, plan->digest, plan);
    mtx_unlock(&u->lock);
    let_go(&evicted);
    return 0;
}

struct plan *updates_plan_get(struct updates *u, const char *digest)
{
    return get(u, u->plans, UPDATE_PLANS_MAX, digest);
}

/* Takes out the one that was used longest ago, if they are too many tensors. */
static struct plan_kept take_oldest_locked(struct plan_kept *among, uint32_t n_among,
                                           uint64_t n_tensors_max)
{
    struct plan_kept *oldest = NULL, taken = {0};
    uint64_t n_tensors = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_among; i++) {
        struct plan_kept *kept = &among[i];

        if (kept->plan == NULL)
            continue;
        n++;
        n_tensors += kept->plan->n_tensors;
        if (oldest == NULL || kept->used < oldest->used)
            oldest = kept;
    }
    if (n > 1 && n_tensors > n_tensors_max) {
        taken = *oldest;
        *oldest = (struct plan_kept){0};
    }
    return taken;
}

static void shrink(struct updates *u, struct plan_kept *among, uint32_t n, uint64_t n_tensors_max)
{
    struct plan_kept taken;

    do {
        mtx_lock(&u->lock);
        taken = take_oldest_locked(among, n, n_tensors_max);
        mtx_unlock(&u->lock);
        let_go(&taken);
    } while (taken.plan != NULL);
}

struct plan *updates_said_keep(struct updates *u, struct plan *plan)
{
    struct plan_kept evicted;
    struct plan *kept;

    mtx_lock(&u->lock);
    evicted = keep_locked(u, u->said, UPDATE_SAID_MAX, plan->digest, plan);
    kept = plan_ref(find_locked(u->said, UPDATE_SAID_MAX, plan->digest)->plan);
    mtx_unlock(&u->lock);
    let_go(&evicted);
    plan_unref(plan);
    shrink(u, u->said, UPDATE_SAID_MAX, UPDATE_SAID_TENSORS_MAX);
    return kept;
}

static void key_of_parts(char key[PLAN_DIGEST_LEN + 1], struct plan *const *parts, uint32_t n)
{
    uint8_t digest[SHA256_DIGEST_SIZE];
    struct sha256_ctx ctx;

    sha256_init(&ctx);
    for (uint32_t i = 0; i < n; i++)
        sha256_update(&ctx, PLAN_DIGEST_LEN, (const uint8_t *)parts[i]->digest);
    sha256_digest(&ctx, sizeof digest, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        (void)snprintf(key + 2 * i, 3, "%02x", digest[i]);
}

struct plan *updates_joined_get(struct updates *u, struct plan *const *parts, uint32_t n)
{
    char key[PLAN_DIGEST_LEN + 1];

    key_of_parts(key, parts, n);
    return get(u, u->joined, UPDATE_JOINED_MAX, key);
}

void updates_joined_put(struct updates *u, struct plan *const *parts, uint32_t n,
                        struct plan *joined)
{
    char key[PLAN_DIGEST_LEN + 1];
    struct plan_kept evicted;

    key_of_parts(key, parts, n);
    mtx_lock(&u->lock);
    evicted = keep_locked(u, u->joined, UPDATE_JOINED_MAX, key, joined);
    mtx_unlock(&u->lock);
    let_go(&evicted);
    shrink(u, u->joined, UPDATE_JOINED_MAX, UPDATE_JOINED_TENSORS_MAX);
}

void plans_free(struct updates *u)
{
    for (uint32_t i = 0; i < UPDATE_PLANS_MAX; i++)
        let_go(&u->plans[i]);
    for (uint32_t i = 0; i < UPDATE_JOINED_MAX; i++)
        let_go(&u->joined[i]);
    for (uint32_t i = 0; i < UPDATE_SAID_MAX; i++)
        let_go(&u->said[i]);
}
