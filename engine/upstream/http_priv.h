/* What the files of the client share. All of it is the loop's. */
#ifndef BATON_ENGINE_UPSTREAM_HTTP_PRIV_H
#define BATON_ENGINE_UPSTREAM_HTTP_PRIV_H

#include "engine/upstream/chunks.h"
#include "engine/upstream/http.h"

#include <curl/curl.h>

/* One socket of libcurl's. */
struct watch {
    struct loop_watch loop;
    struct http_client *client;
    struct http_call *call; /* whose it is; NULL: of one that keeps no call waiting */
    uint32_t events;        /* that it is watched for; 0: it is not */
    bool held;              /* it would be, but for http_hold */
    struct watch *next;     /* of the spare ones */
};

struct http_client {
    CURLM *multi;
    struct loop *loop; /* borrowed */
    struct loop_timer timer;
    struct watch *spare; /* owned: so that a socket never has to wait for memory */
    size_t n_watches;    /* spare or not: WATCHES_EACH for each of the calls, at least */
    struct http_call *calls;
    size_t n_calls;
    size_t n_fresh; /* calls so far on a connection of their own */
    unsigned depth; /* of libcurl's callbacks that run events */
    size_t n_later; /* calls that are `later` */
    bool may_pass;  /* calls of this libcurl may go on past it */
};

struct http_call {
    struct http_client *client;
    struct http_call *next, **prev_next;
    CURL *easy; /* NULL: it goes on past libcurl */
    struct curl_slist *headers;
    struct http_events events;
    struct http_head head;
    struct watch *watch;    /* of its connection, or NULL */
    struct loop_watch past; /* of its own socket, past libcurl; owns its fd */
    bool watched;           /* `past` is */
    char *kept;             /* owned: what was refused past libcurl; or NULL */
    size_t n_kept;
    size_t head_nbytes, body_len;
    struct chunks chunks; /* of a body in chunks */
    char error[CURL_ERROR_SIZE];
    const char *odd; /* static: what its head says of its body, and cannot be; NULL: nothing */
    unsigned depth;  /* of callbacks that run */
    bool told_head, cancelled;
    bool later;    /* libcurl is to get it, or to lose it, when its callback has returned */
    bool in_head;  /* its lines come; libcurl is content when the connection ends there */
    bool chunked;  /* its head says so */
    bool may_pass; /* past libcurl, which has its connection for this call alone */
    bool passes;   /* `past` has its fd */
    bool refused;  /* libcurl has paused it, or it is in `kept` */
    bool hold;     /* its connection is not watched */
    bool lacks;    /* we have nothing to make a socket of */
};

/* ---- http.c ---- */

/* call_leave_curl - libcurl has no part in it any more, and has closed what it had. Not from within
 * its callbacks. */
void call_leave_curl(struct http_call *call);
void call_free(struct http_call *call);
/* call_over - free it, and tell how it ended unless it was cancelled. */
void call_over(struct http_call *call, const struct http_end *end);

/* ---- http_outcome.c ---- */

/* call_outcome - whose fault is the end of a call? Ours only where nothing was sent, or where we
 * ended it. Any thread. */
struct call_facts {
    CURLcode code;
    int status; /* of its head; 0: none came whole */
    bool sent;
    bool lacks; /* call_lacks */
};
enum http_outcome call_outcome(const struct call_facts *f);

/* call_lacks - had we no descriptor, memory or port for its connection? Then it says nothing of who
 * was not reached. */
bool call_lacks(const struct http_call *call, CURLcode code);

/* call_open_socket - of CURLOPT_OPENSOCKETFUNCTION: libcurl keeps the reason when a connect fails,
 * and none when there is no socket for it. */
curl_socket_t call_open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *at);

void call_describe(struct http_end *end, const struct http_call *call, CURLcode code);

/* ---- http_past.c ---- */

/* past_knows - can the rest of an answer be read past this libcurl? One that reads its socket once
 * more as it closes it [8.9 and later], or keeps what it has read, would take bytes away unseen:
 * only of those whose source says otherwise. Any thread. */
bool past_knows(unsigned libcurl_version);

/* past_takes - from within libcurl's callback: shall the rest of the answer be read past it? Then
 * it is to be told that the transfer ends. */
bool past_takes(struct http_call *call);
void past_begin(struct http_call *call); /* when it has been told so */
void past_hold(struct http_call *call);
void past_resume(struct http_call *call);
void past_end(struct http_call *call); /* if it takes place: its connection is closed */

#endif
