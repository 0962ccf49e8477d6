/* Leases: a version that other processes have mapped stays alive until they close their lease, or
 * until the lease expires.
 *
 * A lease is a pin with an end. It counts against --max-versions and delays a sleep, as any reader
 * does. The store does not wait for a process whose lease has ended: if that process still reads,
 * it may read bytes of a later version. */
#ifndef BATON_WEIGHTS_STORE_LEASES_H
#define BATON_WEIGHTS_STORE_LEASES_H

#include "base/err.h"
#include "base/id.h"
#include "base/lease_timer.h"
#include "weights/store/store.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    LEASE_ID_LEN = 4 + ID_LEN, /* "lse-" and the rest */
    LEASES_MAX = 256,
    LEASE_S_MAX = 3600
};

struct handle_leases;

struct lease_info {
    char id[LEASE_ID_LEN + 1];
    struct lease_timer timer;
    uint64_t serial; /* of the version that it holds */
    char label[VERSION_LABEL_MAX + 1];
};

/* leases_new - start the thread that ends leases.
 * @store  borrowed; outlives the leases
 * Errors: ERR_NO_MEMORY, ERR_INTERNAL (the thread). */
int leases_new(struct handle_leases **out, struct store *store, struct err *e);

/* leases_stop - end all leases and join the thread; a later lease_open is ERR_DRAINING. Repeating
 * is harmless. Threads: the owner's, when no thread is between lease_open and lease_start. Returns:
 * how many were open. */
uint32_t leases_stop(struct handle_leases *l);
void leases_free(struct handle_leases *l); /* stops first; accepts NULL */

/* lease_open - pin the version that is served now. The lease time begins with lease_start: until
 * then the version stays alive without limit, and only the caller knows the id.
 * @lease_s  1..LEASE_S_MAX
 * @version  borrowed, until lease_start or lease_close
 *
 * Threads: any; takes a leaf lock and MTX_STORE, one after the other. Blocks: no.
 * Errors: ERR_OVERLOADED (LEASES_MAX), ERR_DRAINING, and store_pin's. */
int lease_open(struct handle_leases *l, uint32_t lease_s, struct lease_info *out,
               const struct version **version, struct err *e);

/* lease_start - the lease expires lease_s seconds from now. @id  of the caller's own lease_open. */
void lease_start(struct handle_leases *l, const char *id);

/* lease_renew - the lease expires lease_s seconds from now (0: as many as before).
 * Errors: ERR_NOT_FOUND (it never existed, or has ended). */
int lease_renew(struct handle_leases *l, const char *id, uint32_t lease_s, struct lease_info *out,
                struct err *e);

/* lease_close - end a lease. Errors: ERR_NOT_FOUND. */
int lease_close(struct handle_leases *l, const char *id, struct err *e);

/* leases_first - one of the open leases. Returns false when there is none. Any thread. */
bool leases_first(struct handle_leases *l, struct lease_info *out);

#endif
