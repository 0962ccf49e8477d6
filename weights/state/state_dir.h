/* --state-dir: what a server remembers of its weights when it ends in any way.
 *
 * The journal names each version before it is served. After a start the first weights may therefore
 * be served only if they are the version that the journal names; server/first_weights.c decides it.
 * With --snapshot the newest versions are also kept as files, by a thread of its own
 * (snapshot_writer.c). */
#ifndef BATON_WEIGHTS_STATE_STATE_DIR_H
#define BATON_WEIGHTS_STATE_STATE_DIR_H

#include "base/err.h"
#include "weights/state/journal.h"
#include "weights/state/snapshot_file.h"
#include "weights/store/store.h"

#include <stdbool.h>
#include <stdint.h>

struct state_dir;

enum { STATE_DIR_SNAPSHOTS_MAX = 1000 };
_Static_assert((int)STATE_DIR_SNAPSHOTS_MAX < (int)SNAPSHOTS_LISTED_MAX, "one more can be listed");

/* state_dir_open - lock the directory, which is made if it is missing, and read what is in it.
 * @path         borrowed, outlives the state
 * @n_snapshots  how many to keep; 0: none is written, and none is removed
 * @model_spec   borrowed; used here only
 * Threads: the one that starts the server. Blocks: on the disk.
 * Errors: ERR_CONFLICT (another server uses it: its process id), ERR_UNREADABLE (it cannot be made,
 *         opened, written or listed), ERR_NO_MEMORY. A damaged journal is no error. */
int state_dir_open(struct state_dir **out, const char *path, uint32_t n_snapshots,
                   const struct model_spec *model_spec, struct err *e);

/* What was in the directory when it was opened. */
struct state_found {
    enum journal_found journal;
    struct err damage;          /* JOURNAL_DAMAGED: what is wrong */
    bool other_model;           /* JOURNAL_READ: its model spec is not that of this server */
    struct journal_entry entry; /* JOURNAL_READ */
    struct snapshot_list snapshots;
};
const struct state_found *state_dir_found(const struct state_dir *d); /* immutable */
const char *state_dir_path(const struct state_dir *d);

/* state_dir_inspect - for --check: what state_dir_open would find, without making, changing or
 * keeping anything.
 * @exists  false: it is not there, and a start can make it
 * @in_use  ERR_CONFLICT if another server has the directory; else clean
 * Threads: any. Blocks: on the disk. Errors: ERR_UNREADABLE (it cannot be made, opened, written or
 *          listed). */
int state_dir_inspect(struct state_found *out, bool *exists, struct err *in_use, const char *path,
                      const struct model_spec *model_spec, struct err *e);

/* state_found_is_last - is it the version that the journal names? Its serial alone does not tell:
 * after a copy of the directory two servers give the same serials to their own commits. */
bool state_found_is_last(const struct state_found *f, const struct snapshot_head *h);

/* state_found_check_snapshot - read and check the head of the snapshot of a serial.
 * @only_last  refuse any but the version that the journal names
 * Errors: those of snapshot_read_head; ERR_MISMATCH. */
int state_found_check_snapshot(struct snapshot_head *out, const struct state_found *f,
                               const char *path, uint64_t serial, bool only_last,
                               const struct model_spec *m, struct err *e);

/* state_dir_last_serial - the largest serial that an entry or a snapshot found here has. */
uint64_t state_dir_last_serial(const struct state_dir *d);

/* state_dir_journal - for store_cfg. */
struct store_journal state_dir_journal(struct state_dir *d);

/* What the next publication is. */
enum state_next {
    STATE_NEXT_UPDATE,   /* an update: it is recorded */
    STATE_NEXT_RESTORED, /* the version that the journal names: nothing to record */
    STATE_NEXT_EQUAL, /* refused with ERR_CHECKSUM unless its content is what the journal names */
    STATE_NEXT_FIRST  /* first weights: recorded with their content */
};

/* state_dir_expect - Threads: the one that starts the server, while no update is queued. */
void state_dir_expect(struct state_dir *d, enum state_next next);

/* state_dir_served - note for the status how the server started, and start the writer of snapshots.
 * @how      static: "first_weights", "journal", "snapshot", "older_snapshot", "none"
 * @written  the snapshot whose file is what is served, which is not written again; or NULL
 * Threads: the one that starts the server. Errors: ERR_INTERNAL (no thread). */
int state_dir_served(struct state_dir *d, struct store *s, const char *how,
                     const struct snapshot_head *written, struct err *e);

/* state_dir_busy - is a snapshot being written, or about to be? Threads: any. */
bool state_dir_busy(struct state_dir *d);

/* state_dir_stop - end the writer; a snapshot that it is writing is given up. Repeating is
 * harmless. Threads: the owner's. Blocks: until one piece is written. */
void state_dir_stop(struct state_dir *d);
void state_dir_free(struct state_dir *d); /* stops first; unlocks the directory; accepts NULL */

struct state_info {
    const char *path, *how;
    uint32_t n_snapshots;
    uint64_t serial; /* of the last entry of the journal; 0: none */
    char label[VERSION_LABEL_MAX + 1];
    uint64_t n_journal_failures;
    bool writing;
    uint64_t
        snapshot_serial; /* newest good snapshot that this process wrote or restored; 0: none */
    char snapshot_label[VERSION_LABEL_MAX + 1];
    uint64_t n_written, n_failed, n_given_up;
    struct err snapshot_error; /* of the last attempt; clean if it succeeded */
};
void state_dir_info(struct state_dir *d, struct state_info *out); /* any thread */

#endif
