/* Whole updates that a trainer pushes over ZeroMQ sockets: checkpoint-engine's
 * `update_weights_from_ipc`, with the routes of vLLM (/collective_rpc) and SGLang
 * (/update_weights_from_ipc).
 *
 * Connection: each rank of the trainer has bound a REQ socket on this machine, and the request
 * contains {GPU's UUID: address}. For each of our ranks the address of its GPU is chosen as in
 * gpu_match, and a REP socket is connected to it. The trainer then sends, on every socket in the
 * same order: a CUDA IPC handle of a buffer; lists of the tensors that are in the buffer now;
 * None; None (transport/zmq/zmq_messages.h). A message is handled when every socket has received
 * its copy; then each is replied to, by an empty reply, or by the text of the error.
 *
 * The update is a session of its own, which no other client can send to. Each list is a chunk of
 * it. The reply is sent when the worker has copied the chunk, because the trainer then refills
 * that half of its buffer. At the first None the update is verified and every mapping of the
 * buffer closed; at the second it is committed; then the request is answered.
 *
 * Threads: a request is parsed on a control thread, and then handled by one thread of
 *          control/source_threads.h, which alone uses its sockets; the update worker makes the
 *          copies.
 *
 * Ends: every wait is cut into slices of ZMQ_SLICE_MS. After each slice the thread checks
 * whether the trainer closed its socket (or died), the client of the request disconnected, the
 * server stops, the update was aborted, or a deadline passed: --update-timeout for each message,
 * and the request's own timeout for the whole update. An early end aborts the session, waits
 * until nothing of the buffer is mapped any more, and answers the request. Then, for at most
 * ZMQ_REFUSE_MS, every further message of the trainer is replied to with the error, so that the
 * trainer stops too: it has no deadlines of its own. This ends earlier if the only sockets left
 * are ones that no process has bound within ZMQ_CONNECT_MS. checkpoint-engine 0.4.2 ignores the
 * replies to its last list and to both None, so the reply to the request decides.
 *
 * Bounds: ZMQ_MESSAGE_NBYTES_MAX for a message, one at a time on each socket; SOURCE_THREADS_MAX
 * requests at once, of which one can have the open update. */
#ifndef BATON_HANDLERS_UPDATE_ZMQ_REQUEST_H
#define BATON_HANDLERS_UPDATE_ZMQ_REQUEST_H

#include "base/err.h"
#include "http/http_request.h"

struct app;

enum {
    ZMQ_SLICE_MS = 50,
    ZMQ_CONNECT_MS =
        1000, /* a bound socket is connected at once, or at libzmq's next attempt (0.1 s) */
    ZMQ_REFUSE_MS =
        120000 /* a trainer may copy a bucket between two messages, which takes seconds */
};

/* handle_update_zmq - members zmq_handles {uuid: address}, weight_version, timeout_ms.
 * Answers as handle_update_finish.
 * Errors: ERR_BAD_REQUEST at the member; ERR_NO_GPU; ERR_OVERLOADED (SOURCE_THREADS_MAX);
 *         ERR_DRAINING. The answer may be ERR_NO_ZMQ, ERR_FORBIDDEN, ERR_UNREADABLE
 *         (zmq_ports_open), ERR_TIMEOUT, ERR_GONE (the trainer, or the client), ERR_CONFLICT
 *         (another update is open; aborted; another rank of the trainer failed), those of
 *         updates_submit and updates_finish; ERR_BAD_REQUEST for a wrong message. */
int handle_update_zmq(struct app *app, struct http_request *x, struct err *e);

/* fleet_update_zmq - the same route in front of a fleet. Errors: ERR_HAS_UPSTREAMS, always; the
 * message has the reason and the alternatives. */
int fleet_update_zmq(struct app *app, struct http_request *x, struct err *e);

#endif
