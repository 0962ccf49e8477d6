/* The store: one pointer to the served version, and the readers of older ones.
 *
 * The reference counts of versions are plain integers under the store's lock: one pin for each
 * engine step, and a lock that is held for a few instructions, cost nothing. Rejected: an atomic
 * pointer with hazard pointers, because sleep needs a state in which nothing reads and nothing
 * can begin to read. */
#include "weights/store/store_priv.h"

#include "base/clock.h"
#include "base/log.h"
#include "memory/device.h"
#include "weights/store/shares.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STORE_RESERVED_MAX = 2, /* versions for which memory is reserved */
    STORE_PAGE_NBYTES = 4096,
    STORE_ALIGN_NBYTES_EACH = 16, /* for the alignment of buckets, for each tensor */
    STORE_GPU_GRANULE_NBYTES = 2 << 20,
    STORE_SCRATCH_IDLE_NBYTES = 256 << 20,
    STORE_STOP_POLL_US = 50000
};

const char *store_state_name(enum store_state state)
{
    switch (state) {
    case STORE_UNSYNCED:
        return "unsynced";
    case STORE_READY:
        return "ready";
    case STORE_ASLEEP:
        return "asleep";
    case STORE_DROPPED:
        return "dropped";
    case STORE_STATE_COUNT:
        break;
    }
    return "unknown";
}

/* Bytes and number of the tensors that a place keeps of each version. */
static uint64_t kept_nbytes(const struct store *s, uint32_t place, uint32_t *n_tensors)
{
    const struct tensor_list *tensor_list = s->model_spec->tensor_list;

    if (s->owners != NULL)
        return shares_nbytes(s->owners, tensor_list, place, n_tensors);
    *n_tensors = tensor_list->n_tensors;
    return tensor_list->nbytes;
}

/* The memory of one retired version may stay idle for the next update, which is as large. */
static uint64_t idle_bound(const struct store *s, uint32_t place)
{
    uint32_t n_tensors;
    uint64_t nbytes = kept_nbytes(s, place, &n_tensors);
    uint64_t rounding = (uint64_t)n_tensors * STORE_PAGE_NBYTES;

    return nbytes > UINT64_MAX - rounding ? UINT64_MAX : nbytes + rounding;
}

uint32_t store_n_kept(const struct store *s, uint32_t place)
{
    uint32_t n_tensors;

    (void)kept_nbytes(s, place, &n_tensors);
    return n_tensors;
}

uint64_t store_kept_nbytes(const struct store *s, uint32_t place)
{
    uint32_t n_tensors;

    return kept_nbytes(s, place, &n_tensors);
}

uint64_t store_whole_nbytes(const struct store *s, uint32_t place)
{
    uint32_t n_tensors;
    uint64_t nbytes = kept_nbytes(s, place, &n_tensors);

    return nbytes + (uint64_t)n_tensors * STORE_ALIGN_NBYTES_EACH + STORE_PAGE_NBYTES;
}

/* Page-locked host memory for the served version and for the next, since it takes the driver about
 * half a second for each GB. */
static uint32_t n_reserved(const struct store *s)
{
    return s->in_host_memory ? STORE_RESERVED_MAX : 1;
}

void store_explain_room(const struct store *s, uint32_t place, struct err *e)
{
    size_t at = strlen(e->msg);

    if (e->code == ERR_NO_STAGING && store_device(s, place) != NULL && s->n_ranks > 1 &&
        s->owners == NULL && !store_has_host(s))
        (void)snprintf(e->msg + at, sizeof e->msg - at,
                       "; %s keeps whole versions, --placement sharded keeps 1/%u of each on each "
                       "GPU",
                       store_place_name(s, place), (unsigned)s->n_ranks);
}

/* Reserved in advance so that an update does not wait for the driver's allocation, and because
 * it is better to know early that a GPU is too small for the model. With several ranks that keep
 * whole versions this is no error: a trainer may be meant to give each a part. */
int store_reserve_whole(const struct store *s, uint32_t place, struct err *e)
{
    struct slab_pool *pool = s->places[place].slabs;
    struct slab *slabs[STORE_RESERVED_MAX] = {NULL};
    int rc = 0;

    for (uint32_t i = 0; i < n_reserved(s) && rc == 0; i++) {
        rc = slab_pool_check(pool, store_whole_nbytes(s, place), e);
        if (rc == 0)
            rc = slab_new(&slabs[i], pool, store_whole_nbytes(s, place), e);
    }
    for (uint32_t i = 0; i < STORE_RESERVED_MAX; i++)
        slab_unref(slabs[i]);
    if (rc == 0)
        return 0;
    if (e->code != ERR_NO_STAGING || s->n_ranks == 1 || s->owners != NULL)
        return -1;
    store_explain_room(s, place, e);
    log_line(LOG_WARN, "store.room", "%s holds no whole version: only a share of one will fit: %s",
             store_place_name(s, place), e->msg);
    err_clear(e);
    return 0;
}

static int add_place(struct store *s, struct device *device, const struct slab_memory *memory,
                     uint64_t nbytes_max, struct err *e)
{
    uint32_t place = s->n_places;
    uint64_t idle = idle_bound(s, place);

    if (device != NULL && store_whole_nbytes(s, place) > idle)
        idle = store_whole_nbytes(s, place);
    if (device != NULL)
        idle = n_reserved(s) * (idle + STORE_GPU_GRANULE_NBYTES); /* the pool rounds up */
    if (slab_pool_new(&s->places[place].slabs, memory, nbytes_max, idle, e) != 0)
        return -1;
    s->places[place].device = device;
    s->n_places++;
    return device != NULL ? store_reserve_whole(s, place, e) : 0;
}

static int add_places(struct store *s, const struct store_cfg *cfg, struct err *e)
{
    struct slab_memory memory;

    for (uint32_t i = 0; i < cfg->n_devices; i++) {
        memory = cfg->host_memory ? device_pinned_memory(cfg->devices[i])
                                  : device_memory(cfg->devices[i]);
        if (add_place(s, cfg->devices[i], &memory, cfg->nbytes_max, e) != 0)
            return -1;
    }
    if (cfg->n_devices > 0)
        memory = device_pinned_memory(cfg->devices[0]);
    if (cfg->n_devices == 0 || cfg->mirror) {
        if (add_place(s, NULL, cfg->n_devices > 0 ? &memory : NULL, cfg->nbytes_max, e) != 0)
            return -1;
        s->scratch = s->places[s->n_places - 1].slabs;
        return 0;
    }
    return slab_pool_new(&s->scratch, &memory, UINT64_MAX, STORE_SCRATCH_IDLE_NBYTES, e);
}

int store_new(struct store **out, const struct store_cfg *cfg, struct err *e)
{
    struct store *s = calloc(1, sizeof *s);

    assert(cfg->n_versions_max >= 2 && cfg->n_devices <= STORE_DEVICES_MAX);
    assert(!cfg->host_memory || (cfg->n_devices > 0 && !cfg->mirror));
    assert(!cfg->sharded || (cfg->n_devices > 1 && !cfg->mirror && !cfg->host_memory));
    if (s == NULL) {
        model_spec_free(cfg->model_spec);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the store");
    }
    s->model_spec = cfg->model_spec;
    s->n_ranks = cfg->n_devices > 0 ? cfg->n_devices : 1;
    s->in_host_memory = cfg->n_devices == 0 || cfg->host_memory;
    s->n_versions_max = cfg->n_versions_max;
    s->journal = cfg->journal;
    mtx_init(&s->lock, MTX_STORE);
    cnd_init(&s->changed);
    if ((cfg->sharded && shares_new(&s->owners, s->model_spec->tensor_list, s->n_ranks, e) != 0) ||
        add_places(s, cfg, e) != 0) {
        store_free(s);
        return -1;
    }
    *out = s;
    return 0;
}

void store_free(struct store *s)
{
    if (s == NULL)
        return;
    assert(!s->staging_open);
    assert(s->retired == NULL);
    assert(s->current == NULL || (s->current->refs == 1 && s->n_live == 1));
    version_free(s->current);
    host_backup_fini(&s->host_backup);
    if (s->n_places == 0 || !store_has_host(s))
        slab_pool_free(s->scratch);
    for (uint32_t p = 0; p < s->n_places; p++)
        slab_pool_free(s->places[p].slabs);
    cnd_fini(&s->changed);
    mtx_fini(&s->lock);
    model_spec_free(s->model_spec);
    free(s->owners);
    free(s);
}

void store_continue(struct store *s, uint64_t serial, const char *unsynced_why)
{
    mtx_lock(&s->lock);
    assert(s->current == NULL);
    s->serial = serial;
    (void)snprintf(s->unsynced_why, sizeof s->unsynced_why, "%s", unsynced_why);
    mtx_unlock(&s->lock);
}

const struct model_spec *store_model_spec(const struct store *s)
{
    return s->model_spec;
}

uint32_t store_n_ranks(const struct store *s)
{
    return s->n_ranks;
}

uint32_t store_n_places(const struct store *s)
{
    return s->n_places;
}

bool store_has_host(const struct store *s)
{
    return s->places[s->n_places - 1].device == NULL;
}

bool store_in_host_memory(const struct store *s)
{
    return s->in_host_memory;
}

bool store_sharded(const struct store *s)
{
    return s->owners != NULL;
}

uint32_t store_owner(const struct store *s, uint32_t index)
{
    assert(s->owners != NULL && index < s->model_spec->tensor_list->n_tensors);
    return s->owners[index];
}

uint32_t store_host_place(const struct store *s)
{
    assert(store_has_host(s));
    return s->n_places - 1;
}

struct device *store_device(const struct store *s, uint32_t place)
{
    assert(place < s->n_places);
    return s->places[place].device;
}

struct slab_pool *store_slabs(struct store *s, uint32_t place)
{
    assert(place < s->n_places);
    return s->places[place].slabs;
}

const char *store_place_name(const struct store *s, uint32_t place)
{
    const struct device *d = store_device(s, place);

    return d != NULL ? device_name(d) : "host";
}

struct version_owned *store_version_new(const struct store *s)
{
    uint32_t n = s->model_spec->tensor_list->n_tensors;
    struct version_owned *v = calloc(1, sizeof *v);

    if (v == NULL)
        return NULL;
    v->views = calloc((size_t)n * s->n_places, sizeof *v->views);
    v->sums = calloc(n, sizeof *v->sums);
    v->version.name = version_label_new();
    if (v->views == NULL || v->sums == NULL || v->version.name == NULL) {
        version_label_unref(v->version.name);
        free(v->views);
        free(v->sums);
        free(v);
        return NULL;
    }
    v->version.label = v->version.name->text;
    v->n_tensors = n;
    v->n_places = s->n_places;
    for (uint32_t p = 0; p < s->n_places; p++)
        v->version.places[p] = version_view(v, p, 0);
    if (store_has_host(s))
        v->version.views = v->version.places[store_host_place(s)];
    v->refs = 1;
    return v;
}

/* Adjacent tensors are mostly in one slab. */
static void views_release(struct version_owned *v)
{
    size_t n = (size_t)v->n_tensors * v->n_places;

    for (size_t i = 0, end; i < n; i = end) {
        struct slab *slab = v->views[i].slab;

        for (end = i + 1; end < n && v->views[end].slab == slab; end++)
            continue;
        slab_unref_many(slab, end - i);
    }
}

void version_free(struct version_owned *v)
{
    if (v == NULL)
        return;
    views_release(v);
    version_label_unref(v->version.name);
    free(v->views);
    free(v->sums);
    free(v);
}

struct view *version_view(const struct version_owned *v, uint32_t place, uint32_t index)
{
    assert(place < v->n_places && index < v->n_tensors);
    return &v->views[(size_t)place * v->n_tensors + index];
}

/* `to` is not published yet: no other thread reads its slots. */
void version_share_sum(struct version_owned *to, const struct version_owned *from, uint32_t index)
{
    struct sum_slot *sum = &from->sums[index];

    atomic_store_explicit(&to->sums[index].state, SUM_EMPTY, memory_order_relaxed);
    if (atomic_load_explicit(&sum->state, memory_order_acquire) != SUM_READY)
        return;
    to->sums[index].sum = sum->sum;
    atomic_store_explicit(&to->sums[index].state, SUM_READY, memory_order_relaxed);
}

void version_share_view(struct version_owned *to, const struct version_owned *from, uint32_t place,
                        uint32_t index)
{
    struct view *view = version_view(to, place, index);

    *view = *version_view(from, place, index);
    if (view->slab != NULL)
        (void)slab_ref(view->slab);
}

/* Copies a tensor's views in all places, and its checksum if known; takes references. */
void version_share(struct version_owned *to, const struct version_owned *from, uint32_t index)
{
    for (uint32_t p = 0; p < to->n_places; p++)
        version_share_view(to, from, p, index);
    version_share_sum(to, from, index);
}

/* The version is subtracted from n_live only after its slabs were returned, so that a thread
 * that waits for memory finds them. */
void store_version_drop(struct store *s, struct version_owned *v)
{
    bool last;

    if (v == NULL)
        return;
    mtx_lock(&s->lock);
    assert(v->refs > 0);
    last = --v->refs == 0;
    if (!last && v == s->current)
        cnd_broadcast(&s->changed);
    mtx_unlock(&s->lock);
    if (!last)
        return;
    version_free(v);
    mtx_lock(&s->lock);
    s->n_live--;
    cnd_broadcast(&s->changed);
    mtx_unlock(&s->lock);
}

int store_refuse_state_locked(const struct store *s, struct err *e)
{
    switch (s->state) {
    case STORE_UNSYNCED:
        return err_set(e, ERR_UNSYNCED, "", "%s",
                       s->unsynced_why[0] != '\0' ? s->unsynced_why
                                                  : "no weights have been committed yet");
    case STORE_ASLEEP:
        return err_set(e, ERR_ASLEEP, "",
                       "the weights are asleep (level 1): wake the server first");
    default:
        assert(s->state == STORE_DROPPED);
        return err_set(e, ERR_ASLEEP, "",
                       "the weights were dropped (sleep at level 2): send a whole update first");
    }
}

int store_pin(struct store *s, const struct version **out, struct err *e)
{
    int rc = 0;

    mtx_lock(&s->lock);
    if (s->state == STORE_READY) {
        s->current->refs++;
        *out = &s->current->version;
    } else {
        rc = store_refuse_state_locked(s, e);
    }
    mtx_unlock(&s->lock);
    return rc;
}

int store_readable(struct store *s, struct err *e)
{
    int rc = 0;

    mtx_lock(&s->lock);
    if (s->state != STORE_READY)
        rc = store_refuse_state_locked(s, e);
    mtx_unlock(&s->lock);
    return rc;
}

bool store_reader_awaited(struct store *s, const struct version *v)
{
    const struct version *current;
    bool awaited;

    mtx_lock(&s->lock);
    current = s->current != NULL ? &s->current->version : NULL;
    awaited = s->n_awaiting > 0 && (v != current || s->state != STORE_READY);
    if (current != NULL && current != v && current->serial == v->serial)
        awaited = true;
    mtx_unlock(&s->lock);
    return awaited;
}

void store_unpin(struct store *s, const struct version *v)
{
    /* Every struct version of the API is the first member of a version_owned. */
    store_version_drop(s, (struct version_owned *)(uintptr_t)v);
}

bool store_wait_pinnable(struct store *s, uint64_t deadline_us)
{
    bool ready;

    mtx_lock(&s->lock);
    while ((s->state == STORE_ASLEEP || s->state == STORE_DROPPED) && !clock_passed(deadline_us))
        (void)cnd_wait(&s->changed, &s->lock, deadline_us);
    ready = s->state == STORE_READY;
    mtx_unlock(&s->lock);
    return ready;
}

static bool stop_is_set(const atomic_bool *stop)
{
    return stop != NULL && atomic_load_explicit(stop, memory_order_relaxed);
}

bool store_wait_slice_locked(struct store *s, uint64_t deadline_us, const atomic_bool *stop)
{
    uint64_t piece = clock_after_us(STORE_STOP_POLL_US);

    if (stop_is_set(stop) || clock_passed(deadline_us))
        return false;
    (void)cnd_wait(&s->changed, &s->lock, piece < deadline_us ? piece : deadline_us);
    return true;
}

bool store_wait_drained(struct store *s, uint64_t deadline_us, const atomic_bool *stop)
{
    bool drained;

    mtx_lock(&s->lock);
    s->n_awaiting++;
    while (s->n_live > 1 && store_wait_slice_locked(s, deadline_us, stop))
        continue;
    s->n_awaiting--;
    drained = s->n_live <= 1;
    mtx_unlock(&s->lock);
    return drained;
}

static int wait_version_slot_locked(struct store *s, uint64_t deadline_us, const atomic_bool *stop,
                                    struct err *e)
{
    s->n_awaiting++;
    while (s->n_live + 1 > s->n_versions_max && store_wait_slice_locked(s, deadline_us, stop))
        continue;
    s->n_awaiting--;
    if (s->n_live + 1 > s->n_versions_max)
        return err_set(e, ERR_CONFLICT, "",
                       "%u versions of the weights are alive, %u are allowed: older ones are still "
                       "being read, by generations that finish on theirs (frozen ones after "
                       "resume) or under a lease",
                       s->n_live, s->n_versions_max - 1);
    return 0;
}

/* A commit may have come since the client learned what is served. */
static int check_base_locked(const struct store *s, uint64_t serial, struct err *e)
{
    const struct version *v = s->current != NULL ? &s->current->version : NULL;

    if (serial == 0 || (v != NULL && v->serial == serial))
        return 0;
    if (v == NULL)
        return err_set(e, ERR_PRECONDITION, "/base_version",
                       "this update builds on serial %llu, and no weights are served: send the "
                       "whole model",
                       (unsigned long long)serial);
    return err_set(e, ERR_PRECONDITION, "/base_version",
                   "this update builds on serial %llu, and serial %llu ('%.128s') was committed "
                   "since: abort it, and send what changed since that, or the whole model",
                   (unsigned long long)serial, (unsigned long long)v->serial, v->label);
}

static int staging_begin_locked(struct store *s, const struct staging_cfg *cfg,
                                uint64_t deadline_us, const atomic_bool *stop, struct staging *g,
                                struct err *e)
{
    if (s->staging_open)
        return err_set(e, ERR_CONFLICT, "", "another update is being staged");
    if (s->state == STORE_ASLEEP)
        return err_set(e, ERR_CONFLICT, "", "the weights are asleep: wake them first");
    if (cfg->partial && s->current == NULL)
        return store_refuse_state_locked(s, e);
    if (check_base_locked(s, cfg->base_serial, e) != 0)
        return -1;
    s->staging_open = true; /* set also while waiting: one staging at a time */
    g->partial = cfg->partial;
    g->sharded = cfg->sharded;
    if (wait_version_slot_locked(s, deadline_us, stop, e) != 0) {
        s->staging_open = false;
        return -1;
    }
    if (g->partial) {
        g->base = s->current;
        g->base->refs++;
    }
    return 0;
}

static struct staging *staging_new(struct store *s)
{
    uint32_t n = s->model_spec->tensor_list->n_tensors;
    struct staging *g = calloc(1, sizeof *g);

    if (g == NULL)
        return NULL;
    g->store = s;
    g->arrived = calloc((size_t)n * s->n_places, sizeof *g->arrived);
    g->spread = calloc(n, sizeof *g->spread);
    g->next = store_version_new(s);
    if (g->arrived != NULL && g->spread != NULL && g->next != NULL)
        return g;
    staging_free(g);
    return NULL;
}

int store_stage(struct store *s, const struct staging_cfg *cfg, uint64_t deadline_us,
                const atomic_bool *stop, struct staging **out, struct err *e)
{
    struct staging *g = staging_new(s);
    int rc;

    if (g == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a staging of %u tensors",
                       s->model_spec->tensor_list->n_tensors);
    if (cfg->commit_id != NULL)
        (void)snprintf(g->next->version.commit_id, sizeof g->next->version.commit_id, "%s",
                       cfg->commit_id);
    else
        id_make(g->next->version.commit_id);
    mtx_lock(&s->lock);
    rc = staging_begin_locked(s, cfg, deadline_us, stop, g, e);
    mtx_unlock(&s->lock);
    if (rc != 0) {
        staging_free(g);
        return -1;
    }
    *out = g;
    return 0;
}

void store_abort(struct store *s, struct staging *g)
{
    struct version_owned *base;

    if (g == NULL)
        return;
    base = g->base;
    staging_free(g); /* returns its slabs before the next staging can begin */
    mtx_lock(&s->lock);
    s->staging_open = false;
    cnd_broadcast(&s->changed);
    mtx_unlock(&s->lock);
    store_version_drop(s, base);
}

int store_info_by(struct store *s, uint64_t deadline_us, struct store_info *out, struct err *e)
{
    if (mtx_lock_by(&s->lock, deadline_us, e) != 0)
        return -1;
    memset(out, 0, sizeof *out);
    out->state = s->state;
    if (s->current != NULL) {
        out->serial = s->current->version.serial;
        out->nbytes = s->current->version.nbytes;
        memcpy(out->label, s->current->version.label, sizeof out->label);
        memcpy(out->commit_id, s->current->version.commit_id, sizeof out->commit_id);
        if (s->content_serial == out->serial)
            memcpy(out->content, s->content, sizeof out->content);
    }
    out->n_live = s->n_live;
    out->committed_at_us = s->committed_at_us;
    out->n_commits = s->n_commits;
    mtx_unlock(&s->lock);
    return 0;
}

void store_note_content(struct store *s, uint64_t serial, const char *content)
{
    mtx_lock(&s->lock);
    if (serial >= s->content_serial) {
        s->content_serial = serial;
        (void)snprintf(s->content, sizeof s->content, "%s", content);
    }
    mtx_unlock(&s->lock);
}

void store_info(struct store *s, struct store_info *out)
{
    (void)store_info_by(s, CLOCK_NEVER, out, NULL);
}

bool store_label_of(struct store *s, uint64_t serial, char *out)
{
    const struct label_kept *kept = &s->labels[serial % STORE_LABELS_KEPT];
    bool found;

    mtx_lock(&s->lock);
    found = serial != 0 && kept->serial == serial;
    if (found)
        memcpy(out, kept->label, sizeof kept->label);
    mtx_unlock(&s->lock);
    return found;
}

int place_read(const struct store *s, uint32_t place, void *out, uint64_t addr, uint64_t nbytes,
               struct err *e)
{
    struct device *d = store_device(s, place);

    if (d != NULL)
        return device_read(d, out, addr, nbytes, e);
    memcpy(out, (const void *)(uintptr_t)addr, nbytes);
    return 0;
}

int place_write(const struct store *s, uint32_t place, uint64_t addr, const void *from,
                uint64_t nbytes, struct err *e)
{
    struct device *d = store_device(s, place);

    if (d != NULL)
        return device_write(d, addr, from, nbytes, e);
    memmove((void *)(uintptr_t)addr, from, nbytes); /* not memcpy: they may be the same */
    return 0;
}

int place_sum(const struct store *s, uint32_t place, uint64_t addr, uint64_t nbytes,
              struct checksum *out, struct err *e)
{
    struct device *d = store_device(s, place);

    if (d != NULL)
        return device_sum(d, addr, nbytes, out, e);
    *out = checksum_of((const void *)(uintptr_t)addr, nbytes);
    return 0;
}

/* The place to read a tensor from: the host, else the first rank that has it. */
static uint32_t place_to_read(const struct store *s, const struct version_owned *v, uint32_t index)
{
    uint32_t p = 0;

    if (store_has_host(s))
        return store_host_place(s);
    while (p + 1 < s->n_places && version_view(v, p, index)->slab == NULL)
        p++;
    return p;
}

int store_checksum(struct store *s, const struct version *v, uint32_t index, struct checksum *out,
                   struct err *e)
{
    struct version_owned *o = (struct version_owned *)(uintptr_t)v;
    struct sum_slot *slot = &o->sums[index];
    unsigned char empty = SUM_EMPTY;
    uint32_t place;

    assert(index < o->n_tensors);
    if (atomic_load_explicit(&slot->state, memory_order_acquire) == SUM_READY) {
        *out = slot->sum;
        return 0;
    }
    place = place_to_read(s, o, index);
    if (place_sum(s, place, version_view(o, place, index)->addr,
                  s->model_spec->tensor_list->tensors[index].nbytes, out, e) != 0)
        return -1;
    if (atomic_compare_exchange_strong(&slot->state, &empty, SUM_WRITING)) {
        slot->sum = *out;
        atomic_store_explicit(&slot->state, SUM_READY, memory_order_release);
    }
    return 0;
}

int store_read(struct store *s, const struct version *v, uint32_t index, uint64_t offset,
               uint64_t nbytes, void *out, struct err *e)
{
    const struct version_owned *o = (const struct version_owned *)(uintptr_t)v;
    uint32_t place = place_to_read(s, o, index);

    assert(offset + nbytes <= s->model_spec->tensor_list->tensors[index].nbytes);
    return place_read(s, place, out, version_view(o, place, index)->addr + offset, nbytes, e);
}
