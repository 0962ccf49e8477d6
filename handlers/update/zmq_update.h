/* One update over sockets, between update_zmq.c (which reads the request) and zmq_update.c
 * (which is the thread that works on it). */
#ifndef BATON_HANDLERS_UPDATE_ZMQ_UPDATE_H
#define BATON_HANDLERS_UPDATE_ZMQ_UPDATE_H

#include "base/mtx.h"
#include "base/workers.h"
#include "transport/ipc/ipc_handle.h"
#include "transport/zmq/zmq_messages.h"
#include "transport/zmq/zmq_ports.h"
#include "weights/store/store.h"
#include "weights/update/update.h"

#include <stdbool.h>
#include <stdint.h>

struct app;
struct update_requester;
struct zmq_updates;

enum { ZMQ_UPDATE_PORTS_MAX = STORE_DEVICES_MAX };
_Static_assert((int)ZMQ_UPDATE_PORTS_MAX <= (int)ZMQ_PORTS_MAX, "a socket for each rank");

/* What the trainer has said so far; in zmq_update.c is which message leads where. */
enum zmq_update_state {
    ZMQ_EXPECT_BUFFER,  /* nothing */
    ZMQ_EXPECT_TENSORS, /* its buffer's handle */
    ZMQ_EXPECT_COMMIT,  /* that all tensors have come: the update is proven, the buffer let go of */
    ZMQ_COMMITTED,      /* committed */
    ZMQ_FAILED
};

/* What the updates' worker hands back. */
struct zmq_worker_result {
    struct mtx lock; /* MTX_LEAF; guards down to the blank line */
    struct cnd done_cnd;
    bool done;
    struct update_info info;
    struct err e;
};

struct zmq_update {
    /* Immutable once the thread has it. */
    struct job job;
    struct app *app;
    struct zmq_updates *pool;
    uint32_t n_ports;
    char uuids[ZMQ_UPDATE_PORTS_MAX][IPC_UUID_LEN + 1];
    char *addresses[ZMQ_UPDATE_PORTS_MAX]; /* owned */
    uint32_t port_of[STORE_DEVICES_MAX];   /* of each rank */
    char label[VERSION_LABEL_MAX + 1];     /* "": not said */
    uint64_t deadline_us;                  /* of the whole; CLOCK_NEVER: not said */

    /* The thread's. */
    struct update_requester *asker; /* owned; NULL once it has been told */
    struct zmq_ports *ports;        /* owned */
    uint64_t connect_us;            /* when a trainer that has bound its sockets is connected to */
    enum zmq_update_state state;
    char id[UPDATE_ID_MAX + 1];                      /* of the session; "": there is none yet */
    struct ipc_handle buffers[ZMQ_UPDATE_PORTS_MAX]; /* from ZMQ_EXPECT_TENSORS on */
    bool submitted;   /* a chunk: from then on the worker counts the exports down */
    struct err cause; /* ZMQ_FAILED, and so the next */
    uint32_t n_none;  /* how often each socket's None was replied to by nothing */

    struct zmq_worker_result result;
};

/* zmq_update_run - the thread, from the first message to the last; frees the pull. @arg  struct
 * zmq_update, with an asker */
void zmq_update_run(void *arg);
void zmq_update_free(struct zmq_update *p); /* of one that did not run; accepts NULL */

/* Shared by zmq_update.c and zmq_update_end.c; on the update's thread. */

#define ZMQ_UPDATE_FIELD "/zmq_handles" /* the field of all errors */

/* zmq_update_reply - answer the request; consumes p->requester. */
void zmq_update_reply(struct zmq_update *p, const struct update_info *info, const struct err *e);

/* zmq_update_fail - abort the session, wait until the buffer is unmapped, count its exports down if
 * the worker did not, answer the request with `cause`. Blocks: UNMAP_POLLS times UNMAP_POLL_NS. */
void zmq_update_fail(struct zmq_update *p, const struct err *cause);

/* zmq_update_refuse_remaining - after zmq_update_fail: reply to every further message with the
 * cause, until the trainer stops or closes its sockets. Blocks: ZMQ_REFUSE_MS. */
void zmq_update_refuse_remaining(struct zmq_update *p);

#endif
