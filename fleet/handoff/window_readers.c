#include "fleet/handoff/window_readers.h"

#include "fleet/handoff/handoff_torch.h"
#include "fleet/handoff/window_plan.h"

#include <assert.h>

int window_readers_init(struct window_readers *r, const struct handoff_ranks *ranks, struct err *e)
{
    uint64_t n_slots = 0;

    *r = (struct window_readers){.ranks = ranks};
    for (size_t i = 0; i < FLEET_MAX; i++) {
        if (!ranks->is_in[i])
            continue;
        if (ranks->of[i].n_entries > (REF_COUNTER_SLOTS - n_slots) / WINDOW_HALVES)
            return err_set(e, ERR_CONFLICT, "",
                           "the SGLang upstreams have more than %d ranks: give a GPU, as in "
                           "--stage cuda:0",
                           (int)REF_COUNTER_SLOTS / WINDOW_HALVES);
        r->first_slot[i] = (uint32_t)n_slots;
        n_slots += WINDOW_HALVES * ranks->of[i].n_entries;
    }
    handoff_ref_name(r->name);
    return n_slots > 0 ? ref_counter_create(&r->counter, r->name, e) : 0;
}

void window_readers_fini(struct window_readers *r)
{
    ref_counter_remove(&r->counter, r->name);
}

uint32_t window_readers_slot(const struct window_readers *r, size_t upstream, uint32_t half,
                             uint64_t rank)
{
    uint64_t n = r->ranks->of[upstream].n_entries;

    assert(r->ranks->is_in[upstream] && half < WINDOW_HALVES && rank < n);
    return r->first_slot[upstream] + (uint32_t)(half * n + rank);
}

void window_readers_expect(struct window_readers *r, size_t upstream, uint32_t half)
{
    const struct api_bucket_ranks *of = &r->ranks->of[upstream];

    for (uint64_t rank = 0; rank < of->n_entries; rank++)
        ref_counter_set(&r->counter, window_readers_slot(r, upstream, half, rank), of->n_readers);
}

bool window_readers_are_done(const struct window_readers *r, size_t upstream, uint32_t half)
{
    for (uint64_t rank = 0; rank < r->ranks->of[upstream].n_entries; rank++)
        if (!ref_counter_is_down(&r->counter, window_readers_slot(r, upstream, half, rank)))
            return false;
    return true;
}
