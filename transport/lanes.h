/* Requests to one server, several at a time, for which a thread waits: what comes is handed over
 * piece by piece. The files of a pull (fetch.c) and a peer's weights (peer.c) come by them. */
#ifndef BATON_TRANSPORT_LANES_H
#define BATON_TRANSPORT_LANES_H

#include "base/err.h"
#include "base/progress.h"
#include "http/client/http.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES_MAX = 65 };

struct lanes;

/* Where requests go. What it points to outlives the lanes. */
struct lanes_place {
    struct http_target target;
    /* As of struct http_call_request. */
    bool (*allowed)(const void *arg, const struct sockaddr *addr);
    const void *allowed_arg;
};

/* One request. */
struct lane_ask {
    const char *method; /* static */
    const char *path;   /* this and the next two: until the lane asks again */
    const char *body;   /* JSON, or NULL */
    const char *etag;   /* with a range: of the file that it is of */
    uint64_t from, to;  /* bytes [from, to) of the file; to 0: no range; UINT64_MAX: to its end */
};

/* What a lane does next: it asks; it waits and asks later; nothing, unless another lane makes work.
 */
enum lane_next { LANE_ASKS, LANE_WAITS, LANE_RESTS };

/* Requests that run at the same time, a lane for each. All of it is called on the loop's thread,
 * and an error ends every lane. */
struct lanes_work {
    unsigned n_lanes; /* at most LANES_MAX */
    /* Fills *out if the lane asks. Called again when any lane is done, and every 100 ms; the work
     * is over when all lanes rest. */
    enum lane_next (*next)(void *arg, unsigned lane, struct lane_ask *out);
    int (*head)(void *arg, unsigned lane, const struct http_head *h, struct err *e);
    int (*data)(void *arg, unsigned lane, const void *data, size_t len, struct err *e);
    int (*whole)(void *arg, unsigned lane, struct err *e); /* the whole answer has come */
    void *arg;
};

/* lanes_open - start the thread.
 * @stall_us  within which 16 KiB a second have to come of all lanes together, or all there is; the
 *            answers to requests with a body do not count
 * Threads: any. Errors: ERR_NO_MEMORY, ERR_INTERNAL. */
int lanes_open(struct lanes **out, const struct lanes_place *place, uint64_t stall_us,
               struct err *e);
void lanes_close(struct lanes *s); /* accepts NULL */
const char *lanes_url(const struct lanes *s);

/* lanes_run - do the work. When it returns, nothing of it is called any more.
 * @broken  set if a connection ended early, which is no answer of the server; may be NULL
 * Threads: one call at a time. Blocks: until the work is over, or `progress` or a stall ends it.
 * Errors: the work's; ERR_UNREADABLE (no connection, or it broke), ERR_TIMEOUT, ERR_CONFLICT,
 *         ERR_GONE, ERR_NO_MEMORY. */
int lanes_run(struct lanes *s, const struct lanes_work *w, const struct progress *progress,
              bool *broken, struct err *e);

/* lanes_check_encoding - no body is taken in another encoding. Errors: ERR_UNREADABLE. */
int lanes_check_encoding(const struct http_head *h, struct err *e);

/* lanes_check_range - is it the answer with the range that was asked for?
 * @total  set to the length of the file
 * Errors: ERR_UNREADABLE. */
int lanes_check_range(const struct http_head *h, const struct lane_ask *ask, uint64_t *total,
                      struct err *e);

#endif
