/* libzmq, opened at run time, and only when an update needs it. Everything else works on a machine
 * without the library. */
#ifndef BATON_DRIVER_ZMQ_H
#define BATON_DRIVER_ZMQ_H

#include "base/err.h"
#include "driver/zmq_symbols.h"

#include <stddef.h>

/* As in zmq.h: opaque, with the alignment of a pointer. */
typedef struct zmq_msg_t {
    union {
        unsigned char bytes[64];
        void *align;
    } u;
} zmq_msg_t;
_Static_assert(sizeof(zmq_msg_t) == 64, "zmq_msg_t has another size");

typedef struct zmq_pollitem_t {
    void *socket;
    int fd;
    short events, revents;
} zmq_pollitem_t;

enum zmq_constant {
#define X(name, value) name = (value),
    ZMQ_CONSTANTS(X)
#undef X
};

struct zmq_api {
    void *lib; /* dlopen handle; kept until the process ends */
#define X(field, symbol, returns, args) returns(*field) args;
    ZMQ_SYMBOLS(X)
#undef X
};

/* zmq_load - open libzmq.so.5 and fill the table. Repeating it is cheap and harmless: the loader
 * keeps one copy, which is never unloaded.
 *
 * Threads: any; the table is the caller's. Blocks: for the dynamic loader, the first time.
 * Errors:  ERR_NO_ZMQ  it cannot be opened, is older than 4.0 or lacks a symbol; the message names
 *                      the package to install. *out is untouched. */
int zmq_load(struct zmq_api *out, struct err *e);

#endif
