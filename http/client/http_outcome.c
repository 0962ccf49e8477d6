/* Classifies a call that ended without a response. "Out of memory" is our own failure only if
 * nothing has been sent: libcurl also reports it for a header line that is too long. */
#include "http/client/http_priv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

bool http_is_answer(int status)
{
    return (status >= 200 && status < 300) || (status >= 400 && status < 600);
}

/* Nothing was sent, and we lacked nothing. */
static enum http_outcome unsent_outcome(CURLcode code)
{
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
        return HTTP_UNRESOLVED;
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return HTTP_UNREACHABLE;
    case CURLE_OUT_OF_MEMORY:
        return HTTP_NO_MEMORY;
    default:
        return HTTP_BROKEN;
    }
}

enum http_outcome call_outcome(const struct call_facts *f)
{
    if (f->code == CURLE_OK)
        return http_is_answer(f->status) ? HTTP_WHOLE : HTTP_BROKEN;
    if (f->code == CURLE_OPERATION_TIMEDOUT)
        return HTTP_TIMED_OUT;
    if (f->code == CURLE_ABORTED_BY_CALLBACK) /* on_socket: the kernel watches no more for us */
        return HTTP_NO_MEMORY;
    if (f->sent)
        return HTTP_BROKEN;
    return f->lacks ? HTTP_NO_MEMORY : unsent_outcome(f->code);
}

static bool is_lack(long os_errno)
{
    return os_errno == EMFILE || os_errno == ENFILE || os_errno == ENOMEM || os_errno == ENOBUFS ||
           os_errno == EADDRNOTAVAIL;
}

curl_socket_t call_open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *at)
{
    struct http_call *call = arg;
    int fd;

    (void)purpose;
    if (call->allowed != NULL && !call->allowed(call->allowed_arg, &at->addr)) {
        (void)cidr_addr_text(&at->addr, call->barred);
        return CURL_SOCKET_BAD;
    }
    call->barred[0] = '\0'; /* another address of the same name */
    fd = socket(at->family, at->socktype | SOCK_CLOEXEC, at->protocol);
    if (fd < 0 && is_lack(errno))
        call->lacks = true;
    return fd >= 0 ? fd : CURL_SOCKET_BAD;
}

/* Name resolution and reading of certificate files report only that they failed. */
static bool lacks_descriptor(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return is_lack(errno);
    (void)close(fd);
    return false;
}

bool call_lacks(const struct http_call *call, CURLcode code)
{
    long os_errno = 0;

    if (call->lacks)
        return true;
    if (code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_SSL_CACERT_BADFILE)
        return lacks_descriptor();
    (void)curl_easy_getinfo(call->easy, CURLINFO_OS_ERRNO, &os_errno);
    return code == CURLE_COULDNT_CONNECT && is_lack(os_errno);
}

/* libcurl's "Failed to connect to HOST port 1 after 0 ms: Could not connect to server" names the
 * peer, and so do our messages. */
static const char *text_of(const struct http_call *call, CURLcode code)
{
    const char *reason;

    if (call->error[0] == '\0')
        return curl_easy_strerror(code);
    reason = code == CURLE_COULDNT_CONNECT ? strstr(call->error, " ms: ") : NULL;
    return reason != NULL ? reason + strlen(" ms: ") : call->error;
}

void call_describe(struct http_end *end, const struct http_call *call, CURLcode code)
{
    char *why = end->why;

    end->no_tls = code == CURLE_SSL_CONNECT_ERROR || code == CURLE_PEER_FAILED_VERIFICATION;
    if (end->outcome == HTTP_WHOLE)
        return;
    if (code == CURLE_OK && call->head.status == 0)
        (void)snprintf(why, HTTP_WHY_MAX, "it closed the connection within its headers");
    else if (code == CURLE_OK)
        (void)snprintf(why, HTTP_WHY_MAX, "it answered %d, %s", call->head.status,
                       call->head.status >= 300 && call->head.status < 400
                           ? "and redirects are not followed"
                           : "which is no status of an answer");
    else if (code == CURLE_COULDNT_CONNECT && call->barred[0] != '\0')
        (void)snprintf(why, HTTP_WHY_MAX, "its address %s is not allowed (--fetch-cidr)",
                       call->barred);
    else if (call->odd != NULL)
        (void)snprintf(why, HTTP_WHY_MAX, "%s", call->odd);
    else if (call->head_nbytes > HTTP_HEAD_NBYTES_MAX)
        (void)snprintf(why, HTTP_WHY_MAX, "its headers are longer than %d bytes",
                       HTTP_HEAD_NBYTES_MAX);
    else if (code == CURLE_OUT_OF_MEMORY && end->outcome == HTTP_BROKEN)
        (void)snprintf(why, HTTP_WHY_MAX,
                       "it sent a header line longer than libcurl takes (100 KB)");
    else
        (void)snprintf(why, HTTP_WHY_MAX, "%.200s", text_of(call, code));
}
