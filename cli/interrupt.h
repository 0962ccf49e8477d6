/* SIGINT and SIGTERM of a command: asked for, not acted on, so that a command can clean up. */
#ifndef BATON_CLI_INTERRUPT_H
#define BATON_CLI_INTERRUPT_H

#include <stdbool.h>

/* interrupt_watch - catch both from now on; a second one ends the process. */
void interrupt_watch(void);

/* interrupted - has one come since interrupt_watch or interrupt_clear? Threads: any. */
bool interrupted(void);

/* interrupt_clear - forget it, for the requests that clean up after it. */
void interrupt_clear(void);

#endif
