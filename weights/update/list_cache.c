/* Entries are in the order of their last use, so the entries beyond the limits are the ones to
 * evict. A few hundred of them are searched linearly: different texts differ early. */
#include "weights/update/list_cache.h"

#include "base/mtx.h"
#include "weights/update/update_priv.h"

#include <stdlib.h>
#include <string.h>

enum { ENTRIES_MAX = LIST_CACHE_MAX + LIST_CACHE_REGISTERED_MAX };
_Static_assert(TENSOR_LIST_TENSORS_MAX *LIST_TENSOR_NBYTES + TENSOR_LIST_DIGEST_LEN <=
                   LIST_CACHE_NBYTES,
               "every list can be registered");

struct list_cache {
    struct mtx lock; /* rank MTX_LEAF; guards down to the blank line, and the layouts of entries */
    struct list_entry
        *entries[ENTRIES_MAX + 1]; /* [n], one reference each; last used first; one beyond the limit
                                      is evicted before the lock is released */
    size_t n;

    const struct model_spec *model_spec; /* borrowed; immutable */
};

int list_cache_new(struct list_cache **out, const struct model_spec *model_spec, struct err *e)
{
    struct list_cache *c = calloc(1, sizeof *c);

    if (c == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the cache of tensor lists");
    mtx_init(&c->lock, MTX_LEAF);
    c->model_spec = model_spec;
    *out = c;
    return 0;
}

static struct list_entry *entry_ref(struct list_entry *l)
{
    (void)atomic_fetch_add_explicit(&l->refs, 1, memory_order_relaxed);
    return l;
}

void list_entry_unref(struct list_entry *l)
{
    if (l == NULL || atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) != 1)
        return;
    tensor_list_unref(l->tensor_list);
    layout_unref(l->layouts[false]);
    layout_unref(l->layouts[true]);
    if (l->said != NULL)
        l->said_free(l->said);
    free(l);
}

void list_cache_free(struct list_cache *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->n; i++)
        list_entry_unref(c->entries[i]);
    mtx_fini(&c->lock);
    free(c);
}

/* No column is a prefix of a longer one: its last byte is the ']' of its own '['. */
static bool begins_with(const char *text, size_t len, struct list_text column)
{
    return column.text != NULL && column.len <= len && memcmp(column.text, text, column.len) == 0;
}

static bool key_equal(const struct list_key *a, const struct list_key *b)
{
    bool equal = a->kind == b->kind;

    for (size_t i = 0; i < LIST_COLUMNS && equal; i++) /* cheap, and lists are like each other */
        equal = a->text[i].len == b->text[i].len;
    for (size_t i = 0; i < LIST_COLUMNS && equal; i++)
        equal = a->text[i].len == 0 ||
                memcmp(a->text[i].text, b->text[i].text, a->text[i].len) == 0;
    return equal;
}

/* Returns the index of the entry, or c->n. */
static size_t find_key_locked(const struct list_cache *c, const struct list_key *key)
{
    size_t i = 0;

    while (i < c->n && !key_equal(&c->entries[i]->key, key))
        i++;
    return i;
}

static struct list_entry *use_locked(struct list_cache *c, size_t i)
{
    struct list_entry *l = c->entries[i];

    memmove(&c->entries[1], &c->entries[0], i * sizeof(struct list_entry *));
    c->entries[0] = l;
    return l;
}

struct tensor_list *list_cache_get(struct list_cache *c, const struct list_key *key)
{
    struct tensor_list *tensor_list = NULL;
    size_t i;

    if (c == NULL)
        return NULL;
    mtx_lock(&c->lock);
    i = find_key_locked(c, key);
    if (i < c->n)
        tensor_list = tensor_list_ref(use_locked(c, i)->tensor_list);
    mtx_unlock(&c->lock);
    return tensor_list;
}

struct list_entry *list_cache_find(struct list_cache *c, enum list_column which, const char *text,
                                   size_t len, struct list_entry *first)
{
    struct list_entry *found = NULL;

    if (first != NULL && begins_with(text, len, first->key.text[which]))
        return entry_ref(first);
    if (c == NULL)
        return NULL;
    mtx_lock(&c->lock);
    for (size_t i = 0; i < c->n && found == NULL; i++)
        if (c->entries[i]->key.kind == LIST_BY_TEXT &&
            begins_with(text, len, c->entries[i]->key.text[which]))
            found = entry_ref(use_locked(c, i));
    mtx_unlock(&c->lock);
    return found;
}

/* The bytes that a list counts for; SIZE_MAX if that exceeds the limit. */
static size_t list_cache_nbytes_of(const struct list_key *key,
                                   const struct tensor_list *tensor_list)
{
    size_t nbytes = (size_t)tensor_list->n_tensors * LIST_TENSOR_NBYTES;

    for (size_t i = 0; i < LIST_COLUMNS; i++) {
        if (key->text[i].len > LIST_CACHE_NBYTES)
            return SIZE_MAX;
        nbytes += key->text[i].len;
    }
    return nbytes <= LIST_CACHE_NBYTES ? nbytes : SIZE_MAX;
}

/* Creates an entry without its tensor list. NULL: it is too large, or there is no memory. */
static struct list_entry *list_cache_entry_new(const struct list_key *key,
                                               const struct tensor_list *tensor_list)
{
    size_t nbytes = list_cache_nbytes_of(key, tensor_list), len = 0;
    struct list_entry *l = NULL;

    for (size_t i = 0; i < LIST_COLUMNS; i++)
        len += key->text[i].len;
    if (nbytes != SIZE_MAX)
        l = calloc(1, sizeof *l + len);
    if (l == NULL)
        return NULL;
    l->key.kind = key->kind;
    l->nbytes = nbytes;
    atomic_init(&l->refs, 1);
    len = 0;
    for (size_t i = 0; i < LIST_COLUMNS; i++) {
        if (key->text[i].text == NULL)
            continue;
        memcpy(l->bytes + len, key->text[i].text, key->text[i].len);
        l->key.text[i] = (struct list_text){l->bytes + len, key->text[i].len};
        len += key->text[i].len;
    }
    return l;
}

/* The cached tensor list that is equal to this one, or this one. */
static struct tensor_list *equal_tensor_list_locked(const struct list_cache *c,
                                                    struct tensor_list *tensor_list)
{
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->entries[i]->tensor_list->digest, tensor_list->digest) == 0)
            return c->entries[i]->tensor_list;
    return tensor_list;
}

/* Evicts the entries beyond the limits, in the order of their last use. Returns how many. */
static size_t trim_locked(struct list_cache *c, struct list_entry **dropped)
{
    size_t n_entries = 0, n_registered = 0, nbytes = 0, n_dropped = 0, n_left = 0;

    for (size_t i = 0; i < c->n; i++) {
        struct list_entry *l = c->entries[i];
        bool over;

        if (l->key.kind == LIST_BY_ID) {
            over = ++n_registered > LIST_CACHE_REGISTERED_MAX;
        } else {
            nbytes += l->nbytes;
            over = ++n_entries > LIST_CACHE_MAX || nbytes > LIST_CACHE_NBYTES;
        }
        if (over)
            dropped[n_dropped++] = l;
        else
            c->entries[n_left++] = l;
    }
    c->n = n_left;
    return n_dropped;
}

bool list_cache_put(struct list_cache *c, const struct list_key *key,
                    struct tensor_list **tensor_list)
{
    struct list_entry *l = c != NULL ? list_cache_entry_new(key, *tensor_list) : NULL,
                      *dropped[ENTRIES_MAX + 1];
    struct tensor_list *mine = *tensor_list;
    size_t i, n = 0;

    if (l == NULL)
        return false;
    mtx_lock(&c->lock);
    *tensor_list = tensor_list_ref(equal_tensor_list_locked(c, mine));
    i = find_key_locked(c, key);
    if (i < c->n) { /* another thread cached it meanwhile, or it is registered again */
        dropped[n++] = l;
    } else {
        l->tensor_list = tensor_list_ref(*tensor_list);
        c->entries[c->n++] = l;
    }
    (void)use_locked(c, i);
    n += trim_locked(c, dropped + n);
    mtx_unlock(&c->lock);
    while (n > 0)
        list_entry_unref(dropped[--n]);
    tensor_list_unref(mine);
    return true;
}

/* The slot of the layout of a cached tensor list, a filled one if there is any; NULL: that tensor
 * list is not cached. */
static struct layout **layout_slot_locked(struct list_cache *c,
                                          const struct tensor_list *tensor_list, bool convert)
{
    struct layout **slot = NULL;

    for (size_t i = 0; i < c->n && (slot == NULL || *slot == NULL); i++)
        if (c->entries[i]->tensor_list == tensor_list)
            slot = &c->entries[i]->layouts[convert];
    return slot;
}

static struct layout *layout_ref(struct layout *l)
{
    (void)atomic_fetch_add_explicit(&l->refs, 1, memory_order_relaxed);
    return l;
}

int list_cache_layout(struct list_cache *c, const struct tensor_list *tensor_list, bool convert,
                      struct layout **out, struct err *e)
{
    struct layout *layout = NULL, **slot;

    mtx_lock(&c->lock);
    slot = layout_slot_locked(c, tensor_list, convert);
    if (slot != NULL && *slot != NULL)
        layout = layout_ref(*slot);
    mtx_unlock(&c->lock);
    if (layout == NULL) {
        if (layout_make(&layout, c->model_spec, tensor_list, convert, e) != 0)
            return -1;
        mtx_lock(&c->lock);
        slot = layout_slot_locked(c, tensor_list, convert);
        if (slot != NULL && *slot == NULL)
            *slot = layout_ref(layout);
        mtx_unlock(&c->lock);
    }
    *out = layout;
    return 0;
}

struct list_entry *list_cache_entry(struct list_cache *c, const struct tensor_list *tensor_list,
                                    const void **said)
{
    struct list_entry *l = NULL;

    *said = NULL;
    if (c == NULL)
        return NULL;
    mtx_lock(&c->lock);
    for (size_t i = 0; i < c->n && l == NULL; i++)
        if (c->entries[i]->tensor_list == tensor_list)
            l = entry_ref(c->entries[i]);
    if (l != NULL)
        *said = l->said;
    mtx_unlock(&c->lock);
    return l;
}

bool list_cache_keep(struct list_cache *c, struct list_entry *l, void *said,
                     void (*said_free)(void *))
{
    bool first;

    mtx_lock(&c->lock);
    first = l->said == NULL;
    if (first) {
        l->said = said;
        l->said_free = said_free;
    }
    mtx_unlock(&c->lock);
    return first;
}
