/* What the versions of a pull say of a tensor, and the proof of a version by its hashes. */
#include "weights/delta/pull_priv.h"

#include "base/utf8.h"
#include "memory/slab.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zstd.h>

enum { COUNT_NBYTES = 4, POSITION_NBYTES = 4 }; /* of overwrite */

uint32_t pull_next(const struct pull *p, uint32_t index, uint32_t k)
{
    for (; k < p->n_versions; k++)
        if (p->versions[k].of != NULL && p->versions[k].of[index] != UINT32_MAX)
            return k;
    return PULL_NO_CHANGE;
}

/* Makes *room at least so large; what was in it is lost. */
static int room_reserve(struct store *store, struct slab **room, uint64_t nbytes, struct err *e)
{
    if (*room != NULL && nbytes <= (*room)->nbytes)
        return 0;
    slab_unref(*room);
    *room = NULL;
    return store_scratch(store, nbytes, room, e);
}

static int refuse_content(const struct tensor_spec *t, const char *what, struct err *e)
{
    return err_set(e, ERR_BAD_REQUEST, "", "delta of tensor '%.*s' (overwrite): %s",
                   utf8_cut_name(t->name), t->name, what);
}

/* One frame has the count, the positions and the values, so all of it is decompressed first.
 * @payload  the frame */
static int open_overwrite(struct delta_change *out, const struct tensor_spec *t,
                          struct delta_bytes payload, struct store *store, struct slab **room,
                          struct err *e)
{
    uint64_t nbytes = ZSTD_getFrameContentSize(payload.data, payload.nbytes);
    const char *content;
    uint32_t count;
    size_t got;

    if (ZSTD_findFrameCompressedSize(payload.data, payload.nbytes) != payload.nbytes)
        return refuse_content(t, "its frame is damaged, cut, or followed by other bytes", e);
    if (nbytes < COUNT_NBYTES || (nbytes - COUNT_NBYTES) / (POSITION_NBYTES + 1) > t->nbytes)
        return refuse_content(t, "its frame changed while it was read", e);
    if (room_reserve(store, room, nbytes, e) != 0)
        return -1;
    content = (*room)->base;
    got = ZSTD_decompress((*room)->base, nbytes, payload.data, payload.nbytes);
    if (ZSTD_isError(got) || got != nbytes)
        return refuse_content(t, "its frame is damaged", e);
    memcpy(&count, content, sizeof count);
    count = le32toh(count);
    if (nbytes != COUNT_NBYTES + (uint64_t)count * (POSITION_NBYTES + 1))
        return refuse_content(t, "its count does not fit its size", e);
    out->how.kind = DELTA_INDEX;
    out->how.position_nbytes = POSITION_NBYTES;
    out->positions = (struct delta_bytes){content + COUNT_NBYTES,
                                          (uint64_t)count * POSITION_NBYTES};
    out->values = (struct delta_bytes){content + COUNT_NBYTES + out->positions.nbytes, count};
    return 0;
}

int pull_change(struct delta_change *out, const struct pull *p, uint32_t index, uint32_t k,
                struct store *store, struct pull_rooms *rooms, struct err *e)
{
    static const struct delta_part none = {.i = TENSOR_LIST_NO_TENSOR};
    const struct pull_version *v = &p->versions[k];
    const struct pull_change *c = &v->changes[v->of[index]];
    const struct pull_file *f = &p->files[c->file];

    *out = (struct delta_change){.file = f, .offset = c->offset};
    if (c->how == PULL_WHOLE)
        return 0;
    if (room_reserve(store, &rooms->payload, c->nbytes, e) != 0 ||
        pull_pread(f, rooms->payload->base, c->nbytes, c->offset, e) != 0)
        return -1;
    *out = (struct delta_change){
        .how = {.kind = DELTA_XOR, .base = index, .unit = 1, .positions = none, .values = none},
        .values = {rooms->payload->base, c->nbytes},
        .hash = c->hash,
        .sum = c->sum};
    out->how.values.zstd = c->how == PULL_XOR;
    if (c->how == PULL_XOR)
        return 0;
    return open_overwrite(out, &p->cfg.spec->tensor_list->tensors[index], out->values, store,
                          &rooms->content, e);
}

/* Only of a whole checkpoint no hash says whether a file was changed meanwhile. */
int pull_finish(const struct pull *p, struct err *e)
{
    for (uint32_t i = 0; pull_is_whole(p) && i < p->n_files; i++) {
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
