/* torch's reference counter of an exported tensor: a slot in a POSIX shared memory object of the
 * exporter. It is 1 after the export, and the receiver decrements it once. Until then the exporter
 * keeps the memory.
 *
 * A trainer's object is only read and decremented: never created, grown or unlinked. Its name comes
 * from a request, so the name must have torch's form, and the object must be one that torch can
 * have made.
 *
 * Our own counts what an engine still reads. torch decrements a slot when the last tensor of the
 * storage is dropped, after it has waited for the stream that used it (THPStorage_newSharedCuda in
 * torch/csrc/StorageSharing.cpp); it does so without an atomic operation, so each process that
 * decrements has a slot of its own. */
#ifndef BATON_TRANSPORT_IPC_REF_COUNTER_H
#define BATON_TRANSPORT_IPC_REF_COUNTER_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    REF_COUNTER_SLOTS = 10000, /* of one object */
    REF_COUNTER_HEAD = 64,     /* bytes before them: torch's count of processes that map it */
    REF_COUNTER_NBYTES = REF_COUNTER_HEAD + 8 * REF_COUNTER_SLOTS
};

/* One mapped object; zeroed: none. It holds no descriptor. */
struct ref_counter {
    void *base; /* REF_COUNTER_NBYTES, shared with the exporter */
};

/* ref_counter_open - map the object. Decrement and close it at once: if its owner shrinks it while
 * it is mapped, an access is a SIGBUS here. (Its owner is our own user, or we are root and trust
 * it.)
 * @name  in torch's form: /torch_<pid>_<number>[_<number>]
 *
 * Threads: any. Blocks: no. *out is written on success only.
 * Errors:  ERR_UNREADABLE  the name has another form; no such object; not a file; another user's
 *          (unless we are root); too short. The trainer then keeps that memory until it exits: the
 *          caller reports this and continues. */
int ref_counter_open(struct ref_counter *out, const char *name, struct err *e);
void ref_counter_close(struct ref_counter *c); /* accepts a zeroed one */

/* ref_counter_down - decrement a slot if it is above zero. Below zero, torch would read its
 * unsigned count as a huge one and never free that memory.
 * @slot  below REF_COUNTER_SLOTS
 * Returns: whether it was above zero. */
bool ref_counter_down(struct ref_counter *c, uint32_t slot);

/* ref_counter_release - open, decrement one slot, close.
 * Errors: as ref_counter_open; ERR_UNREADABLE also for a slot number that is too large. */
int ref_counter_release(const char *name, uint32_t slot, struct err *e);

/* ref_counter_create - make an object of our own; every slot is 0.
 * @name  in torch's form; no object has it
 * Blocks: no. Errors: ERR_INTERNAL: the object cannot be made; *out is not written then.
 * ref_counter_remove - unmap and unlink it. A process that has yet to decrement finds none, and
 * ignores that, as torch does of an exporter that has ended. If this process is killed, the object
 * stays. @c  zeroed: nothing happens */
int ref_counter_create(struct ref_counter *out, const char *name, struct err *e);
void ref_counter_remove(struct ref_counter *c, const char *name);

/* ref_counter_expect - expect one decrement. ref_counter_is_down - has it come?
 * @slot  below REF_COUNTER_SLOTS */
void ref_counter_expect(struct ref_counter *c, uint32_t slot);
bool ref_counter_is_down(const struct ref_counter *c, uint32_t slot);

/* ref_counter_pid - the exporter's process number in its own pid namespace; 0 when the name has
 * none. */
pid_t ref_counter_pid(const char *name);

#endif
