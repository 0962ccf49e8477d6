/* One update over sockets: zmq_request.c reads the request, zmq_session.c runs the update on its
 * thread, zmq_session_end.c ends it. */
#ifndef BATON_HANDLERS_UPDATE_ZMQ_SESSION_H
#define BATON_HANDLERS_UPDATE_ZMQ_SESSION_H

#include "base/jobs/workers.h"
#include "base/mtx.h"
#include "transport/ipc/ipc_handle.h"
#include "transport/zmq/zmq_messages.h"
#include "transport/zmq/zmq_ports.h"
#include "weights/store/store.h"
#include "weights/update/update.h"

#include <stdbool.h>
#include <stdint.h>

struct app;
struct update_requester;
struct source_threads;

enum { ZMQ_SESSION_PORTS_MAX = STORE_DEVICES_MAX };
_Static_assert((int)ZMQ_SESSION_PORTS_MAX <= (int)ZMQ_PORTS_MAX, "a socket for each rank");

/* The message that the trainer has to send next; the transitions are in zmq_session.c. */
enum zmq_session_state {
    ZMQ_EXPECT_BUFFER,  /* the handle of its buffer */
    ZMQ_EXPECT_TENSORS, /* a list of tensors, or None: the update is verified and the buffer
                           unmapped */
    ZMQ_EXPECT_COMMIT,  /* None: the update is committed */
    ZMQ_COMMITTED,      /* committed */
    ZMQ_FAILED
};

/* The result of the update worker's last job. */
struct zmq_worker_result {
    struct mtx lock; /* MTX_LEAF; guards down to the blank line */
    struct cnd done_cnd;
    bool done;
    struct update_info info;
    struct err e;
};

struct zmq_session {
    /* Immutable once the thread has it. */
    struct job job;
    struct app *app;
    struct source_threads *pool;
    uint32_t n_ports;
    char uuids[ZMQ_SESSION_PORTS_MAX][IPC_UUID_LEN + 1];
    char *addresses[ZMQ_SESSION_PORTS_MAX]; /* owned */
    uint32_t port_of[STORE_DEVICES_MAX];    /* [rank]: its socket */
    char label[VERSION_LABEL_MAX + 1];      /* "": not given */
    struct actor actor;                     /* of the request */
    uint64_t deadline_us;                   /* of the whole update; CLOCK_NEVER: not given */

    /* Used by the update's thread only. */
    struct update_requester *asker; /* owned; NULL once the request is answered */
    struct zmq_ports *ports;        /* owned */
    uint64_t connect_us;            /* the time by which a bound socket is connected */
    enum zmq_session_state state;
    char id[UPDATE_ID_MAX + 1];                       /* of the session; "": not started yet */
    struct ipc_handle buffers[ZMQ_SESSION_PORTS_MAX]; /* valid from ZMQ_EXPECT_TENSORS on */
    bool submitted;   /* a chunk was submitted: the worker counts the exports down */
    struct err cause; /* valid in ZMQ_FAILED, as the next */
    uint32_t n_none;  /* None messages that each socket got an empty reply for */

    struct zmq_worker_result result;
};

/* zmq_session_run - run the update from the first message to the last, answer the request and
 * free the update. @arg  struct zmq_session, with a requester */
void zmq_session_run(void *arg);
void zmq_session_free(struct zmq_session *p); /* for an update that did not run; accepts NULL */

/* Shared by zmq_session.c and zmq_session_end.c; on the update's thread. */

#define ZMQ_SESSION_FIELD "/zmq_handles" /* the field of all errors */

/* zmq_session_reply - answer the request; consumes p->requester. */
void zmq_session_reply(struct zmq_session *p, const struct update_info *info, const struct err *e);

/* zmq_session_fail - abort the session, wait until the buffer is unmapped, count its exports down
 * if the worker did not, answer the request with `cause`. Blocks: UNMAP_POLLS times UNMAP_POLL_NS.
 */
void zmq_session_fail(struct zmq_session *p, const struct err *cause);

/* zmq_session_refuse_remaining - after zmq_session_fail: reply to every further message with the
 * cause, until the trainer stops or closes its sockets. Blocks: ZMQ_REFUSE_MS. */
void zmq_session_refuse_remaining(struct zmq_session *p);

#endif
