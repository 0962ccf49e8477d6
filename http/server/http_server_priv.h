/* Shared by the files of the HTTP server. Everything here is used only on the loop thread of its
 * shard unless a line names other threads. */
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
    HTTP_SERVER_HEAD_NBYTES_MAX = 16 << 10, /* of a request; a larger head is a 431. It counts */
    HTTP_SERVER_HEADER_RECORD_NBYTES = 64,  /* this much more for each header and each cookie */
    HTTP_SERVER_POOL_NBYTES = 20 << 10,     /* memory of one connection, with an answer's head */
    HTTP_SERVER_BACKLOG = 4096,             /* of listen(2) */
    HTTP_SERVER_ZERO_TURNS_MAX = 64,        /* idle turns without a wait before the spin guard */
    HTTP_SERVER_GUARD_WAIT_US = 1000,       /* what the spin guard then waits */
    HTTP_SERVER_DAEMON_CONNS = 128,         /* of one daemon, before another one gets some */
    HTTP_SERVER_DAEMONS_MAX = 64,           /* of one HTTP server; at least one for each loop */
    HTTP_SERVER_ACCEPTS_MAX = 10,           /* in one turn */
    HTTP_SERVER_DROP_NBYTES_MAX = 1 << 20,  /* read before an early error, if known to be less */
    HTTP_SERVER_GRACE_US = 1000 * 1000,     /* from an answer mid-upload, or the stop, to the cut */
    HTTP_SERVER_SEND_NBYTES_MIN = 16 << 10, /* a reader must take this much each body_timeout_us */
    /* Connections give way when fewer places than this (at most a quarter of all) are free. */
    HTTP_SERVER_SPARE = 4,
    /* A connection gives way after it has, for so long: */
    HTTP_SERVER_SILENT_US_MIN = 5 * 1000, /* been silent, while a client waits for the last place */
    HTTP_SERVER_KEPT_US_MIN = 1000 * 1000,  /* been silent otherwise, or idle since an answer */
    HTTP_SERVER_BEGUN_US_MIN = 1000 * 1000, /* not completed its head */
    HTTP_SERVER_WANTED_US_MIN = 200 * 1000, /* the same, while a client waits for the last place: */
                                            /* a round trip, or one retransmission */
    HTTP_SERVER_UNREAD_US_MIN = 500 * 1000, /* not completed its body */
    HTTP_SERVER_LINGER_MAX = 64,            /* half-closed sockets kept for their last bytes */
    HTTP_SERVER_LINGER_NBYTES = 1 << 20,    /* discarded for each event of such a socket; */
    HTTP_SERVER_LINGER_UNIX_NBYTES = 64 << 10, /* of a unix socket */
    HTTP_SERVER_QUERY_MAX = 64,                /* query members */
    HTTP_SERVER_BODY_CAP_FIRST = 1 << 20,      /* first allocation for a declared body, at most */
    HTTP_SERVER_TCP_USER_TIMEOUT_MS = 60 * 1000,
    HTTP_SERVER_PIECE_NBYTES = 48 << 10, /* of a stream, written past it at once */
    HTTP_SERVER_CHUNK_HEAD_MAX = 16,
    HTTP_SERVER_DIRECT_NBYTES_MAX = 256 << 10 /* of a body, read at once into its reader's memory */
};

struct shard;
struct request;

/* Connections of one kind that are not at work, oldest first. */
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
    uint64_t acked;      /* bytes that the peer had taken when a slow answer was last extended */
    bool dead;           /* FIN seen, or cut: no deadline is extended any more */
    bool linger;         /* take the socket over when libmicrohttpd closes it */
    bool tcp;            /* else a unix socket */
    bool trusted;        /* result of http_server_cfg.trusts */
    struct actor actor;  /* the peer of its requests */
    uint64_t n_writable; /* how often its send buffer has become writable again */
    struct request *req; /* being served; NULL between two requests */
    struct tls_identity *identity; /* a reference: the certificate of this connection; or NULL */
};

/* A socket that has been answered and half-closed while its peer may still be sending. */
struct lingering {
    struct shard *shard;
    struct lingering *next, **prev_next;
    struct loop_watch watch; /* owns its fd */
    uint64_t deadline_us;
};

/* A socket of a TLS listener that has not received its first byte. */
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
    STAGE_DROP,        /* answer is decided; the rest of the body is discarded */
    STAGE_WAIT,        /* body has ended; there may be no answer yet */
    STAGE_SEND         /* answer is queued */
};

/* Where in a chunked body its bytes are: what the next one has to be. */
enum chunk_state {
    CHUNK_NONE, /* it is not checked */
    CHUNK_SIZE,
    CHUNK_EXTENSION,
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    CHUNK_TRAILER,
    CHUNK_FIELD,
    CHUNK_FIELD_LF,
    CHUNK_END_LF,
    CHUNK_END,
    CHUNK_BAD
};

struct chunks {
    enum chunk_state state;
    uint64_t left;        /* of the chunk: its data */
    struct request *next; /* in daemon->chunked */
};

/* One request; libmicrohttpd's con_cls. */
struct request {
    struct http_request_http_server http_server; /* first: the http_request points to it */
    struct conn *conn;
    struct MHD_Connection *mc;
    struct http_request *x;       /* one reference */
    char *target;                 /* owned; request target as it came */
    struct origin_request origin; /* borrowed from libmicrohttpd, valid until the request ends */
    struct http_server_route route;
    struct loop_item wake; /* posted by any thread, under the request's lock */
    enum stage stage;
    bool routed; /* passed to the application: counted in n_open, done() is due */
    bool http11;
    bool chunked;
    struct chunks chunks;
    uint64_t
        placed;    /* of a streamed body, in its reader's memory: libmicrohttpd has to hear of it */
    uint64_t told; /* the same, and it has heard: they come to body_piece next */
    bool drained;  /* libmicrohttpd has no other bytes of the body */
    bool expects;  /* Expect: 100-continue */
    bool suspended;  /* set with MHD_suspend_connection, cleared with MHD_resume_connection */
    bool queued;     /* a response is with libmicrohttpd */
    bool must_close; /* framing in doubt, or the body was not read to its end */
    bool preflight;  /* answered without the application */
    bool raw_sent;   /* answered past libmicrohttpd */
    bool sent;       /* libmicrohttpd reported that the whole answer was sent */
    bool passes;     /* a stream whose chunks go past libmicrohttpd */
    char *rest;      /* owned: the bytes of a chunk that the socket has not taken; or NULL */
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
    uint64_t wait_us;          /* while due: how long the loop may sleep first */
    size_t n_conns;
    unsigned n_zero_turns;   /* successive turns without a wait in which nothing happened */
    bool due;                /* it runs at the end of this turn, or of the next one */
    bool moved;              /* libmicrohttpd called back in this run */
    struct request *chunked; /* with a chunked body that is checked; linked by chunks.next */
    struct request *direct;  /* its body may go past libmicrohttpd, into its reader's memory */
    int read_fd;             /* of the last read of this run, or -1 */
    const char *read_end;    /* behind its bytes, in libmicrohttpd's buffer */
};

struct shard {
    struct http_server *http_server;
    struct loop *loop;
    char piece[HTTP_SERVER_PIECE_NBYTES]; /* of a stream, as a chunk */
    bool began;             /* the application's loop_begin succeeded: its loop_end is due */
    void *loop_app;         /* of the application */
    struct daemon *daemons; /* owned [n_daemons], all running */
    size_t n_daemons;       /* 0 once closed */
    struct daemon *due;
    int listen_fd;            /* owned; -1 once closed */
    struct loop_watch listen; /* of listen_fd */
    bool listening;           /* listen_fd is watched */
    size_t n_conns_max;       /* at work at once; over it, requests are refused */
    size_t n_conns_crowded;   /* over it, connections give way */
    size_t n_conns_limit;     /* at it, no connection is accepted */
    struct loop_timer sweep;
    struct loop_item quiesce, finish, beat;
    struct conn *conns, *timed;
    struct conn_queue silent; /* have sent nothing, or have got an answer that ends them */
    struct conn_queue begun;  /* have sent a part of a head */
    struct conn_queue kept;   /* were answered and have sent nothing since */
    struct conn_queue unread; /* wait for a body: of control, or after a refusal */
    struct lingering *lingers;
    struct greeting *greetings, **greetings_end; /* oldest first */
    size_t n_conns, n_lingers, n_greetings;
    uint64_t plain_second;   /* when plain HTTP to a TLS listener was last logged */
    size_t n_queued, n_dead; /* of n_conns: those not at work, and those cut */
    bool quiesced;
    uint64_t finish_by_us; /* when everything is closed; 0: not finishing */
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
    bool has_path;              /* this process made the unix socket; main's */
    dev_t path_dev;             /* of that socket */
    ino_t path_ino;
    size_t n_shards;
    struct shard *shards;                 /* owned */
    http_server_queue_fn *queue_response; /* immutable; libmicrohttpd's MHD_queue_response */
    struct MHD_Response *no_memory;       /* prebuilt; shared by all connections */
    struct MHD_Response *internal;        /* prebuilt */

    struct mtx lock; /* rank MTX_LEAF; guards down to the end */
    struct cnd moved;
    struct tls_identity *identity; /* a reference; NULL without TLS */
    size_t n_open;                 /* requests that were routed and are not done */
    size_t n_quiesced;             /* shards that stopped accepting */
    size_t n_closed;               /* shards without a connection, for good */
};

static inline void http_server_count(atomic_uint_fast64_t *n)
{
    (void)atomic_fetch_add_explicit(n, 1, memory_order_relaxed);
}

/* http_server_listen.c: a bound, listening socket for each shard; sets f->port. */
int http_server_listen(struct http_server *f, struct err *e);
void http_server_fit_nofile(
    struct http_server *f); /* raises RLIMIT_NOFILE; lowers n_connections_max to fit */
/* Removes the unix socket if it still is the one bound. Call it before that socket is closed:
 * afterwards the file of a successor may have the same inode number. */
void http_server_unlink(struct http_server *f);

/* http_server_daemon.c: the daemons. */
size_t daemons_wanted(const struct http_server_cfg *cfg); /* for each shard */
int daemons_start(struct shard *s, struct err *e);        /* on -1 daemons_stop is due */
void daemons_stop(struct shard *s);    /* every connection must be dead; none remains */
void daemon_due(struct daemon *p);     /* it has work: run it before the loop sleeps */
uint64_t daemons_run(struct shard *s); /* runs those due; returns how long the loop may sleep */
struct daemon *daemon_with_space(const struct shard *s);

/* http_server_accept.c: new connections. */
void accept_begin(struct shard *s); /* or continue, if there is a free place and an open socket */
void accept_rest(struct shard *s);  /* accept what is in the queue, and read what all have sent */
void accept_end(struct shard *s);   /* closes the socket */

/* http_server_tls.c: the part of TLS that libmicrohttpd does not do. */
extern const char http_server_tls_priorities[]; /* for GnuTLS: the allowed versions */
/* Gives a new connection the certificate in use. Returns a reference, for as long as the connection
 * lives; NULL without TLS. */
struct tls_identity *http_server_tls_begin(struct http_server *f, struct MHD_Connection *mc);
/* conn_send() where there is TLS. */
ssize_t http_server_tls_send(struct MHD_Connection *mc, const void *data, size_t len);
void http_server_tls_end(struct MHD_Connection *mc); /* no more will be sent */

/* http_server_conn.c: sockets, deadlines, hang-ups. */
void conn_notify(void *cls, struct MHD_Connection *mc, void **socket_context,
                 enum MHD_ConnectionNotificationCode toe);
void conn_deadline(struct conn *c, uint64_t after_us); /* CLOCK_NEVER: none */
/* Stops waiting for the rest of the body: the answer is sent now; it is e unless another has been
 * decided. Does nothing if no body is expected. */
void conn_cut_body(struct conn *c, const struct err *e);
/* Stops waiting for the rest of the head: a client that has sent a part of it gets e as its answer,
 * and the socket is shut down. */
void conn_cut_head(struct conn *c, const struct err *e);
bool conn_has_unread(const struct conn *c);
/* Sends bytes past libmicrohttpd. Returns how many were taken, 0: none for now. The next call must
 * be for the rest, of which GnuTLS may have a part. -1: the connection is broken. */
ssize_t conn_send(const struct conn *c, const void *data, size_t len);
void conn_kill(struct conn *c); /* marks the request as disconnected, shuts the socket down */
/* Ends with a reset, which the peer sees as an error: in HTTP/1.0 a plain end completes an answer.
 */
void conn_reset(struct conn *c);
void conn_sweep(void *arg);                   /* timer of the shard */
void conn_finish_all(struct shard *s);        /* kills those without an answer to wait for */
bool conn_any_unsent(const struct shard *s);  /* has some answer not been sent whole yet? */
void conn_close_all(struct shard *s);         /* wakes everything before libmicrohttpd stops */
void lingering_open(struct shard *s, int fd); /* duplicates fd; bounded in number */
void lingering_close(struct lingering *l);

/* http_server_shed.c: which connections give way to others. */
void conn_queues_init(struct shard *s);
void conn_busy(struct conn *c);           /* its request is at work: it does not give way */
void conn_begin(struct conn *c);          /* it may give way: a head has begun */
void conn_silent(struct conn *c);         /* it may: it is new, or its answer ends it */
void conn_kept(struct conn *c);           /* it may: its request has ended */
void conn_unread(struct conn *c);         /* it may: its request can do without the body */
bool conn_begun(const struct conn *c);    /* has it sent a part of a request? */
bool conn_crowded(const struct shard *s); /* must connections give way? */
/* Cuts connections that may give way, while the shard is crowded. Returns in how many microseconds
 * the next one may be cut. */
uint64_t conn_shed(struct shard *s);

/* http_server_library.c: requests that libmicrohttpd itself refuses. Errors: ERR_INTERNAL. */
int http_server_find_library(struct http_server *f, struct err *e); /* sets f->queue_response */

/* http_server_greeting.c: the first byte of a connection to a TLS listener. */
void greeting_open(struct shard *s, int fd, const struct sockaddr_storage *peer, socklen_t len);
void greeting_look(struct greeting *g);  /* may free it */
void greeting_close(struct greeting *g); /* and its socket */

/* http_server_request.c: the callbacks of libmicrohttpd for a request. */
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
void request_refuse(struct request *r, const struct err *e); /* the application forms the answer */
enum MHD_Result request_queue(struct request *r); /* in the access handler, with an answer */
void request_send_raw(struct request *r); /* past libmicrohttpd; the connection then closes */
/* The same for a request that libmicrohttpd refuses: the existing answer, or e. */
void request_send_refusal(struct request *r, const struct err *e);
int http_server_prebuild(struct http_server *f, struct err *e);

/* http_server_origin.c: which requests of web pages are served (http/server/origin.h). */
int origin_admit(struct request *r, struct err *e);           /* sets r->preflight */
int origin_admit_act(const struct request *r, struct err *e); /* once it is routed */
bool origin_add_headers(const struct request *r, struct MHD_Response *resp);
void origin_put_headers(const struct request *r, struct buf *head); /* of a raw answer */

/* http_server_stream.c: chunks past libmicrohttpd. */
bool stream_may_pass(const struct request *r);
void stream_push(struct request *r); /* send what there is, as far as the socket takes it */

/* http_server_chunks.c: what libmicrohttpd reads: the framing of chunked bodies, and streamed
 * bodies that go straight into the memory of their reader. */
bool body_whole(const struct request *r); /* has all of it been read from the socket? */
/* The daemon that runs on this thread, or NULL: what others read and send is not checked. */
extern _Thread_local struct daemon *daemon_running;
/* The function of another library that is hidden by one of ours; *found keeps it. NULL: there is
 * none. Any thread. */
void *library_function(_Atomic(void *) *found, const char *name);
struct request_line;
void chunks_begin(struct request *r, const struct request_line *line); /* its head is complete */
void chunks_end(struct request *r);
int chunks_malformed(struct err *e); /* -1; the answer to CHUNK_BAD */

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
void filter_request_id(struct request *r);                 /* its headers may be incomplete */
void filter_wipe_key(struct MHD_Connection *mc); /* from libmicrohttpd's copy of the headers */

#endif
