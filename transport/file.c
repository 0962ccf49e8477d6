/* Safetensors files as a source.
 *
 * If a writer truncates or rewrites a file while it is read, the bytes are not valid: its length
 * and times are recorded before the header is read, and compared after the last byte. */
#include "transport/file.h"

#include "base/file.h"
#include "base/file_stamp.h"
#include "base/log.h"
#include "base/utf8.h"
#include "transport/file_index.h"
#include "transport/ranges.h"
#include "transport/roots.h"
#include "weights/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME  "model.safetensors.index.json"

_Static_assert((int)FILE_INDEX_FILES_MAX <= (int)RANGES_FILES_MAX, "every file of an index fits");

enum { FILE_FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK };

struct file_source {
    struct source source; /* first */
    struct ranges ranges;
    struct file_stamp stamps[RANGES_FILES_MAX]; /* [ranges.files.n]; before each header was read */
};

/* One tensor of the files. */
struct part {
    struct range at;
    struct checksum sum;
    bool has_sum;
};

/* The state while the files are opened one after the other. */
struct loading {
    struct file_source *src;
    int rootfd;                      /* borrowed; nothing leads out of it; AT_FDCWD: no limit */
    struct tensor_list_builder *all; /* owned; every tensor of every file, in order */
    struct names names;              /* of those */
    struct part *parts;              /* owned; [names.n] */
    uint64_t cap;
    char *weight_version; /* owned, or NULL */
    char *delta_base;     /* owned; of the first file, or NULL */
    struct made_sums made;
    uint32_t n_unmapped; /* tensors that the index does not name */
};

void file_weights_fini(struct file_weights *w)
{
    tensor_list_unref(w->tensor_list);
    free(w->checksums);
    free(w->has_checksum);
    free(w->weight_version);
    free(w->delta_base);
    made_sums_fini(&w->made);
    memset(w, 0, sizeof *w);
}

static int file_fill(struct source *s, const struct tensor_list *tensor_list, uint32_t first,
                     uint32_t n, void *dst, struct progress *p, struct err *e)
{
    return ranges_fill(&((struct file_source *)s)->ranges, tensor_list, first, n, dst, p, e);
}

static bool stamp_of(int fd, struct file_stamp *out)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return false;
    *out = file_stamp_of(&st);
    return true;
}

static int file_finish(struct source *s, struct progress *p, struct err *e)
{
    const struct file_source *f = (struct file_source *)s;
    struct file_stamp now;

    (void)p;
    for (uint32_t i = 0; i < f->ranges.files.n; i++) {
        const char *name = f->ranges.files.items[i];

        if (!stamp_of(f->ranges.fds[i], &now))
            return err_set_errno(e, ERR_UNREADABLE, "/path", errno, "file '%.*s' cannot be read",
                                 utf8_cut(name, 160), name);
        if (!file_stamp_same(&now, &f->stamps[i]))
            return err_set(e, ERR_UNREADABLE, "/path", "file '%.*s' was changed while it was read",
                           utf8_cut(name, 160), name);
    }
    return 0;
}

static void file_close(struct source *s)
{
    struct file_source *f = (struct file_source *)s;

    if (f == NULL)
        return;
    ranges_fini(&f->ranges);
    free(f);
}

static const struct source_ops file_ops = {
    .name = "path", .fill = file_fill, .finish = file_finish, .close = file_close};

static int file_cannot_open(const char *path, int errnum, struct err *e)
{
    int cut = utf8_cut(path, 200);

    if (errnum == EXDEV)
        return err_set(e, ERR_FORBIDDEN, "/path",
                       "path '%.*s' leads outside its allowed path (--allow-path), or through a "
                       "symbolic link that is absolute; links that are relative and stay below it "
                       "are followed",
                       cut, path);
    if (errnum == ENOENT || errnum == ENOTDIR)
        return err_set(e, ERR_NOT_FOUND, "/path", "there is no file or directory '%.*s'", cut,
                       path);
    if (errnum == ENAMETOOLONG)
        return err_set(e, ERR_BAD_REQUEST, "/path", "path '%.*s...' is too long", cut, path);
    return err_set_errno(e, ranges_open_code(errnum), "/path", errnum,
                         "path '%.*s' cannot be opened", cut, path);
}

static int reserve_parts(struct loading *l, uint64_t n, struct err *e)
{
    uint64_t need = l->names.n + n, cap = 2 * l->cap > need ? 2 * l->cap : need;
    struct part *parts;

    if (need <= l->cap)
        return 0;
    parts = realloc(l->parts, cap * sizeof *parts);
    if (parts == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %llu tensors", (unsigned long long)n);
    l->parts = parts;
    l->cap = cap;
    return 0;
}

/* Adds tensor i of the file that was added last. */
static int file_add_tensor(struct loading *l, const struct safetensors *s, uint32_t i,
                           uint32_t file, const struct file_index *index, struct err *e)
{
    const struct tensor_spec *t = &s->tensor_list->tensors[i];
    const char *const *files = l->src->ranges.files.items;
    uint32_t other = names_find(&l->names, t->name), mapped;

    if (other != NAMES_NONE)
        return err_set(e, ERR_BAD_REQUEST, "/path", "tensor '%.*s' is both in '%.*s' and in '%.*s'",
                       utf8_cut_name(t->name), t->name,
                       utf8_cut(files[l->parts[other].at.file], 100),
                       files[l->parts[other].at.file], utf8_cut(files[file], 100), files[file]);
    mapped = index != NULL ? names_find(&index->tensors, t->name) : NAMES_NONE;
    if (mapped != NAMES_NONE && strcmp(index->files.items[index->file[mapped]], files[file]) != 0)
        return err_set(e, ERR_BAD_REQUEST, "/path",
                       "tensor '%.*s' is in '%.*s', but the index says '%.*s'",
                       utf8_cut_name(t->name), t->name, utf8_cut(files[file], 100), files[file],
                       utf8_cut(index->files.items[index->file[mapped]], 100),
                       index->files.items[index->file[mapped]]);
    l->n_unmapped += index != NULL && mapped == NAMES_NONE;
    if (tensor_list_builder_add(l->all, t->name, t->dtype, t->shape, t->ndim, UINT64_MAX, e) != 0)
        return -1;
    l->parts[l->names.n] = (struct part){.at = {file, s->nbytes_head + t->offset},
                                         .sum = s->checksums[i],
                                         .has_sum = s->has_checksum[i]};
    return names_add(&l->names, t->name, e);
}

/* Files with different labels are not one checkpoint. */
static int use_label(struct loading *l, struct safetensors *s, const char *name, struct err *e)
{
    if (s->weight_version == NULL)
        return 0;
    if (l->weight_version != NULL && strcmp(l->weight_version, s->weight_version) != 0)
        return err_set(e, ERR_BAD_REQUEST, "/path",
                       "file '%.*s' has weight version '%.*s', an earlier file has '%.*s'",
                       utf8_cut(name, 160), name, utf8_cut(s->weight_version, 64),
                       s->weight_version, utf8_cut(l->weight_version, 64), l->weight_version);
    free(l->weight_version);
    l->weight_version = s->weight_version;
    s->weight_version = NULL;
    return 0;
}

/* All files of a delta build on one version. @file  how many were added before */
static int use_delta_base(struct loading *l, struct safetensors *s, const char *name, uint32_t file,
                          struct err *e)
{
    if (file == 0) {
        l->delta_base = s->delta_base;
        s->delta_base = NULL;
        return 0;
    }
    if (l->delta_base == NULL ? s->delta_base == NULL
                              : s->delta_base != NULL && strcmp(l->delta_base, s->delta_base) == 0)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/path",
                   "file '%.*s' is not a delta of the same base version as the files before it",
                   utf8_cut(name, 160), name);
}

static int use_made_sums(struct loading *l, const struct safetensors *s, struct err *e)
{
    for (uint32_t i = 0; i < s->made.names.n; i++)
        if (made_sums_add(&l->made, s->made.names.items[i], s->made.sums[i], e) != 0)
            return -1;
    return 0;
}

/* Takes over fd. */
static int file_add_file(struct loading *l, const char *name, int fd,
                         const struct file_index *index, struct err *e)
{
    uint32_t file = l->src->ranges.files.n;
    struct safetensors s;
    int rc;

    if (ranges_add(&l->src->ranges, name, fd, e) != 0)
        return -1;
    if (!stamp_of(fd, &l->src->stamps[file]))
        return file_cannot_open(name, errno, e);
    if (safetensors_read(&s, fd, name, e) != 0)
        return -1;
    rc = reserve_parts(l, s.tensor_list->n_tensors, e);
    for (uint32_t i = 0; rc == 0 && i < s.tensor_list->n_tensors; i++)
        rc = file_add_tensor(l, &s, i, file, index, e);
    if (rc == 0)
        rc = use_label(l, &s, name, e);
    if (rc == 0)
        rc = use_delta_base(l, &s, name, file, e);
    if (rc == 0)
        rc = use_made_sums(l, &s, e);
    safetensors_fini(&s);
    return rc;
}

static int name_order(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

/* Adds every file that the index names; then every tensor of the index must have been found. */
static int add_shards(struct loading *l, int dirfd, const struct file_index *index, struct err *e)
{
    const char *names[FILE_INDEX_FILES_MAX];
    int fd;

    memcpy(names, index->files.items, index->files.n * sizeof *names);
    qsort(names, index->files.n, sizeof *names, name_order);
    for (uint32_t i = 0; i < index->files.n; i++) {
        fd = file_open_in(l->rootfd, dirfd, names[i], FILE_FLAGS);
        if (fd < 0)
            return file_cannot_open(names[i], errno, e);
        if (file_add_file(l, names[i], fd, index, e) != 0)
            return -1;
    }
    for (uint32_t i = 0; i < index->tensors.n; i++) {
        const char *name = index->tensors.items[i];
        const char *file = index->files.items[index->file[i]];
        if (names_find(&l->names, name) == NAMES_NONE)
            return err_set(e, ERR_BAD_REQUEST, "/path",
                           "the index says that tensor '%.*s' is in '%.*s', but it is not",
                           utf8_cut_name(name), name, utf8_cut(file, 160), file);
    }
    if (l->n_unmapped > 0)
        log_line(LOG_WARN, "file.unmapped", "%u tensors are in the files but not in the index",
                 (unsigned)l->n_unmapped);
    return 0;
}

/* Two checkpoints in one directory: transformers reads the single file, vLLM and SGLang read those
 * of the index, and either may be the stale one. */
static int check_one_checkpoint(const char *path, int dirfd, const struct file_index *index,
                                struct err *e)
{
    struct stat st;

    if (names_find(&index->files, SINGLE_NAME) != NAMES_NONE ||
        fstatat(dirfd, SINGLE_NAME, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return 0;
    return err_set(e, ERR_BAD_REQUEST, "/path",
                   "directory '%.*s' has " SINGLE_NAME " beside an index (" INDEX_NAME
                   ") of other files: remove what does not belong to the checkpoint, or name one "
                   "file",
                   utf8_cut(path, 160), path);
}

static int add_single(struct loading *l, const char *path, int dirfd, struct err *e)
{
    int fd = file_open_in(l->rootfd, dirfd, SINGLE_NAME, FILE_FLAGS);

    if (fd >= 0)
        return file_add_file(l, SINGLE_NAME, fd, NULL, e);
    if (errno != ENOENT)
        return file_cannot_open(SINGLE_NAME, errno, e);
    return err_set(e, ERR_NOT_FOUND, "/path",
                   "directory '%.*s' has neither " SINGLE_NAME " nor " INDEX_NAME,
                   utf8_cut(path, 200), path);
}

static int add_directory(struct loading *l, const char *path, int dirfd, struct err *e)
{
    int fd = file_open_in(l->rootfd, dirfd, INDEX_NAME, FILE_FLAGS), rc;
    struct file_index index;

    if (fd < 0 && errno == ENOENT)
        return add_single(l, path, dirfd, e);
    if (fd < 0)
        return file_cannot_open(INDEX_NAME, errno, e);
    rc = file_index_read(&index, fd, e);
    (void)close(fd);
    if (rc != 0)
        return -1;
    rc = check_one_checkpoint(path, dirfd, &index, e);
    if (rc == 0)
        rc = add_shards(l, dirfd, &index, e);
    file_index_fini(&index);
    return rc;
}

/* Takes over fd, a file or a directory. */
static int add_path(struct loading *l, const char *path, int fd, struct err *e)
{
    struct stat st;
    int rc;

    if (fstat(fd, &st) == 0 && !S_ISDIR(st.st_mode))
        return file_add_file(l, path, fd, NULL, e);
    rc = add_directory(l, path, fd, e);
    (void)close(fd);
    return rc;
}

static int file_check_same(const struct tensor_spec *want, const struct tensor_spec *have,
                           uint32_t i, struct err *e)
{
    char field[ERR_FIELD_MAX], x[180], y[180];

    if (want->dtype != have->dtype) {
        (void)snprintf(field, sizeof field, "/dtypes/%u", (unsigned)i);
        return err_set(e, ERR_MISMATCH, field, "tensor '%.*s' is %s in the file, not %s",
                       utf8_cut_name(want->name), want->name, dtype_name(have->dtype),
                       dtype_name(want->dtype));
    }
    if (want->ndim != have->ndim ||
        memcmp(want->shape, have->shape, want->ndim * sizeof want->shape[0]) != 0) {
        (void)snprintf(field, sizeof field, "/shapes/%u", (unsigned)i);
        return err_set(e, ERR_MISMATCH, field, "tensor '%.*s' has shape %s in the file, not %s",
                       utf8_cut_name(want->name), want->name,
                       tensor_list_shape_text(have, x, sizeof x),
                       tensor_list_shape_text(want, y, sizeof y));
    }
    return 0;
}

/* Finds tensor i of `tensor_list` among the tensors of the files. */
static int find_part(const struct loading *l, const struct tensor_list *all,
                     const struct tensor_list *tensor_list, uint32_t i, uint32_t *out,
                     struct err *e)
{
    const struct tensor_spec *want = &tensor_list->tensors[i];
    char field[ERR_FIELD_MAX];

    *out = names_find(&l->names, want->name);
    if (*out == NAMES_NONE) {
        (void)snprintf(field, sizeof field, "/names/%u", (unsigned)i);
        return err_set(e, ERR_MISMATCH, field, "tensor '%.*s' is not in the file",
                       utf8_cut_name(want->name), want->name);
    }
    return file_check_same(want, &all->tensors[*out], i, e);
}

/* Sets the offsets of `tensor_list` (NULL: of all tensors) in the source, and fills w. */
static int set_offsets(struct loading *l, struct tensor_list *all, struct tensor_list *tensor_list,
                       struct file_weights *w, struct err *e)
{
    struct ranges *r = &l->src->ranges;
    uint32_t k;

    w->tensor_list = tensor_list_ref(tensor_list != NULL ? tensor_list : all);
    if (ranges_alloc(r, w->tensor_list->n_tensors, e) != 0)
        return -1;
    w->checksums = calloc(r->n, sizeof *w->checksums);
    w->has_checksum = calloc(r->n, sizeof *w->has_checksum);
    if (w->checksums == NULL || w->has_checksum == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u tensors", (unsigned)r->n);
    for (uint32_t i = 0; i < r->n; i++) {
        k = i;
        if (tensor_list != NULL && find_part(l, all, tensor_list, i, &k, e) != 0)
            return -1;
        r->at[i] = l->parts[k].at;
        w->checksums[i] = l->parts[k].sum;
        w->has_checksum[i] = l->parts[k].has_sum;
    }
    w->weight_version = l->weight_version;
    l->weight_version = NULL;
    w->delta_base = l->delta_base;
    l->delta_base = NULL;
    w->made = l->made;
    l->made = (struct made_sums){0};
    return 0;
}

/* Takes over fd. */
static int files_load(struct loading *l, const char *path, int fd, struct tensor_list *tensor_list,
                      struct file_weights *w, struct err *e)
{
    struct tensor_list_builder *b;
    struct tensor_list *all;
    int rc;

    if (add_path(l, path, fd, e) != 0)
        return -1;
    b = l->all;
    l->all = NULL;
    if (tensor_list_builder_finish(b, &all, e) != 0)
        return -1;
    rc = set_offsets(l, all, tensor_list, w, e);
    tensor_list_unref(all);
    return rc;
}

/* Takes over fd. */
static int file_source_of(struct source **out, struct file_weights *w, const char *path, int rootfd,
                          int fd, struct tensor_list *tensor_list, struct err *e)
{
    struct loading l = {.rootfd = rootfd, .src = calloc(1, sizeof *l.src)};
    struct file_weights weights = {0};
    int rc;

    if (l.src == NULL) {
        (void)close(fd);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a source");
    }
    l.src->source.ops = &file_ops;
    ranges_init(&l.src->ranges, "file");
    names_init(&l.names);
    rc = tensor_list_builder_new(&l.all, e);
    if (rc == 0)
        rc = files_load(&l, path, fd, tensor_list, &weights, e);
    else
        (void)close(fd);
    tensor_list_builder_free(l.all);
    names_fini(&l.names);
    free(l.parts);
    free(l.weight_version);
    free(l.delta_base);
    made_sums_fini(&l.made);
    if (rc != 0) {
        file_weights_fini(&weights);
        file_close(&l.src->source);
        return -1;
    }
    *out = &l.src->source;
    *w = weights;
    return 0;
}

static int open_below(struct source **out, struct file_weights *w, int rootfd, const char *rest,
                      const char *path, struct tensor_list *tensor_list, struct err *e)
{
    int fd = file_open_beneath(rootfd, rest, FILE_FLAGS);

    if (fd < 0)
        return file_cannot_open(path, errno, e);
    return file_source_of(out, w, path, rootfd, fd, tensor_list, e);
}

int file_source_open(struct source **out, struct file_weights *w, const char *const *roots,
                     size_t n_roots, const char *path, struct tensor_list *tensor_list,
                     struct err *e)
{
    const char *rest;
    int rootfd, rc;

    if (roots_open(&rootfd, &rest, roots, n_roots, path, "/path", e) != 0)
        return -1;
    rc = open_below(out, w, rootfd, rest, path, tensor_list, e);
    (void)close(rootfd);
    return rc;
}

int file_source_open_local(struct source **out, struct file_weights *w, const char *path,
                           struct err *e)
{
    return open_below(out, w, AT_FDCWD, path, path, NULL, e);
}
