/* torch's counter of an exported tensor: a slot in a POSIX shared memory object of the exporter,
 * 1 from the export on, which whoever received it counts down once. Until then the exporter keeps
 * the memory.
 *
 * The object is only ever looked at and decremented: never created, grown or unlinked. A request
 * names it, so the name must be one that torch makes and the object one that torch made. */
#ifndef BATON_TRANSPORT_IPC_REF_COUNTER_H
#define BATON_TRANSPORT_IPC_REF_COUNTER_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    REF_COUNTER_SLOTS = 10000, /* of one object */
    REF_COUNTER_HEAD = 64,     /* bytes before them: torch's own count of who has it mapped */
    REF_COUNTER_NBYTES = REF_COUNTER_HEAD + 8 * REF_COUNTER_SLOTS
};

/* One object, mapped; zeroed: none. It holds no descriptor. */
struct ref_counter {
    void *base; /* REF_COUNTER_NBYTES, shared with the exporter */
};

/* ref_counter_open - map the object, to count down now and close it: one that its owner shrinks
 * while it is mapped is a SIGBUS here. (Its owner is our own user, or we are root and trust it.)
 * @name  as torch makes them: /torch_<pid>_<number>[_<number>]
 *
 * Threads: any. Blocks: no. *out is written on success only.
 * Errors:  ERR_UNREADABLE  another kind of name; no such object, not a file, another user's (unless
 *          we are root), too short. The trainer keeps that memory until it exits: say so, go on. */
int ref_counter_open(struct ref_counter *out, const char *name, struct err *e);
void ref_counter_close(struct ref_counter *c); /* accepts a zeroed one */

/* ref_counter_down - take a slot down by one, if it is above zero. Below, torch would take its
 * unsigned count for a huge one and never free that memory.
 * @slot  below REF_COUNTER_SLOTS
 * Returns: whether it was above zero. */
bool ref_counter_down(struct ref_counter *c, uint32_t slot);

/* ref_counter_release - open, take one slot down, close.
 * Errors: as ref_counter_open; ERR_UNREADABLE for a slot that no object has. */
int ref_counter_release(const char *name, uint32_t slot, struct err *e);

/* ref_counter_pid - the exporter's process number in its own pid namespace; 0 when the name has
 * none. */
pid_t ref_counter_pid(const char *name);

#endif
