/* The signals of the server: SIGTERM and SIGINT end it, SIGHUP makes it read files again. Only the
 * main thread receives them. SIGQUIT makes it log its state, and is for a thread of its own
 * (server/state_dump.h), since main may be what hangs. */
#ifndef BATON_SERVER_SIGNALS_H
#define BATON_SERVER_SIGNALS_H

#include <stdbool.h>
#include <stdint.h>

/* signals_block - block SIGTERM, SIGINT, SIGHUP and SIGQUIT, and ignore SIGPIPE: writing to a
 * closed connection is then an error code. Call it before the first thread starts: threads inherit
 * it. */
void signals_block(void);

/* signals_wait - wait up to timeout_us (CLOCK_NEVER: without limit) for one of them, and take it.
 * Returns SIGTERM, SIGINT or SIGHUP; 0: none arrived. */
int signals_wait(uint64_t timeout_us);

/* signals_end_within - wait up to timeout_us for SIGTERM or SIGINT, and take it. False: none
 * arrived. */
bool signals_end_within(uint64_t timeout_us);

/* signals_wait_quit - wait for SIGQUIT, to the process or to this thread, and take it. */
void signals_wait_quit(void);

#endif
