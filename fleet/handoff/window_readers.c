#include "fleet/handoff/window_readers.h"

#include "fleet/handoff/handoff_export.h"

#include <assert.h>
#include <string.h>

int window_reader_expect(struct window_reader *r, uint32_t half, uint64_t n_ranks,
                         const struct upstream_info *info, struct err *e)
{
    assert(half < WINDOW_HALVES && n_ranks > 0 && n_ranks <= WINDOW_RANKS_MAX);
    assert(!window_reader_has_window(r));
    if (r->counter.base == NULL) {
        handoff_ref_name(r->ref_name);
        if (ref_counter_create(&r->counter, r->ref_name, e) != 0)
            return -1;
    }
    r->n_ranks = (uint32_t)n_ranks;
    r->incarnation = info->incarnation;
    for (uint32_t rank = 0; rank < r->n_ranks; rank++)
        ref_counter_expect(&r->counter, window_reader_slot(half, rank));
    return 0;
}

bool window_reader_has_window(const struct window_reader *r)
{
    if (r->counter.base == NULL)
        return false;
    for (uint32_t slot = 0; slot < r->n_ranks * WINDOW_HALVES; slot++)
        if (!ref_counter_is_down(&r->counter, slot))
            return true;
    return false;
}

bool window_reader_has_ended(const struct window_reader *r, const struct upstream_info *info)
{
    return r->incarnation != info->incarnation && !info->report.is_stale &&
           !fleet_is_dirty_marker(info->report.label);
}

void window_reader_forget(struct window_reader *r)
{
    ref_counter_remove(&r->counter, r->ref_name);
    *r = (struct window_reader){0};
}
