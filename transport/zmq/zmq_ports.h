/* ZeroMQ REP sockets, connected to sockets that a trainer has bound on this machine. A port is
 * one such socket.
 *
 * Addresses are "ipc://@NAME", an abstract socket, or "ipc:///PATH", a file below --allow-path.
 * No other address is ever connected to: a request must not make this server connect over the
 * network. Before anything is read, the kernel is asked which user's process listens: another
 * user is not trusted, unless it is root, or this server runs as root.
 *
 * If a trainer closes its socket, or dies, this is noticed at once: libzmq reports the state of
 * each connection, and a lost one is not used again, although libzmq would reconnect.
 *
 * libzmq aborts the process if it gets no file descriptor. So before libzmq is called, as many
 * as it needs are found to be free, by one update at a time. A race with the server's other
 * threads remains if fewer are left for all of them (NOFILE_RESERVE of
 * http/server/http_server_listen.c keeps them free of connections). */
#ifndef BATON_TRANSPORT_ZMQ_ZMQ_PORTS_H
#define BATON_TRANSPORT_ZMQ_ZMQ_PORTS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ZMQ_PORTS_MAX = 64,
    ZMQ_ADDRESS_MAX = 100,             /* bytes of a name; the kernel's limit is 107 */
    ZMQ_MESSAGE_NBYTES_MAX = 64 << 20, /* PICKLE_NBYTES_MAX; a longer one ends the connection */
    ZMQ_LINGER_MS = 2000               /* how long a close waits for the last reply to be sent */
};

/* zmq_address_check - is this an address as above? It does not check whether a process listens
 * there.
 * @field  of the address in the request
 * Threads: any. Pure. Errors: ERR_BAD_REQUEST at `field`. */
int zmq_address_check(const char *address, const char *field, struct err *e);

struct zmq_ports;

/* zmq_ports_open - connect to each address; the trainer may bind it later.
 * @addresses  [n], checked, 1..ZMQ_PORTS_MAX
 * @roots      [n_roots] --allow-path, for files
 *
 * Threads: any; then all calls below on the same thread, with no lock held. Blocks: for the
 *          dynamic loader, the first time in a process, and while another thread opens ports.
 * Errors:  ERR_NO_ZMQ; ERR_FORBIDDEN or ERR_UNREADABLE (a file); ERR_NO_MEMORY (or too few
 *          descriptors); ERR_INTERNAL (libzmq refuses; the message has its reason). */
int zmq_ports_open(struct zmq_ports **out, const char *const *addresses, uint32_t n,
                   const char *const *roots, size_t n_roots, struct err *e);

/* zmq_ports_close - accepts NULL. Blocks: up to ZMQ_LINGER_MS for replies that are being sent. */
void zmq_ports_close(struct zmq_ports *p);

/* zmq_ports_wait - wait until a port that holds no message receives one, or a connection is
 * lost, or `ms` have passed. */
void zmq_ports_wait(struct zmq_ports *p, uint32_t ms);

/* zmq_ports_connected - has port i ever been connected to a trusted process? */
bool zmq_ports_connected(const struct zmq_ports *p, uint32_t i);

/* zmq_ports_message - the message of port i that has not been replied to; NULL: none.
 * @nbytes  written unless NULL is returned
 * Returns: owned by the port, until zmq_ports_reply. */
const void *zmq_ports_message(struct zmq_ports *p, uint32_t i, size_t *nbytes);

/* zmq_ports_reply - reply to the message that port i holds, and drop it. A lost port sends
 * nothing. Blocks: no. @text  [len] */
void zmq_ports_reply(struct zmq_ports *p, uint32_t i, const char *text, size_t len);

/* zmq_ports_lost - has port i been lost, with no message left? @why  if so, and if it is clean,
 * set to ERR_GONE, or to ERR_FORBIDDEN (another user's process); may be NULL */
bool zmq_ports_lost(const struct zmq_ports *p, uint32_t i, struct err *why);

#endif
