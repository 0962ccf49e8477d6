/* Snapshots: one version in one safetensors file, with a checksum of each tensor, the label, and in
 * "baton.snapshot" where it comes from. Other programs can read it, and so can --weights. */
#ifndef BATON_WEIGHTS_STATE_SNAPSHOT_FILE_H
#define BATON_WEIGHTS_STATE_SNAPSHOT_FILE_H

#include "base/err.h"
#include "base/id.h"
#include "weights/state/journal.h"
#include "weights/store/store.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SNAPSHOT_PIECE_NBYTES = 8 << 20, /* read, written, and then asked whether to give up */
    SNAPSHOT_SYNC_NBYTES = 32 << 20, /* at most this much waits in the page cache */
    SNAPSHOT_SPARE_NBYTES = 1 << 20, /* stays free on the disk, for the journal */
    SNAPSHOTS_LISTED_MAX = 1024,
    SNAPSHOT_NAME_MAX = 64
};

struct snapshot_head {
    char commit_id[ID_LEN + 1];
    uint64_t serial;
    char label[VERSION_LABEL_MAX + 1]; /* when it was written */
};

/* snapshot_file_sums - the checksums that a file's head has, of exactly this model's tensors.
 * @sums  [spec->n_tensors], in the model spec's order
 * Errors: ERR_MISMATCH (of another model), ERR_UNREADABLE (a checksum is missing). */
struct safetensors;
int snapshot_file_sums(const struct safetensors *f, const struct tensor_list *spec,
                       struct checksum *sums, struct err *e);

/* snapshot_read_head - check everything but the tensors' bytes, whose checksums an update checks.
 * @path  of the file
 * Errors: those of safetensors_open; ERR_UNREADABLE (not a snapshot, or its head was changed),
 *         ERR_MISMATCH (of another model). */
int snapshot_read_head(struct snapshot_head *out, const char *path, const struct model_spec *m,
                       struct err *e);

struct snapshot_write {
    int dirfd;
    const char *commit_id;
    struct store *store;
    const struct version *version; /* pinned */
    bool (*give_up)(void *arg);    /* asked after each piece */
    void *arg;
};

/* snapshot_write - write a version's file, durably; an older one of the same serial is replaced.
 * Returns: 0; 1 when it gave up, and left nothing behind; -1.
 * Threads: one at a time. Blocks: on the disk, on GPUs.
 * Errors: ERR_NOT_RECORDED, ERR_CUDA, ERR_NO_MEMORY; nothing is left behind. */
int snapshot_write(const struct snapshot_write *w, struct err *e);

/* Files of snapshots in a directory, newest first. */
struct snapshot_list {
    uint32_t n;
    uint64_t serials[SNAPSHOTS_LISTED_MAX];
};

/* snapshot_list_read - by their names alone. Errors: ERR_UNREADABLE. */
int snapshot_list_read(struct snapshot_list *out, int dirfd, struct err *e);

/* snapshot_prune - remove all but the newest `n_keep`, and what a crash left half written.
 * Errors: ERR_NOT_RECORDED. */
int snapshot_prune(int dirfd, uint32_t n_keep, struct err *e);

void snapshot_name(char out[SNAPSHOT_NAME_MAX], uint64_t serial);
#define SNAPSHOT_NEW "snapshot.tmp"

#endif
