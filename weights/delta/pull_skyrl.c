/* SkyRL's manifests. Each names every tensor, its file, its sizes and its hash, so that nothing is
 * left to what the files say: what they hold must be exactly that. */
#include "weights/delta/pull_priv.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MANIFEST "manifest.json"

enum { DEPTH_MAX = 8, FILES_CAP_MIN = 16 };

/* One record of `tensors`. */
struct record {
    char name[TENSOR_LIST_NAME_LEN_MAX + 1], key[TENSOR_LIST_NAME_LEN_MAX + 1];
    char file[PULL_FILE_NAME_MAX + 1], dtype[PULL_VALUE_MAX + 1];
    char checksum[PULL_VALUE_MAX + 1], algorithm[PULL_VALUE_MAX + 1], sha256[PULL_VALUE_MAX + 1];
    uint64_t shape[TENSOR_LIST_NDIM_MAX], nbytes, nbytes_compressed;
    uint32_t ndim;
    bool has_shape, has_nbytes, has_compressed;
};

/* What is kept of it until the files are read. */
struct listed {
    struct pull_change change; /* without its place */
    uint32_t file, key;        /* numbers of `files` and `keys` */
    uint64_t nbytes_compressed;
    bool found;
};

struct manifest {
    bool has_version, has_base, has_tensors, has_files, has_nbytes, has_compressed;
    uint64_t version, base, nbytes, nbytes_compressed;
    uint64_t sum, sum_compressed; /* of the records */
    struct names tensors;         /* numbers of `listed` */
    struct names keys;
    struct names files;     /* that records name */
    struct names files_all; /* payload_files */
    struct listed *listed;  /* owned; [tensors.n] */
    uint32_t cap;
};

static void manifest_fini(struct manifest *m)
{
    names_fini(&m->tensors);
    names_fini(&m->keys);
    names_fini(&m->files);
    names_fini(&m->files_all);
    free(m->listed);
}

static bool record_read_shape(struct record *t, struct json_reader *r)
{
    uint32_t n = 0;
    uint64_t dim;

    t->has_shape = true;
    if (!json_reader_open(r, '['))
        return false;
    while (json_reader_next(r, ']', &n)) {
        if (!json_reader_u64(r, &dim))
            return false;
        if (n <= TENSOR_LIST_NDIM_MAX)
            t->shape[n - 1] = dim;
    }
    t->ndim = n;
    return r->wrong == NULL;
}

static bool record_member(struct record *t, const char *key, struct json_reader *r)
{
    const struct {
        const char *name;
        char *to;
        size_t cap;
    } strings[] = {{"name", t->name, sizeof t->name},
                   {"dtype", t->dtype, sizeof t->dtype},
                   {"payload_file", t->file, sizeof t->file},
                   {"payload_key", t->key, sizeof t->key},
                   {"checksum", t->checksum, sizeof t->checksum},
                   {"checksum_algorithm", t->algorithm, sizeof t->algorithm},
                   {"sha256", t->sha256, sizeof t->sha256}};

    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++)
        if (strcmp(key, strings[i].name) == 0)
            return json_reader_string(r, strings[i].to, strings[i].cap);
    if (strcmp(key, "shape") == 0)
        return record_read_shape(t, r);
    if (strcmp(key, "uncompressed_num_bytes") == 0)
        return t->has_nbytes = true, json_reader_u64(r, &t->nbytes);
    if (strcmp(key, "compressed_num_bytes") == 0)
        return t->has_compressed = true, json_reader_u64(r, &t->nbytes_compressed);
    return json_reader_skip(r, DEPTH_MAX);
}

static int read_record(struct record *t, struct json_reader *r, struct err *e)
{
    char key[TENSOR_LIST_NAME_LEN_MAX + 1];
    uint32_t n = 0;

    if (!json_reader_open(r, '{'))
        return pull_syntax(r, MANIFEST, e);
    while (json_reader_next(r, '}', &n))
        if (!json_reader_key(r, key, sizeof key) || !record_member(t, key, r))
            return pull_syntax(r, MANIFEST, e);
    if (r->wrong != NULL)
        return pull_syntax(r, MANIFEST, e);
    if (t->name[0] == '\0' || t->key[0] == '\0' || t->file[0] == '\0' || t->dtype[0] == '\0' ||
        !t->has_shape || !t->has_nbytes || !t->has_compressed)
        return err_set(e, ERR_BAD_REQUEST, "",
                       MANIFEST ": the record of tensor '%.*s' lacks one of name, dtype, shape, "
                                "uncompressed_num_bytes, compressed_num_bytes, payload_file, "
                                "payload_key",
                       utf8_cut_name(t->name), t->name);
    return 0;
}

static int record_hash(const struct record *t, struct pull_change *c, struct err *e)
{
    bool old = t->algorithm[0] == '\0' && t->checksum[0] == '\0';
    const char *text = old ? t->sha256 : t->checksum;

    c->hash = old ? HASH_SHA256 : hash_kind_parse(t->algorithm);
    if (c->hash == HASH_KIND_COUNT)
        return err_set(e, ERR_BAD_REQUEST, "",
                       MANIFEST
                       ": tensor '%.*s': checksum_algorithm '%.*s' is not one of xxh3-128, "
                       "blake3, adler32, sha256",
                       utf8_cut_name(t->name), t->name, utf8_cut(t->algorithm, 64), t->algorithm);
    if (!hash_text_valid(c->hash, text))
        return err_set(e, ERR_BAD_REQUEST, "", MANIFEST ": tensor '%.*s' has no checksum %s",
                       utf8_cut_name(t->name), t->name, hash_kind_name(c->hash));
    memcpy(c->sum, text, strlen(text) + 1);
    return 0;
}

/* Is it the model's tensor? */
static int record_match(const struct pull *p, const struct record *t, struct pull_change *c,
                        struct err *e)
{
    const struct tensor_spec *spec;
    enum dtype dtype = dtype_parse(t->dtype);
    char shape[180];

    if (pull_target(&c->index, p, t->name, e) != 0)
        return -1;
    spec = &p->cfg.spec->tensor_list->tensors[c->index];
    if (dtype != spec->dtype)
        return err_set(e, ERR_MISMATCH, "", "tensor '%.*s' has dtype '%.*s', and is served as %s",
                       utf8_cut_name(t->name), t->name, utf8_cut(t->dtype, 64), t->dtype,
                       dtype_torch_name(spec->dtype));
    if (t->ndim != spec->ndim ||
        memcmp(t->shape, spec->shape, spec->ndim * sizeof spec->shape[0]) != 0)
        return err_set(e, ERR_MISMATCH, "", "tensor '%.*s' has another shape than %s",
                       utf8_cut_name(t->name), t->name,
                       tensor_list_shape_text(spec, shape, sizeof shape));
    if (t->nbytes != spec->nbytes)
        return err_set(e, ERR_MISMATCH, "",
                       "tensor '%.*s' has %llu bytes uncompressed, where its shape makes %llu",
                       utf8_cut_name(t->name), t->name, (unsigned long long)t->nbytes,
                       (unsigned long long)spec->nbytes);
    return 0;
}

static int use_name(struct names *names, const char *name, uint32_t *number, struct err *e)
{
    *number = names_find(names, name);
    if (*number != NAMES_NONE)
        return 0;
    *number = names->n;
    return names_add(names, name, e);
}

static int keep_record(struct manifest *m, const struct pull *p, const struct record *t,
                       struct err *e)
{
    struct listed l = {.change = {.how = PULL_XOR}, .nbytes_compressed = t->nbytes_compressed};
    uint32_t cap = m->cap == 0 ? FILES_CAP_MIN : 2 * m->cap;
    struct listed *grown;

    if (names_find(&m->tensors, t->name) != NAMES_NONE)
        return err_set(e, ERR_BAD_REQUEST, "", MANIFEST ": tensor '%.*s' is named twice",
                       utf8_cut_name(t->name), t->name);
    if (m->tensors.n >= TENSOR_LIST_TENSORS_MAX)
        return err_set(e, ERR_TOO_LARGE, "", MANIFEST ": more than %d tensors",
                       (int)TENSOR_LIST_TENSORS_MAX);
    if (pull_check_file_name(t->file, e) != 0 || record_hash(t, &l.change, e) != 0 ||
        record_match(p, t, &l.change, e) != 0 || use_name(&m->files, t->file, &l.file, e) != 0 ||
        use_name(&m->keys, t->key, &l.key, e) != 0)
        return -1;
    if (m->tensors.n == m->cap) {
        grown = realloc(m->listed, cap * sizeof *grown);
        if (grown == NULL)
            return err_set(e, ERR_NO_MEMORY, "", "no memory for a manifest");
        m->listed = grown;
        m->cap = cap;
    }
    m->listed[m->tensors.n] = l;
    m->sum += t->nbytes;
    m->sum_compressed += t->nbytes_compressed;
    return names_add(&m->tensors, t->name, e);
}

static int read_records(struct manifest *m, const struct pull *p, struct json_reader *r,
                        struct err *e)
{
    struct record *t;
    uint32_t n = 0;
    int rc = 0;

    if (!json_reader_open(r, '['))
        return pull_syntax(r, MANIFEST, e);
    t = malloc(sizeof *t);
    if (t == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a manifest");
    while (rc == 0 && json_reader_next(r, ']', &n)) {
        memset(t, 0, sizeof *t);
        rc = read_record(t, r, e);
        if (rc == 0)
            rc = keep_record(m, p, t, e);
    }
    free(t);
    return rc == 0 && r->wrong != NULL ? pull_syntax(r, MANIFEST, e) : rc;
}

static int manifest_read_files(struct manifest *m, struct json_reader *r, struct err *e)
{
    char name[PULL_FILE_NAME_MAX + 1];
    uint32_t n = 0, number;

    if (!json_reader_open(r, '['))
        return pull_syntax(r, MANIFEST, e);
    while (json_reader_next(r, ']', &n)) {
        if (!json_reader_string(r, name, sizeof name))
            return pull_syntax(r, MANIFEST, e);
        if (pull_check_file_name(name, e) != 0 || use_name(&m->files_all, name, &number, e) != 0)
            return -1;
        if (m->files_all.n < n)
            return err_set(e, ERR_BAD_REQUEST, "", MANIFEST ": file '%.160s' is named twice", name);
    }
    return r->wrong == NULL ? 0 : pull_syntax(r, MANIFEST, e);
}

static int manifest_member(struct manifest *m, const struct pull *p, const char *key,
                           struct json_reader *r, struct err *e)
{
    const struct {
        const char *name;
        bool *has;
        uint64_t *to; /* NULL: a list */
    } members[] = {{"version", &m->has_version, &m->version},
                   {"base_version", &m->has_base, &m->base},
                   {"total_uncompressed_num_bytes", &m->has_nbytes, &m->nbytes},
                   {"total_compressed_num_bytes", &m->has_compressed, &m->nbytes_compressed},
                   {"tensors", &m->has_tensors, NULL},
                   {"payload_files", &m->has_files, NULL}};
    size_t i = 0, n = sizeof members / sizeof members[0];

    while (i < n && strcmp(key, members[i].name) != 0)
        i++;
    if (i == n)
        return json_reader_skip(r, DEPTH_MAX) ? 0 : pull_syntax(r, MANIFEST, e);
    if (*members[i].has)
        return err_set(e, ERR_BAD_REQUEST, "", MANIFEST ": '%s' is repeated", key);
    *members[i].has = true;
    if (members[i].to != NULL)
        return json_reader_u64(r, members[i].to) ? 0 : pull_syntax(r, MANIFEST, e);
    return members[i].has == &m->has_tensors ? read_records(m, p, r, e)
                                             : manifest_read_files(m, r, e);
}

static int manifest_parse(struct manifest *m, const struct pull *p, const char *text, size_t len,
                          struct err *e)
{
    char key[TENSOR_LIST_NAME_LEN_MAX + 1];
    struct json_reader r;
    uint32_t n = 0;

    json_reader_init(&r, text, len);
    if (!json_reader_open(&r, '{'))
        return pull_syntax(&r, MANIFEST, e);
    while (json_reader_next(&r, '}', &n)) {
        if (!json_reader_key(&r, key, sizeof key))
            return pull_syntax(&r, MANIFEST, e);
        if (manifest_member(m, p, key, &r, e) != 0)
            return -1;
    }
    return json_reader_end(&r) ? 0 : pull_syntax(&r, MANIFEST, e);
}

static int manifest_check(const struct manifest *m, uint64_t number, struct err *e)
{
    if (!m->has_version || !m->has_base || !m->has_tensors || !m->has_files)
        return err_set(e, ERR_BAD_REQUEST, "",
                       MANIFEST
                       ": one of version, base_version, tensors, payload_files is missing");
    if (m->version != number)
        return err_set(e, ERR_BAD_REQUEST, "",
                       MANIFEST ": its version is %llu, unlike its directory",
                       (unsigned long long)m->version);
    if (m->base == UINT64_MAX || m->base + 1 != number)
        return err_set(e, ERR_PRECONDITION, "",
                       MANIFEST ": it builds on version %llu, not on the one before it",
                       (unsigned long long)m->base);
    if ((m->has_nbytes && m->nbytes != m->sum) ||
        (m->has_compressed && m->nbytes_compressed != m->sum_compressed))
        return err_set(e, ERR_BAD_REQUEST, "",
                       MANIFEST ": its totals are not the sums of its records");
    for (uint32_t i = 0; i < m->files.n; i++)
        if (names_find(&m->files_all, m->files.items[i]) == NAMES_NONE)
            return err_set(e, ERR_BAD_REQUEST, "",
                           MANIFEST ": payload_files does not have '%.160s'", m->files.items[i]);
    return 0;
}

/* The record that has tensor `key` of this file. */
static struct listed *find_listed(struct manifest *m, const uint32_t *of_key, uint32_t file,
                                  const char *key)
{
    uint32_t k = names_find(&m->keys, key);
    struct listed *l = k != NAMES_NONE && of_key[k] != UINT32_MAX ? &m->listed[of_key[k]] : NULL;

    return l != NULL && l->file == file ? l : NULL;
}

static int manifest_add_file(struct pull *p, struct pull_version *v, struct manifest *m,
                             const uint32_t *of_key, int dirfd, const char *name, struct err *e)
{
    uint32_t file = names_find(&m->files, name);
    struct pull_head h = {0};
    int rc;

    if (pull_open_file(&h, p, dirfd, name, v->number, e) != 0)
        return -1;
    rc = 0;
    for (uint32_t i = 0; rc == 0 && i < h.list->n_tensors; i++) {
        const struct tensor_spec *t = &h.list->tensors[i];
        struct listed *l = find_listed(m, of_key, file, t->name);

        if (l == NULL)
            rc = err_set(e, ERR_BAD_REQUEST, "",
                         "tensor '%.*s' is in '%.100s', but the manifest does not say so",
                         utf8_cut_name(t->name), t->name, name);
        else if (t->nbytes != l->nbytes_compressed)
            rc = err_set(e, ERR_BAD_REQUEST, "",
                         "tensor '%.*s' has %llu bytes in '%.100s', the manifest says %llu",
                         utf8_cut_name(t->name), t->name, (unsigned long long)t->nbytes, name,
                         (unsigned long long)l->nbytes_compressed);
        else
            rc = pull_add_payload(p, v, &h, i, l->change, e);
        if (rc == 0)
            l->found = true;
    }
    pull_head_fini(&h);
    return rc;
}

static int manifest_add_files(struct pull *p, struct pull_version *v, struct manifest *m, int dirfd,
                              struct err *e)
{
    uint32_t *of_key = malloc((m->keys.n + 1) * sizeof *of_key);
    int rc = 0;

    if (of_key == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a manifest");
    memset(of_key, 0xff, (m->keys.n + 1) * sizeof *of_key);
    for (uint32_t i = 0; rc == 0 && i < m->tensors.n; i++) {
        if (of_key[m->listed[i].key] != UINT32_MAX)
            rc = err_set(e, ERR_BAD_REQUEST, "", MANIFEST ": payload_key '%.160s' is used twice",
                         m->keys.items[m->listed[i].key]);
        of_key[m->listed[i].key] = i;
    }
    for (uint32_t i = 0; rc == 0 && i < m->files_all.n; i++)
        rc = manifest_add_file(p, v, m, of_key, dirfd, m->files_all.items[i], e);
    for (uint32_t i = 0; rc == 0 && i < m->tensors.n; i++)
        if (!m->listed[i].found)
            rc = err_set(e, ERR_BAD_REQUEST, "",
                         "the manifest says that tensor '%.*s' is in '%.100s', but it is not",
                         utf8_cut_name(m->tensors.items[i]), m->tensors.items[i],
                         m->files.items[m->listed[i].file]);
    free(of_key);
    return rc;
}

int pull_read_skyrl(struct pull *p, struct pull_version *v, struct err *e)
{
    struct manifest m = {0};
    char *text = NULL;
    size_t len = 0;
    int fd, rc;

    if (pull_open_directory(&fd, p, v->number, e) != 0)
        return -1;
    names_init(&m.tensors);
    names_init(&m.keys);
    names_init(&m.files);
    names_init(&m.files_all);
    rc = pull_read_text(&text, &len, p, fd, MANIFEST, false, e);
    if (rc == 0)
        rc = manifest_parse(&m, p, text, len, e);
    if (rc == 0)
        rc = manifest_check(&m, v->number, e);
    if (rc == 0)
        rc = pull_see_files(fd, &m.files_all, false, e);
    if (m.sum_compressed < p->nbytes_left - PULL_HEADS_NBYTES_MAX)
        p->nbytes_left = m.sum_compressed + PULL_HEADS_NBYTES_MAX;
    if (rc == 0)
        rc = manifest_add_files(p, v, &m, fd, e);
    free(text);
    manifest_fini(&m);
    if (fd >= 0)
        (void)close(fd);
    return rc;
}
