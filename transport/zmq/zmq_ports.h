/* ZeroMQ REP sockets, connected to sockets that a trainer has bound on this machine.
 *
 * Addresses are "ipc://@NAME", an abstract socket, or "ipc:///PATH", a file beneath --allow-path.
 * Nothing else is ever dialled: whoever may call a route must not make this server reach over the
 * network. Whose process listens is asked of the kernel before anything is read from it: another
 * user's is not believed, unless that is root, or we are.
 *
 * A trainer that closes its socket, or dies, is heard of at once: libzmq watches each connection,
 * and one that has been lost is not used again, although libzmq would connect anew.
 *
 * libzmq aborts the process when it gets no descriptor. As many as it takes are found before it is
 * called, by one update at a time; what remains is a race with the server's other threads, when
 * less than that is left to all of them (NOFILE_RESERVE of http/server/http_server_listen.c keeps
 * it free of connections). */
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

/* zmq_address_check - is that an address as above? Says nothing of whether somebody listens.
 * @field  where it stood in the request
 * Threads: any. Pure. Errors: ERR_BAD_REQUEST at `field`. */
int zmq_address_check(const char *address, const char *field, struct err *e);

struct zmq_ports;

/* zmq_ports_open - connect to each address; its listener may begin to listen later.
 * @addresses  [n], checked, 1..ZMQ_PORTS_MAX
 * @roots      [n_roots] --allow-path, for files
 *
 * Threads: any, and then all calls below on the same one, with no lock held. Blocks: for the
 * dynamic loader, the first time in a process, and while another thread opens.
 * Errors:  ERR_NO_ZMQ; ERR_FORBIDDEN or ERR_UNREADABLE (a file); ERR_NO_MEMORY (or too few
 *          descriptors); ERR_INTERNAL (libzmq refuses: says how). */
int zmq_ports_open(struct zmq_ports **out, const char *const *addresses, uint32_t n,
                   const char *const *roots, size_t n_roots, struct err *e);

/* zmq_ports_close - accepts NULL. Blocks: up to ZMQ_LINGER_MS for replies that are on their way. */
void zmq_ports_close(struct zmq_ports *p);

/* zmq_ports_wait - until something comes to a port that holds no message, or a connection is lost,
 * or `ms` have passed. Blocks: so long. */
void zmq_ports_wait(struct zmq_ports *p, uint32_t ms);

/* zmq_ports_connected - has a process that is believed ever been behind port i? */
bool zmq_ports_connected(const struct zmq_ports *p, uint32_t i);

/* zmq_ports_message - what port i has received and not yet replied to; NULL: nothing.
 * @nbytes  written unless NULL is returned
 * Returns: of the port, until zmq_ports_reply. */
const void *zmq_ports_message(struct zmq_ports *p, uint32_t i, size_t *nbytes);

/* zmq_ports_reply - answer the message that port i holds, and drop it. One that is lost is not
 * told. Blocks: no. @text  [len] */
void zmq_ports_reply(struct zmq_ports *p, uint32_t i, const char *text, size_t len);

/* zmq_ports_lost - has port i been lost, with no message left? @why  filled then, if clean:
 * ERR_GONE, ERR_FORBIDDEN (another user's). */
bool zmq_ports_lost(const struct zmq_ports *p, uint32_t i, struct err *why);

#endif
