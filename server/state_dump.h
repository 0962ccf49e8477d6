/* The state of the server in its log, one record for each thing, whenever SIGQUIT arrives: what
 * threads hold and wait for, the update, the pause, locks, engines, queues and executors.
 *
 * It is for a server that hangs, so it has a thread of its own, which allocates nothing and waits
 * for each lock a moment only: what cannot be read is reported by the name of the thread that has
 * the lock. It has no keys, no prompts and no weights. */
#ifndef BATON_SERVER_STATE_DUMP_H
#define BATON_SERVER_STATE_DUMP_H

#include "base/err.h"

struct server;
struct state_dump;

/* state_dump_new - start the thread. Until state_dump_built it knows threads and locks alone.
 * @s  borrowed until state_dump_free. Errors: ERR_NO_MEMORY, ERR_INTERNAL (no thread). */
int state_dump_new(struct state_dump **out, const struct server *s, struct err *e);

/* state_dump_built - all parts of the server are there, until state_dump_free. Threads: main. */
void state_dump_built(struct state_dump *d);

/* state_dump_free - stop and join the thread; before the first part of the server is freed. Accepts
 * NULL. Blocks: until a dump under way has ended, whose waits are short. */
void state_dump_free(struct state_dump *d);

#endif
