/* What the files of the client share. All of it is the loop's. */
#ifndef BATON_HTTP_CLIENT_HTTP_PRIV_H
#define BATON_HTTP_CLIENT_HTTP_PRIV_H

#include "http/client/http.h"

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
    unsigned depth; /* of libcurl's callbacks that run events */
    size_t n_later; /* calls that are `later` */
};

struct http_call {
    struct http_client *client;
    struct http_call *next, **prev_next;
    CURL *easy;
    struct curl_slist *headers;
    struct http_events events;
    struct http_head head;
    struct watch *watch; /* of its connection, or NULL */
    size_t head_nbytes, body_len;
    char error[CURL_ERROR_SIZE];
    const char *odd; /* static: what its head says of its body, and cannot be; NULL: nothing */
    unsigned depth;  /* of callbacks that run */
    bool told_head, cancelled;
    bool later;   /* libcurl is to get it, or to lose it, when its callback has returned */
    bool in_head; /* its lines come; libcurl is content when the connection ends there */
    bool chunked; /* its head says so */
    bool refused; /* libcurl has paused it */
    bool hold;    /* its connection is not watched */
    bool lacks;   /* we have nothing to make a socket of */
};

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

#endif
