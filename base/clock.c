/* Monotonic time, from the kernel's clock. */
#include "base/clock.h"

#include <stdio.h>
#include <time.h>

uint64_t clock_now_us(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000U + (uint64_t)ts.tv_nsec / 1000U;
}

uint64_t clock_after_us(uint64_t delay_us)
{
    uint64_t now = clock_now_us();

    return delay_us > CLOCK_NEVER - now ? CLOCK_NEVER : now + delay_us;
}

int64_t clock_wall_s(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec;
}

uint64_t clock_wall_us(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

void clock_text(char out[CLOCK_TEXT_LEN + 1], uint64_t wall_us)
{
    time_t s = (time_t)(wall_us / 1000000);
    char text[32];
    struct tm tm;

    (void)gmtime_r(&s, &tm);
    (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(out, CLOCK_TEXT_LEN + 1, "%.19s.%03uZ", text, (unsigned)(wall_us / 1000 % 1000));
}
