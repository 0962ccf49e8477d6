/* Which requests came before a line. Each request gets a number when it comes; a pause draws a line
 * between two of them, and may abort all that came before. Counts those under way on both sides.
 *
 * Pure: its owner guards it with a lock. All zero it is empty. A number of 0 is after every line.
 */
#ifndef BATON_CONTROL_ARRIVALS_H
#define BATON_CONTROL_ARRIVALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arrivals {
    uint64_t last;            /* number of the last request */
    uint64_t line;            /* smaller numbers came before the line ... */
    uint64_t abort_line;      /* ... and were aborted all at once */
    size_t n_before, n_since; /* under way, without those that were aborted all at once */
};

static inline bool arrivals_came_before(const struct arrivals *a, uint64_t arrival)
{
    return arrival != 0 && arrival < a->line;
}

static inline bool arrivals_aborted(const struct arrivals *a, uint64_t arrival)
{
    return arrival != 0 && arrival < a->abort_line;
}

/* arrivals_add, arrivals_end - one more is under way, with a number of arrivals_next; one fewer.
 * arrivals_end returns: was it the last of those before the line? */
uint64_t arrivals_next(struct arrivals *a);
void arrivals_add(struct arrivals *a, uint64_t arrival);
bool arrivals_end(struct arrivals *a, uint64_t arrival);

/* arrivals_draw_line - all that have come so far came before the line. Returns: the line. */
uint64_t arrivals_draw_line(struct arrivals *a);

/* arrivals_abort_before, arrivals_abort_all - what came before the line, or all, is aborted.
 * Returns: was there any before the line? */
bool arrivals_abort_before(struct arrivals *a);
bool arrivals_abort_all(struct arrivals *a);

#endif
