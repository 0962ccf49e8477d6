/* The version that another server has committed, leased while it is read: one safetensors file, in
 * ranges over several connections, written where the update puts it. What is read is compared with
 * the checksums in the file's head. */
#ifndef BATON_TRANSPORT_PEER_PEER_H
#define BATON_TRANSPORT_PEER_PEER_H

#include "base/err.h"
#include "base/progress.h"
#include "weights/safetensors.h"
#include "weights/source.h"
#include "weights/version_label.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum {
    PEER_CONNECTIONS_MAX = 64,
    PEER_TEXT_MAX = 64, /* of an id or a digest */
    PEER_LEASE_S = 300, /* renewed three times as often */
    PEER_PIECE_MAX = 16 << 20
};

/* What it points to outlives the peer. */
struct peer_cfg {
    const char *url;
    const char *authorization; /* or NULL */
    const char *ca_file;       /* NULL: the system's */
    /* As of struct http_call_request. */
    bool (*allowed)(const void *arg, const struct sockaddr *addr);
    const void *allowed_arg;
    unsigned n_connections; /* 1..PEER_CONNECTIONS_MAX */
    uint64_t rate_max;      /* bytes a second, of all connections together; 0: no limit */
    uint64_t stall_us;      /* longest time without a byte */
};

/* What is leased, as the peer says. */
struct peer_version {
    char lease_id[PEER_TEXT_MAX + 1], boot_id[PEER_TEXT_MAX + 1];
    char plan_digest[PEER_TEXT_MAX + 1], digest[PEER_TEXT_MAX + 1];
    char label[VERSION_LABEL_MAX + 1];
    uint64_t serial, nbytes; /* of the file */
};

struct peer;
struct pass;

/* peer_open - lease what the server has committed.
 * Threads: any; the peer then belongs to one. Blocks: until `progress` or a stall ends it.
 * Errors: ERR_SEEDING (it is about to read a version itself: it will have one soon),
 *         ERR_UNREADABLE (no connection, another status than 200, an answer of another form),
 *         ERR_TIMEOUT, ERR_CONFLICT, ERR_GONE, ERR_NO_MEMORY, ERR_INTERNAL. */
int peer_open(struct peer **out, const struct peer_cfg *cfg, const struct progress *progress,
              struct err *e);
const struct peer_version *peer_version(const struct peer *p);

/* peer_read_head - read and parse the file's head. As peer_open; also the errors of
 * safetensors_parse. */
int peer_read_head(struct peer *p, const struct progress *progress, struct err *e);
const struct safetensors *peer_file(const struct peer *p); /* after peer_read_head */

/* peer_source - tensors of the file, as a source of the first kind.
 * @list   one more reference is taken
 * @at     [n_tensors] ascending: where they are in the file's list; copied. Each has a checksum
 * @again  the memory may have bytes of an earlier attempt: a tensor that has the right checksum
 *         where it is to be written is not read
 * @pass   gets them; one more reference is taken; NULL: none
 * A tensor whose checksum is wrong is read once more; its bytes are then reported twice.
 * Errors: ERR_NO_MEMORY. Of fill: ERR_CHECKSUM (twice wrong: names the tensor), ERR_UNREADABLE (the
 *         lease has ended, a range that was not asked for, another file, more or fewer bytes, …),
 *         ERR_TIMEOUT, ERR_CONFLICT, ERR_GONE, ERR_NO_MEMORY. */
int peer_source(struct source **out, struct peer *p, struct tensor_list *list, const uint32_t *at,
                bool again, struct pass *pass, struct err *e);

/* peer_nbytes_read - bytes of tensors that came so far. Threads: any. */
uint64_t peer_nbytes_read(const struct peer *p);

/* peer_close - end the lease, for which it waits a second at most, and free. Its sources are closed
 * before. Accepts NULL. */
void peer_close(struct peer *p);

#endif
