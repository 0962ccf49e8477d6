#include "cli/interrupt.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t caught;

static void on_signal(int number)
{
    (void)number;
    caught = 1;
}

void interrupt_watch(void)
{
    struct sigaction act;

    memset(&act, 0, sizeof act);
    act.sa_handler = on_signal;
    act.sa_flags = (int)SA_RESETHAND; /* a second one ends the process */
    (void)sigaction(SIGINT, &act, NULL);
    (void)sigaction(SIGTERM, &act, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
}

bool interrupted(void)
{
    return caught != 0;
}

void interrupt_clear(void)
{
    caught = 0;
}
