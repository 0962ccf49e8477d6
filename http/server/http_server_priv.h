/* The parts of the HTTP server that its files share. Everything here belongs to one shard's loop
 * thread unless a line says otherwise. */
#ifndef BATON_HTTP_SERVER_HTTP_SERVER_PRIV_H
#define BATON_HTTP_SERVER_HTTP_SERVER_PRIV_H

#include "base/buf.h"
#include "base/loop.h"
#include "base/mtx.h"
#include "http/http_request.h"
#include "http/http_request_priv.h"
#include "http/server/http_server.h"
#include "http/server/origin.h"

#include <microhttpd.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

enum {
    HTTP_SERVER_HEAD_NBYTES_MAX = 16
                                  << 10,   /* of a request, with so much more for each header and */
    HTTP_SERVER_HEADER_RECORD_NBYTES = 64, /* each cookie; over it the head is a 431 */
    HTTP_SERVER_POOL_NBYTES = 20 << 10,    /* memory of one connection: an answer's head fits too */
    HTTP_SERVER_BACKLOG = 4096,            /* of listen(2) */
    HTTP_SERVER_ZERO_TURNS_MAX = 64,       /* idle turns without a wait before the spin guard */
    HTTP_SERVER_GUARD_WAIT_US = 1000,      /* what the spin guard then waits */
    HTTP_SERVER_DAEMON_CONNS = 128,        /* of one libmicrohttpd, before another gets some */
    HTTP_SERVER_DAEMONS_MAX = 64, /* of those in an HTTP server; at least one for each loop */
    HTTP_SERVER_ACCEPTS_MAX = 10, /* in one turn */
    HTTP_SERVER_DROP_NBYTES_MAX = 1
                                  << 20, /* a known rest up to this is read before an early error */
    HTTP_SERVER_GRACE_US = 1000 * 1000,  /* from an answer mid-upload, or the end, to the cut */
    HTTP_SERVER_SEND_NBYTES_MIN = 16 << 10, /* a reader must take this much each body_timeout_us */
    HTTP_SERVER_SPARE = 4,                /* free places from which on others give way; at most a */
                                          /* quarter of all */
    HTTP_SERVER_SILENT_US_MIN = 5 * 1000, /* a connection that sent nothing for so long gives way */
                                          /* that waits for the last place; else who has */
    HTTP_SERVER_KEPT_US_MIN = 1000 * 1000,  /* sent nothing, or been answered, so long ago, */
    HTTP_SERVER_BEGUN_US_MIN = 1000 * 1000, /* begun a head so long ago, or been waited */
    HTTP_SERVER_WANTED_US_MIN = 200 *
                                1000, /* the first, if somebody waits for its place: a round */
                                      /* trip, or a packet sent again */
    HTTP_SERVER_UNREAD_US_MIN = 500 * 1000,    /* for with its body for so long may */
    HTTP_SERVER_LINGER_MAX = 64,               /* half-closed sockets kept for their last bytes */
    HTTP_SERVER_LINGER_NBYTES = 1 << 20,       /* thrown away for each event of such a socket, */
    HTTP_SERVER_LINGER_UNIX_NBYTES = 64 << 10, /* if it is a unix socket */
    HTTP_SERVER_QUERY_MAX = 64,                /* query members */
    HTTP_SERVER_BODY_CAP_FIRST = 1 << 20,      /* first allocation for a declared body, at most */
    HTTP_SERVER_TCP_USER_TIMEOUT_MS = 60 * 1000,
    HTTP_SERVER_RAW_HEAD_MAX = 4096,     /* header of an answer written past libmicrohttpd */
    HTTP_SERVER_PIECE_NBYTES = 48 << 10, /* of a stream, written past it at once */
    HTTP_SERVER_CHUNK_HEAD_MAX = 16
};

struct shard;
struct request;

/* Connections of one kind that are not at work, the longest there first. */
struct conn_queue {
    struct conn *first, **end;
};

/* One accepted socket. */
struct conn {
    struct shard *shard;
    struct daemon *daemon;
    struct MHD_Connection *mc;
    struct conn *next, **prev_next;    /* in shard->conns */
    struct conn *next_due, **prev_due; /* in shard->timed; prev_due is NULL without a deadline */
    struct conn_queue *queue;          /* of the shard; NULL: its request is at work */
    struct conn *next_queued, **prev_queued;
    uint64_t queued_us;
    struct loop_watch hangup;
    int fd;               /* libmicrohttpd's */
    uint64_t deadline_us; /* cut when it passes; CLOCK_NEVER while the application works */
    uint64_t n_requests;
    uint64_t acked;      /* bytes that the peer had taken when a slow answer was last let live */
    bool dead;           /* FIN seen or given up on: nothing extends its life */
    bool linger;         /* take the socket over when libmicrohttpd closes it */
    bool tcp;            /* else a unix socket */
    bool trusted;        /* http_server_cfg.trusts said so */
    uint64_t n_writable; /* how often its buffer has had room again */
    struct request *req; /* of this connection, being served; NULL between two */
};

/* A socket that has been answered and half-closed while its peer may still be sending. */
struct lingering {
    struct shard *shard;
    struct lingering *next, **prev_next;
    struct loop_watch watch; /* owns its fd */
    uint64_t deadline_us;
};

/* A socket of a TLS listener whose first byte has not come. */
struct greeting {
    struct shard *shard;
    struct greeting *next, **prev_next;
    struct loop_watch watch; /* owns its fd */
    uint64_t since_us, deadline_us;
    struct sockaddr_storage peer;
    socklen_t peer_len;
};

enum stage {
    STAGE_HEADERS,     /* request line seen, headers coming */
    STAGE_WHOLE,       /* body is being collected */
    STAGE_STREAM_HEAD, /* head of a streamed body is being collected */
    STAGE_STREAM,      /* body goes to the request's reader */
    STAGE_DROP,        /* answer decided; the rest of the body is thrown away */
    STAGE_WAIT,        /* body is over; the answer may not be there yet */
    STAGE_SEND         /* answer queued */
};

/* One request; libmicrohttpd's con_cls. */
struct request {
    struct http_request_http_server http_server; /* first: the request knows us by it */
    struct conn *conn;
    struct MHD_Connection *mc;
    struct http_request *x;       /* one reference */
    char *target;                 /* owned; request target as it came */
    struct origin_request origin; /* its values are libmicrohttpd's, which keeps them to the end */
    struct http_server_route route;
    struct loop_item wake; /* posted by any thread, under the request's lock */
    enum stage stage;
    bool routed; /* the application saw it: n_open counts it, done() is due */
    bool http11;
    bool chunked;
    bool expects;    /* Expect: 100-continue */
    bool suspended;  /* set with MHD_suspend_connection, cleared with MHD_resume_connection */
    bool queued;     /* a response is with libmicrohttpd */
    bool must_close; /* framing in doubt, or the body was not read to its end */
    bool preflight;  /* answered without the application */
    bool raw_sent;   /* answered past libmicrohttpd */
    bool sent;       /* libmicrohttpd says that the whole answer went out */
    bool passes;     /* a stream whose chunks go past libmicrohttpd */
    char *rest;      /* owned: of a chunk, what the socket has not taken; or NULL */
    size_t rest_sent, rest_len;
    size_t body_cap;      /* of x->body */
    uint64_t head_nbytes; /* of a streamed body; 0 while unknown */
    uint64_t nbytes_in, nbytes_out;
    int status;
    const char *log_code;
};

struct http_server;

/* One libmicrohttpd daemon of a shard, with some of its connections. */
struct daemon {
    struct shard *shard;
    struct MHD_Daemon *daemon; /* owned */
    struct loop_watch watch;   /* the daemon's own epoll */
    struct daemon *next_due;   /* in shard->due */
    uint64_t wait_us;          /* while due: the loop may sleep so long before */
    size_t n_conns;
    unsigned n_zero_turns; /* without a wait, and without anything having moved */
    bool due;              /* it runs at the end of this turn, or of the next one */
    bool moved;            /* libmicrohttpd called us in this run */
};

struct shard {
    struct http_server *http_server;
    struct loop *loop;
    char piece[HTTP_SERVER_PIECE_NBYTES]; /* of a stream */
    bool began;             /* the application's loop_begin went well: its loop_end is due */
    void *loop_app;         /* of the application */
    struct daemon *daemons; /* owned [n_daemons], all running */
    size_t n_daemons;       /* 0 once closed */
    struct daemon *due;
    int listen_fd;            /* owned; -1 once closed */
    struct loop_watch listen; /* of listen_fd */
    bool listening;           /* it is watched */
    size_t n_conns_max;       /* so many may be at work; over it, requests are shed */
    size_t n_conns_crowded;   /* over it, connections give way */
    size_t n_conns_limit;     /* at it, nobody is accepted */
    struct loop_timer sweep;
    struct loop_item quiesce, finish, beat;
    struct conn *conns, *timed;
    struct conn_queue silent; /* nothing has come from them, or they were told to go */
    struct conn_queue begun;  /* some of a head has */
    struct conn_queue kept;   /* answered, and nothing has come since */
    struct conn_queue unread; /* bodies that are waited for: of control, or behind a refusal */
    struct lingering *lingers;
    struct greeting *greetings, **greetings_end; /* the longest first */
    size_t n_conns, n_lingers, n_greetings;
    uint64_t plain_second;   /* when plain HTTP to a TLS listener was last logged */
    size_t n_queued, n_dead; /* of n_conns: not at work, and cut */
    bool quiesced;
    uint64_t finish_by_us; /* everything is closed then; 0: not finishing */
    uint64_t log_second;   /* rate limit of the library's messages */
    unsigned n_logged;

    atomic_uint_fast64_t n_connections, n_accepted, n_requests, n_rejected, n_gone,
        n_timeouts;               /* relaxed: gauges */
    atomic_uint_fast64_t beat_us; /* relaxed: when `beat` last ran */
};

typedef enum MHD_Result http_server_queue_fn(struct MHD_Connection *mc, unsigned status,
                                             struct MHD_Response *response);

struct http_server {
    struct http_server_cfg cfg; /* immutable */
    uint16_t port;              /* immutable */
    bool tls;                   /* immutable */
    bool has_path;              /* the unix socket is there, and ours; main's */
    dev_t path_dev;             /* and this is it */
    ino_t path_ino;
    size_t n_shards;
    struct shard *shards;                 /* owned */
    http_server_queue_fn *queue_response; /* immutable; libmicrohttpd's MHD_queue_response */
    struct MHD_Response *no_memory;       /* prebuilt; shared by all connections */
    struct MHD_Response *internal;        /* prebuilt */

    struct mtx lock; /* rank MTX_LEAF; guards down to the end */
    struct cnd moved;
    size_t n_open;     /* requests that were routed and are not done */
    size_t n_quiesced; /* shards that stopped accepting */
    size_t n_closed;   /* shards without a connection, for good */
};

static inline void http_server_count(atomic_uint_fast64_t *n)
{
    (void)atomic_fetch_add_explicit(n, 1, memory_order_relaxed);
}

/* http_server_listen.c: a bound, listening socket for each shard; sets f->port. */
int http_server_listen(struct http_server *f, struct err *e);
void http_server_fit_nofile(
    struct http_server *f); /* raises RLIMIT_NOFILE; lowers n_connections_max to fit */
/* Removes the unix socket, if it still is the one bound: to be called while that is open, since the
 * number of a file whose socket is closed and that a successor replaced may be the successor's. */
void http_server_unlink(struct http_server *f);

/* http_server_daemon.c: the daemons. */
size_t daemons_wanted(const struct http_server_cfg *cfg); /* for each shard */
int daemons_start(struct shard *s, struct err *e);        /* on -1 daemons_stop is due */
void daemons_stop(struct shard *s); /* every connection is dead; none is left */
void daemon_due(struct daemon *p);  /* there is something for it: it runs before the loop sleeps */
uint64_t daemons_run(struct shard *s); /* those due; returns how long the loop may sleep then */
struct daemon *daemon_with_space(const struct shard *s);

/* http_server_accept.c: new connections. */
void accept_begin(struct shard *s); /* or go on, if there is room again and a socket to listen on */
void accept_rest(struct shard *s);  /* who is in the queue; what all have sent is read */
void accept_end(struct shard *s);   /* closes the socket */

/* http_server_tls.c: what libmicrohttpd leaves to us of TLS. */
extern const char http_server_tls_priorities[]; /* GnuTLS's: which versions */
/* Bytes past libmicrohttpd, encrypted. Returns how many went out, -1 if none did. */
ssize_t http_server_tls_send(struct MHD_Connection *mc, const void *data, size_t len);
void http_server_tls_end(struct MHD_Connection *mc); /* no more will be sent */

/* http_server_conn.c: sockets, deadlines, hang-ups. */
void conn_notify(void *cls, struct MHD_Connection *mc, void **socket_context,
                 enum MHD_ConnectionNotificationCode toe);
void conn_deadline(struct conn *c, uint64_t after_us); /* CLOCK_NEVER: none */
/* The rest of the body is not waited for: the answer goes out now, e unless another has been
 * decided. Nothing if no body is waited for. */
void conn_cut_body(struct conn *c, const struct err *e);
/* Nor is the rest of the head: who has sent some of it is told e, and the socket is shut down. */
void conn_cut_head(struct conn *c, const struct err *e);
bool conn_has_unread(const struct conn *c);
void conn_kill(struct conn *c); /* the request is gone, the socket is shut down */
/* Its peer finds it broken: of HTTP/1.0 an end is a whole answer. */
void conn_reset(struct conn *c);
void conn_sweep(void *arg);                   /* timer of the shard */
void conn_finish_all(struct shard *s);        /* kills what has no answer to wait for */
bool conn_any_unsent(const struct shard *s);  /* is an answer there that has not gone out whole? */
void conn_close_all(struct shard *s);         /* wake everything before libmicrohttpd stops */
void lingering_open(struct shard *s, int fd); /* with a descriptor of its own; as many as fit */
void lingering_close(struct lingering *l);

/* http_server_shed.c: which connections give way to others. */
void conn_queues_init(struct shard *s);
void conn_busy(struct conn *c);           /* its request is at work: it does not give way */
void conn_begin(struct conn *c);          /* it may: a head has begun, */
void conn_silent(struct conn *c);         /* it is new, or has been told to go, */
void conn_kept(struct conn *c);           /* its request is over, */
void conn_unread(struct conn *c);         /* or nobody minds if the body does not come */
bool conn_begun(const struct conn *c);    /* has some of a request come? */
bool conn_crowded(const struct shard *s); /* have connections to give way? */
/* Those that may give way do, while it is crowded. Returns in how many microseconds the next one
 * may. */
uint64_t conn_shed(struct shard *s);

/* http_server_library.c: what libmicrohttpd refuses itself. Errors: ERR_INTERNAL. */
int http_server_find_library(struct http_server *f, struct err *e); /* sets f->queue_response */

/* http_server_greeting.c: what begins a connection to a listener of TLS. */
void greeting_open(struct shard *s, int fd, const struct sockaddr_storage *peer, socklen_t len);
void greeting_look(struct greeting *g);  /* may free it */
void greeting_close(struct greeting *g); /* and its socket */

/* http_server_request.c: what libmicrohttpd calls for a request. */
void *request_begin(void *cls, const char *target, struct MHD_Connection *mc);
enum MHD_Result request_handle(void *cls, struct MHD_Connection *mc, const char *url,
                               const char *method, const char *version, const char *data,
                               size_t *size, void **con_cls);
void request_completed(void *cls, struct MHD_Connection *mc, void **con_cls,
                       enum MHD_RequestTerminationCode toe);
void request_end(struct request *r, bool sent); /* frees it */
void request_suspend(struct request *r);
void request_resume(struct request *r);
void request_dispatch(struct request *r); /* to the application, with its own reference */

/* http_server_reply.c: answers. */
void request_refuse(struct request *r, const struct err *e); /* the application words the answer */
enum MHD_Result request_queue(struct request *r); /* in the access handler, answer is there */
void request_send_raw(struct request *r); /* the answer past libmicrohttpd; it must close then */
/* The same to what libmicrohttpd refuses: the answer that is there, or e. */
void request_send_refusal(struct request *r, const struct err *e);
int http_server_prebuild(struct http_server *f, struct err *e);

/* http_server_origin.c: which requests of web pages are served (http/server/origin.h). */
int origin_admit(struct request *r, struct err *e);           /* sets r->preflight */
int origin_admit_act(const struct request *r, struct err *e); /* once it is routed */
bool origin_add_headers(const struct request *r, struct MHD_Response *resp);
void origin_put_headers(const struct request *r, struct buf *head); /* of a raw answer */

/* http_server_stream.c: chunks past libmicrohttpd. */
bool stream_may_pass(const struct request *r);
void stream_push(struct request *r); /* there may be more to send, or room for it */

/* http_server_body.c: bodies. */
void body_begin(struct request *r);
void body_drop_begin(struct request *r);
enum MHD_Result body_piece(struct request *r, const char *data, size_t *size);
enum MHD_Result body_over(struct request *r);

/* http_server_filter.c: framing rules, and the request half of a request. No state. */
struct request_line {
    const char *method, *target, *version; /* libmicrohttpd's; the target where it begins */
};
int filter_request(struct request *r, const struct request_line *line, struct err *e);
int filter_too_large(struct err *e);                       /* a head */
int filter_length(const struct request *r, struct err *e); /* is its Content-Length a number? */
void filter_request_id(struct request *r);       /* of one whose headers may not all have come */
void filter_wipe_key(struct MHD_Connection *mc); /* from libmicrohttpd's copy of the headers */

#endif
