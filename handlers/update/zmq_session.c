/* The steps of one update over sockets: receive a message from every socket, apply it to the
 * update, reply on every socket. */
#include "handlers/update/zmq_session.h"

#include "base/clock.h"
#include "control/pause_controller.h"
#include "control/source_threads.h"
#include "handlers/app.h"
#include "handlers/update/update_requester.h"
#include "handlers/update/zmq_request.h"
#include "transport/ipc/cuda_ipc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void zmq_session_free(struct zmq_session *p)
{
    if (p == NULL)
        return;
    for (uint32_t i = 0; i < p->n_ports; i++)
        free(p->addresses[i]);
    update_requester_free(p->asker);
    cnd_fini(&p->result.done_cnd);
    mtx_fini(&p->result.lock);
    free(p);
}

static uint64_t message_deadline(const struct zmq_session *p)
{
    uint64_t us = clock_after_us(p->app->settings.update_timeout_ms * 1000);

    return us < p->deadline_us ? us : p->deadline_us;
}

/* For messages: what the trainer has to send next. */
static const char *const expected_next[] = {[ZMQ_EXPECT_BUFFER] = "a buffer's handle",
                                            [ZMQ_EXPECT_TENSORS] = "a list of tensors, or None",
                                            [ZMQ_EXPECT_COMMIT] = "None"};

/* Fails if the update has to end early. Renews the session's lease. */
static int check_alive(struct zmq_session *p, uint64_t deadline_us, struct err *e)
{
    struct update_info info;

    if (source_threads_stopping(p->pool))
        return err_set(e, ERR_DRAINING, "", "the server is stopping");
    if (update_requester_disconnected(p->asker))
        return err_set(e, ERR_GONE, "", "the client that requested the update has disconnected");
    for (uint32_t i = 0; i < p->n_ports; i++)
        if (zmq_ports_lost(p->ports, i, e)) {
            (void)snprintf(e->field, sizeof e->field, ZMQ_SESSION_FIELD);
            return -1;
        }
    if (clock_passed(deadline_us))
        return err_set(
            e, ERR_TIMEOUT, ZMQ_SESSION_FIELD,
            "the deadline has passed (--update-timeout, %llu ms for each message, or the request's "
            "own timeout), and the trainer's next message, %s, has not been received or handled",
            (unsigned long long)p->app->settings.update_timeout_ms, expected_next[p->state]);
    return updates_renew(p->app->weights->updates, p->id, 0, &info, e);
}

/* Waits until every socket has a message. */
static int wait_messages(struct zmq_session *p, struct err *e)
{
    uint64_t deadline_us = message_deadline(p);
    uint32_t n = 0;
    size_t nbytes;

    while (n < p->n_ports) {
        zmq_ports_wait(p->ports, ZMQ_SLICE_MS);
        for (n = 0; n < p->n_ports && zmq_ports_message(p->ports, n, &nbytes) != NULL; n++)
            continue;
        if (n < p->n_ports && check_alive(p, deadline_us, e) != 0)
            return -1;
    }
    return 0;
}

static void reply_all(struct zmq_session *p)
{
    for (uint32_t i = 0; i < p->n_ports; i++)
        zmq_ports_reply(p->ports, i, "", 0);
}

/* On the update worker; `arg` outlives the job. */
static void on_worker_done(void *arg, const struct update_info *info, const struct err *e)
{
    struct zmq_worker_result *r = arg;

    mtx_lock(&r->lock);
    r->info = *info;
    r->e = *e;
    r->done = true;
    cnd_signal(&r->done_cnd);
    mtx_unlock(&r->lock);
}

static bool wait_slice(struct zmq_worker_result *r)
{
    bool done;

    mtx_lock(&r->lock);
    if (!r->done)
        (void)cnd_wait(&r->done_cnd, &r->lock, clock_after_us(ZMQ_SLICE_MS * 1000));
    done = r->done;
    mtx_unlock(&r->lock);
    return done;
}

/* Waits until the worker's job has ended, in every case; if there is a reason to end early, the
 * update is aborted first. The first reason is returned, unless the job succeeded all the same. */
static int wait_worker(struct zmq_session *p, struct err *e)
{
    struct err abort_cause = {0}, ignored = {0};
    struct update_info info;

    while (!wait_slice(&p->result)) {
        zmq_ports_wait(p->ports, 0);
        if (abort_cause.code == ERR_NONE && check_alive(p, p->deadline_us, &abort_cause) != 0)
            (void)updates_abort(p->app->weights->updates, p->id, abort_cause.msg, &info, &ignored);
    }
    p->result.done = false;
    if (p->result.e.code == ERR_NONE)
        return 0;
    *e = abort_cause.code != ERR_NONE && abort_cause.code != ERR_ENDED ? abort_cause : p->result.e;
    return -1;
}

static int receive_buffers(struct zmq_session *p, const struct zmq_message *m, struct err *e)
{
    for (uint32_t i = 0; i < p->n_ports; i++) {
        if (m[i].uuid[0] != '\0' && strcmp(m[i].uuid, p->uuids[i]) != 0)
            return err_set(e, ERR_BAD_REQUEST, ZMQ_SESSION_FIELD,
                           "the socket of GPU %s brings a buffer on GPU %s", p->uuids[i],
                           m[i].uuid);
        p->buffers[i] = m[i].buffer;
    }
    return 0;
}

/* Every rank of the trainer must send the same tensors at the same offsets of its own buffer. */
static int check_equal_lists(const struct zmq_session *p, const struct zmq_message *m,
                             struct err *e)
{
    for (uint32_t i = 1; i < p->n_ports; i++)
        if (strcmp(m[i].tensor_list->digest, m[0].tensor_list->digest) != 0 ||
            memcmp(m[i].offsets, m[0].offsets,
                   m[0].tensor_list->n_tensors * sizeof m[0].offsets[0]) != 0)
            return err_set(e, ERR_BAD_REQUEST, ZMQ_SESSION_FIELD,
                           "GPUs %s and %s were sent different lists of tensors", p->uuids[0],
                           p->uuids[i]);
    return 0;
}

/* The bucket of one socket, for the ranks that use it. */
static int make_socket_bucket(struct ipc_bucket *b, const struct zmq_session *p, uint32_t port,
                              const struct zmq_message *m, struct err *e)
{
    uint32_t n_ranks = p->app->weights->n_devices;

    b->ranks = calloc(n_ranks, sizeof b->ranks[0]);
    b->first = calloc(n_ranks, sizeof b->first[0]);
    b->n_tensors = calloc(n_ranks, sizeof b->n_tensors[0]);
    if (b->ranks == NULL || b->first == NULL || b->n_tensors == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the tensors");
    if (zmq_message_place(&b->handles.all, m, &p->buffers[port], e) != 0)
        return -1;
    b->handles.n_handles = m->tensor_list->n_tensors;
    b->handles.n_gpus = 1;
    memcpy(b->handles.gpus[0].uuid, p->uuids[port], sizeof b->handles.gpus[0].uuid);
    b->handles.gpus[0].handles = b->handles.all;
    for (uint32_t r = 0; r < n_ranks; r++) {
        if (p->port_of[r] != port)
            continue;
        b->ranks[r].gpu = &b->handles.gpus[0];
        b->n_tensors[r] = m->tensor_list->n_tensors;
    }
    return 0;
}

static int make_source(struct source **out, const struct zmq_session *p,
                       const struct zmq_message *m, struct err *e)
{
    struct tensor_list *tensor_lists[STORE_DEVICES_MAX];
    struct cuda_ipc_cfg cfg = {.devices = p->app->weights->devices,
                               .n_ranks = p->app->weights->n_devices,
                               .tensor_lists = tensor_lists,
                               .n_buckets = p->n_ports,
                               .stats = p->app->weights->ipc_stats};

    cfg.buckets = calloc(p->n_ports, sizeof cfg.buckets[0]);
    if (cfg.buckets == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the tensors");
    for (uint32_t i = 0; i < p->n_ports; i++)
        if (make_socket_bucket(&cfg.buckets[i], p, i, &m[i], e) != 0)
            goto free_buckets;
    for (uint32_t r = 0; r < cfg.n_ranks; r++)
        tensor_lists[r] = m[0].tensor_list;
    return cuda_ipc_source_new(out, &cfg, e);

free_buckets:
    for (uint32_t i = 0; i < p->n_ports; i++)
        ipc_bucket_fini(&cfg.buckets[i]);
    free(cfg.buckets);
    return -1;
}

/* The trainer synchronizes its GPU before it sends a list. The event in the handle is from the
 * time when the handle was made, and has to be waited for once only. */
static void clear_events(struct zmq_session *p)
{
    for (uint32_t i = 0; i < p->n_ports; i++)
        p->buffers[i].event_sync = false;
}

static int receive_tensors(struct zmq_session *p, const struct zmq_message *m, struct err *e)
{
    struct update_chunk *c;

    if (check_equal_lists(p, m, e) != 0 ||
        pause_controller_allows(p->app->pause_controller, CALL_UPDATE_RECEIVE, e) != 0)
        return -1;
    c = calloc(1, sizeof *c);
    if (c == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the update");
    memcpy(c->update_id, p->id, sizeof c->update_id);
    c->tensor_list = tensor_list_ref(m[0].tensor_list);
    c->done = on_worker_done;
    c->done_arg = &p->result;
    if (make_source(&c->source, p, m, e) != 0 ||
        updates_submit(p->app->weights->updates, c, e) != 0) {
        update_chunk_free(c);
        return -1;
    }
    p->submitted = true;
    clear_events(p);
    return wait_worker(p, e);
}

static int prove(struct zmq_session *p, const struct zmq_message *m, struct err *e)
{
    (void)m;
    if (pause_controller_allows(p->app->pause_controller, CALL_UPDATE_FINISH, e) != 0 ||
        updates_verify(p->app->weights->updates, p->id, NULL, 0, on_worker_done, &p->result, e) !=
            0)
        return -1;
    return wait_worker(p, e);
}

static int commit(struct zmq_session *p, const struct zmq_message *m, struct err *e)
{
    (void)m;
    if (pause_controller_allows(p->app->pause_controller, CALL_UPDATE_FINISH, e) != 0 ||
        updates_finish(p->app->weights->updates, p->id, "", NULL, 0, on_worker_done, &p->result,
                       e) != 0)
        return -1;
    return wait_worker(p, e);
}

/* The accepted messages of each state, their actions, and the next state. Other messages are
 * errors. */
static const struct transition {
    enum zmq_session_state from;
    enum zmq_message_kind message;
    int (*act)(struct zmq_session *p, const struct zmq_message *m, struct err *e);
    enum zmq_session_state to;
} transitions[] = {
    {ZMQ_EXPECT_BUFFER, ZMQ_MESSAGE_BUFFER, receive_buffers, ZMQ_EXPECT_TENSORS},
    {ZMQ_EXPECT_TENSORS, ZMQ_MESSAGE_TENSORS, receive_tensors, ZMQ_EXPECT_TENSORS},
    {ZMQ_EXPECT_TENSORS, ZMQ_MESSAGE_NONE, prove, ZMQ_EXPECT_COMMIT},
    {ZMQ_EXPECT_COMMIT, ZMQ_MESSAGE_NONE, commit, ZMQ_COMMITTED},
};

static const char *kind_name(enum zmq_message_kind kind)
{
    static const char *const names[] = {[ZMQ_MESSAGE_BUFFER] = "a buffer's handle",
                                        [ZMQ_MESSAGE_TENSORS] = "a list of tensors",
                                        [ZMQ_MESSAGE_NONE] = "None",
                                        [ZMQ_MESSAGE_ERROR] = "an error"};

    return names[kind];
}

static const struct transition *find_transition(enum zmq_session_state from,
                                                enum zmq_message_kind message)
{
    for (size_t i = 0; i < sizeof transitions / sizeof transitions[0]; i++)
        if (transitions[i].from == from && transitions[i].message == message)
            return &transitions[i];
    return NULL;
}

static int apply_messages(struct zmq_session *p, const struct zmq_message *m, struct err *e)
{
    const struct transition *t = find_transition(p->state, m[0].kind);

    for (uint32_t i = 0; i < p->n_ports; i++)
        if (m[i].kind == ZMQ_MESSAGE_ERROR)
            return err_set(e, ERR_CONFLICT, ZMQ_SESSION_FIELD,
                           "the trainer has aborted the update: another of its ranks, or another "
                           "server that it updates, has failed");
    for (uint32_t i = 0; i < p->n_ports; i++)
        if (m[i].kind != m[0].kind || t == NULL)
            return err_set(e, ERR_BAD_REQUEST, ZMQ_SESSION_FIELD,
                           "GPU %s: the trainer sent %s, expected %s", p->uuids[i],
                           kind_name(m[i].kind), expected_next[p->state]);
    if (t->act(p, m, e) != 0)
        return -1;
    p->state = t->to;
    return 0;
}

static int read_messages(struct zmq_session *p, struct zmq_message *m, struct err *e)
{
    struct err cause = {0};

    for (uint32_t i = 0; i < p->n_ports; i++) {
        size_t nbytes = 0;
        const void *data = zmq_ports_message(p->ports, i, &nbytes);

        if (zmq_message_read(&m[i], data, nbytes, &cause) != 0)
            return err_set(e, cause.code, ZMQ_SESSION_FIELD, "GPU %s: %.400s", p->uuids[i],
                           cause.msg);
    }
    return 0;
}

static int run_step(struct zmq_session *p, struct err *e)
{
    struct zmq_message *m;
    int rc;

    if (wait_messages(p, e) != 0)
        return -1;
    m = calloc(p->n_ports, sizeof *m);
    if (m == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the messages");
    rc = read_messages(p, m, e);
    if (rc == 0)
        rc = apply_messages(p, m, e);
    for (uint32_t i = 0; i < p->n_ports; i++)
        zmq_message_fini(&m[i]);
    free(m);
    if (rc == 0)
        reply_all(p);
    return rc;
}

static int start_update(struct zmq_session *p, struct err *e)
{
    struct update_start req = {.convert = true, .lease_s = UPDATE_LEASE_S_DEFAULT};
    const struct settings *s = &p->app->settings;
    struct update_info info;

    p->connect_us = clock_after_us(ZMQ_CONNECT_MS * 1000ULL);
    if (zmq_ports_open(&p->ports, (const char *const *)p->addresses, p->n_ports, s->allow_path,
                       s->n_allow_path, e) != 0 ||
        pause_controller_allows(p->app->pause_controller, CALL_UPDATE_START, e) != 0)
        return -1;
    memcpy(req.label, p->label, sizeof req.label);
    req.actor = p->actor;
    if (updates_start(p->app->weights->updates, &req, &info, e) != 0)
        return -1;
    memcpy(p->id, info.id, sizeof p->id);
    return 0;
}

void zmq_session_run(void *arg)
{
    struct zmq_session *p = arg;
    struct source_threads *pool = p->pool;
    struct err e = {0};
    int rc = start_update(p, &e);

    while (rc == 0 && p->state != ZMQ_COMMITTED)
        rc = run_step(p, &e);
    if (rc == 0)
        zmq_session_reply(p, &p->result.info, &e);
    else
        zmq_session_fail(p, &e);
    if (rc != 0 && p->ports != NULL)
        zmq_session_refuse_remaining(p);
    zmq_ports_close(p->ports);
    zmq_session_free(p);
    source_threads_end(pool);
}
