/* Monotonic time, from the kernel's clock. */
#include "base/clock.h"

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
