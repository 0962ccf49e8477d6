/* A delta from a stranger: names, dtypes and shapes of parts, and their bytes. What is refused says
 * why; what is accepted makes tensors of the model, from a base that stays as it is, the same
 * elsewhere and in place.
 *
 * Input: the number of parts, and for each a name, a dtype and a shape (two bytes a dimension);
 * then the bytes of all. With 255 as the first byte they are patches of vLLM's trainers: a name, a
 * dtype and a count each; those are compared with a plain scatter. */
#include "tests/fuzz/fuzz.h"

#include "weights/delta/delta.h"

enum { PARTS_MAX = 6, PATCHES = 255, POSITION_NBYTES = 4 };

static const enum err_code codes[] = {ERR_BAD_REQUEST, ERR_MISMATCH, ERR_TOO_LARGE, ERR_NONE};

static const char *const stems[] = {"a", "b", "c", "tied", "fused", "d", "none", ""};
static const char *const parts_of[] = {"",           "#gap",        "#bitmap",    "#index",
                                       "#range",     "#xor",        "#value",     "#gap.zst",
                                       "#xor.zst",   "#bitmap.zst", "#index.zst", "#range.zst",
                                       "#value.zst", "#",           "#.zst",      "#gap#xor"};

/* "d" has no elements; "c" has bytes of one. */
static struct model_spec *model_new(void)
{
    static const uint64_t a[] = {30, 40}, b[] = {65}, c[] = {1000}, d[] = {0, 4};
    static const char *const table[] = {"a", NULL}, *const halves[] = {"a", "e", NULL};
    const struct alias_spec aliases[] = {
        {.name = "tied", .kind = ALIAS_TIED, .targets = table},
        {.name = "fused", .kind = ALIAS_FUSED, .targets = halves, .ndim = 2, .shape = {60, 40}}};
    struct tensor_list_builder *builder;
    struct tensor_list *list;
    struct model_spec *m;
    struct err e = {0};

    CHECK(tensor_list_builder_new(&builder, &e) == 0);
    CHECK(tensor_list_builder_add(builder, "a", DTYPE_BF16, a, 2, UINT64_MAX, &e) == 0);
    CHECK(tensor_list_builder_add(builder, "b", DTYPE_F64, b, 1, UINT64_MAX, &e) == 0);
    CHECK(tensor_list_builder_add(builder, "c", DTYPE_F8_E4M3, c, 1, UINT64_MAX, &e) == 0);
    CHECK(tensor_list_builder_add(builder, "d", DTYPE_F32, d, 2, UINT64_MAX, &e) == 0);
    CHECK(tensor_list_builder_add(builder, "e", DTYPE_BF16, a, 2, UINT64_MAX, &e) == 0);
    CHECK(tensor_list_builder_finish(builder, &list, &e) == 0);
    CHECK(model_spec_new(&m, list, aliases, 2, &e) == 0);
    return m;
}

static const struct model_spec *model(void)
{
    static struct model_spec *m;

    if (m == NULL)
        m = model_new();
    return m;
}

static struct delta_merge *merge(void)
{
    static struct delta_merge *m;
    struct err e = {0};

    if (m == NULL)
        CHECK(delta_merge_new(&m, &e) == 0);
    return m;
}

static uint32_t take_two(struct taker *t)
{
    uint32_t low = take_byte(t);

    return low + 256 * (uint32_t)take_byte(t);
}

/* NULL: the list was refused. */
static struct tensor_list *take_parts(struct taker *t)
{
    uint32_t n = 1 + take_below(t, PARTS_MAX);
    struct tensor_list_builder *b;
    struct tensor_list *list;
    struct err e = {0};

    CHECK(tensor_list_builder_new(&b, &e) == 0);
    for (uint32_t i = 0; i < n; i++) {
        char name[64];
        uint64_t shape[3];
        uint32_t ndim;
        enum dtype dtype;

        (void)snprintf(name, sizeof name, "%s%s", stems[take_below(t, 8)],
                       parts_of[take_below(t, 16)]);
        dtype = 1 + take_below(t, DTYPE_COUNT - 1);
        ndim = take_below(t, 4);
        for (uint32_t k = 0; k < ndim; k++)
            shape[k] = take_two(t);
        if (tensor_list_builder_add(b, name, dtype, shape, ndim, UINT64_MAX, &e) != 0) {
            check_refusal(&e, codes, "/");
            tensor_list_builder_free(b);
            return NULL;
        }
    }
    CHECK(tensor_list_builder_finish(b, &list, &e) == 0);
    return list;
}

/* Exactly, so that a read beyond it is seen; bytes that the input has not are 0. */
static char *take_bytes(struct taker *t, uint64_t nbytes)
{
    uint64_t n = (uint64_t)(t->end - t->at) < nbytes ? (uint64_t)(t->end - t->at) : nbytes;
    char *bytes = calloc(1, nbytes + (nbytes == 0));

    CHECK(bytes != NULL);
    if (n > 0)
        memcpy(bytes, t->at, n);
    t->at += n;
    return bytes;
}

static struct delta_bytes part_bytes(const struct tensor_list *parts, char *const *bytes,
                                     const struct delta_part *part)
{
    if (part->i == TENSOR_LIST_NO_TENSOR)
        return (struct delta_bytes){NULL, 0};
    CHECK(part->i < parts->n_tensors);
    return (struct delta_bytes){bytes[part->i], parts->tensors[part->i].nbytes};
}

static char *base_of(const struct tensor_spec *t)
{
    char *base = malloc(t->nbytes + 1);

    CHECK(base != NULL);
    for (uint64_t i = 0; i < t->nbytes; i++)
        base[i] = (char)(i * 7);
    return base;
}

/* Returns the new bytes; NULL: refused. */
static char *check_apply(const struct tensor_list *parts, char *const *bytes,
                         const struct tensor_spec *t, const struct delta_tensor *d)
{
    struct delta_bytes positions = part_bytes(parts, bytes, &d->positions);
    struct delta_bytes values = part_bytes(parts, bytes, &d->values);
    char *base = base_of(t), *out = malloc(t->nbytes + 1);
    struct err e = {0}, again = {0};
    int rc;

    CHECK(out != NULL && values.data != NULL);
    out[t->nbytes] = base[t->nbytes] = 0x55;
    rc = delta_apply(merge(), out, t, d, base, positions, values, &e);
    CHECK(out[t->nbytes] == 0x55);
    for (uint64_t i = 0; i < t->nbytes; i++)
        CHECK(base[i] == (char)(i * 7));
    CHECK(delta_apply(merge(), base, t, d, base, positions, values, &again) == rc);
    if (rc != 0) {
        check_refusal(&e, codes, "/names/");
        CHECK(strcmp(e.msg, again.msg) == 0);
    } else {
        CHECK(memcmp(out, base, t->nbytes) == 0);
    }
    free(base);
    if (rc == 0)
        return out;
    free(out);
    return NULL;
}

/* What one patch makes, position by position; NULL: a position is beyond the tensor, or there
 * twice. */
static char *scatter(const struct tensor_spec *t, const char *positions, const char *values,
                     uint64_t n)
{
    uint64_t unit = dtype_nbytes(t->dtype);
    char *out = base_of(t), *seen = calloc(1, t->numel + 1);
    bool good = true;

    CHECK(seen != NULL);
    for (uint64_t i = 0; i < n && good; i++) {
        uint32_t at;

        memcpy(&at, positions + i * POSITION_NBYTES, sizeof at);
        good = at < t->numel && seen[at]++ == 0;
        if (good)
            memcpy(out + at * unit, values + i * unit, unit);
    }
    free(seen);
    if (good)
        return out;
    free(out);
    return NULL;
}

static void check_patch(const struct tensor_list *parts, char **bytes, const struct tensor_spec *t,
                        const struct delta_tensor *d)
{
    char *positions = bytes[d->positions.i], *values = bytes[d->values.i], *made, *want;
    uint64_t n = d->positions.nbytes / POSITION_NBYTES;

    CHECK(d->unit == dtype_nbytes(t->dtype) && d->values.nbytes == n * d->unit);
    CHECK(parts->tensors[d->positions.i].nbytes == d->positions.nbytes);
    want = scatter(t, positions, values, n);
    delta_sort(positions, values, n, d->unit);
    made = check_apply(parts, bytes, t, d);
    CHECK((made != NULL) == (want != NULL));
    CHECK(made == NULL || memcmp(made, want, t->nbytes) == 0);
    free(made);
    free(want);
}

static void take_patches(struct taker *t)
{
    uint32_t n = 1 + take_below(t, PARTS_MAX / 2);
    uint64_t counts[PARTS_MAX / 2];
    struct tensor_list *named, *parts = NULL;
    struct tensor_list_builder *b;
    struct delta *d = NULL;
    struct err e = {0};
    char *bytes[PARTS_MAX];

    CHECK(tensor_list_builder_new(&b, &e) == 0);
    for (uint32_t i = 0; i < n; i++) {
        const char *name = stems[take_below(t, 8)];
        uint32_t k = tensor_list_find(model()->tensor_list, name), how = take_byte(t);
        const struct tensor_spec *same =
            &model()->tensor_list->tensors[k == TENSOR_LIST_NO_TENSOR ? 0 : k];
        enum dtype dtype = how < 192 ? same->dtype : 1 + how % (DTYPE_COUNT - 1);

        counts[i] = take_two(t);
        if (tensor_list_builder_add(b, name, dtype, same->shape, same->ndim, UINT64_MAX, &e) != 0) {
            check_refusal(&e, codes, "/");
            tensor_list_builder_free(b);
            return;
        }
    }
    CHECK(tensor_list_builder_finish(b, &named, &e) == 0);
    if (delta_of_patches(&d, &parts, model(), named, counts, &e) != 0) {
        check_refusal(&e, codes, "/");
    } else {
        CHECK(parts->n_tensors == 2 * n && d->result->n_tensors == n);
        for (uint32_t i = 0; i < 2 * n; i++)
            bytes[i] = take_bytes(t, parts->tensors[i].nbytes);
        for (uint32_t i = 0; i < n; i++)
            check_patch(parts, bytes, &d->result->tensors[i], &d->tensors[i]);
        for (uint32_t i = 0; i < 2 * n; i++)
            free(bytes[i]);
    }
    delta_free(d);
    tensor_list_unref(parts);
    tensor_list_unref(named);
}

static void take_delta(struct taker *t)
{
    struct tensor_list *parts = take_parts(t);
    struct delta *d = NULL;
    struct err e = {0};
    char *bytes[PARTS_MAX];

    if (parts == NULL)
        return;
    if (delta_of_parts(&d, model(), parts, &e) != 0) {
        check_refusal(&e, codes, "/");
        CHECK(d == NULL);
    } else {
        for (uint32_t i = 0; i < parts->n_tensors; i++)
            bytes[i] = take_bytes(t, parts->tensors[i].nbytes);
        for (uint32_t k = 0; k < d->result->n_tensors; k++)
            free(check_apply(parts, bytes, &d->result->tensors[k], &d->tensors[k]));
        for (uint32_t i = 0; i < parts->n_tensors; i++)
            free(bytes[i]);
    }
    delta_free(d);
    tensor_list_unref(parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct taker t = {data, data + len};

    if (len > 0 && data[0] == PATCHES) {
        t.at++;
        take_patches(&t);
    } else {
        take_delta(&t);
    }
    return 0;
}
