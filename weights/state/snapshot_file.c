/* Writes and checks the file of one snapshot. The tensors are written first, while their checksums
 * are computed; the head, whose length does not depend on them, is written last. */
#include "weights/state/snapshot_file.h"

#include "weights/safetensors.h"
#include "weights/safetensors_write.h"
#include "weights/state/version_content.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define SNAPSHOT_KEY "baton.snapshot"

enum { SNAPSHOT_MODE = 0600, SNAPSHOT_TEXT_MAX = 256 };

/* Proves the head: over where the file comes from and the checksums of all its bytes. */
static void head_digest(const struct snapshot_head *h, const char *content,
                        char out[CONTENT_LEN + 1])
{
    char text[SNAPSHOT_TEXT_MAX + VERSION_LABEL_MAX];
    struct sha256_ctx ctx;
    int n = snprintf(text, sizeof text, "%s\n%" PRIu64 "\n%s\n%s", h->commit_id, h->serial, content,
                     h->label);

    sha256_init(&ctx);
    sha256_update(&ctx, (size_t)n, (const uint8_t *)text);
    content_text(&ctx, out);
}

static json_t *metadata_json(const struct snapshot_head *h, const struct tensor_list *spec,
                             const struct checksum *sums)
{
    char content[CONTENT_LEN + 1], digest[CONTENT_LEN + 1];
    json_t *m = content_metadata(h->label, spec, sums);

    content_of(spec, sums, content);
    head_digest(h, content, digest);
    if (json_object_set_new(
            m, SNAPSHOT_KEY,
            json_sprintf("%s %020" PRIu64 " %s", h->commit_id, h->serial, digest)) == 0)
        return m;
    json_decref(m);
    return NULL;
}

/* Takes the room on the disk at once, so that a full disk is noticed before it is full, and the
 * journal can still be written. */
static int reserve(int fd, uint64_t nbytes, struct err *e)
{
    struct statvfs fs;

    if (fstatvfs(fd, &fs) != 0)
        return err_set_errno(e, ERR_NOT_RECORDED, "", errno, "statvfs of --state-dir failed");
    if ((uint64_t)fs.f_bavail * fs.f_frsize < nbytes + SNAPSHOT_SPARE_NBYTES)
        return err_set(e, ERR_NOT_RECORDED, "",
                       "a snapshot has %llu bytes, the disk of --state-dir has %llu free",
                       (unsigned long long)nbytes,
                       (unsigned long long)((uint64_t)fs.f_bavail * fs.f_frsize));
    if (fallocate(fd, 0, 0, (off_t)nbytes) == 0 || errno == EOPNOTSUPP || errno == ENOSYS)
        return 0;
    return err_set_errno(e, ERR_NOT_RECORDED, "", errno, "no room for a snapshot of %llu bytes",
                         (unsigned long long)nbytes);
}

/* One snapshot being written. */
struct writing {
    const struct snapshot_write *w;
    const struct tensor_list *spec;
    struct snapshot_head head;
    struct checksum *sums; /* owned; [n_tensors] */
    char *piece;           /* owned; [SNAPSHOT_PIECE_NBYTES] */
    size_t nbytes_head;
    uint64_t n_unsynced; /* bytes written since the last synchronization */
    int fd;
};

/* Keeps what was written out of the page cache, where it would displace what others need. */
static int sync_piece(struct writing *s, uint64_t n, uint64_t end, struct err *e)
{
    s->n_unsynced += n;
    if (s->n_unsynced < SNAPSHOT_SYNC_NBYTES)
        return 0;
    s->n_unsynced = 0;
    if (fdatasync(s->fd) != 0)
        return err_set_errno(e, ERR_NOT_RECORDED, "", errno, "fdatasync of a snapshot failed");
    (void)posix_fadvise(s->fd, 0, (off_t)end, POSIX_FADV_DONTNEED);
    return 0;
}

/* Returns 0, 1 (gave up) or -1. */
static int write_tensor(struct writing *s, uint32_t i, struct err *e)
{
    const struct snapshot_write *w = s->w;
    const struct tensor_spec *t = &s->spec->tensors[i];
    uint64_t start = s->nbytes_head + t->offset;

    if (w->give_up(w->arg))
        return 1;
    if (store_checksum(w->store, w->version, i, &s->sums[i], e) != 0)
        return -1;
    for (uint64_t at = 0, n; at < t->nbytes; at += n) {
        n = t->nbytes - at < SNAPSHOT_PIECE_NBYTES ? t->nbytes - at : SNAPSHOT_PIECE_NBYTES;
        if (w->give_up(w->arg))
            return 1;
        if (store_read(w->store, w->version, i, at, n, s->piece, e) != 0 ||
            state_write(s->fd, SNAPSHOT_NEW, s->piece, n, start + at, e) != 0 ||
            sync_piece(s, n, start + at + n, e) != 0)
            return -1;
    }
    return 0;
}

static int write_head(struct writing *s, bool measure, struct err *e)
{
    char *head = NULL;
    size_t nbytes;
    int rc = safetensors_head_make(&head, &nbytes, s->spec->tensors, s->spec->n_tensors,
                                   metadata_json(&s->head, s->spec, s->sums), e);

    if (rc != 0)
        return -1;
    if (measure)
        s->nbytes_head = nbytes;
    else
        rc = state_write(s->fd, SNAPSHOT_NEW, head, nbytes, 0, e);
    free(head);
    return rc;
}

static int snapshot_write_all(struct writing *s, struct err *e)
{
    char name[SNAPSHOT_NAME_MAX];
    int rc;

    s->sums = calloc(s->spec->n_tensors, sizeof *s->sums);
    s->piece = malloc(SNAPSHOT_PIECE_NBYTES);
    if (s->sums == NULL || s->piece == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to write a snapshot");
    rc = write_head(s, true, e);
    if (rc == 0)
        rc = reserve(s->fd, s->nbytes_head + s->spec->nbytes, e);
    for (uint32_t i = 0; i < s->spec->n_tensors && rc == 0; i++)
        rc = write_tensor(s, i, e);
    if (rc == 0)
        rc = write_head(s, false, e);
    snapshot_name(name, s->head.serial);
    return rc == 0 ? state_publish(s->w->dirfd, s->fd, SNAPSHOT_NEW, name, e) : rc;
}

int snapshot_write(const struct snapshot_write *w, struct err *e)
{
    struct writing s = {.w = w, .spec = store_model_spec(w->store)->tensor_list};
    int rc;

    (void)snprintf(s.head.commit_id, sizeof s.head.commit_id, "%s", w->commit_id);
    (void)snprintf(s.head.label, sizeof s.head.label, "%s", w->version->label);
    s.head.serial = w->version->serial;
    s.fd = openat(w->dirfd, SNAPSHOT_NEW, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                  SNAPSHOT_MODE);
    if (s.fd < 0)
        return err_set_errno(e, ERR_NOT_RECORDED, "", errno, "opening '%s' in --state-dir failed",
                             SNAPSHOT_NEW);
    rc = snapshot_write_all(&s, e);
    if (rc != 0)
        (void)unlinkat(w->dirfd, SNAPSHOT_NEW, 0);
    (void)close(s.fd);
    free(s.sums);
    free(s.piece);
    return rc;
}

int snapshot_file_sums(const struct safetensors *f, const struct tensor_list *spec,
                       struct checksum *sums, struct err *e)
{
    for (uint32_t i = 0; i < spec->n_tensors; i++) {
        const struct tensor_spec *t = &spec->tensors[i], *found;
        uint32_t k = tensor_list_find_near(f->tensor_list, t->name, i);

        if (k == TENSOR_LIST_NO_TENSOR || f->tensor_list->n_tensors != spec->n_tensors)
            return err_set(e, ERR_MISMATCH, "", "it has other tensors than this model");
        found = &f->tensor_list->tensors[k];
        if (found->dtype != t->dtype || found->ndim != t->ndim ||
            memcmp(found->shape, t->shape, t->ndim * sizeof t->shape[0]) != 0)
            return err_set(e, ERR_MISMATCH, "", "its '%.200s' is not that of this model", t->name);
        if (!f->has_checksum[k])
            return err_set(e, ERR_UNREADABLE, "", "it has no checksum of '%.200s'", t->name);
        sums[i] = f->checksums[k];
    }
    return 0;
}

/* "COMMIT_ID SERIAL DIGEST", each of its fixed length. */
static int parse_origin(struct snapshot_head *out, const char *text, char digest[CONTENT_LEN + 1])
{
    char again[SNAPSHOT_TEXT_MAX];

    if (text == NULL ||
        sscanf(text, "%32s %20" SCNu64 " %64s", out->commit_id, &out->serial, digest) != 3)
        return -1;
    (void)snprintf(again, sizeof again, "%s %020" PRIu64 " %s", out->commit_id, out->serial,
                   digest);
    return strcmp(again, text) == 0 ? 0 : -1;
}

static int snapshot_file_check_head(struct snapshot_head *out, const struct safetensors *f,
                                    const struct tensor_list *spec, struct checksum *sums,
                                    struct err *e)
{
    char content[CONTENT_LEN + 1], digest[CONTENT_LEN + 1], given[CONTENT_LEN + 1] = "";
    struct snapshot_head h = {0};

    if (f->weight_version == NULL || strlen(f->weight_version) > VERSION_LABEL_MAX ||
        parse_origin(&h, f->snapshot, given) != 0)
        return err_set(e, ERR_UNREADABLE, "", "its metadata is not that of a snapshot");
    if (snapshot_file_sums(f, spec, sums, e) != 0)
        return -1;
    (void)snprintf(h.label, sizeof h.label, "%s", f->weight_version);
    content_of(spec, sums, content);
    head_digest(&h, content, digest);
    if (strcmp(digest, given) != 0)
        return err_set(e, ERR_CHECKSUM, "", "the digest of its head is wrong");
    *out = h;
    return 0;
}

int snapshot_read_head(struct snapshot_head *out, const char *path, const struct model_spec *m,
                       struct err *e)
{
    const struct tensor_list *spec = m->tensor_list;
    struct checksum *sums;
    struct safetensors f;
    int fd, rc;

    if (safetensors_open(&f, &fd, AT_FDCWD, path, e) != 0)
        return -1;
    (void)close(fd);
    sums = calloc(spec->n_tensors, sizeof *sums);
    rc = sums != NULL ? snapshot_file_check_head(out, &f, spec, sums, e)
                      : err_set(e, ERR_NO_MEMORY, "", "no memory to check a snapshot");
    free(sums);
    safetensors_fini(&f);
    return rc;
}
