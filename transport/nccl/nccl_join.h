/* One invitation to a trainer's NCCL group, from the rendezvous to the last byte: how the unique id
 * is had, the group that is made of it, and whether the trainer is still there.
 *
 * Two threads. The supervisor makes the group, answers whoever invited, watches the trainer's
 * store, and takes everything down; the other goes through the rendezvous and into the group, where
 * it may wait for peers that never come. Whoever ends a join only says so; the supervisor does it.
 * So no caller waits for a peer, and no thread frees what another is using.
 *
 * Nothing is ever joined again: a failed join has failed, and only the trainer can make the next
 * id. */
#ifndef BATON_TRANSPORT_NCCL_NCCL_JOIN_H
#define BATON_TRANSPORT_NCCL_NCCL_JOIN_H

#include "base/err.h"
#include "base/net/cidr.h"
#include "http/http_request.h"
#include "transport/nccl/nccl_group.h"
#include "transport/nccl/nccl_id.h"
#include "transport/nccl/packed_chunks.h"
#include "weights/source.h"
#include "weights/tensor_list.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    NCCL_JOIN_HOST_MAX = 255,
    NCCL_JOIN_GROUP_NAME_MAX = 256,
    NCCL_JOIN_MASTER_CAP = NCCL_JOIN_HOST_MAX + 9 /* "[<host>]:65535" and a NUL */
};

/* How the unique id is had. */
enum nccl_form {
    NCCL_FORM_ID,    /* it came with the invitation */
    NCCL_FORM_STORE, /* vLLM's stateless group: pickled, in torch's TCPStore, at once */
    NCCL_FORM_TORCH  /* a torch process group: raw, in the store when the trainer's first collective
                        begins, which is its first update; so whoever invited is answered before */
};

/* Of all joins of the process; the owner's, zeroed before the first. Relaxed: counters. */
struct nccl_join_stats {
    atomic_uint_fast64_t n_begun, n_joined, n_failed; /* failed: ended by anything but
                                                         nccl_join_leave */
    atomic_uint_fast64_t nbytes_received, n_broadcasts;
};

struct nccl_join_info {
    enum nccl_group_state state;
    enum nccl_form form;
    uint32_t world_size, rank_offset, n_ranks;
    uint32_t n_users;                   /* sources that are open */
    int trainer_version;                /* 22809; 0 while it is not known */
    char bootstrap[CIDR_ADDR_TEXT_CAP]; /* in the id: where the trainer's NCCL listens; "" while
                                           there is no id */
    char master[NCCL_JOIN_MASTER_CAP];  /* "" without a store */
    char group_name[NCCL_JOIN_GROUP_NAME_MAX + 1]; /* "" unless NCCL_FORM_TORCH */
    uint64_t nbytes_received, n_broadcasts;
    uint64_t begun_us;
    struct err error; /* why it failed or was left; clean otherwise */
};

struct nccl_join;

struct nccl_join_cfg {
    struct nccl_group_cfg group; /* what it borrows outlives the join */
    int version;                 /* of the library, for messages: 22809 */

    enum nccl_form form;
    uint8_t id[NCCL_ID_NBYTES]; /* NCCL_FORM_ID */
    const char *host;           /* of the store, otherwise; copied, as group_name is */
    uint16_t port;
    const char *group_name; /* NCCL_FORM_TORCH: 1..NCCL_JOIN_GROUP_NAME_MAX bytes */

    /* The store, and the address in the id; NULL or empty: every address. Borrowed. */
    const struct cidr_list *allow;

    /* From the beginning until it has joined. NCCL_FORM_TORCH: until it is counted in, and again
     * from the id's appearance on; between the two first_collective_us. */
    uint64_t timeout_us, first_collective_us;

    struct nccl_join_stats *stats;

    /* Left, and taken down before anything of this one begins, which fails if that sticks; moved in
     * on success. May be NULL. */
    struct nccl_join *previous;

    /* Called once, on the supervisor's thread, no lock held: when it has joined (NCCL_FORM_TORCH:
     * when it has been counted in), or when it has failed and nothing of it is left. `e` is clean
     * on success. Must not block. */
    void (*answer)(void *arg, const struct nccl_join_info *info, const struct err *e);
    void *answer_arg;
    struct http_request *x; /* the same invitation: when its sender goes before that, the join ends;
                           NULL: nobody can go */

    /* As answer, when an abort does not come back: the process must be restarted. May be NULL. */
    void (*stuck)(void *arg, const struct err *why);
    void *stuck_arg;
};

/* nccl_join_new - begin. Nothing has been asked of anybody when this returns.
 * Threads: any; takes MTX_HTTP_REQUEST and MTX_LEAF. Blocks: no.
 * Errors: ERR_NO_MEMORY, ERR_INTERNAL (no thread); the answer is then not called. */
int nccl_join_new(struct nccl_join **out, const struct nccl_join_cfg *cfg, struct err *e);

/* nccl_join_leave - end it, whatever it is doing: its group is left by abort, open sources fail.
 * @why      what all those are told; borrowed
 * @gone     called as nccl_join_cfg.answer is, when nothing of it is left; may be NULL. Given once
 *           only
 * Threads: any. Blocks: no. Repeating is harmless; the first cause is told.
 * Returns: false when nothing of it is left already: `gone` is not called then. */
bool nccl_join_leave(struct nccl_join *j, const struct err *why, void (*gone)(void *arg),
                     void *gone_arg);

/* nccl_join_free - leave, wait until nothing is left, free; accepts NULL.
 * Threads: any that no source of it needs. Blocks: until its sources are closed and its aborts
 * over, at most the abort's time-out after that. */
void nccl_join_free(struct nccl_join *j);

void nccl_join_info(struct nccl_join *j, struct nccl_join_info *out); /* any thread; instant */

/* nccl_join_doubt - an update was refused before its broadcast was entered. Its trainer may have
 * sent it all the same, and then its bytes are what the next receive would take: from now on only
 * who is `sure` gets a source. A source that closes before its first post was called does it
 * too; one that closes after that, and has not received all, ends the join. Threads: any. */
void nccl_join_doubt(struct nccl_join *j);

/* nccl_join_source_new - tensors that the group is about to broadcast. In a torch process group
 * that has not been joined yet, the first post waits for that, until its own deadline.
 * @tensor_list    a reference is taken
 * @chunks  moved in, also on failure: where each broadcast ends
 * @sure    the trainer broadcasts only what was accepted, so nothing older can be on its way
 * Threads: any, as are those of the source's close. Blocks: no.
 * Errors: ERR_CONFLICT (not joined, and not on the way there as a torch group; in doubt, and not
 *         sure; the group has failed, which ends the join where nobody was told yet),
 *         ERR_NO_MEMORY. The source's receive also brings what ended the join. */
int nccl_join_source_new(struct source **out, struct nccl_join *j, struct tensor_list *tensor_list,
                         struct packed_chunks *chunks, bool sure, struct err *e);

#endif
