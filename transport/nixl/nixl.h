/* Reading by NIXL, as the server sees it: one child process (transport/nixl/nixl_child.h), which is
 * started when a read needs it, ends by itself when it was idle for a minute, and is killed
 * whenever an update by it does not end well.
 *
 * A function that fails has killed the child, if it was given work, and waited for its end: nothing
 * writes to a window any more, and nothing reads a trainer's memory any more. */
#ifndef BATON_TRANSPORT_NIXL_NIXL_H
#define BATON_TRANSPORT_NIXL_NIXL_H

#include "base/err.h"
#include "base/progress.h"
#include "driver/nixl.h"
#include "transport/nixl/nixl_plan.h"

#include <stdbool.h>
#include <stdint.h>

struct nixl_cfg {
    const char *program; /* this program; NULL: /proc/self/exe. Tests run another */
    const char *library; /* libnixl_capi.so */
    const char *devices; /* UCX_NET_DEVICES */
    const char *tls;     /* UCX_TLS; NULL: what UCX chooses */
};

struct nixl_info {
    bool running; /* there is a child now */
    uint64_t n_started;
    const char *library;
    char version[NIXL_VERSION_TEXT_MAX]; /* of UCX */
    const char *devices, *tls;           /* as in the cfg, from which these are borrowed */
};

/* An agent of a trainer. */
struct nixl_agent {
    char *name;
    uint8_t *metadata;
    uint32_t nbytes;
};

struct nixl;

/* nixl_new - the reader, and a child that is started to see that it can be, and ended again.
 * @cfg  its strings are borrowed
 * Threads: the main thread, before others use it. Blocks: for the child's start, a second or so.
 * Errors:  ERR_NO_NIXL (the library cannot be used), ERR_NIXL (its agent cannot be made with these
 *          devices and transports), ERR_NO_MEMORY. */
int nixl_new(struct nixl **out, const struct nixl_cfg *cfg, struct err *e);
void nixl_free(struct nixl *n); /* kills the child; accepts NULL */

/* nixl_info - what is known of the library, and of the child. Threads: any. Blocks: on a short
 * lock. */
void nixl_info(struct nixl *n, struct nixl_info *out);

/* nixl_begin - take the reader, and have a child load the agents.
 * @agents  [count], at most NIXL_AGENTS_MAX
 * @p       asked for a stop and the deadline while it waits, here and in nixl_wait
 * Threads: one reads at a time, with no lock held. Blocks: for the child.
 * Errors:  ERR_CONFLICT (another read is under way), ERR_NO_NIXL, ERR_UNREADABLE (metadata that
 *          cannot be loaded), ERR_BAD_REQUEST (it is another agent's), ERR_NIXL (the child failed
 *          or died; the message has the last error that it wrote), ERR_NO_MEMORY; those of
 *          progress_check. The reader is not taken then. */
int nixl_begin(struct nixl *n, const struct nixl_agent *agents, uint32_t count,
               const struct progress *p, struct err *e);

/* nixl_read - have the slices [count] read into a window; nixl_wait says when they are there.
 * nixl_wait - wait for it.
 * @slice  the one at fault, if the error is about one; else 0
 * Errors: as nixl_begin; ERR_UNREADABLE (the agent has not registered a slice). nixl_end is needed
 *         then too. */
int nixl_read(struct nixl *n, uint32_t window, const struct nixl_slice *slices, uint32_t count,
              const struct progress *p, struct err *e);
int nixl_wait(struct nixl *n, const struct progress *p, uint32_t *slice, struct err *e);

/* nixl_window - the bytes of a window, until nixl_end. */
const uint8_t *nixl_window(const struct nixl *n, uint32_t window);

/* nixl_end - give the reader back.
 * @well  all that was read is proven; else the child is killed, since a read that brought wrong
 *        bytes, or was not waited for, may still write */
void nixl_end(struct nixl *n, bool well);

#endif
