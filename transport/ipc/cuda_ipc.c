/* Handles of trainers' GPU memory as a source: the handles of each run, their events, and the
 * address of each tensor. State that outlives one source is in ipc_scope.c.
 *
 * The host polls a trainer's event until it has passed, and never queues a wait for it on the
 * stream: if the trainer dies first, everything after it in the stream would wait forever. */
#include "transport/ipc/cuda_ipc.h"

#include "base/names.h"
#include "base/utf8.h"
#include "transport/ipc/ipc_scope.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POLL_NS_MIN = 20000, POLL_NS_MAX = 1000000 }; /* between two polls of an event */

/* The state of one handle; IPC_NOTHING: none. */
struct ipc_use {
    uint32_t event;   /* number in the source */
    uint32_t export;  /* in the scope; from join to release */
    uint32_t mapping; /* in the scope; from map to release */
};

/* The part of a bucket that one rank reads. */
struct ipc_run {
    uint32_t first, n_tensors; /* of the rank's tensor list */
    uint32_t bucket;
    const struct ipc_gpu *gpu;
    uint32_t n_handles;   /* 1, or n_tensors */
    struct ipc_use *uses; /* [n_handles], in the source's */
    uint32_t n_mapped;    /* handles that are mapped, or have no memory */
    uint32_t n_passed;    /* handles whose event has passed, or that have none */
};

struct ipc_rank {
    struct device *device;           /* borrowed */
    struct tensor_list *tensor_list; /* owned: one reference; NULL: nothing for this rank */
    struct ipc_run *runs;            /* [n_runs], in the source's; first ascending */
    uint32_t n_runs;
};

/* A trainer's event; several handles may have the same one. */
struct ipc_event {
    struct device *device;       /* borrowed; NULL: not opened yet */
    struct device_event *opened; /* owned; NULL again once it has passed */
};

struct cuda_ipc {
    struct source source; /* first */
    struct cuda_ipc_stats *stats;
    struct ipc_scope *scope; /* borrowed; NULL before join and after release */
    uint64_t exporters;      /* bits of the scope's exporters whose memory this source reads */

    struct ipc_bucket *buckets; /* owned; [n_buckets] */
    uint32_t n_buckets;
    struct ipc_rank *ranks; /* owned; [n_ranks] */
    uint32_t n_ranks;
    struct ipc_run *runs; /* owned; of all ranks, one rank after the other */
    uint32_t n_runs;
    struct ipc_use *uses; /* owned; of all runs */
    size_t n_uses;
    struct names event_keys;  /* numbers are of events */
    struct ipc_event *events; /* owned; [event_keys.n] */
};

static struct cuda_ipc *ipc_of(struct source *s)
{
    return (struct cuda_ipc *)(void *)s;
}

static const struct ipc_handle *handle_of(const struct ipc_run *run, uint32_t i)
{
    return &run->gpu->handles[i];
}

/* The number of the handle that contains tensor i of the rank. */
static uint32_t handle_number(const struct ipc_run *run, uint32_t i)
{
    return run->n_handles != run->n_tensors ? 0 : i - run->first;
}

void ipc_bucket_fini(struct ipc_bucket *b)
{
    ipc_handles_fini(&b->handles);
    free(b->ranks);
    free(b->first);
    free(b->n_tensors);
    memset(b, 0, sizeof *b);
}

/* Joins the scope, or makes it if there is none; *made then is true. */
static int scope_enter(struct cuda_ipc *s, struct source_scope *scope, bool *made, struct err *e)
{
    *made = scope == NULL;
    if (*made)
        return ipc_scope_new(&s->scope, IPC_REUSE, s->stats, e);
    s->scope = ipc_scope_of(scope);
    return 0;
}

/* Gives back the exports of the first n handles. */
static void cuda_ipc_drop_exports(struct cuda_ipc *s, size_t n, bool count)
{
    for (size_t i = 0; i < n; i++) {
        ipc_scope_drop_export(s->scope, s->uses[i].export, count);
        s->uses[i].export = IPC_NOTHING;
    }
    ipc_scope_drop_end(s->scope);
}

static int ipc_join(struct source *source, struct source_scope **scope, struct err *e)
{
    struct cuda_ipc *s = ipc_of(source);
    size_t n = 0;
    bool made;

    assert(s->scope == NULL);
    if (scope_enter(s, *scope, &made, e) != 0)
        return -1;
    for (uint32_t i = 0; i < s->n_runs; i++) {
        const struct ipc_run *run = &s->runs[i];
        for (uint32_t k = 0; k < run->n_handles; k++, n++) {
            if (ipc_scope_take_export(s->scope, handle_of(run, k), &run->uses[k].export, e) != 0)
                goto drop_exports;
            s->exporters |= ipc_scope_exporter(s->scope, run->uses[k].export);
        }
    }
    *scope = ipc_scope_source(s->scope);
    return 0;

drop_exports:
    cuda_ipc_drop_exports(s, n, false);
    if (made)
        source_scope_close(ipc_scope_source(s->scope));
    s->scope = NULL;
    return -1;
}

/* The run that contains tensor i of a rank. */
static struct ipc_run *run_at(const struct ipc_rank *rank, uint32_t i)
{
    uint32_t low = 0, high = rank->n_runs;

    while (low + 1 < high) {
        uint32_t middle = low + (high - low) / 2;

        if (rank->runs[middle].first <= i)
            low = middle;
        else
            high = middle;
    }
    assert(low < rank->n_runs && rank->runs[low].first <= i &&
           i - rank->runs[low].first < rank->runs[low].n_tensors);
    return &rank->runs[low];
}

/* Repeats the error with the name of the handle. */
static int name_handle(const struct ipc_run *run, const struct err *cause, struct err *e)
{
    return err_set(e, cause->code, cause->field, "bucket %u, GPU %s: %s", (unsigned)run->bucket,
                   run->gpu->uuid, cause->msg);
}

/* The bytes that are read through handle k of a run. */
static uint64_t nbytes_read(const struct ipc_rank *rank, const struct ipc_run *run, uint32_t k)
{
    const struct tensor_spec *t = &rank->tensor_list->tensors[run->first];

    if (run->n_handles == run->n_tensors)
        return t[k].nbytes;
    return t[run->n_tensors - 1].offset + t[run->n_tensors - 1].nbytes - t->offset;
}

/* A read beyond the mapping would end the GPU's context, and with it the server. */
static int check_bounds(const struct cuda_ipc *s, const struct ipc_rank *rank,
                        const struct ipc_run *run, uint32_t k, struct err *e)
{
    const struct ipc_handle *h = handle_of(run, k);
    uint64_t wanted = nbytes_read(rank, run, k);
    uint64_t nbytes = h->has_memory ? ipc_scope_nbytes(s->scope, run->uses[k].mapping) : 0;
    const char *name = rank->tensor_list->tensors[run->first + k].name;

    assert(h->nbytes <= h->storage_nbytes && h->tensor_offset <= h->storage_nbytes - h->nbytes);
    if (wanted > h->nbytes)
        return err_set(
            e, ERR_BAD_REQUEST, "",
            "bucket %u, GPU %s, from '%.*s' on: the handle has %llu bytes, names, dtypes "
            "and shapes make %llu",
            (unsigned)run->bucket, run->gpu->uuid, utf8_cut_name(name), name,
            (unsigned long long)h->nbytes, (unsigned long long)wanted);
    if (h->storage_nbytes > nbytes || h->storage_offset > nbytes - h->storage_nbytes)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "bucket %u, GPU %s, from '%.*s' on: the handle's memory has %llu bytes, "
                       "expected %llu from byte %llu on",
                       (unsigned)run->bucket, run->gpu->uuid, utf8_cut_name(name), name,
                       (unsigned long long)nbytes, (unsigned long long)h->storage_nbytes,
                       (unsigned long long)h->storage_offset);
    return 0;
}

static int map_handle(struct cuda_ipc *s, const struct ipc_rank *rank, const struct ipc_run *run,
                      uint32_t k, struct err *e)
{
    const struct ipc_handle *h = handle_of(run, k);
    struct ipc_use *use = &run->uses[k];
    struct err cause = {0};

    if (!h->has_memory ||
        use->mapping != IPC_NOTHING || /* mapped by an earlier call that failed later */
        ipc_scope_map(s->scope, rank->device, h, use->export, &use->mapping, &cause) == 0)
        return check_bounds(s, rank, run, k, e);
    /* If its process is known to have died, report that instead. */
    if (ipc_scope_check_exporters(s->scope, s->exporters, e) != 0)
        return -1;
    return name_handle(run, &cause, e);
}

/* Has the event of handle k passed? 1 yes, 0 not yet. */
static int event_passed(struct cuda_ipc *s, const struct ipc_rank *rank, const struct ipc_run *run,
                        uint32_t k, struct err *e)
{
    struct ipc_event *ev;
    struct err cause = {0};
    int rc;

    if (run->uses[k].event == IPC_NOTHING)
        return 1;
    ev = &s->events[run->uses[k].event];
    if (ev->device == NULL) {
        if (device_event_open(rank->device, handle_of(run, k)->event, &ev->opened, &cause) != 0)
            return name_handle(run, &cause, e);
        ev->device = rank->device;
    }
    if (ev->opened == NULL)
        return 1;
    rc = device_event_passed(ev->device, ev->opened, &cause);
    if (rc < 0)
        return name_handle(run, &cause, e);
    if (rc > 0) {
        device_event_close(ev->device, ev->opened);
        ev->opened = NULL;
    }
    return rc;
}

static void pause_ns(long *ns)
{
    struct timespec t = {.tv_nsec = *ns};

    (void)nanosleep(&t, NULL); /* after a signal: one more poll */
    *ns = 2 * *ns < POLL_NS_MAX ? 2 * *ns : POLL_NS_MAX;
}

static int await_events(struct cuda_ipc *s, const struct ipc_rank *rank, struct ipc_run *run,
                        enum source_wait wait, const struct progress *p, struct err *e)
{
    long ns = POLL_NS_MIN;
    int rc;

    while (run->n_passed < run->n_handles) {
        rc = event_passed(s, rank, run, run->n_passed, e);
        if (rc < 0)
            return -1;
        if (rc > 0) {
            run->n_passed++;
            continue;
        }
        if (progress_check(p, e) != 0 || ipc_scope_check_exporters(s->scope, s->exporters, e) != 0)
            return -1;
        if (wait == SOURCE_TRY)
            return 1;
        pause_ns(&ns);
    }
    return 0;
}

static int ipc_map(struct source *source, uint32_t rank_i, uint32_t first, enum source_wait wait,
                   const struct progress *p, uint32_t *n, struct err *e)
{
    struct cuda_ipc *s = ipc_of(source);
    const struct ipc_rank *rank = &s->ranks[rank_i];
    struct ipc_run *run = run_at(rank, first);
    int rc;

    assert(s->scope != NULL && run->first == first);
    for (; run->n_mapped < run->n_handles; run->n_mapped++)
        if (progress_check(p, e) != 0 || map_handle(s, rank, run, run->n_mapped, e) != 0)
            return -1;
    rc = await_events(s, rank, run, wait, p, e);
    if (rc != 0)
        return rc;
    /* A mapping from an earlier bucket of this update remains valid after its process died. */
    if (ipc_scope_check_exporters(s->scope, s->exporters, e) != 0)
        return -1;
    *n = run->n_tensors;
    return 0;
}

/* A mapping is one allocation of the exporter, so its address identifies it. */
static uint64_t ipc_block(const struct source *source, uint32_t rank, uint32_t i)
{
    const struct cuda_ipc *s = (const struct cuda_ipc *)(const void *)source;
    const struct ipc_run *run = run_at(&s->ranks[rank], i);
    uint32_t k = handle_number(run, i);

    return handle_of(run, k)->has_memory ? ipc_scope_addr(s->scope, run->uses[k].mapping) : 0;
}

static uint64_t ipc_at(const struct source *source, uint32_t rank, uint32_t i)
{
    const struct cuda_ipc *s = (const struct cuda_ipc *)(const void *)source;
    const struct ipc_run *run = run_at(&s->ranks[rank], i);
    const struct tensor_spec *t = s->ranks[rank].tensor_list->tensors;
    uint32_t k = handle_number(run, i);
    const struct ipc_handle *h = handle_of(run, k);

    return ipc_block(source, rank, i) + h->storage_offset + h->tensor_offset +
           (t[i].offset - t[run->first + k].offset);
}

static void close_events(struct cuda_ipc *s)
{
    for (uint32_t i = 0; i < s->event_keys.n; i++) {
        if (s->events[i].opened != NULL)
            device_event_close(s->events[i].device, s->events[i].opened);
        s->events[i].opened = NULL;
    }
}

/* In torch's order: the event, the mapping, then the counter; after that the trainer may destroy
 * the event and free the memory. */
static int ipc_release(struct source *source, struct err *e)
{
    struct cuda_ipc *s = ipc_of(source);
    int rc;

    if (s->scope == NULL) /* join failed and released everything */
        return 0;
    close_events(s);
    for (size_t i = 0; i < s->n_uses; i++) {
        if (s->uses[i].mapping != IPC_NOTHING)
            ipc_scope_unmap(s->scope, s->uses[i].mapping);
        s->uses[i].mapping = IPC_NOTHING;
    }
    rc = ipc_scope_check_exporters(s->scope, s->exporters, e);
    cuda_ipc_drop_exports(s, s->n_uses, true);
    s->scope = NULL;
    return rc;
}

static void ipc_close(struct source *source)
{
    struct cuda_ipc *s = ipc_of(source);

    if (s == NULL)
        return;
    assert(s->scope == NULL);
    for (uint32_t i = 0; s->ranks != NULL && i < s->n_ranks; i++)
        tensor_list_unref(s->ranks[i].tensor_list);
    for (uint32_t i = 0; i < s->n_buckets; i++)
        ipc_bucket_fini(&s->buckets[i]);
    names_fini(&s->event_keys);
    free(s->buckets);
    free(s->ranks);
    free(s->runs);
    free(s->uses);
    free(s->events);
    free(s);
}

static const struct source_ops ipc_ops = {.name = "ipc_handles",
                                          .join = ipc_join,
                                          .map = ipc_map,
                                          .at = ipc_at,
                                          .block = ipc_block,
                                          .release = ipc_release,
                                          .close = ipc_close};

/* Counts the runs and their handles, and allocates them. */
static int alloc_runs(struct cuda_ipc *s, struct err *e)
{
    for (uint32_t b = 0; b < s->n_buckets; b++) {
        for (uint32_t r = 0; r < s->n_ranks; r++) {
            if (s->buckets[b].ranks[r].gpu == NULL)
                continue;
            s->n_runs++;
            s->n_uses += s->buckets[b].handles.n_handles;
        }
    }
    s->ranks = calloc(s->n_ranks, sizeof *s->ranks);
    s->runs = calloc(s->n_runs > 0 ? s->n_runs : 1, sizeof *s->runs);
    s->uses = calloc(s->n_uses > 0 ? s->n_uses : 1, sizeof *s->uses);
    s->events = calloc(s->n_uses > 0 ? s->n_uses : 1, sizeof *s->events);
    if (s->ranks == NULL || s->runs == NULL || s->uses == NULL || s->events == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %zu handles", s->n_uses);
    return 0;
}

/* The number of a handle's event among the source's. */
static int event_number(struct cuda_ipc *s, const struct ipc_handle *h, uint32_t *number,
                        struct err *e)
{
    char key[IPC_HEX_LEN + 1];

    *number = IPC_NOTHING;
    if (!h->has_memory || !h->event_sync)
        return 0;
    ipc_hex(key, h->event);
    *number = names_find(&s->event_keys, key);
    if (*number != NAMES_NONE)
        return 0;
    *number = s->event_keys.n;
    return names_add(&s->event_keys, key, e);
}

/* Initializes the run of one bucket for one rank; its uses are at `uses`. */
static int cuda_ipc_fill_run(struct cuda_ipc *s, struct ipc_run *run, uint32_t bucket,
                             uint32_t rank, struct ipc_use *uses, struct err *e)
{
    const struct ipc_bucket *b = &s->buckets[bucket];
    const struct tensor_list *tensor_list = s->ranks[rank].tensor_list;

    *run = (struct ipc_run){.first = b->first[rank],
                            .n_tensors = b->n_tensors[rank],
                            .bucket = bucket,
                            .gpu = b->ranks[rank].gpu,
                            .n_handles = b->handles.n_handles,
                            .uses = uses};
    assert(tensor_list != NULL && run->n_tensors > 0 && run->first <= tensor_list->n_tensors &&
           run->n_tensors <= tensor_list->n_tensors - run->first);
    assert(run->n_handles == (b->handles.packed ? 1 : run->n_tensors));
    for (uint32_t k = 0; k < run->n_handles; k++) {
        uses[k].export = uses[k].mapping = IPC_NOTHING;
        if (event_number(s, handle_of(run, k), &uses[k].event, e) != 0)
            return -1;
    }
    return 0;
}

static int fill_rank(struct cuda_ipc *s, uint32_t r, struct ipc_run *runs, struct ipc_use **uses,
                     struct err *e)
{
    struct ipc_rank *rank = &s->ranks[r];

    rank->runs = runs;
    for (uint32_t b = 0; b < s->n_buckets; b++) {
        struct ipc_run *run = &runs[rank->n_runs];
        if (s->buckets[b].ranks[r].gpu == NULL)
            continue;
        if (cuda_ipc_fill_run(s, run, b, r, *uses, e) != 0)
            return -1;
        assert(rank->n_runs == 0 || run->first >= run[-1].first + run[-1].n_tensors);
        *uses += run->n_handles;
        rank->n_runs++;
    }
    return 0;
}

static int source_fill(struct cuda_ipc *s, const struct cuda_ipc_cfg *cfg, struct err *e)
{
    struct ipc_run *runs = s->runs;
    struct ipc_use *uses = s->uses;

    for (uint32_t r = 0; r < s->n_ranks; r++) {
        s->ranks[r].device = cfg->devices[r];
        if (cfg->tensor_lists[r] != NULL)
            s->ranks[r].tensor_list = tensor_list_ref(cfg->tensor_lists[r]);
        if (fill_rank(s, r, runs, &uses, e) != 0)
            return -1;
        runs += s->ranks[r].n_runs;
    }
    assert(runs == s->runs + s->n_runs && uses == s->uses + s->n_uses);
    return 0;
}

int cuda_ipc_source_new(struct source **out, const struct cuda_ipc_cfg *cfg, struct err *e)
{
    struct cuda_ipc *s = calloc(1, sizeof *s);

    assert(cfg->n_ranks > 0 && cfg->n_buckets > 0 && cfg->n_buckets <= IPC_BUCKETS_MAX);
    if (s == NULL) {
        for (uint32_t i = 0; i < cfg->n_buckets; i++)
            ipc_bucket_fini(&cfg->buckets[i]);
        free(cfg->buckets);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a source of handles");
    }
    s->source.ops = &ipc_ops;
    s->stats = cfg->stats;
    s->buckets = cfg->buckets;
    s->n_buckets = cfg->n_buckets;
    s->n_ranks = cfg->n_ranks;
    names_init(&s->event_keys);
    if (alloc_runs(s, e) != 0 || source_fill(s, cfg, e) != 0) {
        ipc_close(&s->source);
        return -1;
    }
    *out = &s->source;
    return 0;
}
