/* The part of libzmq's API that baton uses, as macros: functions and constants.
 *
 * Source: zmq.h of libzmq 4.3.5; the functions are unchanged since 4.0. The types are plain C types
 * and two structs, which driver/zmq.h copies. */
#ifndef BATON_DRIVER_ZMQ_SYMBOLS_H
#define BATON_DRIVER_ZMQ_SYMBOLS_H

/* Row: field, exported symbol, what it returns, arguments. All are required. */
#define ZMQ_SYMBOLS(X)                                                                             \
    X(version, zmq_version, void, (int *major, int *minor, int *patch))                            \
    X(last_error, zmq_errno, int, (void))                                                          \
    X(error_text, zmq_strerror, const char *, (int errnum))                                        \
    X(ctx_new, zmq_ctx_new, void *, (void))                                                        \
    X(ctx_term, zmq_ctx_term, int, (void *ctx))                                                    \
    X(socket, zmq_socket, void *, (void *ctx, int type))                                           \
    X(close, zmq_close, int, (void *socket))                                                       \
    X(setsockopt, zmq_setsockopt, int,                                                             \
      (void *socket, int option, const void *value, size_t nbytes))                                \
    X(getsockopt, zmq_getsockopt, int, (void *socket, int option, void *value, size_t *nbytes))    \
    X(connect, zmq_connect, int, (void *socket, const char *endpoint))                             \
    X(socket_monitor, zmq_socket_monitor, int, (void *socket, const char *endpoint, int events))   \
    X(poll, zmq_poll, int, (zmq_pollitem_t * items, int n, long timeout_ms))                       \
    X(send, zmq_send, int, (void *socket, const void *data, size_t nbytes, int flags))             \
    X(msg_init, zmq_msg_init, int, (zmq_msg_t * msg))                                              \
    X(msg_recv, zmq_msg_recv, int, (zmq_msg_t * msg, void *socket, int flags))                     \
    X(msg_data, zmq_msg_data, void *, (zmq_msg_t * msg))                                           \
    X(msg_size, zmq_msg_size, size_t, (const zmq_msg_t *msg))                                      \
    X(msg_close, zmq_msg_close, int, (zmq_msg_t * msg))

/* Row: macro of zmq.h, value. */
#define ZMQ_CONSTANTS(X)                                                                           \
    X(ZMQ_PAIR, 0)                                                                                 \
    X(ZMQ_REP, 4)                                                                                  \
    X(ZMQ_RCVMORE, 13)                                                                             \
    X(ZMQ_LINGER, 17)                                                                              \
    X(ZMQ_MAXMSGSIZE, 22)                                                                          \
    X(ZMQ_SNDHWM, 23)                                                                              \
    X(ZMQ_RCVHWM, 24)                                                                              \
    X(ZMQ_POLLIN, 1)                                                                               \
    X(ZMQ_DONTWAIT, 1)                                                                             \
    X(ZMQ_EVENT_CONNECTED, 0x1)                                                                    \
    X(ZMQ_EVENT_DISCONNECTED, 0x200)

#endif
