#include "fleet/handoff/handoff_windows.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/progress.h"
#include "fleet/api/upstream_api.h"
#include "fleet/calls/fleet_priv.h"
#include "fleet/handoff/handoff.h"
#include "fleet/handoff/handoff_export.h"
#include "fleet/handoff/handoff_request.h"
#include "fleet/handoff/window_plan.h"
#include "fleet/update/fleet_update.h"
#include "memory/device.h"
#include "memory/slab.h"
#include "transport/ipc/torch_export.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    READ_US = 3000000, /* from an SGLang's answer until all its ranks have dropped the window */
    READ_NAP_US = 100  /* between two looks */
};

#define READER_REMEDY                                                                              \
    "its ranks must see this server's /dev/shm, as the same user or as root: restart it, or give " \
    "a GPU, as in --stage cuda:0"

struct handoff_windows {
    struct handoff_cfg cfg;                    /* immutable, as all of it */
    struct device *device;                     /* borrowed from the store */
    struct window_plan plan;                   /* owned */
    struct slab_pool *pool;                    /* owned; of `slab` */
    struct slab *slab;                         /* counted; both halves */
    uint64_t stride;                           /* from one half to the other */
    struct torch_slab exported[WINDOW_HALVES]; /* each a storage of its own */
    struct tensor_spec bytes;                  /* a half, as torch sees it */
    struct handoff_gpus gpus;
    char ref_name[IPC_REF_NAME_MAX + 1];
};

/* A version on its way. */
struct sending {
    const struct handoff_windows *w;
    const struct version *v;
    uint32_t n_begun, n_read; /* windows: which are being copied, or were; which all have read */
    struct device_batch *filling[WINDOW_HALVES]; /* owned; NULL: none is running */
    struct err *e;
    int rc; /* of fill_halves */
};

/* the halves */

static int take_memory(struct handoff_windows *w, uint64_t nbytes, struct err *e)
{
    struct slab_memory memory = device_memory(w->device);
    struct err why;

    if (slab_pool_new(&w->pool, &memory, UINT64_MAX, 0, e) != 0)
        return -1;
    if (slab_pool_check(w->pool, nbytes, e) == 0 && slab_new(&w->slab, w->pool, nbytes, e) == 0)
        return 0;
    why = *e;
    err_clear(e);
    return err_set(e, why.code, "--stage-window", "the windows on %s: %.300s",
                   device_name(w->device), why.msg);
}

static uint32_t n_halves_of(const struct handoff_windows *w)
{
    return window_n_halves(w->cfg.window_nbytes,
                           store_model_spec(w->cfg.store)->tensor_list->nbytes);
}

static int take_halves(struct handoff_windows *w, struct err *e)
{
    uint64_t n_halves = n_halves_of(w), offset = 0;

    w->stride = (w->cfg.window_nbytes + DEVICE_ALIGN - 1) / DEVICE_ALIGN * DEVICE_ALIGN;
    if (take_memory(w, n_halves * w->stride, e) != 0 ||
        device_export(w->device, w->slab->addr, w->exported[0].mem, &offset, e) != 0)
        return -1;
    w->exported[0].uuid = w->gpus.uuids[0];
    w->exported[0].begin = offset;
    w->exported[0].nbytes = w->cfg.window_nbytes;
    for (uint32_t i = 1; i < n_halves; i++) {
        w->exported[i] = w->exported[0];
        w->exported[i].begin += i * w->stride;
    }
    w->bytes = (struct tensor_spec){.dtype = DTYPE_U8,
                                    .ndim = 1,
                                    .shape = {w->cfg.window_nbytes},
                                    .numel = w->cfg.window_nbytes,
                                    .nbytes = w->cfg.window_nbytes};
    return 0;
}

static void log_taken(const struct handoff_windows *w)
{
    struct log_rec r;

    log_begin(&r, LOG_INFO, "handoff.windows");
    log_str(&r, "device", device_name(w->device));
    log_u64(&r, "n_windows", n_halves_of(w));
    log_u64(&r, "window_nbytes", w->cfg.window_nbytes);
    log_u64(&r, "nbytes", w->slab->nbytes);
    log_end(&r);
}

int handoff_windows_new(struct handoff_windows **out, const struct handoff_cfg *cfg, struct err *e)
{
    struct handoff_windows *w = calloc(1, sizeof *w);

    if (w == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the windows");
    assert(store_n_ranks(cfg->store) == 1);
    w->cfg = *cfg;
    w->device = store_device(cfg->store, 0);
    handoff_gpus_list(&w->gpus, cfg->store, cfg->cuda);
    handoff_ref_name(w->ref_name);
    if (window_plan_init(&w->plan, store_model_spec(cfg->store)->tensor_list, cfg->window_nbytes,
                         e) != 0 ||
        take_halves(w, e) != 0) {
        handoff_windows_free(w);
        return -1;
    }
    log_taken(w);
    *out = w;
    return 0;
}

void handoff_windows_free(struct handoff_windows *w)
{
    if (w == NULL)
        return;
    slab_unref(w->slab);
    slab_pool_free(w->pool);
    window_plan_fini(&w->plan);
    free(w);
}

/* copies */

/* Queues the copies of a window into its half, of which no engine reads any more. Tensors that are
 * adjacent in host memory too are one copy. */
static int fill_begin(struct sending *s, uint32_t k)
{
    const struct handoff_windows *w = s->w;
    const struct tensor_spec *specs = store_model_spec(w->cfg.store)->tensor_list->tensors;
    uint64_t dst = w->slab->addr + k % WINDOW_HALVES * w->stride, src = 0, nbytes = 0;
    struct device_batch **batch = &s->filling[k % WINDOW_HALVES];
    int rc = 0;

    assert(*batch == NULL);
    if (device_batch_new(w->device, batch, s->e) != 0)
        return -1;
    for (uint32_t i = w->plan.first[k]; i < w->plan.first[k + 1] && rc == 0; i++) {
        const struct tensor_spec *t = w->plan.tensors[i].tensor;
        uint64_t at = s->v->places[0][t - specs].addr;

        if (t->nbytes == 0)
            continue;
        if (at != src + nbytes) {
            rc = device_batch_from_host(*batch, dst, (const void *)(uintptr_t)src, nbytes, s->e);
            dst += nbytes;
            src = at;
            nbytes = 0;
        }
        nbytes += t->nbytes;
    }
    return rc == 0 ? device_batch_from_host(*batch, dst, (const void *)(uintptr_t)src, nbytes, s->e)
                   : rc;
}

/* Waits until a window is in its half. */
static int fill_end(struct sending *s, uint32_t k)
{
    struct progress p = {.deadline_us = clock_after_us(fleet_update_us(s->w->cfg.control))};
    struct device_batch **batch = &s->filling[k % WINDOW_HALVES];
    int rc = *batch != NULL ? device_batch_wait(*batch, &p, s->e) : 0;

    device_batch_free(*batch);
    *batch = NULL;
    return rc;
}

/* Begins to fill the halves that are free, and waits for the next window; at first for both. */
static void fill_halves(void *arg)
{
    struct sending *s = arg;
    uint32_t n = s->w->plan.n, n_ready = s->n_read > 0 ? s->n_read + 1 : WINDOW_HALVES;

    s->rc = 0;
    for (; s->n_begun < n && s->n_begun < s->n_read + WINDOW_HALVES && s->rc == 0; s->n_begun++)
        s->rc = fill_begin(s, s->n_begun);
    for (uint32_t k = s->n_read; k < n && k < n_ready && s->rc == 0; k++)
        s->rc = fill_end(s, k);
}

/* After an error: nothing is copied any more. */
static void stop_filling(void *arg)
{
    const struct sending *s = arg;

    for (uint32_t i = 0; i < WINDOW_HALVES; i++)
        device_batch_free(s->filling[i]);
}

/* requests */

/* The tensors of a window, in its order. One reference. */
static int list_of(struct tensor_list **out, const struct window_plan *p, uint32_t k, struct err *e)
{
    struct tensor_list_builder *b;

    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    for (uint32_t i = p->first[k]; i < p->first[k + 1]; i++) {
        const struct tensor_spec *t = p->tensors[i].tensor;

        if (tensor_list_builder_add(b, t->name, t->dtype, t->shape, t->ndim, t->numel, e) != 0) {
            tensor_list_builder_free(b);
            return -1;
        }
    }
    return tensor_list_builder_finish(b, out, e);
}

/* For vLLM and baton. */
static int make_packed(struct handoff_request *r, const struct handoff_windows *w, uint32_t k,
                       struct err *e)
{
    const struct torch_exports x = {&w->exported[k % WINDOW_HALVES], 1, 1, w->ref_name, 0};
    const struct torch_place at = {&w->bytes, 0, 0};
    struct torch_gpu gpus[IPC_GPUS_MAX];

    for (uint32_t i = 0; i < w->gpus.n; i++)
        gpus[i] = (struct torch_gpu){w->gpus.uuids[i], &at};
    r->tensors = (struct api_tensors){
        .by_handles = true, .packed = true, .handles = torch_export_packed(&x, gpus, w->gpus.n, e)};
    return r->tensors.handles != NULL ? list_of(&r->tensors.list, &w->plan, k, e) : -1;
}

/* For an SGLang in the update: it has no window now, since it would have been dropped. It may be
 * out of the update: then nothing is made. Entries differ by the counters of their ranks. */
static int windows_make_bucket(struct handoff_request *r, const struct handoff_windows *w,
                               size_t part, uint32_t k, struct err *e)
{
    struct upstream *upstream = r->s->parts[part].upstream;
    struct window_reader *reader = &fleet_engine(upstream)->window;
    const struct torch_place flat = {&w->bytes, 0, 0}, *first = &w->plan.tensors[w->plan.first[k]];
    struct torch_exports x = {&w->exported[k % WINDOW_HALVES], 1,
                              w->plan.first[k + 1] - w->plan.first[k], reader->ref_name, 0};
    uint64_t n_ranks = r->ranks[part].n_entries;
    struct upstream_info info;
    const char **entries;

    if (n_ranks == 0 || !fleet_update_has_engine(r->fc, r->s, upstream))
        return 0;
    fleet_info(fleet_of(r->fc), upstream, &info);
    if (window_reader_expect(reader, k % WINDOW_HALVES, n_ranks, &info, e) != 0)
        return -1;
    entries = handoff_request_entries(r, part, e);
    r->sglangs[part].format = "flattened_bucket";
    for (uint64_t rank = 0; entries != NULL && rank < n_ranks; rank++) {
        x.ref_slot = window_reader_slot(k % WINDOW_HALVES, rank);
        entries[rank] = torch_export_bucket(&x, &flat, first, e);
        if (entries[rank] == NULL)
            return -1;
    }
    return entries != NULL ? 0 : -1;
}

static void free_window(struct handoff_request *r)
{
    for (size_t i = 0; i < r->s->n_parts; i++)
        for (size_t k = 0; k < r->sglangs[i].n_entries; k++)
            free((char *)(uintptr_t)r->sglangs[i].entries[k]);
    tensor_list_unref(r->tensors.list);
    free((char *)(uintptr_t)r->tensors.handles);
    handoff_request_clear(r);
}

static int send_window(const struct handoff_windows *w, struct handoff_request *r, uint32_t k,
                       struct err *e)
{
    int rc = make_packed(r, w, k, e);

    for (size_t i = 0; i < r->s->n_parts && rc == 0; i++)
        rc = windows_make_bucket(r, w, i, k, e);
    if (rc == 0)
        rc = handoff_request_send(r, e);
    for (size_t i = 0; i < r->s->n_parts; i++)
        if (r->sglangs[i].serialized && !r->mapped[i])
            window_reader_forget(&fleet_engine(r->s->parts[i].upstream)->window);
    free_window(r);
    return rc;
}

/* No thread signals it: torch counts down in shared memory. */
static void nap(struct fleet_control *fc)
{
    mtx_lock(&fc->lock);
    (void)cnd_wait(&fc->changed, &fc->lock, clock_after_us(READ_NAP_US));
    mtx_unlock(&fc->lock);
}

/* Waits until the SGLangs have read a window which they have answered. One that does not end is out
 * of the update. */
static int wait_read(struct handoff_request *r, struct err *e)
{
    uint64_t deadline_us = clock_after_us(READ_US);
    int rc = 0;

    for (size_t i = 0; i < r->s->n_parts && rc == 0; i++) {
        struct upstream *it = r->s->parts[i].upstream;
        const struct window_reader *reader = &fleet_engine(it)->window;
        struct err why = {0};

        while (window_reader_has_window(reader) && fleet_update_has_engine(r->fc, r->s, it) &&
               !clock_passed(deadline_us))
            nap(r->fc);
        if (!window_reader_has_window(reader) || !fleet_update_has_engine(r->fc, r->s, it))
            continue;
        (void)err_set(&why, ERR_TIMEOUT, "",
                      "%d s after its reply it still has the window; " READER_REMEDY,
                      (int)(READ_US / 1000000));
        rc = handoff_request_drop(r, it, &why, e);
    }
    return rc;
}

/* upstreams that cannot take windows */

/* @why  clean; set if an SGLang cannot be sent a window now */
static void check_reader(struct window_reader *r, const struct upstream_info *info,
                         const struct api_bucket_ranks *ranks, struct err *why)
{
    if (ranks->n_stages > 1)
        (void)err_set(why, ERR_CONFLICT, "",
                      "its %llu pipeline stages would count down one counter, which torch does not "
                      "do safely: give a GPU, as in --stage cuda:0",
                      (unsigned long long)ranks->n_stages);
    else if (ranks->n_entries > WINDOW_RANKS_MAX)
        (void)err_set(why, ERR_CONFLICT, "",
                      "it has more than %d ranks: give a GPU, as in --stage cuda:0",
                      (int)WINDOW_RANKS_MAX);
    else if (window_reader_has_window(r) && window_reader_has_ended(r, info))
        window_reader_forget(r);
    else if (window_reader_has_window(r))
        (void)err_set(
            why, ERR_CONFLICT, "",
            "nothing was sent to it, as it still has a window of an earlier try; " READER_REMEDY);
}

/* An upstream's release is known only once it was probed; an SGLang's was asked for just now. One
 * that cannot take windows is out of the update, and is not fenced: nothing was sent to it. */
static int check_upstreams(struct handoff_request *r, struct err *e)
{
    int rc = 0;

    for (size_t i = 0; i < r->s->n_parts && rc == 0; i++) {
        struct upstream *it = r->s->parts[i].upstream;
        struct window_reader *reader = &fleet_engine(it)->window;
        bool is_sglang = r->ranks[i].n_entries > 0;
        struct upstream_info info;
        struct err why = {0};
        const char *text;

        if (!fleet_update_has_engine(r->fc, r->s, it))
            continue;
        fleet_info(fleet_of(r->fc), it, &info);
        text = api_release_of(upstream_kind(it),
                              is_sglang ? r->ranks[i].release : info.report.release)
                   .refuses_windows;
        if (text != NULL)
            (void)err_set(&why, ERR_CONFLICT, "", "%s", text);
        else if (is_sglang)
            check_reader(reader, &info, &r->ranks[i], &why);
        else /* it is of another kind now: the SGLang that got windows has gone */
            window_reader_forget(reader);
        if (why.code != ERR_NONE)
            rc = handoff_request_drop(r, it, &why, e);
    }
    return rc;
}

int handoff_windows_send(struct handoff_windows *w, struct handoff_request *r,
                         const struct version *v, struct err *e)
{
    struct workers *blocking = w->cfg.control->cfg.blocking;
    struct sending s = {.w = w, .v = v, .e = e};
    int rc = check_upstreams(r, e);

    for (uint32_t k = 0; k < w->plan.n && rc == 0; k++) {
        s.n_read = k;
        workers_call(blocking, fill_halves, &s);
        rc = s.rc;
        if (rc == 0)
            rc = send_window(w, r, k, e);
        if (rc == 0)
            rc = wait_read(r, e);
    }
    if (rc != 0)
        workers_call(blocking, stop_filling, &s);
    return rc;
}
