/* slime's and Miles' directories. The index is written last, so without one a version is either not
 * complete yet or a whole checkpoint: only files that are the whole model are taken for the latter.
 * Peers apply every file that they find, and what the index says is not read; here both must
 * agree. */
#include "weights/delta/pull_priv.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INDEX "model.safetensors.index.json"

enum { DEPTH_MAX = 8 };

/* Members of `metadata`, as they came; "" for none. */
struct metadata {
    char version[PULL_VALUE_MAX + 1], base_version[PULL_VALUE_MAX + 1];
    char delta_encoding[PULL_VALUE_MAX + 1], compression_format[PULL_VALUE_MAX + 1];
    char checksum_format[PULL_VALUE_MAX + 1];
};

struct slime_index {
    struct metadata metadata;
    bool has_map, has_metadata;
    struct names tensors, files;
    uint32_t *file; /* owned; [tensors.n]: of `files` */
    uint32_t cap;
    bool *found; /* owned; [tensors.n] */
};

static void index_fini(struct slime_index *x)
{
    names_fini(&x->tensors);
    names_fini(&x->files);
    free(x->file);
    free(x->found);
}

/* Members that are not strings belong to whole checkpoints ("total_size"). */
static int slime_read_metadata_value(struct metadata *m, const char *key, struct json_reader *r,
                                     struct err *e)
{
    const struct {
        const char *name;
        char *to;
    } members[] = {{"version", m->version},
                   {"base_version", m->base_version},
                   {"delta_encoding", m->delta_encoding},
                   {"compression_format", m->compression_format},
                   {"checksum_format", m->checksum_format}};

    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        if (strcmp(key, members[i].name) != 0)
            continue;
        if (members[i].to[0] != '\0')
            return err_set(e, ERR_BAD_REQUEST, "", INDEX ": '%s' is repeated", key);
        return json_reader_string(r, members[i].to, PULL_VALUE_MAX + 1) ? 0
                                                                        : pull_syntax(r, INDEX, e);
    }
    return json_reader_skip(r, DEPTH_MAX) ? 0 : pull_syntax(r, INDEX, e);
}

static int read_index_metadata(struct slime_index *x, struct json_reader *r, struct err *e)
{
    char key[TENSOR_LIST_NAME_LEN_MAX + 1];
    uint32_t n = 0;

    if (x->has_metadata)
        return err_set(e, ERR_BAD_REQUEST, "", INDEX ": 'metadata' is repeated");
    x->has_metadata = true;
    if (!json_reader_open(r, '{'))
        return pull_syntax(r, INDEX, e);
    while (json_reader_next(r, '}', &n)) {
        if (!json_reader_key(r, key, sizeof key))
            return pull_syntax(r, INDEX, e);
        if (slime_read_metadata_value(&x->metadata, key, r, e) != 0)
            return -1;
    }
    return r->wrong == NULL ? 0 : pull_syntax(r, INDEX, e);
}

static int index_add(struct slime_index *x, const char *tensor, const char *name, struct err *e)
{
    uint32_t file, cap = x->cap == 0 ? 64 : 2 * x->cap, *grown;

    if (pull_check_file_name(name, e) != 0)
        return -1;
    if (names_find(&x->tensors, tensor) != NAMES_NONE)
        return err_set(e, ERR_BAD_REQUEST, "", INDEX ": tensor '%.*s' is named twice",
                       utf8_cut_name(tensor), tensor);
    if (x->tensors.n >= TENSOR_LIST_TENSORS_MAX)
        return err_set(e, ERR_TOO_LARGE, "", INDEX ": more than %d tensors",
                       (int)TENSOR_LIST_TENSORS_MAX);
    file = names_find(&x->files, name);
    if (file == NAMES_NONE) {
        file = x->files.n;
        if (names_add(&x->files, name, e) != 0)
            return -1;
    }
    if (x->tensors.n == x->cap) {
        grown = realloc(x->file, cap * sizeof *grown);
        if (grown == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for an index of %u tensors",
                           (unsigned)x->tensors.n);
        x->file = grown;
        x->cap = cap;
    }
    x->file[x->tensors.n] = file;
    return names_add(&x->tensors, tensor, e);
}

static int slime_read_map(struct slime_index *x, struct json_reader *r, struct err *e)
{
    char tensor[TENSOR_LIST_NAME_LEN_MAX + 1], file[PULL_FILE_NAME_MAX + 1];
    uint32_t n = 0;

    if (x->has_map)
        return err_set(e, ERR_BAD_REQUEST, "", INDEX ": 'weight_map' is repeated");
    x->has_map = true;
    if (!json_reader_open(r, '{'))
        return pull_syntax(r, INDEX, e);
    while (json_reader_next(r, '}', &n)) {
        if (!json_reader_key(r, tensor, sizeof tensor) || !json_reader_string(r, file, sizeof file))
            return pull_syntax(r, INDEX, e);
        if (index_add(x, tensor, file, e) != 0)
            return -1;
    }
    return r->wrong == NULL ? 0 : pull_syntax(r, INDEX, e);
}

static int slime_index_parse(struct slime_index *x, const char *text, size_t len, struct err *e)
{
    char key[TENSOR_LIST_NAME_LEN_MAX + 1];
    struct json_reader r;
    uint32_t n = 0;
    int rc = 0;

    json_reader_init(&r, text, len);
    if (!json_reader_open(&r, '{'))
        return pull_syntax(&r, INDEX, e);
    while (rc == 0 && json_reader_next(&r, '}', &n)) {
        if (!json_reader_key(&r, key, sizeof key))
            return pull_syntax(&r, INDEX, e);
        if (strcmp(key, "metadata") == 0)
            rc = read_index_metadata(x, &r, e);
        else if (strcmp(key, "weight_map") == 0)
            rc = slime_read_map(x, &r, e);
        else if (!json_reader_skip(&r, DEPTH_MAX))
            rc = pull_syntax(&r, INDEX, e);
    }
    if (rc != 0)
        return -1;
    if (!json_reader_end(&r))
        return pull_syntax(&r, INDEX, e);
    return x->has_map ? 0 : err_set(e, ERR_BAD_REQUEST, "", INDEX ": 'weight_map' is missing");
}

/* "000003" */
static int read_number(uint64_t *out, const char *text, const char *name, struct err *e)
{
    size_t len = strlen(text);

    if (len == 0 || len > 18 || strspn(text, "0123456789") != len)
        return err_set(e, ERR_BAD_REQUEST, "", INDEX ": %s '%.*s' is not a number", name,
                       utf8_cut(text, 64), text);
    *out = strtoull(text, NULL, 10);
    return 0;
}

static int check_version(const struct metadata *m, uint64_t number, struct err *e)
{
    uint64_t version;

    if (read_number(&version, m->version, "version", e) != 0)
        return -1;
    if (version != number)
        return err_set(e, ERR_BAD_REQUEST, "", INDEX ": its version is %llu, unlike its directory",
                       (unsigned long long)version);
    return 0;
}

/* @c  gets the encoding and the hash */
static int check_metadata(const struct metadata *m, uint64_t number, struct pull_change *c,
                          struct err *e)
{
    uint64_t base;

    if (check_version(m, number, e) != 0 ||
        read_number(&base, m->base_version, "base_version", e) != 0)
        return -1;
    if (base + 1 != number)
        return err_set(e, ERR_PRECONDITION, "",
                       INDEX ": it builds on version %llu, not on the one before it",
                       (unsigned long long)base);
    if (strcmp(m->delta_encoding, "xor") == 0)
        c->how = PULL_XOR;
    else if (strcmp(m->delta_encoding, "overwrite") == 0)
        c->how = PULL_OVERWRITE;
    else
        return err_set(e, ERR_BAD_REQUEST, "",
                       INDEX ": delta_encoding '%.*s' is not one of xor, overwrite",
                       utf8_cut(m->delta_encoding, 64), m->delta_encoding);
    if (strcmp(m->compression_format, "zstd") != 0)
        return err_set(e, ERR_BAD_REQUEST, "", INDEX ": compression_format '%.*s' is not zstd",
                       utf8_cut(m->compression_format, 64), m->compression_format);
    c->hash = hash_kind_parse(m->checksum_format);
    if (c->hash == HASH_KIND_COUNT || c->hash == HASH_SHA256)
        return err_set(e, ERR_BAD_REQUEST, "",
                       INDEX ": checksum_format '%.*s' is not one of xxh3-128, blake3, adler32",
                       utf8_cut(m->checksum_format, 64), m->checksum_format);
    return 0;
}

/* Tensor i of a file, which the index must name; in this file, or in one with the same bytes. */
static int add_delta(struct pull *p, struct pull_version *v, struct slime_index *x,
                     const struct pull_head *h, uint32_t i, struct pull_change c, struct err *e)
{
    const char *name = h->list->tensors[i].name;
    uint32_t k = names_find(&x->tensors, name);

    if (k == NAMES_NONE)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "tensor '%.*s' is in '%.100s', but the index does not name it",
                       utf8_cut_name(name), name, p->files[h->file].name);
    if (!hash_text_valid(c.hash, h->sums[i]))
        return err_set(e, ERR_BAD_REQUEST, "",
                       "tensor '%.*s' in '%.100s' has no checksum %s in the file's __metadata__",
                       utf8_cut_name(name), name, p->files[h->file].name, hash_kind_name(c.hash));
    memcpy(c.sum, h->sums[i], sizeof c.sum);
    if (strcmp(x->files.items[x->file[k]], p->files[h->file].name) == 0)
        x->found[k] = true;
    return pull_target(&c.index, p, name, e) == 0 ? pull_add_payload(p, v, h, i, c, e) : -1;
}

/* Tensor i of a file of a whole checkpoint. */
static int add_whole(struct pull *p, struct pull_version *v, struct slime_index *x,
                     const struct pull_head *h, uint32_t i, struct pull_change c, struct err *e)
{
    const struct tensor_spec *t = &h->list->tensors[i];
    struct model_spec_match m = {.index = TENSOR_LIST_NO_TENSOR};
    uint32_t k = names_find(&x->tensors, t->name);

    if (k != NAMES_NONE)
        x->found[k] = true;
    if (model_spec_match(p->cfg.spec, t, false, i, &m, e) != 0) {
        if (!x->has_map && t->dtype == DTYPE_U8)
            err_append(e, "; there is no " INDEX " yet, which the trainer writes last");
        return -1;
    }
    if (m.alias != NULL && m.alias->kind == ALIAS_IGNORED)
        return 0;
    if (pull_target(&c.index, p, t->name, e) != 0)
        return -1;
    c.file = h->file;
    c.offset = h->nbytes_head + t->offset;
    c.nbytes = t->nbytes;
    return pull_add_change(p, v, &c, e);
}

static int slime_add_file(struct pull *p, struct pull_version *v, struct slime_index *x, int dirfd,
                          const char *name, struct pull_change c, struct err *e)
{
    struct pull_head h = {0};
    int rc;

    if (pull_open_file(&h, p, dirfd, name, v->number, e) != 0)
        return -1;
    rc = 0;
    for (uint32_t i = 0; rc == 0 && i < h.list->n_tensors; i++)
        rc = v->whole ? add_whole(p, v, x, &h, i, c, e) : add_delta(p, v, x, &h, i, c, e);
    pull_head_fini(&h);
    return rc;
}

static int check_found(const struct slime_index *x, struct err *e)
{
    for (uint32_t i = 0; i < x->tensors.n; i++)
        if (!x->found[i])
            return err_set(e, ERR_BAD_REQUEST, "",
                           "the index says that tensor '%.*s' is in '%.100s', but it is not",
                           utf8_cut_name(x->tensors.items[i]), x->tensors.items[i],
                           x->files.items[x->file[i]]);
    return 0;
}

static int check_whole(const struct pull *p, const struct pull_version *v, struct err *e)
{
    const struct tensor_list *all = p->cfg.spec->tensor_list;
    uint32_t n = 0, first = UINT32_MAX;

    for (uint32_t i = 0; i < all->n_tensors; i++)
        if (v->of == NULL || v->of[i] == UINT32_MAX) {
            first = first == UINT32_MAX ? i : first;
            n++;
        }
    if (n == 0)
        return 0;
    return err_set(e, ERR_INCOMPLETE, "",
                   "it has no delta_encoding, so it is a whole checkpoint, but %u tensors are "
                   "missing, '%.*s' first",
                   (unsigned)n, utf8_cut_name(all->tensors[first].name), all->tensors[first].name);
}

static int slime_read_files(struct pull *p, struct pull_version *v, struct slime_index *x,
                            int dirfd, struct err *e)
{
    struct pull_change c = {.how = PULL_WHOLE};

    v->whole = x->metadata.delta_encoding[0] == '\0';
    if (!v->whole && check_metadata(&x->metadata, v->number, &c, e) != 0)
        return -1;
    if (v->whole && x->metadata.version[0] != '\0' &&
        check_version(&x->metadata, v->number, e) != 0)
        return -1;
    if (pull_see_files(dirfd, &x->files, !x->has_map, e) != 0)
        return -1;
    if (!x->has_map && x->files.n == 0)
        return err_set(e, ERR_NOT_FOUND, "", "its directory has neither " INDEX " nor files (yet)");
    x->found = calloc(x->tensors.n + 1, sizeof *x->found);
    if (x->found == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for an index");
    for (uint32_t i = 0; i < x->files.n; i++)
        if (slime_add_file(p, v, x, dirfd, x->files.items[i], c, e) != 0)
            return -1;
    if (check_found(x, e) != 0)
        return -1;
    return v->whole ? check_whole(p, v, e) : 0;
}

int pull_read_slime(struct pull *p, struct pull_version *v, struct err *e)
{
    struct slime_index x = {0};
    char *text = NULL;
    size_t len = 0;
    int fd, rc;

    if (pull_open_directory(&fd, p, v->number, e) != 0)
        return -1;
    names_init(&x.tensors);
    names_init(&x.files);
    rc = pull_read_text(&text, &len, p, fd, INDEX, true, e);
    if (rc == 0 && text != NULL)
        rc = slime_index_parse(&x, text, len, e);
    if (rc == 0)
        rc = slime_read_files(p, v, &x, fd, e);
    free(text);
    index_fini(&x);
    if (fd >= 0)
        (void)close(fd);
    return rc;
}
