/* The health listener: its thread answers from one atomic word and never waits.
 *
 * A second thread checks the server every WATCH_PERIOD_US and writes that word. The check takes
 * locks, so it may be delayed; the word contains its time, and a server whose word is too old is
 * not healthy. The main listener computes health for each request, with a detailed reason. */
#ifndef BATON_SERVER_HEALTH_WATCH_H
#define BATON_SERVER_HEALTH_WATCH_H

#include "base/err.h"
#include "http/server/http_server.h"

#include <stdbool.h>
#include <stdint.h>

struct app;
struct health_watch;

enum {
    WATCH_PERIOD_US = 50 * 1000,   /* time between two checks */
    WATCH_READY_AGE_MAX_MS = 2000, /* an older word: not ready */
    WATCH_LIVE_AGE_MAX_MS =
        30000 /* an older word, or an event loop that last turned longer ago: not live */
};

/* The result of a check. */
struct health {
    bool live, ready;
    bool control_ready;                /* implied by ready */
    enum err_code live_why, ready_why; /* ERR_NONE when they are. What keeps it from being ready for
                                          control keeps it from being ready too */
};

/* health_word - encode the result of a check at now_us; never 0.
 * health_of - decode a word at now_us, where one that is too old is not ready, or not live either.
 * 0 (no check yet) is live, and not ready because the server is starting. */
uint64_t health_word(const struct health *h, uint64_t now_us);
struct health health_of(uint64_t word, uint64_t now_us);

/* health_is_live - app_live, and do the loops of its listeners turn? Threads: any. Blocks: on short
 * locks only. Errors: why not. */
bool health_is_live(const struct app *app, struct err *why);

/* health_watch_new - open the health listener. Until health_watch_start it answers live, and not
 * ready because the server is starting.
 * @cfg  address and limits; name, n_shards, oldest_gives_way and app are set here
 * Errors: of http_server_new. */
int health_watch_new(struct health_watch **out, const struct http_server_cfg *cfg, struct err *e);

/* health_watch_start - check `app`, whose HTTP servers are set, from now on. Threads: main's.
 * Errors: of loop_new and loop_start. */
int health_watch_start(struct health_watch *w, const struct app *app, struct err *e);

uint16_t health_watch_port(const struct health_watch *w);

/* health_watch_stop - check no more, so that `app` may be freed. The listener then answers not
 * ready (draining), and live as at the last check until that is too old. health_watch_free - stop,
 * and close the listener. Both accept NULL. Threads: main's. */
void health_watch_stop(struct health_watch *w);
void health_watch_free(struct health_watch *w);

#endif
