#include "tests/unit/fleet/sim/stage.h"

#include "tests/unit/fleet/sim/ask.h"
#include "tests/unit/fleet/sim/broken.h"
#include "tests/unit/fleet/sim/check.h"
#include "tests/unit/fleet/sim/sched.h"

#include "fleet/handoff/handoff.h"
#include "fleet/handoff/handoff_export.h"
#include "fleet/handoff/window_plan.h"
#include "memory/device.h"
#include "transport/ipc/ref_counter.h"
#include "transport/ipc/torch_export.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TENSORS = 3, /* each is a window: so a half is written again */
    NAMES_MAX = 64,
    COUNTERS_MAX = 32,
    COPIES_MAX = 4,
    READINGS_MAX = 1024,
    READ_MS = 2,
    KEPT_US = 8000000, /* a window: longer than anybody waits for it */
    HANDOFF_US = HANDOFF_WAIT_STEPS * 60000000 + 2000000
};

struct stage_cell {
    int32_t version, tensor;
};

/* Of an engine that has not read yet; NULL: of none. */
struct reading {
    struct stage_bytes b;
    struct engine *engine;
    unsigned process;
    bool was_removed;
};

static struct {
    struct handoff *handoff;
    struct model_spec spec; /* of all histories */
    struct cuda_info cuda;
    struct stage_cell cells[TARGETS_MAX][TENSORS];
    struct view views[TARGETS_MAX][TENSORS];
    unsigned n_pins[TARGETS_MAX];
    struct version names[NAMES_MAX]; /* a version has another one for each of its names */
    char labels[NAMES_MAX][16];
    size_t n_names;
    int committed, handed; /* the last one; which is handed over */
    struct err answer;
    unsigned attempt;
    struct {
        char name[64];
        void *base;
    } counters[COUNTERS_MAX];
    struct reading readings[READINGS_MAX];
} st;

/* ---- the store ---- */

__typeof__(store_pin) __wrap_store_pin;
__typeof__(store_unpin_deferred) __wrap_store_unpin_deferred;
__typeof__(store_model_spec) __wrap_store_model_spec;
__typeof__(store_n_ranks) __wrap_store_n_ranks;
__typeof__(store_device) __wrap_store_device;

static void give_back(int version)
{
    if (st.n_pins[version] > 0 || version == st.committed)
        return;
    for (int i = 0; i < TENSORS; i++)
        st.cells[version][i] = (struct stage_cell){TORN, TORN};
}

int __wrap_store_pin(struct store *s, const struct version **out, struct err *e)
{
    const struct version *v = &st.names[st.n_names - 1];

    (void)s;
    (void)e;
    *out = v;
    st.handed = (int)v->serial;
    st.attempt++;
    world.first_byte[v->serial] = 0;
    if (broken != BROKEN_PIN)
        st.n_pins[v->serial]++;
    world_trace("attempt %u, of v%d", st.attempt, st.handed);
    return 0;
}

bool __wrap_store_unpin_deferred(struct store *s, const struct version *v)
{
    (void)s;
    if (broken == BROKEN_PIN)
        return false;
    assert(st.n_pins[v->serial] > 0);
    st.n_pins[v->serial]--;
    give_back((int)v->serial);
    return false;
}

const struct model_spec *__wrap_store_model_spec(const struct store *s)
{
    (void)s;
    return &st.spec;
}

uint32_t __wrap_store_n_ranks(const struct store *s)
{
    (void)s;
    return 1;
}

struct device *__wrap_store_device(const struct store *s, uint32_t place)
{
    (void)s;
    (void)place;
    return NULL;
}

static void make_spec(void)
{
    static const char *const names[TENSORS] = {"0.a.b", "1.a.b", "2.a.b"};
    const uint64_t shape = 2;
    struct tensor_list_builder *b;
    struct err e = {0};
    int rc;

    if (st.spec.tensor_list != NULL)
        return;
    rc = tensor_list_builder_new(&b, &e);
    for (int i = 0; i < TENSORS && rc == 0; i++)
        rc = tensor_list_builder_add(b, names[i], DTYPE_F32, &shape, 1, UINT64_MAX, &e);
    if (rc == 0)
        rc = tensor_list_builder_finish(b, &st.spec.tensor_list, &e);
    assert(rc == 0 && st.spec.tensor_list->nbytes == sizeof st.cells[0]);
}

static void name_version(int version, const char *label)
{
    struct version *v = &st.names[st.n_names];

    assert(st.n_names < NAMES_MAX);
    (void)snprintf(st.labels[st.n_names], sizeof st.labels[0], "%s", label);
    *v = (struct version){.serial = (uint64_t)version, .label = st.labels[st.n_names]};
    v->places[0] = st.views[version];
    st.n_names++;
}

static void make_version(int version)
{
    char label[16];
    int before = st.committed;

    for (int i = 0; i < TENSORS; i++) {
        st.cells[version][i] = (struct stage_cell){version, i};
        st.views[version][i] = (struct view){.data = &st.cells[version][i]};
    }
    world.accepted[version] = (1u << TENSORS) - 1;
    (void)snprintf(label, sizeof label, "v%d", version);
    name_version(version, label);
    st.committed = version;
    if (before > 0)
        give_back(before);
}

/* ---- the GPU: a turn each time that it is asked for something ---- */

struct device_batch {
    struct {
        struct stage_cell *to;
        const void *from;
        size_t n;
    } copies[COPIES_MAX];
    size_t n;
};

__typeof__(device_about) __wrap_device_about;
__typeof__(device_name) __wrap_device_name;
__typeof__(device_memory) __wrap_device_memory;
__typeof__(device_export) __wrap_device_export;
__typeof__(device_batch_new) __wrap_device_batch_new;
__typeof__(device_batch_from_host) __wrap_device_batch_from_host;
__typeof__(device_batch_wait) __wrap_device_batch_wait;
__typeof__(device_batch_free) __wrap_device_batch_free;

static int gpu_turn(const char *what, struct err *e)
{
    struct engine *g = &world.engines[world.cfg.seed == 0 ? 0 : sched_draw(world.n_engines)];

    if (world_at_turn(g, API_OPS) == FAIL_NOT)
        return 0;
    world_trace("%s fails", what);
    return err_set(e, ERR_CUDA, "", "%s failed", what);
}

const struct cuda_device *__wrap_device_about(const struct device *d)
{
    static const struct cuda_device about = {.uuid = "GPU-00000000-0000-0000-0000-000000000000"};

    (void)d;
    return &about;
}

const char *__wrap_device_name(const struct device *d)
{
    (void)d;
    return "cuda:0";
}

static int take_memory(void *arg, uint64_t nbytes, uint64_t *addr, struct err *e)
{
    (void)arg;
    (void)e;
    *addr = (uintptr_t)calloc(1, nbytes);
    return 0;
}

static void give_memory(void *arg, uint64_t addr, uint64_t nbytes)
{
    (void)arg;
    (void)nbytes;
    free((void *)(uintptr_t)addr);
}

static struct memory_room room(void *arg)
{
    (void)arg;
    return (struct memory_room){UINT64_MAX, ""};
}

struct slab_memory __wrap_device_memory(struct device *d)
{
    (void)d;
    return (struct slab_memory){take_memory, give_memory, room, 1024, NULL};
}

int __wrap_device_export(struct device *d, uint64_t addr, uint8_t handle[DEVICE_IPC_NBYTES],
                         uint64_t *offset, struct err *e)
{
    (void)d;
    (void)e;
    memcpy(handle, &addr, sizeof addr);
    *offset = 0;
    return 0;
}

int __wrap_device_batch_new(struct device *d, struct device_batch **out, struct err *e)
{
    (void)d;
    (void)e;
    *out = calloc(1, sizeof **out);
    return 0;
}

/* From now on there is something else, and from the end of the wait on what was copied. */
int __wrap_device_batch_from_host(struct device_batch *b, uint64_t dst, const void *src,
                                  uint64_t nbytes, struct err *e)
{
    struct stage_cell *to = (struct stage_cell *)(uintptr_t)dst;
    size_t n = nbytes / sizeof *to;

    (void)e;
    assert(b->n < COPIES_MAX);
    for (size_t i = 0; i < n; i++)
        to[i] = (struct stage_cell){TORN, TORN};
    b->copies[b->n].to = to;
    b->copies[b->n].from = src;
    b->copies[b->n++].n = n;
    return 0;
}

static void copy_all(struct device_batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->copies[i].n > 0)
            memcpy(b->copies[i].to, b->copies[i].from, b->copies[i].n * sizeof *b->copies[i].to);
    b->n = 0;
}

int __wrap_device_batch_wait(struct device_batch *b, const struct progress *p, struct err *e)
{
    (void)p;
    if (gpu_turn("a copy", e) != 0)
        return -1;
    if (broken != BROKEN_COPY)
        copy_all(b);
    return 0;
}

void __wrap_device_batch_free(struct device_batch *b)
{
    if (b != NULL && broken != BROKEN_COPY)
        copy_all(b);
    free(b);
}

/* ---- what requests say ---- */

__typeof__(handoff_export_make) __wrap_handoff_export_make;
__typeof__(torch_export_packed) __wrap_torch_export_packed;
__typeof__(torch_export_bucket) __wrap_torch_export_bucket;
__typeof__(ref_counter_create) __wrap_ref_counter_create;
__typeof__(ref_counter_remove) __wrap_ref_counter_remove;

/* @first  -1: as the names in the body */
static char *say(const void *at, int first, int n, const char *ref_name, unsigned ref_slot)
{
    char *text;
    int len = asprintf(&text, "@%" PRIxPTR " %d %d %d %u %s %u", (uintptr_t)at, first, n, st.handed,
                       st.attempt, ref_name, ref_slot);

    assert(len > 0);
    return text;
}

static const void *place_of(const struct torch_slab *slab)
{
    uint64_t addr;

    memcpy(&addr, slab->mem, sizeof addr);
    return (const void *)(uintptr_t)(addr + slab->begin);
}

/* The version where it is. */
void __wrap_handoff_export_make(void *export)
{
    struct handoff_export *x = export;

    x->rc = gpu_turn("an export", x->e);
    if (x->rc != 0)
        return;
    x->list = st.spec.tensor_list;
    x->handles = say(x->v->places[0][0].data, 0, TENSORS, "-", 0);
    x->named = x->for_sglang ? say(x->v->places[0][0].data, 0, TENSORS, "-", 0) : NULL;
}

char *__wrap_torch_export_packed(const struct torch_exports *x, const struct torch_gpu *gpus,
                                 uint32_t n_gpus, struct err *e)
{
    (void)gpus;
    (void)n_gpus;
    (void)e;
    return say(place_of(x->slabs), -1, 1, "-", 0);
}

char *__wrap_torch_export_bucket(const struct torch_exports *x, const struct torch_place *flat,
                                 const struct torch_place *places, struct err *e)
{
    (void)flat;
    (void)e;
    return say(place_of(x->slabs), places[0].tensor->name[0] - '0', (int)x->n_tensors, x->ref_name,
               x->ref_slot);
}

static void **counter_of(const char *name)
{
    for (size_t i = 0; i < COUNTERS_MAX; i++)
        if (st.counters[i].base != NULL && strcmp(st.counters[i].name, name) == 0)
            return &st.counters[i].base;
    return NULL;
}

int __wrap_ref_counter_create(struct ref_counter *out, const char *name, struct err *e)
{
    size_t i = 0;

    (void)e;
    while (i < COUNTERS_MAX && st.counters[i].base != NULL)
        i++;
    assert(i < COUNTERS_MAX);
    (void)snprintf(st.counters[i].name, sizeof st.counters[i].name, "%s", name);
    out->base = st.counters[i].base = calloc(1, REF_COUNTER_NBYTES);
    return 0;
}

void __wrap_ref_counter_remove(struct ref_counter *c, const char *name)
{
    void **base = counter_of(name);

    if (c->base == NULL)
        return;
    assert(base != NULL && *base == c->base);
    free(c->base);
    *base = NULL;
}

bool stage_find(struct stage_bytes *out, const char *text, const json_t *body)
{
    const json_t *update_info = json_object_get(body, "update_info"), *names;
    uintptr_t at;

    *out = (struct stage_bytes){0};
    if (sscanf(text, "@%" SCNxPTR " %d %d %d %u %63s %u", &at, &out->first, &out->n, &out->version,
               &out->attempt, out->ref_name, &out->ref_slot) != 7)
        return false;
    if (strcmp(out->ref_name, "-") == 0)
        out->ref_name[0] = '\0';
    out->at = (const struct stage_cell *)at;
    names = json_object_get(update_info != NULL ? update_info : body, "names");
    if (out->first < 0)
        out->first = json_string_value(json_array_get(names, 0))[0] - '0';
    return true;
}

/* ---- who reads ---- */

static void read_cells(struct engine *g, const struct stage_bytes *b)
{
    bool whole = true;

    for (int i = 0; i < b->n; i++)
        whole = whole && b->at[i].version == b->version && b->at[i].tensor == b->first + i;
    if (!whole)
        world_trace("engine %zu reads other bytes", check_index_of(g));
    for (int i = 0; i < b->n && whole; i++)
        engine_take(g, b->version, b->attempt, (unsigned)(b->first + i));
    if (!whole)
        engine_take_part(g);
}

static void count_down(const struct stage_bytes *b)
{
    void **base = counter_of(b->ref_name);
    struct ref_counter c = {base != NULL ? *base : NULL};

    if (base != NULL)
        (void)ref_counter_down(&c, b->ref_slot);
}

static void on_read(void *arg)
{
    struct reading *r = arg;

    /* With one that is removed goes what is known of its window. */
    if (r->engine->up && r->process == r->engine->process &&
        r->was_removed == r->engine->was_removed) {
        if (world_at_turn(r->engine, API_OPS) != FAIL_NOT) {
            world_trace("engine %zu keeps its window", check_index_of(r->engine));
            sched_after(KEPT_US, on_read, r);
            return;
        }
        read_cells(r->engine, &r->b);
        count_down(&r->b);
    }
    r->engine = NULL;
}

void stage_read(struct engine *g, const struct stage_bytes *b)
{
    struct reading *r;
    size_t i = 0;

    if (b->ref_name[0] == '\0') {
        read_cells(g, b);
        return;
    }
    while (i < READINGS_MAX && st.readings[i].engine != NULL)
        i++;
    assert(i < READINGS_MAX);
    r = &st.readings[i];
    *r = (struct reading){*b, g, g->process, g->was_removed};
    sched_after(1000u * (world.cfg.seed == 0 ? READ_MS : 1 + sched_draw(20)), on_read, r);
}

bool stage_keeps_window(const struct engine *g)
{
    struct upstream *u = world_upstream(g);

    return world.cfg.stage == STAGE_WINDOWS && u != NULL &&
           window_reader_has_window(&fleet_engine(u)->window);
}

/* ---- the hand-off ---- */

void stage_begin(void)
{
    for (size_t i = 0; i < COUNTERS_MAX; i++) /* of a history that failed */
        free(st.counters[i].base);
    memset(st.counters, 0, sizeof st.counters);
    memset(st.n_pins, 0, sizeof st.n_pins);
    memset(st.readings, 0, sizeof st.readings);
    st.handoff = NULL;
    st.n_names = 0;
    st.committed = st.handed = 0;
    st.attempt = 0;
    make_spec();
}

void stage_open(struct fleet_control *fc)
{
    struct handoff_cfg cfg = {.control = fc, .cuda = &st.cuda};
    struct err e = {0};
    int rc;

    if (world.cfg.stage == STAGE_WINDOWS)
        cfg.window_nbytes = sizeof(struct stage_cell);
    rc = handoff_new(&st.handoff, &cfg, &e);
    assert(rc == 0);
}

void stage_stop(void)
{
    handoff_stop(st.handoff);
}

void stage_close(void)
{
    handoff_free(st.handoff);
    for (int v = 0; v < TARGETS_MAX; v++)
        if (st.n_pins[v] > 0)
            check_fail("v%d is still pinned at the end", v);
}

/* It, or one after it. */
static void check_handed(int version, int rc, const struct err *e)
{
    size_t needed = world.cfg.min_ready > 0 ? world.cfg.min_ready : 1, n = 0;

    for (int v = version; v <= world.target && n < needed; v++)
        n = (size_t)__builtin_popcount(world.got[v]);
    if (rc != 0 && e->code != ERR_NOT_HANDED_OVER)
        check_fail("I10: a hand-off ends with %s", e->msg);
    if (rc == 0 && n < needed)
        check_fail("I10: v%d is said to be handed over, and %zu engines got it", version, n);
}

void stage_commit(bool waits)
{
    struct err e = {0};
    struct ask *a;
    int version, rc;

    if (world.target + 1 == TARGETS_MAX)
        return;
    version = ++world.target;
    make_version(version);
    world_trace("v%d is committed", version);
    if (!waits) {
        handoff_want(st.handoff, (uint64_t)version);
        return;
    }
    a = ask_begin("a hand-off", HANDOFF_US);
    rc = handoff_version(st.handoff, (uint64_t)version, &e);
    world_trace("v%d: %s", version, rc == 0 ? "handed over" : e.msg);
    ask_end(a);
    st.answer = e;
    check_handed(version, rc, &e);
}

const struct err *stage_answer(void)
{
    return &st.answer;
}

int stage_rename(void *label, struct err *e)
{
    struct handoff_info info;

    handoff_info_get(st.handoff, &info);
    if (st.committed == 0 || info.done != (uint64_t)st.committed)
        return err_set(e, ERR_CONFLICT, "", "it is not handed over");
    name_version(st.committed, label);
    return 0;
}
