/* Invitations, who sends them, and what is received of the groups that come of them. */
#ifndef BATON_TESTS_UNIT_TRANSPORT_JOIN_FIXTURE_H
#define BATON_TESTS_UNIT_TRANSPORT_JOIN_FIXTURE_H

#include "tests/unit/transport/group_fixture.h"

#include "tests/fakes/tcpstore_server.h"
#include "transport/nccl/nccl_join.h"

enum { SECONDS = 1000 * 1000, NBYTES = 1000, TENSORS = 3, SOON_US = 300 * 1000 };

/* Whoever invited. */
struct inviter {
    atomic_int n_answers, n_gone, n_stuck;
    struct nccl_join_info info;
    struct err e;
    struct nccl_join_stats stats;
};

static inline void answered(void *arg, const struct nccl_join_info *info, const struct err *e)
{
    struct inviter *i = arg;

    i->info = *info;
    i->e = *e;
    atomic_fetch_add(&i->n_answers, 1);
}

static inline void gone(void *arg)
{
    struct inviter *i = arg;

    atomic_fetch_add(&i->n_gone, 1);
}

static inline void stuck(void *arg, const struct err *why)
{
    struct inviter *i = arg;

    assert_non_null(strstr(why->msg, "must be restarted"));
    atomic_fetch_add(&i->n_stuck, 1);
}

static inline const struct err *await(struct inviter *i)
{
    NFX_UNTIL(atomic_load(&i->n_answers) > 0);
    return &i->e;
}

static inline struct nccl_join_cfg invitation(struct inviter *i, enum nccl_form form)
{
    return (struct nccl_join_cfg){
        .group = {.nccl = &nfx.nccl,
                  .devices = gfx.devices,
                  .n_ranks = 1,
                  .world_size = 2,
                  .rank_offset = 1,
                  .warm_up = form != NCCL_FORM_TORCH,
                  .abort_timeout_us = gfx_abort_timeout_us},
        .version = 22809,
        .form = form,
        .host = "127.0.0.1",
        .group_name = "G",
        .timeout_us = (uint64_t)NFX_PATIENCE_S * SECONDS,
        .first_collective_us = (uint64_t)NFX_PATIENCE_S * SECONDS,
        .stats = &i->stats,
        .answer = answered,
        .answer_arg = i,
        .stuck = stuck,
        .stuck_arg = i,
    };
}

static inline struct nccl_join *begin(const struct nccl_join_cfg *cfg)
{
    struct nccl_join *j = NULL;
    struct err e = {0};

    if (nccl_join_new(&j, cfg, &e) != 0)
        fail_msg("%s", e.msg);
    return j;
}

static inline struct nccl_join_info info_of(struct nccl_join *j)
{
    struct nccl_join_info info;

    nccl_join_info(j, &info);
    return info;
}

static inline bool leave(struct nccl_join *j, const char *why, struct inviter *i)
{
    struct err e = {0};

    (void)err_set(&e, ERR_CONFLICT, "", "%s", why);
    return nccl_join_leave(j, &e, i != NULL ? gone : NULL, i);
}

/* By its id, with a trainer. */
static inline struct nccl_join *joined(struct nfx_peer *p, struct inviter *i)
{
    struct nccl_join_cfg cfg = invitation(i, NCCL_FORM_ID);
    struct nccl_join *j;
    ncclUniqueId id;

    *p = nfx_spawn(NULL);
    id = nfx_mint(p);
    memcpy(cfg.id, gfx_id(&id), sizeof cfg.id);
    gfx_trainer_joins(p, id, 2, true);
    j = begin(&cfg);
    if (await(i)->code != ERR_NONE)
        fail_msg("%s", i->e.msg);
    for (int k = 0; k < 2; k++)
        assert_int_equal(nfx_hear(p).result, ncclSuccess);
    return j;
}

static inline struct tensor_list *tensor_list_new(void)
{
    const uint64_t nbytes = NBYTES;
    struct tensor_list_builder *b = NULL;
    struct tensor_list *tensor_list = NULL;
    struct err e = {0};
    char name[16];

    assert_int_equal(tensor_list_builder_new(&b, &e), 0);
    for (uint32_t i = 0; i < TENSORS; i++) {
        (void)snprintf(name, sizeof name, "t%u", (unsigned)i);
        assert_int_equal(tensor_list_builder_add(b, name, DTYPE_U8, &nbytes, 1, UINT64_MAX, &e), 0);
    }
    assert_int_equal(tensor_list_builder_finish(b, &tensor_list, &e), 0);
    return tensor_list;
}

/* One broadcast for each tensor; NULL with e set when that is refused. */
static inline struct source *source_of(struct nccl_join *j, bool sure, struct err *e)
{
    struct tensor_list *tensor_list = tensor_list_new();
    struct packed_chunks chunks = {0};
    struct source *s = NULL;
    int rc;

    assert_int_equal(packed_chunks_each(&chunks, tensor_list, e), 0);
    rc = nccl_join_source_new(&s, j, tensor_list, &chunks, sure, e);
    tensor_list_unref(tensor_list);
    assert_null(chunks.chunks);
    assert_true((rc == 0) == (s != NULL) && (rc == 0) == (e->code == ERR_NONE));
    return s;
}

static inline struct source *source_new(struct nccl_join *j)
{
    struct err e = {0};
    struct source *s = source_of(j, false, &e);

    if (s == NULL)
        fail_msg("%s", e.msg);
    return s;
}

static inline void refused(struct nccl_join *j, bool sure, const char *why)
{
    struct err e = {0};

    assert_null(source_of(j, sure, &e));
    assert_int_equal(e.code, ERR_CONFLICT);
    if (strstr(e.msg, why) == NULL)
        fail_msg("'%s' is not in: %s", why, e.msg);
}

/* Tensors [0, n), of seeds 0 and on. */
static inline void receive(struct source *s, struct nfx_peer *p, uint32_t n)
{
    uint64_t dst = gfx_buffer(0, NBYTES);
    struct progress wait = gfx_patient();
    struct err e = {0};

    for (uint32_t i = 0; i < n; i++)
        nfx_send(p, NBYTES, i);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(s->ops->bucket(s, i), 1);
        if (s->ops->post(s, i, 1, &dst, &wait, &e) != 0 || s->ops->receive(s, &wait, &e) != 0)
            fail_msg("%s", e.msg);
        assert_int_equal(nfx_n_wrong(dst, NBYTES, i, 0), 0);
        assert_int_equal(nfx_hear(p).result, ncclSuccess);
    }
    gfx_drop(dst);
}

static inline void receive_fails(struct source *s, struct progress *p, enum err_code code,
                                 const char *why)
{
    uint64_t dst = gfx_buffer(0, NBYTES);
    struct err e = {0};

    assert_true(s->ops->post(s, 0, 1, &dst, p, &e) != 0 || s->ops->receive(s, p, &e) != 0);
    assert_int_equal(e.code, code);
    if (strstr(e.msg, why) == NULL)
        fail_msg("'%s' is not in: %s", why, e.msg);
    assert_false(s->ops->stuck(s));
    gfx_drop(dst);
}

/* A store in a thread of the test, with the trainer's own count. */
static inline struct store_server *store_of(struct nccl_join_cfg *cfg)
{
    struct store_server *store = store_server_new(STORE_LIBUV);

    (void)store_server_add(store, "init/", 1);
    cfg->port = store_server_port(store);
    return store;
}

#endif
