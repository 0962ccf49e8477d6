/* Shared by the files of the client. All of it is used on the loop's thread only. */
#ifndef BATON_HTTP_CLIENT_HTTP_PRIV_H
#define BATON_HTTP_CLIENT_HTTP_PRIV_H

#include "base/net/cidr.h"
#include "http/client/http.h"

#include <curl/curl.h>

/* One socket of libcurl's. */
struct watch {
    struct loop_watch loop;
    struct http_client *client;
    struct http_call *call; /* that uses the socket; NULL: no call waits for it */
    uint32_t events;        /* watched for; 0: the socket is not watched */
    bool held;              /* not watched because of http_hold */
    struct watch *next;     /* in the list of spare watches */
};

struct http_client {
    CURLM *multi;
    struct loop *loop; /* borrowed */
    struct loop_timer timer;
    struct watch *spare; /* owned; made beforehand, so that a socket never waits for memory */
    size_t n_watches;    /* spare and used: at least WATCHES_EACH for each call */
    struct http_call *calls;
    size_t n_calls;
    unsigned depth; /* of libcurl's callbacks that run events */
    size_t n_later; /* calls with `later` set */
};

struct http_call {
    struct http_client *client;
    struct http_call *next, **prev_next;
    CURL *easy;
    struct curl_slist *headers, *connect_to;
    struct http_events events;
    struct http_head head;
    bool (*allowed)(const void *arg, const struct sockaddr *addr);
    const void *allowed_arg;
    char barred[CIDR_ADDR_TEXT_CAP]; /* the last address that is not allowed; "": none */
    struct watch *watch;             /* of its connection, or NULL */
    size_t head_nbytes, body_len;
    char error[CURL_ERROR_SIZE];
    const char *odd; /* static: why the head's description of the body is invalid; NULL: valid */
    unsigned depth;  /* of callbacks that run */
    bool told_head, cancelled;
    bool later;   /* add it to libcurl, or remove it, when libcurl's callback has returned */
    bool in_head; /* lines of the head come; libcurl accepts a connection that ends there */
    bool chunked; /* according to its head */
    bool refused; /* libcurl has paused it */
    bool hold;    /* its connection is not watched */
    bool lacks;   /* no descriptor or memory for a socket */
};

/* ---- http_outcome.c ---- */

/* call_outcome - which side caused the end of a call? This process only if nothing was sent, or if
 * it ended the call. Threads: any. */
struct call_facts {
    CURLcode code;
    int status; /* of its head; 0: no complete head came */
    bool sent;
    bool lacks; /* call_lacks */
};
enum http_outcome call_outcome(const struct call_facts *f);

/* call_lacks - did this process lack a descriptor, memory or a port for the connection? The failure
 * then does not show that the server cannot be reached. */
bool call_lacks(const struct http_call *call, CURLcode code);

/* call_open_socket - for CURLOPT_OPENSOCKETFUNCTION: keeps the reason when no socket can be opened,
 * which libcurl does not; it keeps only that of a failed connect. */
curl_socket_t call_open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *at);

void call_describe(struct http_end *end, const struct http_call *call, CURLcode code);

#endif
