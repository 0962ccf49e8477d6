/* Building an adapter in two steps, so that nothing is read before it is known to fit, and its
 * bytes are written once, where they stay. */
#include "engine/lora/adapter.h"

#include "base/hex.h"
#include "base/utf8.h"
#include "engine/lora/adapter_delta.h"
#include "engine/lora/adapter_names.h"
#include "memory/memory.h"

#include <assert.h>
#include <inttypes.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE_NBYTES = 4096, SHAPE_TEXT_MAX = 64 };

#define NO_PLACE UINT64_MAX

struct adapter {
    uint32_t n_layers;
    uint32_t rank;
    uint64_t nbytes;
    uint64_t nbytes_block;
    char *block;                 /* owned; mapped */
    struct tensor_list *tensors; /* owned: one reference */
    uint64_t *places;            /* owned; [tensors->n_tensors]: offsets in the block */
    struct checksum *sums;       /* owned; as `places` */
    char *config;                /* owned */
    char digest[ADAPTER_DIGEST_LEN + 1];
    struct adapter_pair pairs[]; /* [n_layers][ADAPTER_MODULE_COUNT] */
};

/* The two tensors of a module, by their numbers in the tensor list. */
struct halves {
    uint32_t tensor[2]; /* A, B; or TENSOR_LIST_NO_TENSOR */
    struct adapter_target target;
};

struct adapter_builder {
    struct adapter_spec spec;
    struct adapter *adapter; /* owned; without its block until reserved */
    struct halves *halves;   /* owned; as adapter->pairs */
    uint64_t *places;        /* owned; [n_tensors]: offsets in the block, or NO_PLACE */
    uint32_t n_tensors, n_pairs;
    struct adapter_delta *delta; /* owned; NULL without spec.base, whose tensors are in all above */
    uint64_t nbytes_parts;       /* of the delta */
    struct adapter_report report;
};

void adapter_free(struct adapter *a)
{
    if (a == NULL)
        return;
    if (a->block != NULL) {
        int rc = munmap(a->block, a->nbytes_block);

        assert(rc == 0);
        (void)rc;
    }
    tensor_list_unref(a->tensors);
    free(a->places);
    free(a->sums);
    free(a->config);
    free(a);
}

struct tensor_list *adapter_tensors(const struct adapter *a)
{
    return a->tensors;
}

const void *adapter_bytes(const struct adapter *a, uint32_t i)
{
    return a->block + a->places[i];
}

const struct checksum *adapter_checksums(const struct adapter *a)
{
    return a->sums;
}

const char *adapter_config_text(const struct adapter *a)
{
    return a->config;
}

const struct adapter_pair *adapter_pair(const struct adapter *a, uint32_t layer,
                                        enum adapter_module module)
{
    assert(layer < a->n_layers && module < ADAPTER_MODULE_COUNT);
    return &a->pairs[(size_t)layer * ADAPTER_MODULE_COUNT + module];
}

uint32_t adapter_rank(const struct adapter *a)
{
    return a->rank;
}

uint64_t adapter_nbytes(const struct adapter *a)
{
    return a->nbytes;
}

const char *adapter_digest(const struct adapter *a)
{
    return a->digest;
}

void adapter_module_shape(const struct model_config *c, enum adapter_module module, uint32_t *n_out,
                          uint32_t *n_in)
{
    uint64_t shape[2] = {0};
    uint32_t ndim = layer_tensor_shape(c, adapter_module_weight(module), shape);

    assert(ndim == 2);
    (void)ndim;
    *n_out = (uint32_t)shape[0];
    *n_in = (uint32_t)shape[1];
}

void adapter_report_fini(struct adapter_report *r)
{
    names_fini(&r->matched);
    names_fini(&r->unmatched);
    names_fini(&r->ignored);
    names_fini(&r->missing);
    names_fini(&r->non_finite);
    memset(r, 0, sizeof *r);
}

/* ---- checking ---- */

static const char *adapter_field_of(uint32_t i, char out[ERR_FIELD_MAX])
{
    (void)snprintf(out, ERR_FIELD_MAX, "/names/%u", i);
    return out;
}

/* Tensor i as half of the pair of `n`: its shape follows from the model and the rank. */
static int check_half(const struct adapter_builder *b, const struct adapter_name *n,
                      const struct adapter_target *target, const struct tensor_spec *t, uint32_t i,
                      struct err *e)
{
    char field[ERR_FIELD_MAX], found[SHAPE_TEXT_MAX], expected[SHAPE_TEXT_MAX];
    struct tensor_spec want = {.ndim = 2};
    uint32_t n_out, n_in;

    adapter_module_shape(b->spec.model, n->module, &n_out, &n_in);
    want.shape[0] = n->is_b ? n_out : target->r;
    want.shape[1] = n->is_b ? target->r : n_in;
    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_BF16)
        return err_set(e, ERR_MISMATCH, adapter_field_of(i, field),
                       "tensor '%.*s' is %s, which is not one of BF16, F16, F32",
                       utf8_cut_name(t->name), t->name, dtype_name(t->dtype));
    if (t->ndim != 2 || t->shape[0] != want.shape[0] || t->shape[1] != want.shape[1])
        return err_set(e, ERR_MISMATCH, adapter_field_of(i, field),
                       "tensor '%.*s' has shape %s, but rank %u and this model make it %s",
                       utf8_cut_name(t->name), t->name,
                       tensor_list_shape_text(t, found, sizeof found), target->r,
                       tensor_list_shape_text(&want, expected, sizeof expected));
    if (target->r > b->spec.rank_max)
        return err_set(e, ERR_BAD_REQUEST, adapter_field_of(i, field),
                       "tensor '%.*s' has rank %u, at most %u is allowed (--max-lora-rank)",
                       utf8_cut_name(t->name), t->name, target->r, b->spec.rank_max);
    return 0;
}

static int take_half(struct adapter_builder *b, const struct adapter_name *n,
                     const struct tensor_list *tensor_list, uint32_t i, struct err *e)
{
    struct halves *h = &b->halves[(size_t)n->layer * ADAPTER_MODULE_COUNT + n->module];
    const struct tensor_spec *t = &tensor_list->tensors[i];
    char field[ERR_FIELD_MAX];

    if (!h->target.wanted)
        return names_add(&b->report.unmatched, t->name, e);
    if (h->tensor[n->is_b] != TENSOR_LIST_NO_TENSOR) {
        const char *other = tensor_list->tensors[h->tensor[n->is_b]].name;

        return err_set(e, ERR_BAD_REQUEST, adapter_field_of(i, field),
                       "tensors '%.*s' and '%.*s' are one and the same", utf8_cut_name(other),
                       other, utf8_cut_name(t->name), t->name);
    }
    if (check_half(b, n, &h->target, t, i, e) != 0)
        return -1;
    h->tensor[n->is_b] = i;
    return names_add(&b->report.matched, t->name, e);
}

static int take_tensor(struct adapter_builder *b, const struct tensor_list *tensor_list, uint32_t i,
                       struct err *e)
{
    const char *name = tensor_list->tensors[i].name;
    struct adapter_name n = adapter_name_parse(name, b->spec.model->n_layers);
    char field[ERR_FIELD_MAX];

    switch (n.kind) {
    case ADAPTER_NAME_HALF:
        return take_half(b, &n, tensor_list, i, e);
    case ADAPTER_NAME_IGNORED:
        return names_add(&b->report.ignored, name, e);
    case ADAPTER_NAME_FOREIGN:
        return names_add(&b->report.unmatched, name, e);
    case ADAPTER_NAME_REFUSED:
        break;
    }
    return err_set(e, ERR_BAD_REQUEST, adapter_field_of(i, field), "tensor '%.*s': %s",
                   utf8_cut_name(name), name, n.why);
}

/* A target that this engine does not support, with tensors or without. */
static int check_targets(struct adapter_builder *b, struct err *e)
{
    static const char *const others[] = {"lm_head", "model.embed_tokens"};
    struct adapter_target t;

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (b->spec.config->targets == TARGETS_UNSAID)
            return 0;
        if (adapter_config_target(b->spec.config, others[i], UINT32_MAX, &t, e) != 0)
            return -1;
        if (t.wanted)
            return err_set(e, ERR_BAD_REQUEST, "/adapter_config/target_modules",
                           "target_modules names %s, which is not supported in an adapter",
                           others[i]);
    }
    return 0;
}

static int ask_targets(struct adapter_builder *b, struct err *e)
{
    char path[MODEL_NAME_MAX];

    for (uint32_t i = 0; i < b->n_pairs; i++) {
        struct halves *h = &b->halves[i];
        uint32_t layer = i / ADAPTER_MODULE_COUNT;

        h->tensor[0] = h->tensor[1] = TENSOR_LIST_NO_TENSOR;
        (void)adapter_module_path(layer, (enum adapter_module)(i % ADAPTER_MODULE_COUNT), path);
        if (adapter_config_target(b->spec.config, path, layer, &h->target, e) != 0)
            return -1;
        if (!layer_tensor_needed(
                b->spec.model, layer,
                adapter_module_weight((enum adapter_module)(i % ADAPTER_MODULE_COUNT))))
            h->target.wanted = false; /* a sparse layer has no MLP */
    }
    return check_targets(b, e);
}

static int check_pairs(struct adapter_builder *b, const struct tensor_list *tensor_list,
                       struct err *e)
{
    char path[MODEL_NAME_MAX], field[ERR_FIELD_MAX];

    for (uint32_t i = 0; i < b->n_pairs; i++) {
        const struct halves *h = &b->halves[i];
        bool has_a = h->tensor[0] != TENSOR_LIST_NO_TENSOR,
             has_b = h->tensor[1] != TENSOR_LIST_NO_TENSOR;
        uint32_t there = h->tensor[has_a ? 0 : 1];

        if (has_a && has_b)
            continue;
        (void)adapter_module_path(i / ADAPTER_MODULE_COUNT,
                                  (enum adapter_module)(i % ADAPTER_MODULE_COUNT), path);
        if (has_a || has_b)
            return err_set(e, ERR_MISMATCH, adapter_field_of(there, field),
                           "tensor '%.*s' is there, but module '%s' has no lora_%s",
                           utf8_cut_name(tensor_list->tensors[there].name),
                           tensor_list->tensors[there].name, path, has_a ? "B" : "A");
        if (h->target.wanted && b->spec.config->targets != TARGETS_UNSAID &&
            names_add(&b->report.missing, path, e) != 0)
            return -1;
    }
    return 0;
}

static int adapter_check_whole(const struct adapter_builder *b, struct err *e)
{
    const struct adapter_report *r = &b->report;
    const char *first = r->unmatched.n > 0 ? r->unmatched.items[0] : "";

    if (r->matched.n == 0)
        return err_set(e, ERR_MISMATCH, "",
                       "none of %u tensors belongs to a module of this model that the adapter "
                       "targets; the first is '%.*s'",
                       b->n_tensors, utf8_cut_name(first), first);
    if (b->spec.allow_partial)
        return 0;
    if (r->unmatched.n > 0)
        return err_set(e, ERR_MISMATCH, "",
                       "%u of %u tensors belong to no module of this model that the adapter "
                       "targets; the first is '%.*s' (allow_partial takes the others)",
                       r->unmatched.n, b->n_tensors, utf8_cut_name(first), first);
    if (r->missing.n > 0)
        return err_set(e, ERR_MISMATCH, "",
                       "%u modules that the adapter targets have no tensors; the first is '%s' "
                       "(allow_partial takes the others)",
                       r->missing.n, r->missing.items[0]);
    return 0;
}

/* ---- placing ---- */

static int lay_out(struct adapter_builder *b, const struct tensor_list *tensor_list, struct err *e)
{
    struct adapter *a = b->adapter;
    uint64_t at = 0;

    for (uint32_t i = 0; i < b->n_tensors; i++)
        b->places[i] = NO_PLACE;
    for (uint32_t i = 0; i < b->n_pairs; i++) {
        const struct halves *h = &b->halves[i];

        if (h->tensor[0] == TENSOR_LIST_NO_TENSOR)
            continue;
        for (int half = 0; half < 2; half++) {
            b->places[h->tensor[half]] = at;
            at += (tensor_list->tensors[h->tensor[half]].nbytes + ADAPTER_ALIGN - 1) /
                  ADAPTER_ALIGN * ADAPTER_ALIGN;
        }
        a->pairs[i] = (struct adapter_pair){.r = h->target.r,
                                            .scale = h->target.scale,
                                            .a_dtype = tensor_list->tensors[h->tensor[0]].dtype,
                                            .b_dtype = tensor_list->tensors[h->tensor[1]].dtype};
        a->rank = a->rank < h->target.r ? h->target.r : a->rank;
    }
    a->nbytes_block = (at + PAGE_NBYTES - 1) / PAGE_NBYTES * PAGE_NBYTES;
    a->nbytes = a->nbytes_block + sizeof *a + b->n_pairs * sizeof a->pairs[0];
    if (a->nbytes > b->spec.nbytes_max)
        return err_set(e, ERR_TOO_LARGE, "",
                       "the adapter takes %" PRIu64 " bytes, at most %" PRIu64 " are allowed",
                       a->nbytes, b->spec.nbytes_max);
    return 0;
}

/* The names of what has a place. */
static int keep_tensors(struct adapter_builder *b, const struct tensor_list *tensor_list,
                        struct err *e)
{
    struct adapter *a = b->adapter;
    struct tensor_list_builder *names;
    uint32_t n = 0;

    a->places = malloc((size_t)b->n_tensors * sizeof *a->places);
    a->sums = malloc((size_t)b->n_tensors * sizeof *a->sums);
    if (a->places == NULL || a->sums == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the names of an adapter");
    if (tensor_list_builder_new(&names, e) != 0)
        return -1;
    for (uint32_t i = 0; i < b->n_tensors; i++) {
        const struct tensor_spec *t = &tensor_list->tensors[i];

        if (b->places[i] == NO_PLACE)
            continue;
        a->places[n++] = b->places[i];
        if (tensor_list_builder_add(names, t->name, t->dtype, t->shape, t->ndim, t->numel, e) !=
            0) {
            tensor_list_builder_free(names);
            return -1;
        }
    }
    return tensor_list_builder_finish(names, &a->tensors, e);
}

static int builder_alloc(struct adapter_builder *b, struct err *e)
{
    b->adapter = calloc(1, sizeof *b->adapter + b->n_pairs * sizeof b->adapter->pairs[0]);
    b->halves = calloc(b->n_pairs, sizeof *b->halves);
    b->places = calloc(b->n_tensors, sizeof *b->places);
    if (b->adapter != NULL)
        b->adapter->config = strdup(b->spec.config->text);
    if (b->adapter == NULL || b->halves == NULL || b->places == NULL || b->adapter->config == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for an adapter of %u tensors",
                       b->n_tensors);
    b->adapter->n_layers = b->spec.model->n_layers;
    return 0;
}

static int builder_check(struct adapter_builder *b, const struct tensor_list *tensor_list,
                         struct err *e)
{
    if (ask_targets(b, e) != 0)
        return -1;
    for (uint32_t i = 0; i < b->n_tensors; i++)
        if (take_tensor(b, tensor_list, i, e) != 0)
            return -1;
    if (check_pairs(b, tensor_list, e) != 0 || adapter_check_whole(b, e) != 0)
        return -1;
    return lay_out(b, tensor_list, e) == 0 ? keep_tensors(b, tensor_list, e) : -1;
}

/* The tensors are those of the base, which fitted the model: only the config can be wrong. */
static int builder_open_delta(struct adapter_builder *b, const struct tensor_list *parts,
                              struct err *e)
{
    b->nbytes_parts = parts->nbytes;
    if (adapter_delta_new(&b->delta, adapter_tensors(b->spec.base), parts, e) != 0)
        return -1;
    if (builder_check(b, adapter_tensors(b->spec.base), e) == 0)
        return 0;
    if (e->field[0] != '\0')
        (void)snprintf(e->field, sizeof e->field, "/adapter_config");
    return -1;
}

int adapter_builder_new(struct adapter_builder **out, const struct adapter_spec *spec,
                        const struct tensor_list *tensor_list, struct err *e)
{
    const struct tensor_list *all = spec->base != NULL ? adapter_tensors(spec->base) : tensor_list;
    struct adapter_builder *b;
    int rc;

    assert(spec->nbytes_max <= ADAPTER_NBYTES_MAX);
    if (tensor_list->n_tensors > ADAPTER_TENSORS_MAX)
        return err_set(e, ERR_TOO_LARGE, "", "the adapter has %u tensors, at most %d are allowed",
                       tensor_list->n_tensors, ADAPTER_TENSORS_MAX);
    b = calloc(1, sizeof *b);
    if (b == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for an adapter");
    b->spec = *spec;
    b->n_tensors = all->n_tensors;
    b->n_pairs = spec->model->n_layers * ADAPTER_MODULE_COUNT;
    names_init(&b->report.matched);
    names_init(&b->report.unmatched);
    names_init(&b->report.ignored);
    names_init(&b->report.missing);
    b->report.n_keys_ignored = spec->config->n_ignored;
    b->report.base_changed = spec->config->base_changed;
    rc = builder_alloc(b, e);
    if (rc == 0)
        rc = spec->base != NULL ? builder_open_delta(b, tensor_list, e)
                                : builder_check(b, tensor_list, e);
    if (rc != 0) {
        adapter_builder_free(b);
        return -1;
    }
    *out = b;
    return 0;
}

void adapter_builder_free(struct adapter_builder *b)
{
    if (b == NULL)
        return;
    adapter_free(b->adapter);
    adapter_report_fini(&b->report);
    adapter_delta_free(b->delta);
    free(b->halves);
    free(b->places);
    free(b);
}

uint64_t adapter_builder_nbytes(const struct adapter_builder *b)
{
    return b->adapter->nbytes + b->nbytes_parts;
}

/* Mapped, not from the heap: unmapping returns the memory to the system at once. */
int adapter_builder_reserve(struct adapter_builder *b, struct err *e)
{
    uint64_t nbytes = b->adapter->nbytes_block;
    struct memory_room room = memory_room("");
    void *block;

    assert(b->adapter->block == NULL);
    if (nbytes + b->nbytes_parts > room.nbytes)
        return err_set(e, ERR_NO_STAGING, "",
                       "the adapter takes %" PRIu64 " bytes, but %s leaves %" PRIu64,
                       nbytes + b->nbytes_parts, room.bound, room.nbytes);
    if (b->delta != NULL && adapter_delta_reserve(b->delta, e) != 0)
        return -1;
    block = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for an adapter of %" PRIu64 " bytes",
                       nbytes);
    (void)madvise(block, nbytes, MADV_DONTDUMP);
    b->adapter->block = block;
    return 0;
}

static void *place_of(const struct adapter_builder *b, uint32_t i)
{
    assert(b->adapter->block != NULL && i < b->n_tensors);
    return b->places[i] == NO_PLACE ? NULL : b->adapter->block + b->places[i];
}

void *adapter_builder_place(const struct adapter_builder *b, uint32_t i)
{
    return b->delta != NULL ? adapter_delta_place(b->delta, i) : place_of(b, i);
}

/* ---- finishing ---- */

static uint64_t half_nbytes(const struct model_config *c, const struct adapter_pair *p,
                            enum adapter_module module, bool is_b)
{
    uint32_t n_out, n_in;

    adapter_module_shape(c, module, &n_out, &n_in);
    return (uint64_t)p->r * (is_b ? n_out : n_in) * dtype_nbytes(is_b ? p->b_dtype : p->a_dtype);
}

static void digest_pair(struct sha256_ctx *sha, const struct model_config *c,
                        const struct adapter_pair *p, uint32_t layer, enum adapter_module module)
{
    char head[2 * MODEL_NAME_MAX], path[MODEL_NAME_MAX];
    uint32_t scale;
    int n;

    memcpy(&scale, &p->scale, sizeof scale);
    n = snprintf(head, sizeof head, "%s\t%u\t%08x\t%s\t%s\n",
                 adapter_module_path(layer, module, path), p->r, scale, dtype_name(p->a_dtype),
                 dtype_name(p->b_dtype));
    sha256_update(sha, (size_t)n, (const uint8_t *)head);
    sha256_update(sha, half_nbytes(c, p, module, false), p->a);
    sha256_update(sha, half_nbytes(c, p, module, true), p->b);
}

static void make_digest(struct adapter *a, const struct model_config *c)
{
    uint8_t sum[SHA256_DIGEST_SIZE];
    struct sha256_ctx sha;

    sha256_init(&sha);
    for (uint32_t i = 0; i < a->n_layers * ADAPTER_MODULE_COUNT; i++)
        if (a->pairs[i].r > 0)
            digest_pair(&sha, c, &a->pairs[i], i / ADAPTER_MODULE_COUNT,
                        (enum adapter_module)(i % ADAPTER_MODULE_COUNT));
    sha256_digest(&sha, sizeof sum, sum);
    hex_text(a->digest, sum, sizeof sum);
}

static int look_finite(struct adapter_builder *b, const struct tensor_list *tensor_list, uint32_t i,
                       struct err *e)
{
    const struct tensor_spec *t = &tensor_list->tensors[i];
    const void *bytes = place_of(b, i);
    struct non_finite found = {0};
    char field[32];

    if (bytes == NULL || b->spec.non_finite == NON_FINITE_ALLOW ||
        !non_finite_in(bytes, t->nbytes, t->dtype))
        return 0;
    if (b->spec.non_finite == NON_FINITE_WARN)
        return names_add(&b->report.non_finite, t->name, e);
    non_finite_count(&found, bytes, t->nbytes, t->dtype, 0);
    (void)snprintf(field, sizeof field, "/names/%u", i);
    return non_finite_refuse(&found, t->name, t->numel, " of the adapter", field, e);
}

int adapter_builder_came(struct adapter_builder *b, const struct tensor_list *tensor_list,
                         uint32_t i, struct err *e)
{
    return b->delta != NULL ? 0 : look_finite(b, tensor_list, i, e);
}

static int check_made(const struct adapter_builder *b, const struct made_sums *made, struct err *e)
{
    const struct tensor_list *list = adapter_tensors(b->spec.base);

    for (uint32_t k = 0; k < made->names.n; k++) {
        uint32_t i = tensor_list_find(list, made->names.items[k]);
        char is[CHECKSUM_LEN + 1], wanted[CHECKSUM_LEN + 1];
        struct checksum sum;

        if (i == TENSOR_LIST_NO_TENSOR || place_of(b, i) == NULL)
            continue;
        sum = checksum_of(place_of(b, i), list->tensors[i].nbytes);
        if (checksum_equal(sum, made->sums[k]))
            continue;
        checksum_text(&sum, is);
        checksum_text(&made->sums[k], wanted);
        return err_set(e, ERR_CHECKSUM, "",
                       "tensor '%.*s' has checksum %s after the delta, its trainer says %s",
                       utf8_cut_name(list->tensors[i].name), list->tensors[i].name, is, wanted);
    }
    return 0;
}

int adapter_builder_apply(struct adapter_builder *b, const struct made_sums *made, struct err *e)
{
    const struct adapter *base = b->spec.base;

    for (uint32_t i = 0; b->delta != NULL && i < b->n_tensors; i++) {
        void *out = place_of(b, i);

        if (out != NULL && adapter_delta_make(b->delta, i, adapter_bytes(base, i), out, e) != 0)
            return -1;
        if (look_finite(b, adapter_tensors(base), i, e) != 0) {
            e->field[0] = '\0';
            return -1;
        }
    }
    return b->delta != NULL ? check_made(b, made, e) : 0;
}

struct adapter *adapter_builder_finish(struct adapter_builder *b, struct adapter_report *report)
{
    struct adapter *a = b->adapter;

    for (uint32_t i = 0; i < b->n_pairs; i++) {
        if (a->pairs[i].r == 0)
            continue;
        a->pairs[i].a = place_of(b, b->halves[i].tensor[0]);
        a->pairs[i].b = place_of(b, b->halves[i].tensor[1]);
    }
    (void)mprotect(a->block, a->nbytes_block, PROT_READ); /* a stray write crashes */
    make_digest(a, b->spec.model);
    for (uint32_t i = 0; i < a->tensors->n_tensors; i++)
        a->sums[i] = checksum_of(adapter_bytes(a, i), a->tensors->tensors[i].nbytes);
    if (report != NULL) {
        *report = b->report;
        memset(&b->report, 0, sizeof b->report);
    }
    b->adapter = NULL;
    adapter_builder_free(b);
    return a;
}
