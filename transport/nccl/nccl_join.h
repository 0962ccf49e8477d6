/* One invitation to a trainer's NCCL group, from the rendezvous to the last byte: how the unique
 * id is obtained, the group that is created from it, and whether the trainer is still alive.
 *
 * There are two threads. The supervisor creates the group, answers the inviter, watches the
 * trainer's store, and takes everything down. The joiner goes through the rendezvous and into the
 * group, where it may wait for peers that never come. Other threads that end a join only set the
 * reason; the supervisor does the work. So no caller waits for a peer, and no thread frees what
 * another one uses.
 *
 * A group is never joined again: after a failure only the trainer can create the next id. */
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

/* How the unique id is obtained. */
enum nccl_form {
    NCCL_FORM_ID,    /* it is in the invitation */
    NCCL_FORM_STORE, /* vLLM's stateless group: pickled, in torch's TCPStore from the start */
    NCCL_FORM_TORCH  /* a torch process group: raw, in the store when the trainer's first collective
                        begins, which is its first update; so the inviter is answered before */
};

/* Counters of all joins of the process; the caller's memory, zeroed before the first join. Relaxed
 * atomics. */
struct nccl_join_stats {
    atomic_uint_fast64_t n_begun, n_joined,
        n_failed; /* failed: ended by anything but nccl_join_leave */
    atomic_uint_fast64_t nbytes_received, n_broadcasts;
};

struct nccl_join_info {
    enum nccl_group_state state;
    enum nccl_form form;
    uint32_t world_size, rank_offset, n_ranks;
    uint32_t n_users;                   /* sources that are open */
    int trainer_version;                /* 22809; 0 while it is not known */
    char bootstrap[CIDR_ADDR_TEXT_CAP]; /* the address in the id, at which the trainer's NCCL
                                           listens; "" while there is no id */
    char master[NCCL_JOIN_MASTER_CAP];  /* "" without a store */
    char group_name[NCCL_JOIN_GROUP_NAME_MAX + 1]; /* "" unless NCCL_FORM_TORCH */
    uint64_t nbytes_received, n_broadcasts;
    uint64_t begun_us;
    bool ends_if_refused;
    struct err error; /* why it failed or was left; clean otherwise */
};

struct nccl_join;

struct nccl_join_cfg {
    struct nccl_group_cfg group; /* objects that it borrows outlive the join */
    int version;                 /* the library's, for messages: 22809 */

    enum nccl_form form;
    uint8_t id[NCCL_ID_NBYTES]; /* NCCL_FORM_ID */
    const char *host;           /* the store's, in the other forms; copied, like group_name */
    uint16_t port;
    const char *group_name; /* NCCL_FORM_TORCH: 1..NCCL_JOIN_GROUP_NAME_MAX bytes */

    /* Allowed addresses, of the store and in the id; NULL or empty: every address. Borrowed. */
    const struct cidr_list *allow;

    /* timeout_us: from the start until the group is joined. NCCL_FORM_TORCH: until the ranks are
     * counted in the store, and again from the appearance of the id on; first_collective_us is the
     * time between the two. */
    uint64_t timeout_us, first_collective_us;

    struct nccl_join_stats *stats;

    /* The trainer broadcasts without waiting for the answer to its update (the trainers of vLLM and
     * SGLang): a refused one ends the join. NCCL ends no broadcast by itself, but it reports to a
     * rank that others have left, and process groups of torch end by that. */
    bool ends_if_refused;

    /* The previous join, which is left and taken down before anything of this one begins; this one
     * fails if that gets stuck. Moved in on success. May be NULL. */
    struct nccl_join *previous;

    /* Called once, on the supervisor's thread, no lock held: when the group is joined
     * (NCCL_FORM_TORCH: when its ranks are counted in the store), or when the join has failed and
     * nothing of it is left. `e` is clean on success. Must not block. */
    void (*answer)(void *arg, const struct nccl_join_info *info, const struct err *e);
    void *answer_arg;
    struct http_request *x; /* the request of the invitation: if its client disconnects before the
                               answer, the join ends; NULL: there is no client */

    /* Called as `answer` is, when an abort does not return: the process must be restarted. May be
     * NULL. */
    void (*stuck)(void *arg, const struct err *why);
    void *stuck_arg;
};

/* nccl_join_new - start a join. No connection is made before this returns.
 * Threads: any; takes MTX_HTTP_REQUEST and MTX_LEAF. Blocks: no.
 * Errors: ERR_NO_MEMORY, ERR_INTERNAL (no thread); the answer is then not called. */
int nccl_join_new(struct nccl_join **out, const struct nccl_join_cfg *cfg, struct err *e);

/* nccl_join_leave - end a join in any state: its group is left by abort, open sources fail.
 * @why      the error that the inviter and the sources get; copied
 * @gone     called as nccl_join_cfg.answer is, when nothing of the join is left; may be NULL.
 * Given once only
 * Threads: any. Blocks: no. Repeating is harmless; the first cause is kept.
 * Returns: false when nothing of the join is left already: `gone` is not called then. */
bool nccl_join_leave(struct nccl_join *j, const struct err *why, void (*gone)(void *arg),
                     void *gone_arg);

/* nccl_join_free - leave, wait until nothing of the join is left, and free it; accepts NULL.
 * Threads: any but those that a source of the join needs. Blocks: until its sources are closed and
 * its aborts are over, which takes at most the abort's timeout after that. */
void nccl_join_free(struct nccl_join *j);

void nccl_join_info(struct nccl_join *j,
                    struct nccl_join_info *out); /* any thread; does not block */

/* What follows from a refused update by such a group, for its message. */
#define NCCL_GROUP_LEFT                                                                            \
    "its trainer may already broadcast it, so the group was left, which NCCL reports there: join " \
    "a new group"

/* nccl_join_doubt - an update was refused before its broadcast was entered. Its trainer may have
 * sent it nevertheless, and then the next receive would get its bytes: from now on only a caller
 * that is `sure` gets a source. A source that is closed before its first post has the same effect;
 * a source that is closed later, and has not received everything, ends the join. So does a doubt
 * if ends_if_refused, as soon as the group is joined and no other source receives: each later
 * source is an ERR_GROUP_LEFT.
 * @sent_us  when the request came: a join that began later is not meant
 * Returns: has a refusal ended the join, or will it? Threads: any. */
bool nccl_join_doubt(struct nccl_join *j, uint64_t sent_us);

/* nccl_join_keep_list - an update was committed: its list is the one that nccl_join_list returns.
 * @list   of its last request by a group; a reference is taken
 * @group  that group, as its sources have it; unless it is this one, nothing changes
 * nccl_join_list - @out  a reference to the list that was kept last; on success only
 * Errors: ERR_GROUP_LEFT, ERR_CONFLICT (the group has failed); ERR_BAD_REQUEST at /names: none was.
 * Threads: any. */
void nccl_join_keep_list(struct nccl_join *j, struct tensor_list *list, uint64_t group);
int nccl_join_list(struct nccl_join *j, struct tensor_list **out, struct err *e);

/* nccl_join_left - has a refusal ended the join, or will it? Threads: any. */
bool nccl_join_left(struct nccl_join *j);

/* nccl_join_source_new - create a source of tensors that the group is about to broadcast. In a
 * torch process group that is not joined yet, the first post waits for that, until its own
 * deadline.
 * @tensor_list  a reference is taken
 * @chunks       moved in, also on failure: where each broadcast ends
 * @sure         the trainer broadcasts only accepted updates, so no older bytes can arrive
 * Threads: any; also for the source's close. Blocks: no.
 * Errors: ERR_CONFLICT (not joined, unless a torch group is counted in the store; in doubt, and
 * not sure; the group has failed, which ends the join if it has not ended yet), ERR_NO_MEMORY. The
 * source's receive also returns the error that ended the join. */
int nccl_join_source_new(struct source **out, struct nccl_join *j, struct tensor_list *tensor_list,
                         struct packed_chunks *chunks, bool sure, struct err *e);

#endif
