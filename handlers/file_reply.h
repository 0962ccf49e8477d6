/* A reply that is a file which need not be anywhere, or a range of it, and is sent piece by piece.
 */
#ifndef BATON_HANDLERS_FILE_REPLY_H
#define BATON_HANDLERS_FILE_REPLY_H

#include "base/err.h"
#include "http/http_request.h"

#include <stdint.h>

struct app;

struct file_source {
    uint64_t nbytes;    /* > 0 */
    const char *digest; /* of its bytes, for ETag; borrowed for the call */
    /* Copy bytes [at, at + *n) to `out`; with 0 only find out whether that is still possible. *n
     * becomes less if not all are there yet; 0: none, for which it has waited a moment.
     * Threads: one of app->weights->file_threads, one at a time. Errors: any: the reply is cut. */
    int (*read)(void *arg, uint64_t at, uint64_t *n, void *out, struct err *e);
    void (*end)(void *arg); /* once, when nothing reads any more; any thread */
    void *arg;
};

/* file_reply - answer GET and HEAD, with `Range` and `If-Range` of a GET: 200, 206 or 416.
 * @f     `arg` is taken over, also after an error
 * @head  copied: the type and headers of its own, at most four
 * The reply to a GET has no Content-Length, and about 2 MiB of it are in memory at a time.
 * Threads: any. Blocks: no. Errors: ERR_OVERLOADED (FILE_SENDS_MAX), ERR_DRAINING, ERR_NO_MEMORY.
 */
int file_reply(struct app *app, struct http_request *x, const struct file_source *f,
               const struct http_reply *head, struct err *e);

#endif
