/* Whole updates that a trainer pushes over ZeroMQ sockets: checkpoint-engine's
 * `update_weights_from_ipc`, as vLLM (/collective_rpc) and SGLang (/update_weights_from_ipc) take
 * it.
 *
 * Which side connects: each rank of the trainer has bound a REQ socket on this machine, and the
 * request says {GPU's UUID: address}. For each of our ranks the address of its GPU is taken, by the
 * rule of gpu_match, and a REP socket is connected to it. The trainer then sends, on every socket
 * in the same order: a CUDA IPC handle of a buffer; lists of the tensors that lie in the buffer
 * now; None; None (transport/zmq/zmq_messages.h). A message is acted on when all sockets have
 * brought theirs, and then all are replied to, by nothing, or by the text of what went wrong.
 *
 * The update is a session of its own, which nobody else may send to. A list is a chunk of it: the
 * reply goes out when the worker has copied it, since the trainer refills that half of its buffer
 * then. At the first None the update is proven and every mapping of the buffer closed; at the
 * second it is committed; then the request is answered.
 *
 * Threads: a request is parsed on a control thread and then belongs to one thread of a small pool,
 * which alone touches its sockets; copies are made on the updates' worker, as ever.
 *
 * Ends: every wait is cut into slices of ZMQ_SLICE_MS, between which the thread looks whether the
 * trainer has closed its socket (or died), the client of the request has gone, the server stops,
 * somebody has aborted the update, or a deadline has passed: --update-timeout for each message, and
 * the request's own timeout for all. Whatever ends it early aborts the session, waits until nothing
 * of the buffer is mapped any more, answers the request, and then, for ZMQ_REFUSE_MS at most,
 * replies to what the trainer still sends by the reason, so that it stops too: it has no deadlines
 * of its own. When no socket is left but those that nobody has bound in ZMQ_CONNECT_MS, it ends.
 * checkpoint-engine 0.4.2 ignores the replies to its last list and to both None, so the
 * answer to the request decides.
 *
 * Bounds: ZMQ_MESSAGE_NBYTES_MAX a message, one of them at a time on each socket; ZMQ_UPDATES_MAX
 * requests at once, of which one can have the open update. */
#ifndef BATON_HANDLERS_UPDATE_UPDATE_ZMQ_H
#define BATON_HANDLERS_UPDATE_UPDATE_ZMQ_H

#include "base/err.h"
#include "http/http_request.h"

struct app;

enum {
    ZMQ_SLICE_MS = 50,
    ZMQ_CONNECT_MS = 1000, /* a bound socket is found at once, or at libzmq's next try (0.1 s) */
    ZMQ_REFUSE_MS = 120000 /* a trainer moves a bucket between two messages: seconds */
};

/* handle_update_zmq - members zmq_handles {uuid: address}, weight_version, timeout_ms.
 * Answers as handle_update_finish. Errors: ERR_BAD_REQUEST at the member; ERR_NO_GPU;
 * ERR_OVERLOADED (ZMQ_UPDATES_MAX); ERR_DRAINING. The answer may be ERR_NO_ZMQ, ERR_FORBIDDEN,
 * ERR_UNREADABLE (zmq_ports_open), ERR_TIMEOUT, ERR_GONE (the trainer, or the client),
 * ERR_CONFLICT (another update is open; aborted; the trainer's other ranks failed), and all that
 * updates_submit and updates_finish bring; ERR_BAD_REQUEST for what a trainer sent. */
int handle_update_zmq(struct app *app, struct http_request *x, struct err *e);

/* fleet_update_zmq - the same route in front of upstream engines: refused, and why. */
int fleet_update_zmq(struct app *app, struct http_request *x, struct err *e);

#endif
