/* Reads the unique id from torch's TCPStore, in the two forms in which trainers store it. */
#include "base/log.h"
#include "transport/nccl/nccl_join_priv.h"

#include <stdio.h>

/* vLLM's StatelessProcessGroup: the first object that rank 0 broadcasts. */
#define KEY_STATELESS "broadcast_from/0/0"

/* The key that torch's ProcessGroupNCCL makes of its first communicator's number, after two
 * prefixes with the group's name: the wrapper's, and the process group's own. The double slashes
 * are real. */
#define KEY_TORCH "%s/%s//cuda//0"

enum { KEY_CAP = 2 * NCCL_JOIN_GROUP_NAME_MAX + sizeof KEY_TORCH };

static bool (*allows_of(const struct nccl_join *j))(const void *, const struct sockaddr *)
{
    return j->cfg.allow != NULL && j->cfg.allow->n > 0 ? cidr_list_match : NULL;
}

/* A store that other ranks have joined holds the id of another group, or an old one. */
static void check_count(const struct nccl_join *j, uint64_t n_joined)
{
    if (n_joined <= j->cfg.group.world_size)
        return;
    log_line(LOG_WARN, "nccl.store_shared",
             "%llu ranks were counted at %s, for a world size of %u: the store also serves another "
             "group, or served one before",
             (unsigned long long)n_joined, j->master, (unsigned)j->cfg.group.world_size);
}

int rendezvous_count(struct tcpstore **out, const struct nccl_join *j, struct err *e)
{
    struct tcp_dial_cfg dial = {
        .host = j->host,
        .port = j->cfg.port,
        .allows = allows_of(j),
        .allows_arg = j->cfg.allow,
        .field = "/master_address",
        .what = "the trainer's store",
    };
    struct tcpstore *store;
    uint64_t n_joined;

    if (tcpstore_open(&store, &dial, &j->progress, e) != 0)
        return -1;
    if (tcpstore_join(store, j->cfg.group.n_ranks, &n_joined, &j->progress, e) != 0) {
        tcpstore_close(store);
        return -1;
    }
    check_count(j, n_joined);
    *out = store;
    return 0;
}

/* The usual reason why a key never comes. */
static int explain_missing_key(const struct nccl_join *j, struct err *e)
{
    struct err cause = *e;

    if (cause.code != ERR_TIMEOUT)
        return -1;
    err_clear(e);
    if (j->cfg.form == NCCL_FORM_TORCH)
        return err_set(e, ERR_TIMEOUT, "",
                       "%.300s; the trainer's first collective puts it there, unless its group was "
                       "split from another (device_id), which cannot be joined",
                       cause.msg);
    return err_set(e, ERR_TIMEOUT, "",
                   "%.300s; rank 0 of a stateless group puts it there; is this a torch process "
                   "group (group_name), or are ranks missing?",
                   cause.msg);
}

int rendezvous_id(uint8_t id[NCCL_ID_NBYTES], const struct nccl_join *j, struct tcpstore *store,
                  struct err *e)
{
    uint8_t value[TCPSTORE_VALUE_NBYTES_MAX];
    char key[KEY_CAP] = KEY_STATELESS;
    size_t nbytes;

    if (j->cfg.form == NCCL_FORM_TORCH)
        (void)snprintf(key, sizeof key, KEY_TORCH, j->group_name, j->group_name);
    if (tcpstore_wait(store, key, &j->progress, e) != 0)
        return explain_missing_key(j, e);
    if (tcpstore_get(store, key, value, &nbytes, &j->progress, e) != 0)
        return -1;
    return j->cfg.form == NCCL_FORM_TORCH ? nccl_id_from_raw(id, value, nbytes, e)
                                          : nccl_id_from_pickle(id, value, nbytes, e);
}

int rendezvous_allow(const uint8_t id[NCCL_ID_NBYTES], const struct nccl_join *j, struct err *e)
{
    return nccl_id_allow(id, allows_of(j), j->cfg.allow,
                         j->cfg.form == NCCL_FORM_ID ? "/nccl_unique_id" : "", e);
}
