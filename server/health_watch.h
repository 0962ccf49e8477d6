/* Health that never waits: a listener and a thread of its own, which read one atomic word.
 *
 * A second thread looks at the server every WATCH_PERIOD_US and writes that word. It takes the
 * locks that such a look takes, so it may be held up; the word says when it was written, and one
 * that is too old is no health. What the main listener answers is computed for each request and
 * says more. */
#ifndef BATON_SERVER_HEALTH_WATCH_H
#define BATON_SERVER_HEALTH_WATCH_H

#include "base/err.h"
#include "http/server/http_server.h"

#include <stdbool.h>
#include <stdint.h>

struct app;
struct health_watch;

enum {
    WATCH_PERIOD_US = 50 * 1000,   /* how old an answer may be while all is well */
    WATCH_READY_AGE_MAX_MS = 2000, /* an older look does not say that it is ready */
    WATCH_LIVE_AGE_MAX_MS = 30000 /* nor that it is alive; nor is a loop that did not turn for it */
};

/* What a look found. */
struct health {
    bool live, ready;
    enum err_code live_why, ready_why; /* ERR_NONE when they are */
};

/* health_word - what was found at `now_us`, as one word that is never 0. health_of - what that word
 * says at `now_us`, when it may be old; of 0, which nobody wrote, that the server is starting. */
uint64_t health_word(const struct health *h, uint64_t now_us);
struct health health_of(uint64_t word, uint64_t now_us);

/* health_watch_new - listen, and answer: live, and not ready because it is starting.
 * @cfg  where, and the limits; its name, shards and app are set here
 * Errors: of http_server_new. */
int health_watch_new(struct health_watch **out, const struct http_server_cfg *cfg, struct err *e);

/* health_watch_start - from now on look at `app`, complete with its HTTP servers. Threads: main's.
 */
int health_watch_start(struct health_watch *w, const struct app *app, struct err *e);

uint16_t health_watch_port(const struct health_watch *w);

/* health_watch_stop - look no more, so that `app` may be taken down: not ready from now on, and
 * live as it was seen last until that is too old. Threads: main's. health_watch_free - stop, and
 * close. Both accept NULL. */
void health_watch_stop(struct health_watch *w);
void health_watch_free(struct health_watch *w);

#endif
