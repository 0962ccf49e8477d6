/* Building tensor lists. A builder is a tensor list that is not shared yet: finishing it copies
 * nothing. */
#include "weights/tensor_list.h"

#include "base/hex.h"
#include "base/names.h"
#include "base/utf8.h"

#include <assert.h>
#include <nettle/sha2.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS_CAP_MIN = 64, U64_DIGITS = 20 };

struct tensor_list_builder {
    struct tensor_list
        tensor_list;          /* first: a struct tensor list * is a struct tensor_list_builder * */
    struct names names;       /* owned, unless `like` owns them; numbers are indexes into tensors */
    struct tensor_list *like; /* one reference, or NULL */
    struct tensor_spec *tensors; /* owned; [cap], the first names.n in use */
    uint32_t cap;

    atomic_uint refs; /* relaxed increment, acq_rel decrement: the thread that frees sees all writes
                         of the others */
};

int tensor_list_builder_new(struct tensor_list_builder **out, struct err *e)
{
    struct tensor_list_builder *b = calloc(1, sizeof *b);

    if (b == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a plan");
    names_init(&b->names);
    *out = b;
    return 0;
}

void tensor_list_builder_free(struct tensor_list_builder *b)
{
    if (b == NULL)
        return;
    if (b->like == NULL)
        names_fini(&b->names);
    tensor_list_unref(b->like);
    free(b->tensors);
    free(b);
}

bool tensor_list_measure(enum dtype dtype, const uint64_t *shape, uint32_t ndim, uint64_t *numel,
                         uint64_t *nbytes)
{
    uint64_t n = 1, n_bytes;
    bool empty = false;

    for (uint32_t i = 0; i < ndim; i++) {
        if (shape[i] == 0)
            empty = true; /* the other dims must still be valid for a tensor */
        else if (__builtin_mul_overflow(n, shape[i], &n))
            return false;
    }
    if (__builtin_mul_overflow(n, dtype_nbytes(dtype), &n_bytes) ||
        n_bytes > TENSOR_LIST_NBYTES_MAX)
        return false;
    *numel = empty ? 0 : n;
    *nbytes = empty ? 0 : n_bytes;
    return true;
}

/* Fills `field` with "/<list>/<i>". */
static const char *tensor_list_field_of(char field[ERR_FIELD_MAX], const char *list, uint32_t i)
{
    (void)snprintf(field, ERR_FIELD_MAX, "/%s/%u", list, (unsigned)i);
    return field;
}

/* @key  the builder's key for the name; written on success */
static int check_listed_name(const struct tensor_list_builder *b, const char *name,
                             struct names_key *key, struct err *e)
{
    size_t len = strnlen(name, TENSOR_LIST_NAME_LEN_MAX + 1);
    uint32_t i = b->names.n, first;
    char field[ERR_FIELD_MAX];

    if (len == 0)
        return err_set(e, ERR_BAD_REQUEST, tensor_list_field_of(field, "names", i),
                       "the name of tensor %u is empty", (unsigned)i);
    if (len > TENSOR_LIST_NAME_LEN_MAX)
        return err_set(e, ERR_BAD_REQUEST, tensor_list_field_of(field, "names", i),
                       "name '%.*s...' is longer than the %d bytes allowed", utf8_cut_name(name),
                       name, (int)TENSOR_LIST_NAME_LEN_MAX);
    for (const unsigned char *c = (const unsigned char *)name; *c != '\0'; c++)
        if (*c < 0x20 || *c == 0x7f)
            return err_set(e, ERR_BAD_REQUEST, tensor_list_field_of(field, "names", i),
                           "the name of tensor %u has a control character (0x%02x) at byte %zu",
                           (unsigned)i, (unsigned)*c, (size_t)(c - (const unsigned char *)name));
    *key = names_key(&b->names, name, len);
    first = names_find_key(&b->names, key);
    if (first != NAMES_NONE)
        return err_set(e, ERR_BAD_REQUEST, tensor_list_field_of(field, "names", i),
                       "tensor '%.*s' is named twice, at %u and at %u", utf8_cut_name(name), name,
                       (unsigned)first, (unsigned)i);
    return 0;
}

/* Fills everything of `t` but its name, behind the offset that it has. */
static int check_spec(struct tensor_spec *t, uint32_t i, const char *name, const uint64_t *shape,
                      uint64_t numel, struct err *e)
{
    char field[ERR_FIELD_MAX];

    if (t->dtype <= DTYPE_NONE || t->dtype >= DTYPE_COUNT)
        return err_set(e, ERR_BAD_REQUEST, tensor_list_field_of(field, "dtypes", i),
                       "the dtype of tensor '%.*s' is not one of %s", utf8_cut_name(name), name,
                       dtype_list());
    if (t->ndim > TENSOR_LIST_NDIM_MAX)
        return err_set(e, ERR_BAD_REQUEST, tensor_list_field_of(field, "shapes", i),
                       "tensor '%.*s' has %u dimensions, at most %d are allowed",
                       utf8_cut_name(name), name, (unsigned)t->ndim, (int)TENSOR_LIST_NDIM_MAX);
    for (uint32_t k = 0; k < t->ndim; k++)
        t->shape[k] = shape[k];
    if (!tensor_list_measure(t->dtype, t->shape, t->ndim, &t->numel, &t->nbytes)) {
        char text[256];
        return err_set(e, ERR_BAD_REQUEST, tensor_list_field_of(field, "shapes", i),
                       "tensor '%.*s' of shape %s and dtype %s has more than 2^63 - 1 bytes",
                       utf8_cut_name(name), name, tensor_list_shape_text(t, text, sizeof text),
                       dtype_name(t->dtype));
    }
    if (numel != UINT64_MAX && numel != t->numel)
        return err_set(e, ERR_BAD_REQUEST, tensor_list_field_of(field, "sizes", i),
                       "tensor '%.*s': size is %llu, but its shape has %llu elements",
                       utf8_cut_name(name), name, (unsigned long long)numel,
                       (unsigned long long)t->numel);
    if (t->nbytes > TENSOR_LIST_NBYTES_MAX - t->offset)
        return err_set(e, ERR_BAD_REQUEST, tensor_list_field_of(field, "shapes", i),
                       "with tensor '%.*s' the list has more than 2^63 - 1 bytes",
                       utf8_cut_name(name), name);
    return 0;
}

static int reserve_tensors(struct tensor_list_builder *b, uint32_t n, struct err *e)
{
    uint32_t cap = b->cap == 0 ? TENSORS_CAP_MIN : b->cap;
    struct tensor_spec *tensors;

    if (b->cap - b->names.n >= n)
        return 0;
    while (cap - b->names.n < n)
        cap *= 2;
    tensors = realloc(b->tensors, cap * sizeof *tensors);
    if (tensors == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a plan of %u tensors", (unsigned)cap);
    b->tensors = tensors;
    b->cap = cap;
    return 0;
}

int tensor_list_builder_reserve(struct tensor_list_builder *b, uint32_t n, struct err *e)
{
    if (n > TENSOR_LIST_TENSORS_MAX -
                b->names.n) /* the error is set when the tensor that exceeds the limit is added */
        n = TENSOR_LIST_TENSORS_MAX - b->names.n;
    return reserve_tensors(b, n, e) == 0 ? names_reserve(&b->names, n, e) : -1;
}

int tensor_list_builder_add(struct tensor_list_builder *b, const char *name, enum dtype dtype,
                            const uint64_t *shape, uint32_t ndim, uint64_t numel, struct err *e)
{
    uint32_t i = b->names.n;
    struct tensor_spec t = {.dtype = dtype, .ndim = ndim, .offset = b->tensor_list.nbytes};
    struct names_key key;

    if (i >= TENSOR_LIST_TENSORS_MAX)
        return err_set(e, ERR_TOO_LARGE, "/names", "more than %d tensors",
                       (int)TENSOR_LIST_TENSORS_MAX);
    if (check_listed_name(b, name, &key, e) != 0 || check_spec(&t, i, name, shape, numel, e) != 0)
        return -1;
    if (reserve_tensors(b, 1, e) != 0 || names_add_key(&b->names, &key, e) != 0)
        return -1;
    t.name = b->names.items[i];
    b->tensors[i] = t;
    b->tensor_list.nbytes += t.nbytes;
    return 0;
}

uint32_t tensor_list_builder_find(const struct tensor_list_builder *b, const char *name)
{
    return names_find(&b->names, name);
}

/* Decimal digits; snprintf is too slow for each dim of 100,000 tensors. */
static size_t put_u64(char *out, uint64_t value)
{
    char digits[U64_DIGITS];
    size_t n = 0;

    do {
        digits[n++] = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    for (size_t i = 0; i < n; i++)
        out[i] = digits[n - 1 - i];
    return n;
}

static void tensor_list_digest_of(const struct tensor_list *p, char out[TENSOR_LIST_DIGEST_LEN + 1])
{
    char tail[32 + TENSOR_LIST_NDIM_MAX * (U64_DIGITS + 1)];
    uint8_t digest[SHA256_DIGEST_SIZE];
    struct sha256_ctx ctx;

    sha256_init(&ctx);
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        const struct tensor_spec *t = &p->tensors[i];
        const char *dtype = dtype_name(t->dtype);
        size_t len = 0;

        tail[len++] = '\t';
        while (*dtype != '\0')
            tail[len++] = *dtype++;
        tail[len++] = '\t';
        for (uint32_t k = 0; k < t->ndim; k++) {
            if (k > 0)
                tail[len++] = ',';
            len += put_u64(tail + len, t->shape[k]);
        }
        tail[len++] = '\n';
        sha256_update(&ctx, strlen(t->name), (const uint8_t *)t->name);
        sha256_update(&ctx, len, (const uint8_t *)tail);
    }
    sha256_digest(&ctx, sizeof digest, digest);
    hex_text(out, digest, sizeof digest);
}

static void builder_seal(struct tensor_list_builder *b, struct tensor_list **out)
{
    b->tensor_list.n_tensors = b->names.n;
    b->tensor_list.tensors = b->tensors;
    tensor_list_digest_of(&b->tensor_list, b->tensor_list.digest);
    atomic_init(&b->refs, 1);
    *out = &b->tensor_list;
}

int tensor_list_builder_finish(struct tensor_list_builder *b, struct tensor_list **out,
                               struct err *e)
{
    struct tensor_spec *exact;

    if (b->names.n == 0) {
        tensor_list_builder_free(b);
        return err_set(e, ERR_BAD_REQUEST, "/names", "there are no tensors; at least 1 is needed");
    }
    exact = realloc(b->tensors, b->names.n * sizeof *exact);
    if (exact != NULL)
        b->tensors = exact;
    builder_seal(b, out);
    return 0;
}

const struct tensor_list *tensor_list_names_of(const struct tensor_list *p)
{
    const struct tensor_list_builder *b = (const struct tensor_list_builder *)p;

    return b->like != NULL ? b->like : p;
}

int tensor_list_reshape(struct tensor_list **out, struct tensor_list *of,
                        tensor_list_shape_fn *next, void *arg, struct err *e)
{
    struct tensor_list_builder *names = (struct tensor_list_builder *)of;
    struct tensor_list *like = names->like != NULL ? names->like : of;
    struct tensor_list_builder *b = calloc(1, sizeof *b);
    uint64_t shape[TENSOR_LIST_NDIM_MAX], numel;

    if (b == NULL || (b->tensors = malloc(like->n_tensors * sizeof *b->tensors)) == NULL) {
        free(b);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a plan");
    }
    b->like = tensor_list_ref(like);
    b->names = names->names;
    for (uint32_t i = 0; i < like->n_tensors; i++) {
        struct tensor_spec *t = &b->tensors[i];

        *t = (struct tensor_spec){.name = like->tensors[i].name,
                                  .dtype = like->tensors[i].dtype,
                                  .offset = b->tensor_list.nbytes};
        if (next(arg, i, shape, &t->ndim, &numel, e) != 0 ||
            check_spec(t, i, t->name, shape, numel, e) != 0) {
            tensor_list_builder_free(b);
            return -1;
        }
        b->tensor_list.nbytes += t->nbytes;
    }
    builder_seal(b, out);
    return 0;
}

struct tensor_list *tensor_list_ref(struct tensor_list *p)
{
    struct tensor_list_builder *b = (struct tensor_list_builder *)p;
    unsigned before = atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);

    assert(before > 0);
    return p;
}

void tensor_list_unref(struct tensor_list *p)
{
    struct tensor_list_builder *b = (struct tensor_list_builder *)p;
    unsigned before;

    if (p == NULL)
        return;
    before = atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before == 1)
        tensor_list_builder_free(b);
}

uint32_t tensor_list_find(const struct tensor_list *p, const char *name)
{
    return tensor_list_builder_find((const struct tensor_list_builder *)p, name);
}

uint32_t tensor_list_find_near(const struct tensor_list *p, const char *name, uint32_t i)
{
    if (i < p->n_tensors && strcmp(p->tensors[i].name, name) == 0)
        return i;
    return tensor_list_find(p, name);
}

const char *tensor_list_shape_text(const struct tensor_spec *t, char *out, size_t cap)
{
    size_t len = (size_t)snprintf(out, cap, "[");

    for (uint32_t i = 0; i < t->ndim && len < cap; i++)
        len += (size_t)snprintf(out + len, cap - len, "%s%llu", i > 0 ? ", " : "",
                                (unsigned long long)t->shape[i]);
    if (len < cap)
        (void)snprintf(out + len, cap - len, "]");
    return out;
}
