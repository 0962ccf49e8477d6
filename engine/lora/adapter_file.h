/* Reading an adapter's PEFT directory: adapter_config.json and adapter_model.safetensors.
 *
 * Trainers write into the same directory at every step, in place, and call at once; on a shared
 * file system the files may appear after the call. So the files are read completely during the call
 * (never mapped), the call waits for a directory that is not complete yet, and the result is
 * accepted only if both files are, at the end, the ones that were opened, unchanged. Which of the
 * two is newer has no meaning: some trainers write the config last, some only once. A writer that
 * overwrites in place, keeps the size, and pauses in the middle for longer than the age that files
 * must have to be read (20 ms) looks like one that has finished: such a writer must call after it
 * has finished. */
#ifndef BATON_ENGINE_LORA_ADAPTER_FILE_H
#define BATON_ENGINE_LORA_ADAPTER_FILE_H

#include "base/err.h"
#include "base/file_stamp.h"
#include "engine/lora/adapter.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    ADAPTER_HEAD_NBYTES_MAX = 32 << 20,
    ADAPTER_PATH_LEN_MAX = 4095,
    ADAPTER_SETTLE_MS = 500, /* the default of adapter_wait */
    ADAPTER_POLL_MS = 20,    /* between two looks at the directory */
    ADAPTER_FILES = 2        /* the config, the weights */
};

/* Where the directory is. Opened anew at each look, for trainers that rename a new one into place.
 * @rootfd  borrowed; as file_open_beneath's: AT_FDCWD, or the directory that nothing leads out of
 */
struct adapter_dir {
    int rootfd;
    const char *path; /* relative to it */
};

/* How long the call may take, and what may end it. */
struct adapter_wait {
    uint64_t deadline_us; /* of base/clock.h */
    uint64_t appear_us;   /* give up then if the directory has never been there; 0: deadline_us */
    const atomic_bool *stop; /* NULL: never stopped; relaxed */
    bool (*gone)(void *arg); /* has the client disconnected? NULL: never */
    void *gone_arg;
    uint32_t settle_ms; /* files that are wrong are given up when they have not changed so long; 0:
                           ADAPTER_SETTLE_MS */
};

/* What the looks of one load have seen so far; zeroed: nothing. */
struct adapter_sight {
    struct file_stamp stamps[ADAPTER_FILES]; /* of the last look */
    uint64_t since_us;                       /* when they were first so */
    bool appeared;                           /* the directory was there at a look */
};

/* `take` reserves `nbytes` once the size is known, before the memory is taken. It is called again
 * with another size if the files have changed; that replaces the first. NULL: no reservation. */
struct adapter_room {
    int (*take)(void *arg, uint64_t nbytes, struct err *e);
    void *arg;
};

/* adapter_file_look - read the directory, if it is whole.
 * @sight   of this load; the same at each look
 * @spec    its `config` is not read: the directory's is used
 * @report  the caller's; may be NULL
 * Returns: 0; 1 not whole yet, and the deadline is not over: look again, ADAPTER_POLL_MS later; -1.
 *
 * Threads: a worker's, no lock held. Blocks: to read; looks at stop and gone between pieces of
 * 8 MiB, and before and after all else.
 * Errors: ERR_NOT_FOUND (the directory until appear_us, a file of it until the deadline),
 * ERR_UNREADABLE (still being written at the deadline; cannot be read), ERR_FORBIDDEN (leads
 * outside), ERR_BAD_REQUEST (adapter_model.bin, a malformed file), ERR_TOO_LARGE, ERR_TIMEOUT (the
 *         deadline, while reading), ERR_CONFLICT (stopped), ERR_GONE, and those of
 *         adapter_config_parse, adapter_delta_check, adapter_builder_new, adapter_builder_reserve,
 *         adapter_builder_apply and room->take.
 *         Messages name the file; outputs are untouched. */
int adapter_file_look(struct adapter_sight *sight, struct adapter **out,
                      struct adapter_report *report, const struct adapter_spec *spec,
                      const struct adapter_dir *dir, const struct adapter_room *room,
                      const struct adapter_wait *wait, struct err *e);

#endif
