/* Directories and files of versions. Everything in them is written by others: names, sizes and
 * hashes are checked before a byte of a tensor is read. */
#include "weights/delta/pull_priv.h"

#include "base/file.h"
#include "base/utf8.h"
#include "weights/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#define SUFFIX ".safetensors"

enum {
    FILE_FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK,
    FRAME_HEAD_MAX = 18,          /* bytes, of a zstd frame */
    FRAME_SPARE_NBYTES = 4 << 10, /* beyond ZSTD_compressBound: for frames of many small blocks */
    COMPARE_NBYTES = 64 << 10,
    CHANGES_CAP_MIN = 64,
    METADATA_DEPTH_MAX = 8
};

void pull_directory(char out[32], enum pull_form form, uint64_t version)
{
    (void)snprintf(out, 32, form == PULL_SLIME ? "weight_v%06llu" : "delta-%08llu",
                   (unsigned long long)version);
}

/* Puts a few words before a message. */
static int say_before(struct err *e, const char *words)
{
    char text[ERR_MSG_MAX];
    uint32_t room = (uint32_t)(sizeof text - strlen(words) - sizeof ": ");

    memcpy(text, e->msg, sizeof text);
    (void)snprintf(e->msg, sizeof e->msg, "%s: %.*s", words, utf8_cut(text, room), text);
    return -1;
}

int pull_say_version(struct err *e, uint64_t version)
{
    char words[32];

    (void)snprintf(words, sizeof words, "version %llu", (unsigned long long)version);
    return say_before(e, words);
}

static int pull_cannot_open(const char *name, int errnum, struct err *e)
{
    int cut = utf8_cut(name, PULL_FILE_NAME_MAX);

    if (errnum == EXDEV)
        return err_set(
            e, ERR_FORBIDDEN, "",
            "'%.*s' leads outside its allowed path (--allow-path), or through a symbolic "
            "link that is absolute",
            cut, name);
    if (errnum == ENOENT || errnum == ENOTDIR)
        return err_set(e, ERR_NOT_FOUND, "", "there is no '%.*s' (yet)", cut, name);
    return err_set_errno(e, ERR_UNREADABLE, "", errnum, "'%.*s' cannot be opened", cut, name);
}

int pull_open_directory(int *fd, const struct pull *p, uint64_t version, struct err *e)
{
    char name[32];
    int source;

    *fd = -1;
    if (p->cfg.fetch != NULL)
        return 0;
    pull_directory(name, p->cfg.form, version);
    source = file_open_beneath(p->cfg.rootfd, p->cfg.source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (source < 0)
        return pull_cannot_open(p->cfg.source, errno, e);
    *fd = file_open_in(p->cfg.rootfd, source, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void)close(source);
    return *fd >= 0 ? 0 : pull_cannot_open(name, errno, e);
}

int pull_pread(const struct pull_file *f, void *out, uint64_t nbytes, uint64_t offset,
               struct err *e)
{
    uint64_t done = 0;
    ssize_t n;

    while (done < nbytes) {
        n = pread(f->fd, (char *)out + done, nbytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set_errno(e, ERR_UNREADABLE, "", errno, "'%s' cannot be read", f->name);
        if (n == 0)
            return err_set(e, ERR_UNREADABLE, "", "'%s' shrank while it was read", f->name);
        done += (uint64_t)n;
    }
    return 0;
}

/* A file of the version that is read. @max  of one that is fetched */
static int pull_open_one(int *fd, const struct pull *p, int dirfd, const char *name, uint64_t max,
                         struct err *e)
{
    char path[32 + PULL_FILE_NAME_MAX + 2];

    if (p->cfg.progress != NULL && progress_check(p->cfg.progress, e) != 0)
        return -1;
    if (p->cfg.fetch != NULL) {
        pull_directory(path, p->cfg.form, p->reading);
        (void)snprintf(path + strlen(path), PULL_FILE_NAME_MAX + 2, "/%s", name);
        return p->cfg.fetch(p->cfg.fetch_arg, fd, path, max, e);
    }
    *fd = file_open_in(p->cfg.rootfd, dirfd, name, FILE_FLAGS);
    return *fd >= 0 ? 0 : pull_cannot_open(name, errno, e);
}

/* A regular file of at most `max` bytes. */
static int file_size(int fd, const char *name, uint64_t max, uint64_t *nbytes, struct err *e)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return err_set_errno(e, ERR_UNREADABLE, "", errno, "'%.200s' cannot be read", name);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_UNREADABLE, "", "'%.200s' is not a regular file", name);
    if ((uint64_t)st.st_size > max)
        return err_set(e, ERR_TOO_LARGE, "", "'%.200s' has %lld bytes, at most %llu are allowed",
                       name, (long long)st.st_size, (unsigned long long)max);
    *nbytes = (uint64_t)st.st_size;
    return 0;
}

int pull_read_text(char **out, size_t *len, const struct pull *p, int dirfd, const char *name,
                   bool optional, struct err *e)
{
    struct pull_file f = {0};
    uint64_t nbytes;
    char *text = NULL;
    int rc;

    *out = NULL;
    if (pull_open_one(&f.fd, p, dirfd, name, PULL_INDEX_NBYTES_MAX, e) != 0) {
        if (!optional || e->code != ERR_NOT_FOUND)
            return -1;
        err_clear(e);
        return 0;
    }
    (void)snprintf(f.name, sizeof f.name, "%s", name);
    rc = file_size(f.fd, name, PULL_INDEX_NBYTES_MAX, &nbytes, e);
    if (rc == 0) {
        text = malloc(nbytes + 1);
        rc = text == NULL ? err_set(e, ERR_NO_MEMORY, "", "no memory for '%s'", name)
                          : pull_pread(&f, text, nbytes, 0, e);
    }
    (void)close(f.fd);
    if (rc != 0) {
        free(text);
        return -1;
    }
    *out = text;
    *len = nbytes;
    return 0;
}

int pull_syntax(const struct json_reader *r, const char *name, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, "", "%s: %s, at byte %zu", name, r->wrong,
                   json_reader_offset(r));
}

static bool is_payload_name(const char *name)
{
    size_t len = strlen(name);

    return len > sizeof SUFFIX - 1 && strcmp(name + len - (sizeof SUFFIX - 1), SUFFIX) == 0;
}

int pull_check_file_name(const char *name, struct err *e)
{
    bool plain = is_payload_name(name) && name[0] != '.';

    for (const unsigned char *c = (const unsigned char *)name; plain && *c != '\0'; c++)
        plain = *c >= 0x20 && *c != 0x7f && *c != '/' && *c != '\\';
    if (!plain)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "'%.*s' is not a plain name of a file *" SUFFIX
                       " in the version's directory",
                       utf8_cut(name, 160), name);
    return 0;
}

static int see_file(struct names *files, const char *name, bool add, struct err *e)
{
    if (!add && names_find(files, name) != NAMES_NONE)
        return 0;
    if (!add)
        return err_set(e, ERR_BAD_REQUEST, "", "the index does not name the file '%.*s'",
                       utf8_cut(name, 160), name);
    if (files->n >= PULL_FILES_MAX)
        return err_set(e, ERR_TOO_LARGE, "", "more than %d files", (int)PULL_FILES_MAX);
    return pull_check_file_name(name, e) == 0 ? names_add(files, name, e) : -1;
}

int pull_see_files(int dirfd, struct names *files, bool add, struct err *e)
{
    int fd = dirfd >= 0 ? openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1, rc = 0;
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;

    if (dirfd < 0) /* no server lists its files */
        return 0;
    if (d == NULL) {
        rc = err_set_errno(e, ERR_UNREADABLE, "", errno, "the directory cannot be listed");
        if (fd >= 0)
            (void)close(fd);
        return rc;
    }
    while (rc == 0 && (entry = readdir(d)) != NULL)
        if (is_payload_name(entry->d_name))
            rc = see_file(files, entry->d_name, add, e);
    (void)closedir(d);
    return rc;
}

/* ---- payload files ---- */

void pull_head_fini(struct pull_head *h)
{
    tensor_list_unref(h->list);
    free(h->sums);
    memset(h, 0, sizeof *h);
}

/* A value that is no hash is left out: some names of __metadata__ are no tensors. */
static bool read_sums(struct pull_head *h, struct json_reader *r)
{
    char key[TENSOR_LIST_NAME_LEN_MAX + 1], value[PULL_VALUE_MAX + 1];
    uint32_t n = 0;

    if (!json_reader_open(r, '{'))
        return false;
    while (json_reader_next(r, '}', &n)) {
        uint32_t i;

        if (!json_reader_key(r, key, sizeof key))
            return false;
        i = tensor_list_find(h->list, key);
        if (!json_reader_string(r, i != TENSOR_LIST_NO_TENSOR ? value : NULL,
                                i != TENSOR_LIST_NO_TENSOR ? sizeof value : 0))
            return false;
        if (i != TENSOR_LIST_NO_TENSOR && strlen(value) <= HASH_TEXT_MAX)
            memcpy(h->sums[i], value, strlen(value) + 1);
    }
    return r->wrong == NULL;
}

/* The head is known to be right but for what its metadata has. */
static int payload_read_metadata(struct pull_head *h, const char *head, const char *name,
                                 struct err *e)
{
    char key[TENSOR_LIST_NAME_LEN_MAX + 1];
    struct json_reader r;
    uint32_t n = 0;
    bool ok;

    h->sums = calloc(h->list->n_tensors, sizeof *h->sums);
    if (h->sums == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the head of '%s'", name);
    json_reader_init(&r, head + SAFETENSORS_PREFIX, h->nbytes_head - SAFETENSORS_PREFIX);
    ok = json_reader_open(&r, '{');
    while (ok && json_reader_next(&r, '}', &n)) {
        ok = json_reader_key(&r, key, sizeof key);
        if (ok)
            ok = strcmp(key, "__metadata__") == 0 ? read_sums(h, &r)
                                                  : json_reader_skip(&r, METADATA_DEPTH_MAX);
    }
    return r.wrong == NULL ? 0 : pull_syntax(&r, name, e);
}

static int payload_parse_head(struct pull_head *h, const char *head, uint64_t nbytes,
                              const char *name, struct err *e)
{
    struct safetensors s = {0};

    if (safetensors_parse(&s, head, h->nbytes_head, nbytes, e) != 0)
        return -1;
    h->list = tensor_list_ref(s.tensor_list);
    safetensors_fini(&s);
    return payload_read_metadata(h, head, name, e);
}

/* @nbytes  of the file */
static int payload_read_head(struct pull_head *h, const struct pull_file *f, uint64_t nbytes,
                             struct err *e)
{
    char prefix[SAFETENSORS_PREFIX];
    char *head;
    int rc;

    if (nbytes < sizeof prefix)
        return err_set(e, ERR_BAD_REQUEST, "", "it has %llu bytes, too few for a safetensors file",
                       (unsigned long long)nbytes);
    if (pull_pread(f, prefix, sizeof prefix, 0, e) != 0 ||
        safetensors_head_nbytes(prefix, sizeof prefix, &h->nbytes_head, e) != 0)
        return -1;
    if (h->nbytes_head > nbytes)
        return err_set(e, ERR_BAD_REQUEST, "", "it has %llu bytes, but its header needs %llu",
                       (unsigned long long)nbytes, (unsigned long long)h->nbytes_head);
    head = malloc(h->nbytes_head);
    if (head == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for its head");
    rc = pull_pread(f, head, h->nbytes_head, 0, e);
    if (rc == 0)
        rc = payload_parse_head(h, head, nbytes, f->name, e);
    free(head);
    return rc;
}

/* A server may send more than it should, again and again. */
static uint64_t nbytes_allowed(const struct pull *p)
{
    if (p->cfg.fetch == NULL)
        return INT64_MAX;
    return p->nbytes_left < p->nbytes_all_left ? p->nbytes_left : p->nbytes_all_left;
}

static void say_all_versions(const struct pull *p, struct err *e)
{
    if (e->code == ERR_TOO_LARGE && p->nbytes_all_left < p->nbytes_left)
        err_append(e, ", since the files of all versions of a pull have a limit together: pull "
                      "fewer versions at once");
}

int pull_open_file(struct pull_head *out, struct pull *p, int dirfd, const char *name,
                   uint64_t version, struct err *e)
{
    uint64_t nbytes, max = nbytes_allowed(p);
    struct pull_head h = {.file = p->n_files};
    struct pull_file *f, *files;
    char words[160];
    struct stat st;

    if (p->n_files >= PULL_FILES_MAX)
        return err_set(e, ERR_TOO_LARGE, "",
                       "the versions up to the target have more than %d files: pull fewer versions "
                       "at once",
                       (int)PULL_FILES_MAX);
    files = realloc(p->files, (p->n_files + 1) * sizeof *files);
    if (files == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u files", (unsigned)p->n_files);
    p->files = files;
    f = &files[p->n_files];
    *f = (struct pull_file){.version = version};
    if (pull_open_one(&f->fd, p, dirfd, name, max, e) != 0) {
        say_all_versions(p, e);
        return -1;
    }
    p->n_files++;
    (void)snprintf(f->name, sizeof f->name, "%s", name);
    if (fstat(f->fd, &st) != 0)
        return err_set_errno(e, ERR_UNREADABLE, "", errno, "'%.200s' cannot be read", name);
    f->stamp = file_stamp_of(&st);
    if (file_size(f->fd, f->name, max, &nbytes, e) != 0 ||
        payload_read_head(&h, f, nbytes, e) != 0) {
        pull_head_fini(&h);
        (void)snprintf(words, sizeof words, "file '%.*s'", utf8_cut(name, 120), name);
        return say_before(e, words);
    }
    if (p->cfg.fetch != NULL) {
        p->nbytes_left -= nbytes;
        p->nbytes_all_left -= nbytes;
    }
    *out = h;
    return 0;
}

/* ---- changes ---- */

int pull_target(uint32_t *index, const struct pull *p, const char *name, struct err *e)
{
    struct model_spec_match m = {.index = TENSOR_LIST_NO_TENSOR}, last = m;

    if (!model_spec_find(p->cfg.spec, &last, name, &m))
        return err_set(e, ERR_MISMATCH, "", "the model has no tensor '%.*s'", utf8_cut_name(name),
                       name);
    if (m.alias == NULL) {
        *index = m.index;
        return 0;
    }
    if (m.alias->kind == ALIAS_TIED) {
        *index = m.alias->targets[0];
        return 0;
    }
    return err_set(e, ERR_BAD_REQUEST, "",
                   "tensor '%.*s' is %s here: a delta of it cannot be applied", utf8_cut_name(name),
                   name, m.alias->kind == ALIAS_FUSED ? "kept as several" : "not kept");
}

static const struct tensor_spec *change_spec(const struct pull *p, const struct pull_change *c)
{
    return &p->cfg.spec->tensor_list->tensors[c->index];
}

/* Are the payloads of both the same bytes? */
static int same_payload(bool *same, const struct pull *p, const struct pull_change *x,
                        const struct pull_change *y, struct err *e)
{
    char *a = malloc(2 * (size_t)COMPARE_NBYTES), *b = a != NULL ? a + COMPARE_NBYTES : NULL;
    int rc = 0;

    if (a == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to compare two files");
    *same = x->nbytes == y->nbytes && x->hash == y->hash && strcmp(x->sum, y->sum) == 0;
    for (uint64_t at = 0, n; *same && rc == 0 && at < x->nbytes; at += n) {
        n = x->nbytes - at < COMPARE_NBYTES ? x->nbytes - at : COMPARE_NBYTES;
        rc = pull_pread(&p->files[x->file], a, n, x->offset + at, e);
        if (rc == 0)
            rc = pull_pread(&p->files[y->file], b, n, y->offset + at, e);
        *same = rc == 0 && memcmp(a, b, n) == 0;
    }
    free(a);
    return rc;
}

/* Two ranks of a trainer may both publish a tensor, or two names that are tied. */
static int check_repeated(const struct pull *p, const struct pull_change *before,
                          const struct pull_change *c, struct err *e)
{
    const char *name = change_spec(p, c)->name;
    bool same;

    if (same_payload(&same, p, before, c, e) != 0)
        return -1;
    if (same)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "",
                   "tensor '%.*s' is in '%.100s' and in '%.100s', with different bytes",
                   utf8_cut_name(name), name, p->files[before->file].name, p->files[c->file].name);
}

/* The size that the frame states is the only one that it may have, and bounds that of the frame,
 * which is read into memory as a whole. */
static int check_frame(const struct pull *p, const struct pull_change *c, struct err *e)
{
    const struct tensor_spec *t = change_spec(p, c);
    uint64_t n = c->nbytes < FRAME_HEAD_MAX ? c->nbytes : FRAME_HEAD_MAX;
    char head[FRAME_HEAD_MAX];
    unsigned long long content;
    bool fits;

    if (pull_pread(&p->files[c->file], head, n, c->offset, e) != 0)
        return -1;
    content = ZSTD_getFrameContentSize(head, n);
    if (content == ZSTD_CONTENTSIZE_ERROR || content == ZSTD_CONTENTSIZE_UNKNOWN)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "the payload of tensor '%.*s' is not a zstd frame that states its size",
                       utf8_cut_name(t->name), t->name);
    fits = c->how == PULL_XOR
               ? content == t->nbytes
               : content >= 4 && (content - 4) % 5 == 0 && (content - 4) / 5 <= t->nbytes;
    if (!fits)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "the delta of tensor '%.*s' has %llu bytes, which is not the %s of a tensor "
                       "of %llu bytes",
                       utf8_cut_name(t->name), t->name, content,
                       c->how == PULL_XOR ? "xor" : "positions and values",
                       (unsigned long long)t->nbytes);
    if (c->nbytes > ZSTD_compressBound(content) + FRAME_SPARE_NBYTES)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "the payload of tensor '%.*s' has %llu bytes, more than any frame of %llu "
                       "bytes has",
                       utf8_cut_name(t->name), t->name, (unsigned long long)c->nbytes, content);
    if (c->how == PULL_OVERWRITE && t->nbytes > PULL_OVERWRITE_NBYTES_MAX)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "tensor '%.*s' has %llu bytes, and positions of 32 bits do not reach beyond "
                       "%llu: let the trainer send xor",
                       utf8_cut_name(t->name), t->name, (unsigned long long)t->nbytes,
                       (unsigned long long)PULL_OVERWRITE_NBYTES_MAX);
    return 0;
}

static int changes_reserve(struct pull *p, struct pull_version *v, struct err *e)
{
    uint32_t n = p->cfg.spec->tensor_list->n_tensors;
    uint32_t cap = v->cap == 0 ? CHANGES_CAP_MIN : 2 * v->cap;
    struct pull_change *changes;

    if (v->of == NULL) {
        v->of = malloc((size_t)n * sizeof *v->of);
        if (v->of != NULL)
            memset(v->of, 0xff, (size_t)n * sizeof *v->of);
    }
    if (v->of != NULL && v->n < v->cap)
        return 0;
    changes = v->of != NULL ? realloc(v->changes, cap * sizeof *changes) : NULL;
    if (changes == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a version of %u tensors", (unsigned)n);
    v->changes = changes;
    v->cap = cap;
    return 0;
}

int pull_add_change(struct pull *p, struct pull_version *v, const struct pull_change *c,
                    struct err *e)
{
    if (changes_reserve(p, v, e) != 0)
        return -1;
    if (v->of[c->index] != UINT32_MAX)
        return check_repeated(p, &v->changes[v->of[c->index]], c, e);
    if (c->how != PULL_WHOLE && check_frame(p, c, e) != 0)
        return -1;
    v->of[c->index] = v->n;
    v->changes[v->n++] = *c;
    return 0;
}

int pull_add_payload(struct pull *p, struct pull_version *v, const struct pull_head *h, uint32_t i,
                     struct pull_change c, struct err *e)
{
    const struct tensor_spec *t = &h->list->tensors[i];

    if (t->dtype != DTYPE_U8 || t->ndim != 1)
        return err_set(
            e, ERR_BAD_REQUEST, "",
            "tensor '%.*s' in '%.100s' is %s of %u dimensions, where a delta has U8 of 1",
            utf8_cut_name(t->name), t->name, p->files[h->file].name, dtype_name(t->dtype),
            (unsigned)t->ndim);
    c.file = h->file;
    c.offset = h->nbytes_head + t->offset;
    c.nbytes = t->nbytes;
    return pull_add_change(p, v, &c, e);
}
