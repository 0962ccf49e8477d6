/* Shared by state_dir.c, state_found.c and snapshot_writer.c. */
#ifndef BATON_WEIGHTS_STATE_STATE_DIR_PRIV_H
#define BATON_WEIGHTS_STATE_STATE_DIR_PRIV_H

#include "base/mtx.h"
#include "weights/state/state_dir.h"

#include <pthread.h>

struct state_dir {
    struct mtx lock;            /* rank MTX_LEAF; guards down to the blank line */
    struct cnd changed;         /* pending or stopping was set */
    struct journal_entry entry; /* the last one of the journal, if has_entry */
    bool has_entry;
    enum state_next next;
    bool pending;           /* something was published since the writer began its last snapshot */
    bool writing;           /* the writer works on one */
    bool stopping;          /* also: there is no writer */
    struct state_info info; /* what is counted here; state_dir_info fills in the others */

    const char *path; /* borrowed; immutable, and so are those down to the blank line */
    int dirfd, lock_fd;
    uint32_t n_snapshots;
    char model_spec[TENSOR_LIST_DIGEST_LEN + 1];
    struct state_found found;
    struct store *store; /* borrowed; set before the writer starts */

    pthread_t writer; /* owner only, as has_writer */
    bool has_writer;
};

enum { LOCK_TEXT_MAX = 32 };

/* state_found.c: state_lock - open and lock the directory's file 'lock'.
 * @fd     -1 before; also set when another server has the lock
 * @flags  O_CREAT, or 0
 * Errors: ERR_CONFLICT (another server has it: its process id), ERR_UNREADABLE. */
int state_lock(int *fd, int dirfd, int flags, struct err *e);

/* state_found.c: what is in the directory. @model_spec  the digest of this server's
 * Errors: ERR_UNREADABLE (it cannot be listed). */
int state_found_read(struct state_found *out, int dirfd, const char *path, const char *model_spec,
                     struct err *e);

/* snapshot_writer.c: the writer's thread. */
void *snapshot_writer_main(void *arg);

#endif
