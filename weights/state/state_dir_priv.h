/* Shared by state_dir.c and snapshot_writer.c. */
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
    char state_id[ID_LEN + 1], model_spec[TENSOR_LIST_DIGEST_LEN + 1];
    struct state_found found;
    struct store *store; /* borrowed; set before the writer starts */

    pthread_t writer; /* owner only, as has_writer */
    bool has_writer;
};

/* snapshot_writer.c: the writer's thread. */
void *snapshot_writer_main(void *arg);

#endif
