/* Reports to the service manager: the protocol of sd_notify(3), without libsystemd. A datagram to
 * the socket of $NOTIFY_SOCKET has lines such as READY=1. Without the variable nothing is sent. */
#ifndef BATON_SERVER_NOTIFY_H
#define BATON_SERVER_NOTIFY_H

#include <stdint.h>

enum { NOTIFY_TEXT_MAX = 1024 };

/* notify_init - read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, and unset them, so that no
 * child process reports in our name. Call it before the first thread starts: threads read the
 * environment. */
void notify_init(void);

/* notify_send - send lines, separated by '\n'. Logs a failure once. Threads: main's. Blocks: no; a
 * datagram that the manager has no room for is lost. */
__attribute__((format(printf, 1, 2))) void notify_send(const char *fmt, ...);

/* notify_watchdog_us - how often WATCHDOG=1 is expected at least: half of WATCHDOG_USEC; 0: never.
 */
uint64_t notify_watchdog_us(void);

#endif
