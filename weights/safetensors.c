/* Validates the head of a safetensors file before it is used.
 *
 * The header is read member by member (json_reader.h), so that memory is proportional to the
 * number of tensors. If a name is repeated, the format's own reader uses the last one; here the
 * file is refused, because one of the two tensors would silently not be served. */
#include "weights/safetensors.h"

#include "base/json_reader.h"
#include "base/utf8.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECKSUM_KEY "baton.checksum."
#define MADE_KEY     "checksum." /* of a delta */
#define VERSION_KEY  "baton.weight_version"
#define SNAPSHOT_KEY "baton.snapshot"

enum {
    KEY_LEN_MAX = TENSOR_LIST_NAME_LEN_MAX + 16, /* CHECKSUM_KEY and a name */
    VALUE_LEN_MAX = 256,                         /* of baton's metadata values, or a dtype */
    LABEL_LEN_MAX = 223,
    ENTRIES_CAP_MIN = 64
};

#define LABEL_STREAM "safetensors"

/* One tensor of the header. */
struct entry {
    const char *name; /* of header.names */
    enum dtype dtype;
    uint32_t ndim;
    uint64_t shape[TENSOR_LIST_NDIM_MAX];
    uint64_t begin, end; /* from the end of the head */
};

struct given_checksum {
    const char *key; /* of header.keys */
    struct checksum sum;
};

struct header {
    struct json_reader r;
    struct names names; /* of tensors; numbers are indexes into entries, before those are sorted */
    struct entry *entries; /* owned */
    uint32_t cap;

    bool has_metadata;
    struct names keys;            /* of the metadata */
    struct given_checksum *given; /* owned */
    uint32_t n_given, given_cap;
    struct given_checksum *made; /* owned; of a delta, if it is one */
    uint32_t n_made, made_cap;
    const char *made_wrong;          /* of keys; of a value that is no checksum. NULL: none is */
    char *weight_version, *snapshot; /* owned, or NULL */
    char *version, *base_version;    /* owned, or NULL: of a delta, if it is one */
    bool is_delta;

    const char *tensor; /* being read, for messages; NULL for none */
    char key[KEY_LEN_MAX + 1], value[VALUE_LEN_MAX + 1];
    char label[LABEL_LEN_MAX + 1]; /* "safetensors", or with the name of the file */
};

/* The probable format of a file that is not safetensors, by its first bytes; NULL: not known. */
static const char *foreign_format(const void *data)
{
    static const struct {
        const char *begins;
        size_t len;
        const char *is;
    } formats[] = {
        {"PK\3\4", 4, "a zip file, as torch.save writes"},
        {"\x80\2", 2, "a pickle, as torch.save and pickle.dump write"},
        {"\x80\4", 2, "a pickle, as torch.save and pickle.dump write"},
        {"\x80\5", 2, "a pickle, as torch.save and pickle.dump write"},
        {"version ", 8, "a Git LFS pointer, and 'git lfs pull' fetches what it points to"},
        {"GGUF", 4, "a GGUF file"},
        {"\x89HDF", 4, "an HDF5 file"},
        {"\x93NUMPY", 6, "a NumPy file"},
        {"{", 1, "JSON"},
    };

    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (memcmp(data, formats[i].begins, formats[i].len) == 0)
            return formats[i].is;
    return NULL;
}

static int head_nbytes(const void *data, size_t have, const char *label, uint64_t *out,
                       struct err *e)
{
    uint64_t n;

    if (have < SAFETENSORS_PREFIX) {
        *out = 0;
        return 0;
    }
    memcpy(&n, data, sizeof n);
    n = le64toh(n);
    if (n > SAFETENSORS_HEADER_MAX && foreign_format(data) != NULL)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "%s: this is %s; a safetensors file is expected, as "
                       "safetensors.torch.save_file writes",
                       label, foreign_format(data));
    if (n == 0 || n > SAFETENSORS_HEADER_MAX)
        return err_set(
            e, ERR_BAD_REQUEST, "",
            "%s: the first 8 bytes say that the header has %llu bytes, expected 1 to %d; "
            "is this a safetensors file?",
            label, (unsigned long long)n, (int)SAFETENSORS_HEADER_MAX);
    *out = SAFETENSORS_PREFIX + n;
    return 0;
}

int safetensors_head_nbytes(const void *data, size_t have, uint64_t *out, struct err *e)
{
    return head_nbytes(data, have, LABEL_STREAM, out, e);
}

static void header_fini(struct header *h)
{
    names_fini(&h->names);
    names_fini(&h->keys);
    free(h->entries);
    free(h->given);
    free(h->made);
    free(h->weight_version);
    free(h->snapshot);
    free(h->version);
    free(h->base_version);
}

/* Makes an error of the reader's failure. */
static int header_refuse_syntax(const struct header *h, struct err *e)
{
    size_t at = json_reader_offset(&h->r);

    if (h->tensor != NULL)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "%s: header, tensor '%.*s': %s, at byte %zu of the header", h->label,
                       utf8_cut_name(h->tensor), h->tensor, h->r.wrong, at);
    return err_set(e, ERR_BAD_REQUEST, "", "%s: header: %s, at byte %zu of the header", h->label,
                   h->r.wrong, at);
}

__attribute__((format(printf, 3, 4))) static int refuse(const struct header *h, struct err *e,
                                                        const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(e, ERR_BAD_REQUEST, "", "%s: tensor '%.*s' %s", h->label,
                   utf8_cut_name(h->tensor), h->tensor, text);
}

/* Allocates memory for one more than `n` items of `nbytes` each. */
static int items_reserve(void *items, uint32_t n, uint32_t *cap, size_t nbytes, struct err *e)
{
    void **array = items;
    uint32_t more = *cap == 0 ? ENTRIES_CAP_MIN : 2 * *cap;
    void *grown;

    if (n < *cap)
        return 0;
    grown = realloc(*array, more * nbytes);
    if (grown == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a header of %u tensors", (unsigned)n);
    *array = grown;
    *cap = more;
    return 0;
}

static int refuse_checksum(const struct header *h, const char *key, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, "", "%s: metadata '%.*s' is not a checksum of %d hex digits",
                   h->label, utf8_cut_name(key), key, (int)CHECKSUM_LEN);
}

static int safetensors_read_checksum(struct header *h, const char *key, struct err *e)
{
    void *given = h->given;
    struct checksum sum;

    if (!json_reader_string(&h->r, h->value, sizeof h->value))
        return header_refuse_syntax(h, e);
    if (!checksum_parse(&sum, h->value))
        return refuse_checksum(h, key, e);
    if (items_reserve(&given, h->n_given, &h->given_cap, sizeof *h->given, e) != 0)
        return -1;
    h->given = given;
    h->given[h->n_given++] = (struct given_checksum){key, sum};
    return 0;
}

/* Other files may have keys of this form too, with any value. */
static int read_made_checksum(struct header *h, const char *key, struct err *e)
{
    struct json_reader before = h->r;
    void *made = h->made;
    struct checksum sum;

    if (!json_reader_string(&h->r, h->value, sizeof h->value)) {
        h->r = before;
        h->made_wrong = key;
        return json_reader_string(&h->r, NULL, 0) ? 0 : header_refuse_syntax(h, e);
    }
    if (!checksum_parse(&sum, h->value)) {
        h->made_wrong = key;
        return 0;
    }
    if (items_reserve(&made, h->n_made, &h->made_cap, sizeof *h->made, e) != 0)
        return -1;
    h->made = made;
    h->made[h->n_made++] = (struct given_checksum){key, sum};
    return 0;
}

static int keep_value(struct header *h, char **to, struct err *e)
{
    *to = strdup(h->value);
    return *to != NULL ? 0 : err_set(e, ERR_NO_MEMORY, "", "no memory for a safetensors header");
}

/* Other files may have keys of these names too, with values of any length. */
static int read_delta_value(struct header *h, const char *key, struct err *e)
{
    struct json_reader before = h->r;

    if (!json_reader_string(&h->r, h->value, sizeof h->value)) {
        h->r = before;
        return json_reader_string(&h->r, NULL, 0) ? 0 : header_refuse_syntax(h, e);
    }
    if (strcmp(key, "format") == 0)
        h->is_delta = strcmp(h->value, SAFETENSORS_DELTA) == 0;
    else
        return keep_value(h, strcmp(key, "version") == 0 ? &h->version : &h->base_version, e);
    return 0;
}

static int read_metadata_value(struct header *h, const char *key, struct err *e)
{
    char **to;

    if (strncmp(key, CHECKSUM_KEY, sizeof CHECKSUM_KEY - 1) == 0)
        return safetensors_read_checksum(h, key, e);
    if (strncmp(key, MADE_KEY, sizeof MADE_KEY - 1) == 0)
        return read_made_checksum(h, key, e);
    if (strcmp(key, "format") == 0 || strcmp(key, "version") == 0 ||
        strcmp(key, "base_version") == 0)
        return read_delta_value(h, key, e);
    if (strcmp(key, VERSION_KEY) == 0)
        to = &h->weight_version;
    else if (strcmp(key, SNAPSHOT_KEY) == 0)
        to = &h->snapshot;
    else
        return json_reader_string(&h->r, NULL, 0) ? 0 : header_refuse_syntax(h, e);
    if (!json_reader_string(&h->r, h->value, sizeof h->value))
        return header_refuse_syntax(h, e);
    return keep_value(h, to, e);
}

static int read_metadata(struct header *h, struct err *e)
{
    uint32_t n = 0;

    if (h->has_metadata)
        return err_set(e, ERR_BAD_REQUEST, "", "%s: '__metadata__' is repeated", h->label);
    h->has_metadata = true;
    if (!json_reader_open(&h->r, '{'))
        return header_refuse_syntax(h, e);
    while (json_reader_next(&h->r, '}', &n)) {
        if (!json_reader_key(&h->r, h->key, sizeof h->key))
            return header_refuse_syntax(h, e);
        if (names_find(&h->keys, h->key) != NAMES_NONE)
            return err_set(e, ERR_BAD_REQUEST, "", "%s: metadata '%.*s' is repeated", h->label,
                           utf8_cut_name(h->key), h->key);
        if (names_add(&h->keys, h->key, e) != 0 ||
            read_metadata_value(h, h->keys.items[h->keys.n - 1], e) != 0)
            return -1;
    }
    return h->r.wrong == NULL ? 0 : header_refuse_syntax(h, e);
}

static int safetensors_read_dtype(struct header *h, struct entry *t, struct err *e)
{
    if (!json_reader_string(&h->r, h->value, sizeof h->value))
        return header_refuse_syntax(h, e);
    t->dtype = dtype_parse(h->value);
    if (t->dtype == DTYPE_NONE || strcmp(dtype_name(t->dtype), h->value) != 0)
        return refuse(h, e, "has dtype '%.*s', which is not one of %s", utf8_cut(h->value, 64),
                      h->value, dtype_list());
    return 0;
}

static int safetensors_read_shape(struct header *h, struct entry *t, struct err *e)
{
    uint32_t n = 0;
    uint64_t dim;

    if (!json_reader_open(&h->r, '['))
        return header_refuse_syntax(h, e);
    while (json_reader_next(&h->r, ']', &n)) {
        if (!json_reader_u64(&h->r, &dim))
            return header_refuse_syntax(h, e);
        if (n > TENSOR_LIST_NDIM_MAX)
            return refuse(h, e, "has more than %d dimensions", (int)TENSOR_LIST_NDIM_MAX);
        t->shape[n - 1] = dim;
    }
    t->ndim = n;
    return h->r.wrong == NULL ? 0 : header_refuse_syntax(h, e);
}

static int read_offsets(struct header *h, struct entry *t, struct err *e)
{
    uint64_t *const to[] = {&t->begin, &t->end};
    uint32_t n = 0;
    uint64_t offset;

    if (!json_reader_open(&h->r, '['))
        return header_refuse_syntax(h, e);
    while (json_reader_next(&h->r, ']', &n)) {
        if (!json_reader_u64(&h->r, &offset))
            return header_refuse_syntax(h, e);
        if (n <= 2)
            *to[n - 1] = offset;
    }
    if (h->r.wrong != NULL)
        return header_refuse_syntax(h, e);
    if (n != 2)
        return refuse(h, e, "has %u data_offsets, 2 are needed", (unsigned)n);
    if (t->end < t->begin)
        return refuse(h, e, "ends at byte %llu, before it begins at byte %llu",
                      (unsigned long long)t->end, (unsigned long long)t->begin);
    return 0;
}

/* Reads the members of one tensor; unknown ones are skipped. */
static int read_members(struct header *h, struct entry *t, struct err *e)
{
    static const struct {
        const char *name;
        int (*read)(struct header *h, struct entry *t, struct err *e);
    } members[] = {{"dtype", safetensors_read_dtype},
                   {"shape", safetensors_read_shape},
                   {"data_offsets", read_offsets}};
    enum { N = sizeof members / sizeof members[0], DEPTH_HERE = 2 };
    bool seen[N] = {false};
    uint32_t n = 0;

    if (!json_reader_open(&h->r, '{'))
        return header_refuse_syntax(h, e);
    while (json_reader_next(&h->r, '}', &n)) {
        size_t i = 0;
        if (!json_reader_key(&h->r, h->key, sizeof h->key))
            return header_refuse_syntax(h, e);
        while (i < N && strcmp(h->key, members[i].name) != 0)
            i++;
        if (i == N && !json_reader_skip(&h->r, SAFETENSORS_DEPTH_MAX - DEPTH_HERE))
            return header_refuse_syntax(h, e);
        if (i < N && seen[i])
            return refuse(h, e, "has '%s' twice", members[i].name);
        if (i < N && members[i].read(h, t, e) != 0)
            return -1;
        if (i < N)
            seen[i] = true;
    }
    if (h->r.wrong != NULL)
        return header_refuse_syntax(h, e);
    for (size_t i = 0; i < N; i++)
        if (!seen[i])
            return refuse(h, e, "has no '%s'", members[i].name);
    return 0;
}

/* h->key holds its name. */
static int safetensors_read_tensor(struct header *h, struct err *e)
{
    void *entries = h->entries;
    uint32_t i = h->names.n;
    struct entry t = {0};

    if (i >= TENSOR_LIST_TENSORS_MAX)
        return err_set(e, ERR_TOO_LARGE, "", "%s: more than %d tensors", h->label,
                       (int)TENSOR_LIST_TENSORS_MAX);
    if (names_find(&h->names, h->key) != NAMES_NONE)
        return err_set(e, ERR_BAD_REQUEST, "", "%s: tensor '%.*s' is named twice", h->label,
                       utf8_cut_name(h->key), h->key);
    if (items_reserve(&entries, i, &h->cap, sizeof *h->entries, e) != 0)
        return -1;
    h->entries = entries;
    if (names_add(&h->names, h->key, e) != 0)
        return -1;
    t.name = h->tensor = h->names.items[i];
    if (read_members(h, &t, e) != 0)
        return -1;
    h->tensor = NULL;
    h->entries[i] = t;
    return 0;
}

static int safetensors_read_header(struct header *h, struct err *e)
{
    uint32_t n = 0;

    if (*h->r.at != '{')
        return err_set(e, ERR_BAD_REQUEST, "",
                       "%s: the header begins with byte 0x%02x and not with '{'", h->label,
                       (unsigned)*h->r.at);
    (void)json_reader_open(&h->r, '{');
    while (json_reader_next(&h->r, '}', &n)) {
        if (!json_reader_key(&h->r, h->key, sizeof h->key))
            return header_refuse_syntax(h, e);
        if ((strcmp(h->key, "__metadata__") == 0 ? read_metadata(h, e)
                                                 : safetensors_read_tensor(h, e)) != 0)
            return -1;
    }
    return json_reader_end(&h->r) ? 0 : header_refuse_syntax(h, e);
}

/* By offset; a tensor without bytes comes before the tensor that begins at the same offset. */
static int entry_order(const void *x, const void *y)
{
    const struct entry *a = x, *b = y;

    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end)
        return a->end < b->end ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Checks that sorted entries are adjacent, each as long as its shape. */
static int check_layout(struct header *h, uint64_t *nbytes_data, struct err *e)
{
    uint64_t at = 0, numel, nbytes;

    for (uint32_t i = 0; i < h->names.n; i++) {
        const struct entry *t = &h->entries[i];
        h->tensor = t->name;
        if (t->begin > at)
            return refuse(h, e, "begins at byte %llu, which leaves a hole after byte %llu",
                          (unsigned long long)t->begin, (unsigned long long)at);
        if (t->begin < at)
            return refuse(h, e, "begins at byte %llu and overlaps '%.*s', which ends at byte %llu",
                          (unsigned long long)t->begin, utf8_cut(t[-1].name, 100), t[-1].name,
                          (unsigned long long)at);
        if (!tensor_list_measure(t->dtype, t->shape, t->ndim, &numel, &nbytes))
            return refuse(h, e, "has a shape of more than 2^63 - 1 bytes");
        if (t->end - t->begin != nbytes)
            return refuse(h, e, "has %llu bytes by data_offsets, but %llu by shape and dtype",
                          (unsigned long long)(t->end - t->begin), (unsigned long long)nbytes);
        at = t->end;
    }
    h->tensor = NULL;
    *nbytes_data = at;
    return 0;
}

static int make_tensor_list(const struct header *h, struct tensor_list **out, struct err *e)
{
    struct tensor_list_builder *b;

    if (h->names.n == 0)
        return err_set(e, ERR_BAD_REQUEST, "", "%s: there are no tensors in it", h->label);
    if (tensor_list_builder_new(&b, e) != 0)
        return -1;
    for (uint32_t i = 0; i < h->names.n; i++) {
        const struct entry *t = &h->entries[i];
        if (tensor_list_builder_add(b, t->name, t->dtype, t->shape, t->ndim, UINT64_MAX, e) != 0) {
            tensor_list_builder_free(b);
            e->field[0] = '\0'; /* an index into the sorted entries means nothing to the sender */
            return -1;
        }
    }
    return tensor_list_builder_finish(b, out, e);
}

static int copy_checksums(const struct header *h, struct safetensors *s, struct err *e)
{
    s->checksums = calloc(s->tensor_list->n_tensors, sizeof *s->checksums);
    s->has_checksum = calloc(s->tensor_list->n_tensors, sizeof *s->has_checksum);
    if (s->checksums == NULL || s->has_checksum == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a safetensors header");
    for (uint32_t i = 0; i < h->n_given; i++) {
        const char *name = h->given[i].key + sizeof CHECKSUM_KEY - 1;
        uint32_t k = tensor_list_find(s->tensor_list, name);
        if (k == TENSOR_LIST_NO_TENSOR)
            return err_set(
                e, ERR_BAD_REQUEST, "",
                "%s: the metadata has a checksum of '%.*s', which the file does not have", h->label,
                utf8_cut_name(name), name);
        s->checksums[k] = h->given[i].sum;
        s->has_checksum[k] = true;
    }
    return 0;
}

int made_sums_add(struct made_sums *m, const char *name, struct checksum sum, struct err *e)
{
    uint32_t k = names_find(&m->names, name);
    void *sums = m->sums;

    if (k != NAMES_NONE)
        return checksum_equal(m->sums[k], sum)
                   ? 0
                   : err_set(e, ERR_BAD_REQUEST, "", "there are two checksums of tensor '%.*s'",
                             utf8_cut_name(name), name);
    if (m->names.n == 0 && m->sums == NULL)
        names_init(&m->names);
    if (items_reserve(&sums, m->names.n, &m->cap, sizeof *m->sums, e) != 0)
        return -1;
    m->sums = sums;
    if (names_add(&m->names, name, e) != 0)
        return -1;
    m->sums[m->names.n - 1] = sum;
    return 0;
}

void made_sums_fini(struct made_sums *m)
{
    names_fini(&m->names);
    free(m->sums);
    *m = (struct made_sums){0};
}

static int settle_delta(struct header *h, struct safetensors *s, struct err *e)
{
    if (!h->is_delta)
        return 0;
    if (h->made_wrong != NULL)
        return refuse_checksum(h, h->made_wrong, e);
    for (uint32_t i = 0; i < h->n_made; i++)
        if (made_sums_add(&s->made, h->made[i].key + sizeof MADE_KEY - 1, h->made[i].sum, e) != 0)
            return -1;
    if (h->base_version == NULL) {
        h->value[0] = '\0';
        if (keep_value(h, &h->base_version, e) != 0)
            return -1;
    }
    s->delta_base = h->base_version;
    h->base_version = NULL;
    if (s->weight_version == NULL) {
        s->weight_version = h->version;
        h->version = NULL;
    }
    return 0;
}

static int header_parse(struct header *h, struct safetensors *s, uint64_t nbytes_total,
                        struct err *e)
{
    uint64_t nbytes_data = 0;

    if (safetensors_read_header(h, e) != 0)
        return -1;
    if (h->names.n > 1)
        qsort(h->entries, h->names.n, sizeof *h->entries, entry_order);
    if (check_layout(h, &nbytes_data, e) != 0)
        return -1;
    s->nbytes_total = s->nbytes_head + nbytes_data;
    if (nbytes_total != UINT64_MAX && nbytes_total != s->nbytes_total)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "%s: the header describes %llu bytes in all, but there are %llu", h->label,
                       (unsigned long long)s->nbytes_total, (unsigned long long)nbytes_total);
    if (make_tensor_list(h, &s->tensor_list, e) != 0 || copy_checksums(h, s, e) != 0)
        return -1;
    s->weight_version = h->weight_version;
    h->weight_version = NULL;
    s->snapshot = h->snapshot;
    h->snapshot = NULL;
    return settle_delta(h, s, e);
}

static int parse_labelled(struct safetensors *out, const void *head, uint64_t nbytes_head,
                          uint64_t nbytes_total, const char *label, struct err *e)
{
    struct safetensors s = {.nbytes_head = nbytes_head};
    struct header *h = calloc(1, sizeof *h);
    int rc;

    if (h == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a safetensors header");
    (void)snprintf(h->label, sizeof h->label, "%s", label);
    json_reader_init(&h->r, (const uint8_t *)head + SAFETENSORS_PREFIX,
                     nbytes_head - SAFETENSORS_PREFIX);
    names_init(&h->names);
    names_init(&h->keys);
    rc = header_parse(h, &s, nbytes_total, e);
    header_fini(h);
    free(h);
    if (rc != 0) {
        safetensors_fini(&s);
        return -1;
    }
    *out = s;
    return 0;
}

int safetensors_parse(struct safetensors *out, const void *head, uint64_t nbytes_head,
                      uint64_t nbytes_total, struct err *e)
{
    uint64_t said;

    if (safetensors_head_nbytes(head, nbytes_head, &said, e) != 0)
        return -1;
    if (said == 0 || said != nbytes_head)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "safetensors: a head of %llu bytes was read, but it says %llu",
                       (unsigned long long)nbytes_head, (unsigned long long)said);
    return parse_labelled(out, head, nbytes_head, nbytes_total, LABEL_STREAM, e);
}

void safetensors_fini(struct safetensors *s)
{
    tensor_list_unref(s->tensor_list);
    free(s->checksums);
    free(s->has_checksum);
    free(s->weight_version);
    free(s->snapshot);
    free(s->delta_base);
    made_sums_fini(&s->made);
    memset(s, 0, sizeof *s);
}

/* Reads exactly nbytes from the start of the file. */
static int read_start(int fd, void *dst, size_t nbytes, const char *label, struct err *e)
{
    size_t done = 0;
    ssize_t n;

    while (done < nbytes) {
        n = pread(fd, (char *)dst + done, nbytes - done, (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set_errno(e, ERR_UNREADABLE, "", errno, "%s: it cannot be read", label);
        if (n == 0)
            return err_set(e, ERR_UNREADABLE, "",
                           "%s: it shrank to %zu bytes while its header was read", label, done);
        done += (size_t)n;
    }
    return 0;
}

static int read_labelled(struct safetensors *out, int fd, const char *label, struct err *e)
{
    uint8_t prefix[SAFETENSORS_PREFIX];
    uint64_t nbytes_head, nbytes_total;
    struct stat st;
    void *head;
    int rc;

    if (fstat(fd, &st) != 0)
        return err_set_errno(e, ERR_UNREADABLE, "", errno, "%s: it cannot be read", label);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_UNREADABLE, "", "%s: it is not a regular file", label);
    nbytes_total = (uint64_t)st.st_size;
    if (nbytes_total < SAFETENSORS_PREFIX)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "%s: it has %llu bytes, which is too short for a header", label,
                       (unsigned long long)nbytes_total);
    if (read_start(fd, prefix, sizeof prefix, label, e) != 0 ||
        head_nbytes(prefix, sizeof prefix, label, &nbytes_head, e) != 0)
        return -1;
    if (nbytes_head > nbytes_total)
        return err_set(e, ERR_BAD_REQUEST, "", "%s: it has %llu bytes, but its header needs %llu",
                       label, (unsigned long long)nbytes_total, (unsigned long long)nbytes_head);
    head = malloc(nbytes_head);
    if (head == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a header of %llu bytes",
                       (unsigned long long)nbytes_head);
    rc = read_start(fd, head, nbytes_head, label, e);
    if (rc == 0 && memcmp(head, prefix, sizeof prefix) != 0)
        rc = err_set(e, ERR_UNREADABLE, "", "%s: it changed while its header was read", label);
    if (rc == 0)
        rc = parse_labelled(out, head, nbytes_head, nbytes_total, label, e);
    free(head);
    return rc;
}

int safetensors_read(struct safetensors *out, int fd, const char *name, struct err *e)
{
    char label[LABEL_LEN_MAX + 1];

    (void)snprintf(label, sizeof label, "safetensors file '%.*s'", utf8_cut(name, 160), name);
    return read_labelled(out, fd, label, e);
}

int safetensors_open(struct safetensors *out, int *fd, int dirfd, const char *path, struct err *e)
{
    /* O_NONBLOCK: opening a FIFO must not block; it is refused below. */
    int file = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (file < 0)
        return err_set_errno(e,
                             errno == ENOENT || errno == ENOTDIR ? ERR_NOT_FOUND : ERR_UNREADABLE,
                             "", errno, "file '%.*s' cannot be opened", utf8_cut(path, 160), path);
    if (safetensors_read(out, file, path, e) != 0) {
        (void)close(file);
        return -1;
    }
    *fd = file;
    return 0;
}
