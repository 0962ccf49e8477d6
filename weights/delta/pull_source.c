/* The bytes of a pull: each tensor is read from the served version, and what the versions say of it
 * is merged into it, one after the other, in the memory that the update has for it. */
#include "weights/delta/delta.h"
#include "weights/delta/pull_priv.h"

#include "base/utf8.h"
#include "memory/slab.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zstd.h>

enum { COUNT_NBYTES = 4, POSITION_NBYTES = 4 }; /* of overwrite */

struct pull_source {
    struct source source; /* first */
    struct pull *p;       /* owned */
    struct store *store;  /* borrowed */
    uint64_t serial;
    const struct version *base; /* pinned; NULL until the first fill, and for a whole checkpoint */
    struct delta_merge *merge;  /* owned */
    struct slab *payload, *content; /* one reference each: of one tensor; NULL: none yet */
};

/* Makes *room at least so large; what was in it is lost. */
static int room_reserve(struct pull_source *s, struct slab **room, uint64_t nbytes, struct err *e)
{
    if (*room != NULL && nbytes <= (*room)->nbytes)
        return 0;
    slab_unref(*room);
    *room = NULL;
    return store_scratch(s->store, nbytes, room, e);
}

/* ---- one tensor ---- */

static int merge_xor(struct pull_source *s, const struct tensor_spec *t,
                     const struct pull_change *c, char *dst, const struct progress *progress,
                     struct err *e)
{
    const struct delta_tensor d = {
        .kind = DELTA_XOR,
        .unit = 1,
        .positions = {.i = TENSOR_LIST_NO_TENSOR},
        .values = {.i = TENSOR_LIST_NO_TENSOR, .nbytes = t->nbytes, .zstd = true}};
    struct delta_bytes values = {s->payload->base, c->nbytes}, none = {"", 0};

    if (delta_merge_begin(s->merge, t, &d, none, values, e) != 0)
        return -1;
    for (uint64_t at = 0, n; at < t->nbytes; at += n) {
        n = t->nbytes - at < SOURCE_PIECE_NBYTES ? t->nbytes - at : SOURCE_PIECE_NBYTES;
        if (progress_check(progress, e) != 0 ||
            delta_merge_next(s->merge, dst + at, dst + at, n, e) != 0)
            return -1;
    }
    return delta_merge_end(s->merge, e);
}

static int refuse_content(const struct tensor_spec *t, const char *what, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, "", "delta of tensor '%.*s' (overwrite): %s",
                   utf8_cut_name(t->name), t->name, what);
}

/* One frame has the count, the positions and the values, so all of it is decompressed first. */
static int merge_overwrite(struct pull_source *s, const struct tensor_spec *t,
                           const struct pull_change *c, char *dst, struct err *e)
{
    const struct delta_tensor d = {.kind = DELTA_INDEX,
                                   .unit = 1,
                                   .position_nbytes = POSITION_NBYTES,
                                   .positions = {.i = TENSOR_LIST_NO_TENSOR},
                                   .values = {.i = TENSOR_LIST_NO_TENSOR}};
    const char *payload = s->payload->base;
    uint64_t nbytes = ZSTD_getFrameContentSize(payload, c->nbytes);
    struct delta_bytes positions, values;
    const char *content;
    uint32_t count;
    size_t got;

    if (ZSTD_findFrameCompressedSize(payload, c->nbytes) != c->nbytes)
        return refuse_content(t, "its frame is damaged, cut, or followed by other bytes", e);
    if (nbytes < COUNT_NBYTES || (nbytes - COUNT_NBYTES) / (POSITION_NBYTES + 1) > t->nbytes)
        return refuse_content(t, "its frame changed while it was read", e);
    if (room_reserve(s, &s->content, nbytes, e) != 0)
        return -1;
    got = ZSTD_decompress(s->content->base, nbytes, payload, c->nbytes);
    if (ZSTD_isError(got) || got != nbytes)
        return refuse_content(t, "its frame is damaged", e);
    content = s->content->base;
    memcpy(&count, content, sizeof count);
    count = le32toh(count);
    if (nbytes != COUNT_NBYTES + (uint64_t)count * (POSITION_NBYTES + 1))
        return refuse_content(t, "its count does not fit its size", e);
    positions = (struct delta_bytes){content + COUNT_NBYTES, (uint64_t)count * POSITION_NBYTES};
    values = (struct delta_bytes){(const char *)positions.data + positions.nbytes, count};
    return delta_apply(s->merge, dst, t, &d, dst, positions, values, e);
}

static int pull_check_sum(const struct tensor_spec *t, const struct pull_change *c,
                          const void *bytes, struct err *e)
{
    char sum[HASH_TEXT_MAX + 1];

    hash_of(c->hash, bytes, t->nbytes, sum);
    if (strcmp(sum, c->sum) == 0)
        return 0;
    return err_set(e, ERR_CHECKSUM, "",
                   "tensor '%.*s' has %s %s after the delta, its trainer says %s: the delta is "
                   "damaged, or it was made from other weights than those that are served",
                   utf8_cut_name(t->name), t->name, hash_kind_name(c->hash), sum, c->sum);
}

static int pull_apply_change(struct pull_source *s, const struct tensor_spec *t,
                             const struct pull_change *c, char *dst,
                             const struct progress *progress, struct err *e)
{
    const struct pull_file *f = &s->p->files[c->file];
    int rc;

    if (c->how == PULL_WHOLE)
        return pull_pread(f, dst, t->nbytes, c->offset, e);
    if (room_reserve(s, &s->payload, c->nbytes, e) != 0 ||
        pull_pread(f, s->payload->base, c->nbytes, c->offset, e) != 0)
        return -1;
    rc = c->how == PULL_XOR ? merge_xor(s, t, c, dst, progress, e)
                            : merge_overwrite(s, t, c, dst, e);
    return rc == 0 ? pull_check_sum(t, c, dst, e) : -1;
}

/* The bytes of a tensor of the served version. */
static int read_served(struct store *store, const struct version *v, uint32_t index,
                       uint64_t nbytes, char *dst, const struct progress *progress, struct err *e)
{
    for (uint64_t at = 0, n; at < nbytes; at += n) {
        n = nbytes - at < SOURCE_PIECE_NBYTES ? nbytes - at : SOURCE_PIECE_NBYTES;
        if (progress_check(progress, e) != 0 ||
            store_read(store, v, index, at, n, dst + at, e) != 0)
            return -1;
    }
    return 0;
}

static int make_tensor(struct pull_source *s, uint32_t index, char *dst,
                       const struct progress *progress, struct err *e)
{
    const struct tensor_spec *t = &s->p->cfg.spec->tensor_list->tensors[index];

    if (s->base != NULL && read_served(s->store, s->base, index, t->nbytes, dst, progress, e) != 0)
        return -1;
    for (uint32_t i = 0; i < s->p->n_versions; i++) {
        const struct pull_version *v = &s->p->versions[i];
        uint32_t k = v->of != NULL ? v->of[index] : UINT32_MAX;

        if (k != UINT32_MAX && pull_apply_change(s, t, &v->changes[k], dst, progress, e) != 0)
            return pull_say_version(e, v->number);
    }
    return 0;
}

/* ---- the source ---- */

/* An update is staged now: no other version can be committed until it ends. */
static int pin_pull_base(struct pull_source *s, struct err *e)
{
    const struct version *v;

    if (s->base != NULL || pull_is_whole(s->p))
        return 0;
    if (store_pin(s->store, &v, e) != 0)
        return -1;
    if (v->serial == s->serial) {
        s->base = v;
        return 0;
    }
    store_unpin(s->store, v);
    return err_set(e, ERR_CONFLICT, "",
                   "another version was committed since the pull began: pull again");
}

static int pull_fill(struct source *source, const struct tensor_list *list, uint32_t first,
                     uint32_t n, void *dst, struct progress *progress, struct err *e)
{
    struct pull_source *s = (struct pull_source *)source;
    char *at = dst;

    if (pin_pull_base(s, e) != 0)
        return -1;
    for (uint32_t i = first; i < first + n; i++) {
        uint64_t nbytes = list->tensors[i].nbytes;

        atomic_store_explicit(&progress->tensor, i, memory_order_relaxed);
        if (progress_check(progress, e) != 0 ||
            make_tensor(s, s->p->index[i], at, progress, e) != 0)
            return -1;
        (void)atomic_fetch_add_explicit(&progress->nbytes_done, nbytes, memory_order_relaxed);
        progress_came(progress, at, nbytes);
        at += nbytes;
    }
    return 0;
}

static int check_unchanged(const struct pull *p, struct err *e)
{
    for (uint32_t i = 0; i < p->n_files; i++) {
        const struct pull_file *f = &p->files[i];
        struct file_stamp now;
        struct stat st;

        if (fstat(f->fd, &st) == 0) {
            now = file_stamp_of(&st);
            if (file_stamp_same(&now, &f->stamp))
                continue;
        }
        (void)err_set(e, ERR_UNREADABLE, "", "'%s' was changed while it was read", f->name);
        return pull_say_version(e, f->version);
    }
    return 0;
}

/* Only of a whole checkpoint no hash says whether a file was changed meanwhile. */
static int pull_finish(struct source *source, struct progress *progress, struct err *e)
{
    const struct pull_source *s = (struct pull_source *)source;

    (void)progress;
    return pull_is_whole(s->p) ? check_unchanged(s->p, e) : 0;
}

static void source_fini(struct pull_source *s)
{
    store_unpin(s->store, s->base);
    pull_close(s->p);
    delta_merge_free(s->merge);
    slab_unref(s->payload);
    slab_unref(s->content);
}

static void pull_source_close(struct source *source)
{
    if (source == NULL)
        return;
    source_fini((struct pull_source *)source);
    free(source);
}

static const struct source_ops pull_ops = {
    .name = "pull", .fill = pull_fill, .finish = pull_finish, .close = pull_source_close};

int pull_source(struct source **out, struct pull *p, struct store *store, uint64_t serial,
                struct err *e)
{
    struct pull_source *s = calloc(1, sizeof *s);

    if (s == NULL || delta_merge_new(&s->merge, e) != 0) {
        free(s);
        pull_close(p);
        return e->code != ERR_NONE ? -1 : err_set(e, ERR_NO_MEMORY, "", "no memory for a pull");
    }
    s->source.ops = &pull_ops;
    s->p = p;
    s->store = store;
    s->serial = serial;
    *out = &s->source;
    return 0;
}

/* ---- proof that a version is served ---- */

static int prove_refuse(const struct tensor_spec *t, uint64_t number, struct err *e)
{
    return err_set(e, ERR_PRECONDITION, "",
                   "version %llu is served, but tensor '%.*s' is another than in that version of "
                   "this directory: it belongs to another run; a new run begins with version 0",
                   (unsigned long long)number, utf8_cut_name(t->name), t->name);
}

/* @piece  memory for one
 * @h      of the tensor; NULL: the file has its bytes */
static int prove_bytes(struct pull *p, const struct pull_change *c, char *piece, struct hash *h,
                       struct store *store, const struct version *v,
                       const struct progress *progress, struct err *e)
{
    const struct tensor_spec *t = &p->cfg.spec->tensor_list->tensors[c->index];
    char *theirs = piece + SOURCE_PIECE_NBYTES;

    for (uint64_t at = 0, n; at < t->nbytes; at += n) {
        n = t->nbytes - at < SOURCE_PIECE_NBYTES ? t->nbytes - at : SOURCE_PIECE_NBYTES;
        if (progress_check(progress, e) != 0 ||
            store_read(store, v, c->index, at, n, piece, e) != 0)
            return -1;
        if (h != NULL)
            hash_add(h, piece, n);
        else if (pull_pread(&p->files[c->file], theirs, n, c->offset + at, e) != 0)
            return -1;
        else if (memcmp(piece, theirs, n) != 0)
            return prove_refuse(t, p->cfg.target, e);
    }
    return 0;
}

static int prove_change(struct pull *p, const struct pull_change *c, char *piece,
                        struct store *store, const struct version *v,
                        const struct progress *progress, struct err *e)
{
    struct hash *h = c->how != PULL_WHOLE ? hash_new(c->hash) : NULL;
    char sum[HASH_TEXT_MAX + 1];
    int rc;

    if (c->how != PULL_WHOLE && h == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a hash");
    rc = prove_bytes(p, c, piece, h, store, v, progress, e);
    if (rc == 0 && h != NULL) {
        hash_text(h, sum);
        if (strcmp(sum, c->sum) != 0)
            rc = prove_refuse(&p->cfg.spec->tensor_list->tensors[c->index], p->cfg.target, e);
    }
    hash_free(h);
    return rc;
}

int pull_prove(struct pull *p, struct store *store, const struct version *v,
               const struct progress *progress, struct err *e)
{
    const struct pull_version *target = &p->versions[p->n_versions - 1];
    char *piece = malloc(2 * (size_t)SOURCE_PIECE_NBYTES);
    int rc = 0;

    if (piece == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to compare a version");
    for (uint32_t i = 0; rc == 0 && i < target->n; i++)
        rc = prove_change(p, &target->changes[i], piece, store, v, progress, e);
    free(piece);
    return rc;
}
