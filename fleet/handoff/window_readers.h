/* When SGLangs have read a window (handoff_windows.h): counters in shared memory which torch
 * decrements in each of their ranks, as soon as the rank has dropped the window and its GPU has
 * ended what read it (transport/ipc/ref_counter.h).
 *
 * The counters of each hand-off have a name of their own: a rank that drops a window of an earlier
 * one finds nothing to decrement. A rank has a slot for each half. */
#ifndef BATON_FLEET_HANDOFF_WINDOW_READERS_H
#define BATON_FLEET_HANDOFF_WINDOW_READERS_H

#include "base/err.h"
#include "fleet/handoff/handoff_ranks.h"
#include "transport/ipc/ipc_handle.h"
#include "transport/ipc/ref_counter.h"

#include <stdbool.h>
#include <stdint.h>

struct window_readers {
    const struct handoff_ranks *ranks; /* borrowed */
    struct ref_counter counter;        /* owned; zeroed: there is no SGLang */
    char name[IPC_REF_NAME_MAX + 1];
    uint32_t first_slot[FLEET_MAX]; /* by upstream: of its first rank and the first half */
};

/* window_readers_init - make the counters for a hand-off.
 * @ranks  as handoff_ranks_read left them; borrowed until window_readers_fini
 * Errors: ref_counter_create's; ERR_CONFLICT: more ranks than there are slots. *r is zeroed then.
 * window_readers_fini - remove them. Repeating is harmless. */
int window_readers_init(struct window_readers *r, const struct handoff_ranks *ranks, struct err *e);
void window_readers_fini(struct window_readers *r);

/* Of an upstream that is in the update (handoff_ranks.is_in):
 * window_readers_slot - the slot that a rank decrements, of a half.
 * window_readers_expect - its ranks are about to be sent the window in a half.
 * window_readers_are_done - have all of them dropped it? */
uint32_t window_readers_slot(const struct window_readers *r, size_t upstream, uint32_t half,
                             uint64_t rank);
void window_readers_expect(struct window_readers *r, size_t upstream, uint32_t half);
bool window_readers_are_done(const struct window_readers *r, size_t upstream, uint32_t half);

#endif
