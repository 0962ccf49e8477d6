/* Sources over CUDA IPC handles as tests make them: tensor lists, handles and buckets, this
 * process's end of the trainer, and what must be left after each test: nothing. */
#ifndef BATON_TESTS_IPC_FIXTURE_H
#define BATON_TESTS_IPC_FIXTURE_H

#include "base/clock.h"
#include "driver/cuda_info.h"
#include "tests/unit/transport/ipc_trainer.h"
#include "transport/ipc/cuda_ipc.h"

#include <dirent.h>

static inline int ifx_n_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(dir) != NULL)
        n++;
    (void)closedir(dir);
    return n;
}

/* A tensor list of n tensors of bytes, named "t0", "t1", ... */
static inline struct tensor_list *ifx_tensor_list(const uint64_t *nbytes, uint32_t n)
{
    struct tensor_list_builder *b = NULL;
    struct tensor_list *tensor_list = NULL;
    struct err e = {0};
    char name[16];

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (uint32_t i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, "t%u", (unsigned)i);
        assert_int_equal(tensor_list_builder_add(b, name, DTYPE_U8, &nbytes[i], 1, UINT64_MAX, &e),
                         0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &tensor_list, &e), 0);
    return tensor_list;
}

/* All of a block as one handle; callers change what they need. */
static inline struct ipc_handle ifx_handle(const struct ifx_answer *mem, uint64_t nbytes)
{
    struct ipc_handle h = {
        .has_memory = true, .type = 'c', .ndim = 1, .nbytes = nbytes, .storage_nbytes = nbytes};

    memcpy(h.mem, mem->handle, IPC_MEM_NBYTES);
    h.shape[0] = nbytes;
    return h;
}

static inline void ifx_export_as(struct ipc_handle *h, const struct ifx_counter *c, uint32_t slot)
{
    (void)snprintf(h->ref_name, sizeof h->ref_name, "%s", c->name);
    h->ref_slot = slot;
    *ifx_slot(c, slot) = 1;
}

static inline void ifx_wait_for(struct ipc_handle *h, const struct ifx_answer *event)
{
    h->event_sync = true;
    memcpy(h->event, event->handle, IPC_EVENT_NBYTES);
}

/* What a bucket is made of: for each rank, where it gets n tensors from `first` on. */
struct ifx_bucket {
    bool packed;
    const struct ipc_handle *handles[IFX_RANKS]; /* [packed ? 1 : n]; NULL: nothing */
    uint32_t first[IFX_RANKS], n[IFX_RANKS];
};

/* Memory of the bucket as a handler would have made it; never of one that fails on demand. */
static inline void ifx_bucket_make(struct ipc_bucket *out, const struct ifx_bucket *from)
{
    struct ipc_handles *h = &out->handles;

    *h = (struct ipc_handles){.packed = from->packed, .n_gpus = IFX_RANKS};
    for (uint32_t r = 0; r < IFX_RANKS; r++)
        if (from->handles[r] != NULL)
            h->n_handles = from->packed ? 1 : from->n[r];
    h->all = calloc((size_t)IFX_RANKS * h->n_handles, sizeof *h->all);
    out->ranks = calloc(IFX_RANKS, sizeof *out->ranks);
    out->first = calloc(IFX_RANKS, sizeof *out->first);
    out->n_tensors = calloc(IFX_RANKS, sizeof *out->n_tensors);
    assert_true(h->all != NULL && out->ranks != NULL && out->first != NULL &&
                out->n_tensors != NULL);
    for (uint32_t r = 0; r < IFX_RANKS; r++) {
        struct ipc_gpu *gpu = &h->gpus[r];
        struct ipc_handle *at = h->all + (size_t)r * h->n_handles;
        (void)snprintf(gpu->uuid, sizeof gpu->uuid, "fa6ec0da-0000-4000-8000-%012x", (unsigned)r);
        gpu->handles = at;
        if (from->handles[r] == NULL)
            continue;
        memcpy(at, from->handles[r], h->n_handles * sizeof *at);
        out->ranks[r].gpu = gpu;
        out->first[r] = from->first[r];
        out->n_tensors[r] = from->n[r];
    }
}

static inline struct ipc_bucket *ifx_buckets(const struct ifx_bucket *from, uint32_t n)
{
    struct ipc_bucket *buckets = calloc(n, sizeof *buckets);

    assert_non_null(buckets);
    for (uint32_t i = 0; i < n; i++)
        ifx_bucket_make(&buckets[i], &from[i]);
    return buckets;
}

enum { IFX_BLOCK = 5000, IFX_N_SMALL = 3, IFX_COUNTERS = 4 };

/* Bytes of the tensors that most tests use. */
static const uint64_t ifx_small[IFX_N_SMALL] = {1000, 0, 2003};

static struct {
    struct ifx_lib lib;
    struct device *devices[IFX_RANKS];
    struct tensor_list *tensor_list; /* of ifx_small */
    struct cuda_ipc_stats stats;
    struct ifx_peer peer;
    struct ifx_counter counters[IFX_COUNTERS];
    size_t n_events_before;
    int n_files_before;
} ifx;

static inline struct fakecuda_counts ifx_counted(void)
{
    struct fakecuda_counts c;

    ifx.lib.counts(&c);
    return c;
}

static inline int ifx_open_devices(void **state)
{
    struct cuda_device about[CUDA_DEVICES_MAX];
    struct err e = {0};
    size_t n = 0;

    (void)state;
    if (!ifx_lib_open(&ifx.lib) || cuda_devices(&ifx.lib.cu, about, &n, &e) != 0 || n != IFX_RANKS)
        return -1;
    for (int i = 0; i < IFX_RANKS; i++)
        if (device_new(&ifx.devices[i], &ifx.lib.cu, &about[i], &e) != 0)
            return -1;
    ifx.tensor_list = ifx_tensor_list(ifx_small, IFX_N_SMALL);
    return 0;
}

static inline int ifx_close_devices(void **state)
{
    (void)state;
    tensor_list_unref(ifx.tensor_list);
    for (int i = 0; i < IFX_RANKS; i++)
        device_free(ifx.devices[i]);
    cu_unload(&ifx.lib.cu);
    return 0;
}

static inline int ifx_begin(void **state)
{
    (void)state;
    memset(&ifx.stats, 0, sizeof ifx.stats);
    ifx.n_events_before = ifx_counted().n_events;
    ifx.n_files_before = ifx_n_files();
    ifx_peer_start(&ifx.peer);
    return 0;
}

/* After each test nothing of the trainer is held any more. */
static inline int ifx_end(void **state)
{
    struct fakecuda_counts c = ifx_counted();

    (void)state;
    for (int i = 0; i < IFX_COUNTERS; i++)
        ifx_counter_drop(&ifx.counters[i]);
    if (ifx.peer.pid != 0)
        assert_int_equal(ifx_peer_end(&ifx.peer), 0);
    assert_int_equal(c.n_mappings, 0);
    assert_int_equal(c.n_events, ifx.n_events_before);
    assert_int_equal(atomic_load(&ifx.stats.n_mapped), 0);
    assert_int_equal(atomic_load(&ifx.stats.n_opened), atomic_load(&ifx.stats.n_closed));
    assert_int_equal(ifx_n_files(), ifx.n_files_before);
    return 0;
}

static inline struct ifx_answer ifx_block(int32_t device, uint64_t nbytes, uint32_t seed)
{
    return ifx_ask(
        &ifx.peer,
        (struct ifx_command){.what = IFX_ALLOC, .device = device, .nbytes = nbytes, .seed = seed});
}

/* A block for the usual tensors, on the first GPU, with an export of its own. */
static inline struct ipc_handle ifx_export(uint32_t seed, uint32_t slot)
{
    struct ifx_answer mem = ifx_block(0, IFX_BLOCK, seed);
    struct ipc_handle h = ifx_handle(&mem, IFX_BLOCK);

    if (ifx.counters[0].words == NULL)
        ifx_counter_make(&ifx.counters[0], ifx.peer.pid, 0);
    ifx_export_as(&h, &ifx.counters[0], slot);
    return h;
}

static inline struct source *ifx_source(const struct ifx_bucket *buckets, uint32_t n,
                                        struct tensor_list *p0, struct tensor_list *p1)
{
    struct tensor_list *tensor_lists[IFX_RANKS] = {p0, p1};
    struct cuda_ipc_cfg cfg = {.devices = ifx.devices,
                               .n_ranks = IFX_RANKS,
                               .tensor_lists = tensor_lists,
                               .buckets = ifx_buckets(buckets, n),
                               .n_buckets = n,
                               .stats = &ifx.stats};
    struct source *s = NULL;
    struct err e = {0};

    assert_int_equal(cuda_ipc_source_new(&s, &cfg, &e), 0);
    assert_null(s->ops->fill);
    return s;
}

/* The usual tensors, packed in one handle, for the first rank. */
static inline struct source *ifx_source_small(const struct ipc_handle *h)
{
    struct ifx_bucket b = {.packed = true, .handles = {h}, .n = {IFX_N_SMALL}};

    return ifx_source(&b, 1, ifx.tensor_list, NULL);
}

static inline void ifx_join(struct source *s, struct source_scope **scope)
{
    struct err e = {0};

    assert_int_equal(s->ops->join(s, scope, &e), 0);
    assert_non_null(*scope);
}

static inline uint32_t ifx_map(struct source *s, uint32_t rank, uint32_t first)
{
    struct progress p = {.deadline_us = CLOCK_NEVER};
    struct err e = {0};
    uint32_t n = 0;

    if (s->ops->map(s, rank, first, SOURCE_WAIT, &p, &n, &e) != 0)
        fail_msg("%s", e.msg);
    return n;
}

/* A map of the first rank's first run that must fail. */
static inline struct err ifx_map_fails(struct source *s, uint64_t deadline_us, bool stop)
{
    struct progress p = {.deadline_us = deadline_us, .stop = stop};
    struct err e = {0};
    uint32_t n = 77;

    assert_int_equal(s->ops->map(s, 0, 0, SOURCE_WAIT, &p, &n, &e), -1);
    assert_int_equal(n, 77);
    return e;
}

static inline void ifx_release(struct source *s)
{
    struct err e = {0};

    if (s->ops->release(s, &e) != 0)
        fail_msg("%s", e.msg);
    source_close(s);
}

static inline void ifx_release_gone(struct source *s)
{
    struct err e = {0};

    assert_int_equal(s->ops->release(s, &e), -1);
    assert_int_equal(e.code, ERR_GONE);
    source_close(s);
}

static inline struct source_counts ifx_counts(const struct source_scope *scope)
{
    struct source_counts c;

    scope->ops->counts(scope, &c);
    assert_int_equal(c.n_mapped, c.n_opened - c.n_closed);
    return c;
}

/* Tensor i of a rank is `nbytes` bytes of the block of `seed`, from `at` on. */
static inline void ifx_check(struct source *s, uint32_t rank, uint32_t i, uint64_t nbytes,
                             uint32_t seed, uint64_t at)
{
    uint8_t bytes[IFX_BLOCK];
    struct err e = {0};

    if (nbytes == 0)
        return;
    assert_int_equal(device_read(ifx.devices[rank], bytes, s->ops->at(s, rank, i), nbytes, &e), 0);
    for (uint64_t k = 0; k < nbytes; k++)
        assert_int_equal(bytes[k], ifx_byte(seed, at + k));
}

static inline void ifx_says(const struct err *e, enum err_code code, const char *what)
{
    assert_int_equal(e->code, code);
    if (strstr(e->msg, what) == NULL)
        fail_msg("'%s' does not say '%s'", e->msg, what);
}

/* The life of a source of the usual tensors. */
static inline void ifx_pass(const struct ipc_handle *h, struct source_scope **scope, uint32_t seed)
{
    struct source *s = ifx_source_small(h);

    ifx_join(s, scope);
    assert_int_equal(ifx_map(s, 0, 0), IFX_N_SMALL);
    ifx_check(s, 0, 0, ifx_small[0], seed, 0);
    ifx_check(s, 0, 2, ifx_small[2], seed, ifx_small[0]);
    ifx_release(s);
}

#endif
