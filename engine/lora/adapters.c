/* A short list under one lock. A revision is removed from the list under the lock and freed outside
 * it; its bytes count until they are freed. */
#include "engine/lora/adapters.h"

#include "base/clock.h"
#include "base/mtx.h"
#include "base/utf8.h"
#include "weights/tensor_list.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct adapters_revision {
    struct adapters_revision *next; /* among the older ones */
    uint64_t n_users;               /* both under the lock of the set */

    struct adapter *adapter; /* owned; immutable from here */
    char *name, *path;       /* owned; path may be NULL */
    uint64_t number;
    int64_t loaded_at;
};

/* A name: one that serves, or that is being loaded. */
struct entry {
    struct entry *next;
    char *name;                        /* owned */
    struct adapters_revision *current; /* owned; NULL: not loaded */
    uint32_t n_loading;
    bool pinned;
};

struct adapters {
    struct mtx lock;                 /* rank MTX_ADAPTERS; guards down to the blank line */
    struct entry *entries;           /* owned; at most cfg.n_max */
    struct adapters_revision *older; /* owned; in use, but not serving */
    uint32_t n_entries;
    uint64_t nbytes, nbytes_reserved;
    uint64_t number_unloaded; /* the highest that was ever unloaded */

    struct adapters_config cfg; /* immutable */
};

struct adapters_load {
    struct adapters *set;
    struct entry *entry; /* borrowed: counted in its n_loading */
    uint64_t nbytes;     /* reserved; under the lock of the set */
    struct adapters_options options;
    char *path; /* owned, or NULL */
};

int adapters_new(struct adapters **out, const struct adapters_config *cfg, struct err *e)
{
    struct adapters *s = calloc(1, sizeof *s);

    assert(cfg->n_max >= 1 && cfg->n_max <= ADAPTERS_MAX);
    assert(cfg->rank_max >= 1 && cfg->rank_max <= ADAPTER_RANK_MAX);
    if (s == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the list of adapters");
    mtx_init(&s->lock, MTX_ADAPTERS);
    s->cfg = *cfg;
    *out = s;
    return 0;
}

static void revision_free(struct adapters_revision *r)
{
    if (r == NULL)
        return;
    adapter_free(r->adapter);
    free(r->name);
    free(r->path);
    free(r);
}

static void entry_free(struct entry *n)
{
    if (n == NULL)
        return;
    free(n->name);
    free(n);
}

void adapters_free(struct adapters *s)
{
    if (s == NULL)
        return;
    assert(s->older == NULL);
    while (s->entries != NULL) {
        struct entry *n = s->entries;

        assert(n->n_loading == 0 && (n->current == NULL || n->current->n_users == 0));
        s->entries = n->next;
        revision_free(n->current);
        entry_free(n);
    }
    mtx_fini(&s->lock);
    free(s);
}

const struct adapters_config *adapters_config_of(const struct adapters *s)
{
    return &s->cfg;
}

static int check_adapter_name(const struct adapters *s, const char *name, struct err *e)
{
    char copy[ADAPTERS_NAME_LEN_MAX + 1];
    size_t len = strlen(name);

    if (len == 0 || len > ADAPTERS_NAME_LEN_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/lora_name", "a name of %zu bytes; 1 to %d are allowed",
                       len, ADAPTERS_NAME_LEN_MAX);
    memcpy(copy, name, len + 1);
    if (utf8_clean(copy) > 0)
        return err_set(e, ERR_BAD_REQUEST, "/lora_name", "the name '%s' is not UTF-8", copy);
    if (utf8_find_hidden(name, len) < len)
        return err_set(e, ERR_BAD_REQUEST, "/lora_name",
                       "the name has a control character, a line separator or a bidirectional mark "
                       "at byte %zu",
                       utf8_find_hidden(name, len));
    for (const char *const *base = s->cfg.base_names; base != NULL && *base != NULL; base++)
        if (strcmp(*base, name) == 0)
            return err_set(e, ERR_BAD_REQUEST, "/lora_name", "'%.*s' is the base model's name",
                           utf8_cut_name(name), name);
    return 0;
}

static struct entry *adapters_find_locked(const struct adapters *s, const char *name)
{
    struct entry *n = s->entries;

    while (n != NULL && strcmp(n->name, name) != 0)
        n = n->next;
    return n;
}

static uint64_t n_older_users_locked(const struct adapters *s, const char *name)
{
    uint64_t n = 0;

    for (const struct adapters_revision *r = s->older; r != NULL; r = r->next)
        if (strcmp(r->name, name) == 0)
            n += r->n_users;
    return n;
}

/* Checks the options against the revision that serves; NULL: none does. */
static int check_options(const char *name, const struct adapters_revision *current,
                         const struct adapters_options *o, struct err *e)
{
    uint64_t number = current != NULL ? current->number : 0;

    if (o->only_new && current != NULL)
        return err_set(e, ERR_BAD_REQUEST, "/lora_name",
                       "adapter '%.*s' is loaded already, at revision %" PRIu64
                       ", and load_inplace is false",
                       utf8_cut_name(name), name, number);
    if (o->has_if_revision && o->if_revision != number && current == NULL)
        return err_set(e, ERR_PRECONDITION, "/if_revision",
                       "adapter '%.*s' is not loaded, not at revision %" PRIu64,
                       utf8_cut_name(name), name, o->if_revision);
    if (o->has_if_revision && o->if_revision != number)
        return err_set(e, ERR_PRECONDITION, "/if_revision",
                       "adapter '%.*s' is at revision %" PRIu64 ", not %" PRIu64,
                       utf8_cut_name(name), name, number, o->if_revision);
    if (o->if_digest[0] != '\0' &&
        (current == NULL || strcasecmp(o->if_digest, adapter_digest(current->adapter)) != 0))
        return err_set(e, ERR_PRECONDITION, "/if_digest",
                       "adapter '%.*s' is at revision %" PRIu64 " with digest %s, not %s",
                       utf8_cut_name(name), name, number,
                       current != NULL ? adapter_digest(current->adapter) : "(none)", o->if_digest);
    return 0;
}

/* The entry of `name`; `fresh` becomes it (and NULL) when there is none. */
static struct entry *enter_locked(struct adapters *s, const char *name, struct entry **fresh,
                                  struct err *e)
{
    struct entry *n = adapters_find_locked(s, name), **tail = &s->entries;

    if (n != NULL)
        return n;
    if (s->n_entries >= s->cfg.n_max) {
        (void)err_set(e, ERR_CONFLICT, "/lora_name",
                      "%u adapters are loaded or being loaded, and the limit is %u (--max-loras): "
                      "unload one first",
                      s->n_entries, s->cfg.n_max);
        return NULL;
    }
    while (*tail != NULL)
        tail = &(*tail)->next;
    *tail = n = *fresh;
    *fresh = NULL;
    s->n_entries++;
    return n;
}

/* Removes the entry if it has no references; the caller frees it outside the lock. */
static struct entry *adapters_leave_locked(struct adapters *s, struct entry *n)
{
    struct entry **at = &s->entries;

    if (n->current != NULL || n->n_loading > 0)
        return NULL;
    while (*at != n)
        at = &(*at)->next;
    *at = n->next;
    s->n_entries--;
    return n;
}

static struct entry *adapters_entry_new(const char *name)
{
    struct entry *n = calloc(1, sizeof *n);

    if (n == NULL)
        return NULL;
    n->name = strdup(name);
    if (n->name == NULL) {
        free(n);
        return NULL;
    }
    return n;
}

static void adapters_load_free(struct adapters_load *l)
{
    if (l == NULL)
        return;
    free(l->path);
    free(l);
}

static struct adapters_load *adapters_load_new(struct adapters *s,
                                               const struct adapters_options *options)
{
    struct adapters_load *l = calloc(1, sizeof *l);

    if (l == NULL)
        return NULL;
    l->set = s;
    l->options = *options;
    l->path = options->path != NULL ? strdup(options->path) : NULL;
    l->options.path = l->path;
    if (options->path != NULL && l->path == NULL) {
        adapters_load_free(l);
        return NULL;
    }
    return l;
}

int adapters_begin(struct adapters *s, const char *name, const struct adapters_options *options,
                   struct adapters_load **out, struct err *e)
{
    struct adapters_load *l;
    struct entry *n, *fresh;
    int rc = -1;

    if (check_adapter_name(s, name, e) != 0)
        return -1;
    l = adapters_load_new(s, options);
    fresh = adapters_entry_new(name);
    if (l == NULL || fresh == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory to load an adapter");
        goto drop;
    }
    mtx_lock(&s->lock);
    n = adapters_find_locked(s, name);
    if (check_options(name, n != NULL ? n->current : NULL, options, e) == 0)
        n = enter_locked(s, name, &fresh, e);
    else
        n = NULL;
    if (n != NULL) {
        n->n_loading++;
        l->entry = n;
        rc = 0;
    }
    mtx_unlock(&s->lock);
drop:
    entry_free(fresh);
    if (rc != 0)
        adapters_load_free(l);
    else
        *out = l;
    return rc;
}

/* Do `nbytes` fit under the limit, instead of what the load has reserved? */
static int check_room_locked(const struct adapters_load *l, uint64_t nbytes, struct err *e)
{
    const struct adapters *s = l->set;
    uint64_t others = s->nbytes + s->nbytes_reserved - l->nbytes, older = 0;

    if (nbytes <= s->cfg.nbytes_max && others <= s->cfg.nbytes_max - nbytes)
        return 0;
    if (nbytes > s->cfg.nbytes_max)
        return err_set(e, ERR_TOO_LARGE, "",
                       "the adapter takes %" PRIu64 " bytes, and --max-lora-bytes allows %" PRIu64,
                       nbytes, s->cfg.nbytes_max);
    for (const struct adapters_revision *r = s->older; r != NULL; r = r->next)
        older += adapter_nbytes(r->adapter);
    return err_set(e, ERR_NO_STAGING, "",
                   "the adapter takes %" PRIu64 " bytes, but %" PRIu64 " of %" PRIu64
                   " are taken, %" PRIu64 " of them by revisions that only running requests use",
                   nbytes, others, s->cfg.nbytes_max, older);
}

int adapters_reserve(struct adapters_load *load, uint64_t nbytes, struct err *e)
{
    struct adapters *s = load->set;
    int rc;

    mtx_lock(&s->lock);
    rc = check_room_locked(load, nbytes, e);
    if (rc == 0) {
        s->nbytes_reserved += nbytes -
                              load->nbytes; /* may shrink: unsigned arithmetic wraps back */
        load->nbytes = nbytes;
    }
    mtx_unlock(&s->lock);
    return rc;
}

void adapters_cancel(struct adapters_load *load)
{
    struct adapters *s;
    struct entry *gone;

    if (load == NULL)
        return;
    s = load->set;
    mtx_lock(&s->lock);
    s->nbytes_reserved -= load->nbytes;
    load->entry->n_loading--;
    gone = adapters_leave_locked(s, load->entry);
    mtx_unlock(&s->lock);
    entry_free(gone);
    adapters_load_free(load);
}

/* Frees a revision that is in no list, and then its bytes. */
static void give_back(struct adapters *s, struct adapters_revision *r)
{
    uint64_t nbytes;

    if (r == NULL)
        return;
    nbytes = adapter_nbytes(r->adapter);
    revision_free(r);
    mtx_lock(&s->lock);
    s->nbytes -= nbytes;
    mtx_unlock(&s->lock);
}

/* Retires a revision that no longer serves: it joins the older ones, or, without users, the caller
 * frees it. */
static struct adapters_revision *retire_locked(struct adapters *s, struct adapters_revision *r)
{
    if (r == NULL || r->n_users == 0)
        return r;
    r->next = s->older;
    s->older = r;
    return NULL;
}

static struct adapters_revision *revision_new(const struct adapters_load *load, struct adapter *a,
                                              struct err *e)
{
    struct adapters_revision *r = calloc(1, sizeof *r);

    if (r == NULL)
        goto fail;
    r->name = strdup(load->entry->name);
    r->path = load->path != NULL ? strdup(load->path) : NULL;
    if (r->name == NULL || (load->path != NULL && r->path == NULL))
        goto fail;
    r->adapter = a;
    r->loaded_at = clock_wall_s();
    return r;

fail:
    revision_free(r);
    (void)err_set(e, ERR_NO_MEMORY, "", "no memory to load an adapter");
    return NULL;
}

/* Makes *r the entry's current one, and *r what is to be freed outside the lock. */
static int put_locked(struct adapters_load *l, struct adapters_revision **r,
                      struct adapters_outcome *out, struct err *e)
{
    struct adapters *s = l->set;
    struct entry *n = l->entry;
    struct adapters_revision *old = n->current;
    uint64_t nbytes = adapter_nbytes((*r)->adapter);

    if (check_options(n->name, old, &l->options, e) != 0)
        return -1;
    if (old != NULL && strcmp(adapter_digest(old->adapter), adapter_digest((*r)->adapter)) == 0) {
        n->pinned = l->options.pinned;
        *out = (struct adapters_outcome){.revision = old->number,
                                         .unchanged = true,
                                         .n_users = n_older_users_locked(s, n->name)};
        return 0;
    }
    if (check_room_locked(l, nbytes, e) != 0)
        return -1;
    s->nbytes_reserved -= l->nbytes;
    s->nbytes += nbytes;
    l->nbytes = 0;
    (*r)->number = old != NULL ? old->number + 1 : s->number_unloaded + 1;
    n->current = *r;
    n->pinned = l->options.pinned;
    *r = retire_locked(s, old);
    *out = (struct adapters_outcome){.revision = n->current->number,
                                     .replaced = old != NULL,
                                     .n_users = n_older_users_locked(s, n->name)};
    return 0;
}

int adapters_put(struct adapters_load *load, struct adapter *a, struct adapters_outcome *out,
                 struct err *e)
{
    struct adapters *s = load->set;
    struct adapters_outcome done = {0};
    struct adapters_revision *r;
    int rc = -1;

    if (adapter_rank(a) > s->cfg.rank_max) {
        (void)err_set(e, ERR_BAD_REQUEST, "", "the adapter has rank %u, at most %u is allowed",
                      adapter_rank(a), s->cfg.rank_max);
        goto drop;
    }
    r = revision_new(load, a, e);
    if (r == NULL)
        goto drop;
    mtx_lock(&s->lock);
    rc = put_locked(load, &r, &done, e);
    mtx_unlock(&s->lock);
    if (rc == 0 && !done.unchanged)
        give_back(s, r);
    else
        revision_free(r); /* never counted in nbytes: the reservation lasts until here */
    a = NULL;
drop:
    adapter_free(a);
    adapters_cancel(load);
    if (rc == 0)
        *out = done;
    return rc;
}

static int name_unknown(const char *field, const char *name, struct err *e)
{
    return err_set(e, ERR_NOT_FOUND, field, "there is no adapter '%.*s'", utf8_cut_name(name),
                   name);
}

int adapters_pin(struct adapters *s, const char *name, struct adapter_ref *out, struct err *e)
{
    struct adapters_revision *r = NULL;
    struct entry *n;

    mtx_lock(&s->lock);
    n = adapters_find_locked(s, name);
    if (n != NULL && n->current != NULL) {
        r = n->current;
        r->n_users++;
    }
    mtx_unlock(&s->lock);
    if (r == NULL)
        return name_unknown("/model", name, e);
    *out = (struct adapter_ref){
        .adapter = r->adapter, .name = r->name, .revision = r->number, .held = r};
    return 0;
}

int adapters_pin_base(struct adapters_load *load, struct adapter_ref *out, struct err *e)
{
    struct adapter_ref ref = {0};
    struct err why = {0};
    int rc = adapters_pin(load->set, load->entry->name, &ref, &why);

    if (check_options(load->entry->name, ref.held, &load->options, e) != 0) {
        adapters_unpin(load->set, &ref);
        return -1;
    }
    if (rc != 0)
        *e = why;
    *out = ref;
    return rc;
}

bool adapters_has(struct adapters *s, const char *name)
{
    const struct entry *n;
    bool has;

    mtx_lock(&s->lock);
    n = adapters_find_locked(s, name);
    has = n != NULL && n->current != NULL;
    mtx_unlock(&s->lock);
    return has;
}

bool adapters_serves(struct adapters *s, const struct adapter_ref *ref)
{
    const struct entry *n;
    bool serves;

    mtx_lock(&s->lock);
    n = adapters_find_locked(s, ref->name);
    serves = n != NULL && n->current == ref->held;
    mtx_unlock(&s->lock);
    return serves;
}

/* Takes r out of the older ones; false when it is not among them: it serves. */
static bool take_older_locked(struct adapters *s, struct adapters_revision *r)
{
    for (struct adapters_revision **at = &s->older; *at != NULL; at = &(*at)->next) {
        if (*at == r) {
            *at = r->next;
            return true;
        }
    }
    return false;
}

void adapters_unpin(struct adapters *s, struct adapter_ref *ref)
{
    struct adapters_revision *r = ref->held;
    bool last;

    if (r == NULL)
        return;
    mtx_lock(&s->lock);
    assert(r->n_users > 0);
    r->n_users--;
    last = r->n_users == 0 && take_older_locked(s, r);
    mtx_unlock(&s->lock);
    if (last)
        give_back(s, r);
    *ref = (struct adapter_ref){0};
}

int adapters_unload(struct adapters *s, const char *name, struct adapters_unloaded *out,
                    struct err *e)
{
    struct adapters_revision *r = NULL;
    struct adapters_unloaded done = {0};
    struct entry *n, *gone = NULL;

    mtx_lock(&s->lock);
    n = adapters_find_locked(s, name);
    if (n != NULL && n->current != NULL) {
        r = n->current;
        n->current = NULL;
        done = (struct adapters_unloaded){.revision = r->number,
                                          .n_users = r->n_users + n_older_users_locked(s, name)};
        if (s->number_unloaded < r->number)
            s->number_unloaded = r->number;
        r = retire_locked(s, r);
        gone = adapters_leave_locked(s, n);
    }
    mtx_unlock(&s->lock);
    entry_free(gone);
    give_back(s, r);
    if (done.revision == 0)
        return name_unknown("/lora_name", name, e);
    *out = done;
    return 0;
}

/* ---- seeing ---- */

struct room {
    uint32_t n;
    size_t nbytes_text;
};

static struct room measure_locked(const struct adapters *s)
{
    struct room need = {0};

    for (const struct entry *n = s->entries; n != NULL; n = n->next) {
        if (n->current == NULL)
            continue;
        need.n++;
        need.nbytes_text += strlen(n->name) + 1;
        need.nbytes_text += n->current->path != NULL ? strlen(n->current->path) + 1 : 1;
    }
    return need;
}

static const char *adapters_copy_text(char **at, const char *text)
{
    size_t len = strlen(text) + 1;
    char *out = *at;

    memcpy(out, text, len);
    *at += len;
    return out;
}

static void copy_locked(const struct adapters *s, struct adapters_list *l)
{
    char *at = l->text;

    for (const struct entry *n = s->entries; n != NULL; n = n->next) {
        const struct adapters_revision *r = n->current;
        struct adapters_item *item = &l->items[l->n];

        if (r == NULL)
            continue;
        l->n++;
        *item = (struct adapters_item){
            .name = adapters_copy_text(&at, n->name),
            .path = adapters_copy_text(&at, r->path != NULL ? r->path : ""),
            .revision = r->number,
            .nbytes = adapter_nbytes(r->adapter),
            .loaded_at = r->loaded_at,
            .rank = adapter_rank(r->adapter),
            .pinned = n->pinned,
            .n_users = r->n_users,
            .n_users_older = n_older_users_locked(s, n->name)};
        memcpy(item->digest, adapter_digest(r->adapter), sizeof item->digest);
    }
}

int adapters_list(struct adapters *s, struct adapters_list *out, struct err *e)
{
    struct adapters_list l = {0};
    struct room have = {0}, need;

    for (;;) {
        mtx_lock(&s->lock);
        need = measure_locked(s);
        if (need.n <= have.n && need.nbytes_text <= have.nbytes_text)
            copy_locked(s, &l);
        mtx_unlock(&s->lock);
        if (need.n <= have.n && need.nbytes_text <= have.nbytes_text)
            break;
        adapters_list_fini(&l); /* others loaded meanwhile: again, with a larger list */
        have = need;
        l.items = calloc(have.n, sizeof *l.items);
        l.text = malloc(have.nbytes_text);
        if (l.items == NULL || l.text == NULL) {
            adapters_list_fini(&l);
            return err_set(e, ERR_NO_MEMORY, "", "no memory for a list of %u adapters", have.n);
        }
    }
    *out = l;
    return 0;
}

void adapters_list_fini(struct adapters_list *l)
{
    free(l->items);
    free(l->text);
    *l = (struct adapters_list){0};
}

void adapters_gauges(struct adapters *s, struct adapters_gauges *out)
{
    struct adapters_gauges g = {0};

    mtx_lock(&s->lock);
    for (const struct entry *n = s->entries; n != NULL; n = n->next) {
        g.n_loaded += n->current != NULL;
        g.n_loading += n->n_loading;
        g.n_pinned_refs += n->current != NULL ? n->current->n_users : 0;
    }
    for (const struct adapters_revision *r = s->older; r != NULL; r = r->next) {
        g.n_older++;
        g.n_pinned_refs += r->n_users;
    }
    g.nbytes = s->nbytes;
    g.nbytes_reserved = s->nbytes_reserved;
    mtx_unlock(&s->lock);
    *out = g;
}
