/* Leases: a version that other processes read stays alive until they close their lease, or until
 * the lease expires.
 *
 * A lease is a pin with an end; it counts against --max-versions. Of handles (LEASE_HANDLES), it
 * delays an update and a sleep, as any reader does. The store does not wait for a process whose
 * lease has ended: if that process still reads, it may read bytes of a later version.
 *
 * A lease of a file (LEASE_FILE) is read by this process, for others, between lease_use and
 * lease_unuse. It never delays an update or a sleep: it ends when one waits for it, and when its
 * version gets another name. */
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
    LEASES_FILE_MAX = 16, /* of these: each has the head of a file */
    LEASE_S_MAX = 3600
};

enum lease_kind { LEASE_HANDLES, LEASE_FILE };

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
 * is harmless. Threads: the owner's, when no thread is between lease_open and lease_start, or
 * lease_use and lease_unuse. Returns: how many of handles were open. */
uint32_t leases_stop(struct handle_leases *l);
void leases_free(struct handle_leases *l); /* stops first; accepts NULL */

/* lease_open_passed - a lease of a file of a version that is not committed yet, under this label:
 * it holds no version, and what the file has ends by itself. As lease_open. */
int lease_open_passed(struct handle_leases *l, uint32_t lease_s, const char *label,
                      struct lease_info *out, struct err *e);

/* lease_open - pin the version that is served now. The lease time begins with lease_start: until
 * then the version stays alive without limit, and only the caller knows the id. Leases of files are
 * opened one at a time: all bytes may have to be read for one.
 * @lease_s  1..LEASE_S_MAX
 * @version  borrowed, until lease_start or lease_close
 *
 * Threads: any; takes a leaf lock and MTX_STORE, one after the other. Blocks: no.
 * Errors: ERR_OVERLOADED (LEASES_MAX, LEASES_FILE_MAX, one of a file is being opened),
 *         ERR_DRAINING, and store_pin's. */
int lease_open(struct handle_leases *l, enum lease_kind kind, uint32_t lease_s,
               struct lease_info *out, const struct version **version, struct err *e);

/* lease_start - the lease expires lease_s seconds from now.
 * @id         of the caller's own lease_open
 * @file       what lease_use gives; NULL for LEASE_HANDLES
 * @free_file  called with it when the lease has ended and nobody uses it; must not block */
void lease_start(struct handle_leases *l, const char *id, void *file,
                 void (*free_file)(void *file));

/* lease_renew - the lease expires lease_s seconds from now (0: as many as before).
 * Errors: ERR_NOT_FOUND (there never was one of this kind, or it has ended). */
int lease_renew(struct handle_leases *l, enum lease_kind kind, const char *id, uint32_t lease_s,
                struct lease_info *out, struct err *e);

/* lease_close - end a lease. Errors: ERR_NOT_FOUND. */
int lease_close(struct handle_leases *l, enum lease_kind kind, const char *id, struct err *e);

/* A lease of a file in use: what it has, until lease_unuse. */
struct lease_use {
    const struct version *version; /* NULL: of lease_open_passed */
    const struct lease_info *info;
    void *file;
    size_t slot; /* of the lease, for lease_unuse */
};

/* lease_use - keep what a lease of a file has for a moment, even if the lease ends meanwhile.
 * Threads: any; takes a leaf lock. Blocks: no. Errors: ERR_LEASE_ENDED (or there never was one). */
int lease_use(struct handle_leases *l, const char *id, struct lease_use *out, struct err *e);
void lease_unuse(struct handle_leases *l, const struct lease_use *use);

/* leases_first - one of the open leases of handles. Returns false when there is none. Any thread.
 */
bool leases_first(struct handle_leases *l, struct lease_info *out);

#endif
