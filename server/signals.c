/* Blocked in every thread and received by sigwait: no handler runs between two other lines. */
#include "server/signals.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <time.h>

static sigset_t signals_of_end(void)
{
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    return set;
}

static sigset_t signals_all(void)
{
    sigset_t set = signals_of_end();

    (void)sigaddset(&set, SIGHUP);
    return set;
}

void signals_block(void)
{
    sigset_t set = signals_all();

    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
}

int signals_wait(void)
{
    sigset_t set = signals_all();
    int sig = 0;

    while (sigwait(&set, &sig) != 0) {
    }
    return sig;
}

bool signals_end_within(uint64_t timeout_us)
{
    struct timespec ts = {(time_t)(timeout_us / 1000000), (long)(timeout_us % 1000000) * 1000L};
    sigset_t set = signals_of_end();

    return sigtimedwait(&set, NULL, &ts) > 0;
}
