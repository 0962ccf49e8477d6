/* The journal of --state-dir: one small file that names the version that is served, or is just
 * about to be. It is replaced whole: a new file is written, synchronized and renamed over the old
 * one, so after a crash there is either the old entry or the new one. */
#ifndef BATON_WEIGHTS_STATE_JOURNAL_H
#define BATON_WEIGHTS_STATE_JOURNAL_H

#include "base/err.h"
#include "base/id.h"
#include "weights/tensor_list.h"
#include "weights/version_label.h"

#include <stddef.h>
#include <stdint.h>

#define JOURNAL_NAME "journal.json"

enum { CONTENT_LEN = 64 /* SHA-256 in hex */ };

struct journal_entry {
    char commit_id[ID_LEN + 1]; /* random, new with each commit: copies of a directory may give one
                                   serial to different weights */
    uint64_t serial;
    char label[VERSION_LABEL_MAX + 1];
    char model_spec[TENSOR_LIST_DIGEST_LEN + 1];
    char content[CONTENT_LEN + 1]; /* digest of the weights (version_content.h); "": not computed */
    int64_t time_s;                /* of the day, for people only */
};

enum journal_found { JOURNAL_NONE, JOURNAL_READ, JOURNAL_DAMAGED };

/* journal_read - read and check the entry.
 * @why  set for JOURNAL_DAMAGED only: what is wrong with the file, which may also be unreadable
 * Threads: any. Blocks: on the disk. */
enum journal_found journal_read(struct journal_entry *out, const char *dir, struct err *why);

/* journal_write - replace the entry; when this returns 0 it survives a loss of power.
 * Threads: one at a time. Blocks: on the disk.
 * Errors: ERR_NOT_RECORDED (which call failed, and why), ERR_NO_MEMORY. The old entry is then still
 *         there, unless only the last step, the synchronization of the directory, failed. */
int journal_write(int dirfd, const struct journal_entry *entry, struct err *e);

/* state_write - write all bytes at an offset of a file. state_publish - synchronize an open file
 * and rename it in its directory, durably. Errors: ERR_NOT_RECORDED. */
int state_write(int fd, const char *name, const void *bytes, size_t n, uint64_t at, struct err *e);
int state_publish(int dirfd, int fd, const char *from, const char *to, struct err *e);

#endif
