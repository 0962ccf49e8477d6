/* Monotonic time. Deadlines are absolute microseconds of this clock; 0 never means "none". */
#ifndef BATON_BASE_CLOCK_H
#define BATON_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#define CLOCK_NEVER                                                                                \
    UINT64_MAX /* a deadline that never passes; only for waits on our own threads                  \
                */

/* clock_now_us - microseconds of CLOCK_MONOTONIC. Threads: any. */
uint64_t clock_now_us(void);

/* clock_after_us - the deadline `delay_us` from now, saturating at CLOCK_NEVER. */
uint64_t clock_after_us(uint64_t delay_us);

/* clock_wall_s - seconds since the Unix epoch, for logs and for OpenAI's `created`. */
int64_t clock_wall_s(void);

static inline bool clock_passed(uint64_t deadline_us)
{
    return deadline_us != CLOCK_NEVER && clock_now_us() >= deadline_us;
}

/* clock_wall_us - microseconds since 1970, for people; it may jump. */
uint64_t clock_wall_us(void);

enum { CLOCK_TEXT_LEN = 24 }; /* of "2026-11-23T11:05:00.123Z" */

/* clock_text - a time of clock_wall_us as text, in UTC. */
void clock_text(char out[CLOCK_TEXT_LEN + 1], uint64_t wall_us);

#endif
