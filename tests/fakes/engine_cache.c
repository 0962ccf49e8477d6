/* The prefix cache of an engine: which tokens have KV, and which weights made it. */
#include "tests/fakes/engine.h"

#include <stdlib.h>
#include <string.h>

static struct cache_entry *slot_of(struct cache *c, uint64_t key)
{
    size_t i = key % CACHE_ENTRIES_MAX;

    while (c->entries[i].key != 0 && c->entries[i].key != key)
        i = (i + 1) % CACHE_ENTRIES_MAX;
    return &c->entries[i];
}

static void allocate(struct cache *c)
{
    if (c->entries == NULL)
        c->entries = must(calloc(CACHE_ENTRIES_MAX, sizeof *c->entries));
}

/* A full cache evicts all entries: evicting is always correct. */
static void insert(struct cache *c, uint64_t key, uint64_t weights)
{
    if (c->storage != NULL && slot_of(c->storage, key)->key == 0)
        insert(c->storage, key, weights);
    if (c->n >= CACHE_ENTRIES_MAX / 2)
        cache_reset(c);
    *slot_of(c, key) = (struct cache_entry){.key = key, .weights = weights};
    c->n++;
}

/* NULL: neither in the cache nor in the storage, from which entries are copied back. */
static const struct cache_entry *find(struct cache *c, uint64_t key)
{
    const struct cache_entry *entry = slot_of(c, key);

    if (entry->key == 0 && c->storage != NULL) {
        entry = slot_of(c->storage, key);
        if (entry->key != 0)
            insert(c, key, entry->weights);
    }
    return entry->key != 0 ? entry : NULL;
}

size_t cache_use(struct cache *c, const uint64_t *keys, size_t n_keys, uint64_t weights,
                 bool *stale)
{
    size_t n_found = 0;

    *stale = false;
    allocate(c);
    if (c->storage != NULL)
        allocate(c->storage);
    for (; n_found + 1 < n_keys; n_found++) {
        const struct cache_entry *entry = find(c, keys[n_found]);

        if (entry == NULL)
            break;
        *stale = *stale || entry->weights != weights;
    }
    for (size_t i = n_found; i < n_keys; i++)
        if (slot_of(c, keys[i])->key == 0)
            insert(c, keys[i], weights);
    return n_found;
}

void cache_reset(struct cache *c)
{
    if (c->n > 0)
        memset(c->entries, 0, CACHE_ENTRIES_MAX * sizeof *c->entries);
    c->n = 0;
}

void cache_fini(struct cache *c)
{
    free(c->entries);
    memset(c, 0, sizeof *c);
}
