/* Blocked in every thread and received by sigwait: no handler runs between two other lines. */
#include "server/signals.h"

#include "base/clock.h"

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

    (void)sigaddset(&set, SIGQUIT);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGCHLD, SIG_DFL); /* else an ended child's id could be another process's */
}

static struct timespec time_of(uint64_t us)
{
    return (struct timespec){(time_t)(us / 1000000), (long)(us % 1000000) * 1000L};
}

int signals_wait(uint64_t timeout_us)
{
    sigset_t set = signals_all();
    struct timespec ts = time_of(timeout_us);
    int sig = timeout_us == CLOCK_NEVER ? sigwaitinfo(&set, NULL) : sigtimedwait(&set, NULL, &ts);

    return sig > 0 ? sig : 0;
}

bool signals_end_within(uint64_t timeout_us)
{
    struct timespec ts = time_of(timeout_us);
    sigset_t set = signals_of_end();

    return sigtimedwait(&set, NULL, &ts) > 0;
}

void signals_wait_quit(void)
{
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGQUIT);
    while (sigwaitinfo(&set, NULL) != SIGQUIT)
        continue;
}
