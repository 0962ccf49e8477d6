/* Which SGLangs still have a window (handoff_windows.h): counters in shared memory which torch
 * decrements in each of their ranks, as soon as the rank has dropped the window and its GPU has
 * ended what read it (transport/ipc/ref_counter.h).
 *
 * An upstream has counters of its own, from its first window until its process has ended: a slot
 * for each rank and half. A slot is set only while all of its upstream are down, so an upstream has
 * one window at most, and gets the next only when it has none. This is needed because torch keeps
 * the storages that a process has open by handle and offset: if one of them is still used, torch
 * decrements the counter of the next window at the same place at once (rebuild_cuda_tensor in
 * torch/multiprocessing/reductions.py). A new counter would say that the window was read, and the
 * bytes that are still used would be overwritten.
 *
 * What was not mapped is never counted down. So the counters are forgotten, and new ones are made
 * under a new name, when the upstream is known to have mapped nothing, and when its process has
 * ended. A late decrement finds no object then. A lost answer does not tell: the counters come down
 * if the ranks got the request, else the upstream gets no window until its next start.
 *
 * Threads: one at a time. */
#ifndef BATON_FLEET_HANDOFF_WINDOW_READERS_H
#define BATON_FLEET_HANDOFF_WINDOW_READERS_H

#include "base/err.h"
#include "fleet/handoff/window_plan.h"
#include "fleet/members/fleet.h"
#include "transport/ipc/ipc_handle.h"
#include "transport/ipc/ref_counter.h"

#include <stdbool.h>
#include <stdint.h>

enum { WINDOW_RANKS_MAX = REF_COUNTER_SLOTS / WINDOW_HALVES }; /* of one upstream */

/* A part of struct fleet_engine; zeroed: it never got a window. */
struct window_reader {
    struct ref_counter counter; /* owned; zeroed: none */
    char ref_name[IPC_REF_NAME_MAX + 1];
    uint32_t n_ranks;     /* that were sent the last window */
    uint64_t incarnation; /* of upstream_info then */
};

/* window_reader_expect - its ranks are about to be sent the window in a half.
 * @r        has no window (asserted)
 * @n_ranks  1..WINDOW_RANKS_MAX
 * @info     as it is now
 * Errors: ref_counter_create's; nothing is expected then. */
int window_reader_expect(struct window_reader *r, uint32_t half, uint64_t n_ranks,
                         const struct upstream_info *info, struct err *e);

/* window_reader_slot - the slot that a rank decrements, of a half. */
static inline uint32_t window_reader_slot(uint32_t half, uint64_t rank)
{
    return (uint32_t)(rank * WINDOW_HALVES + half);
}

/* window_reader_has_window - may a rank still have one? */
bool window_reader_has_window(const struct window_reader *r);

/* window_reader_has_ended - is this another process of the upstream than the one that got a window?
 * An SGLang does not name its process. If it was away and answers again, it is another one, unless
 * it still reports the dirty marker of the update: it got no windows after one that it kept. */
bool window_reader_has_ended(const struct window_reader *r, const struct upstream_info *info);

/* window_reader_forget - it has mapped nothing, or its process has ended. Repeating is harmless. */
void window_reader_forget(struct window_reader *r);

#endif
