/* Which call works in which state: one table, which every handler that changes something consults.
 *
 * A state consists of small independent parts. The module is pure: the caller passes the state in,
 * and changes are made elsewhere. */
#ifndef BATON_CONTROL_LIFECYCLE_H
#define BATON_CONTROL_LIFECYCLE_H

#include "base/err.h"
#include "control/life.h"

#include <stdbool.h>
#include <stddef.h>

enum lifecycle_pause { PAUSE_NONE, PAUSE_KEEP, PAUSE_WAIT, PAUSE_ABORT, PAUSE_COUNT };

enum lifecycle_weights {
    WEIGHTS_UNSYNCED,
    WEIGHTS_SERVED,
    WEIGHTS_ASLEEP,
    WEIGHTS_DROPPED,
    WEIGHTS_COUNT
};

/* UPDATE_IS_SEED: one that any other update ends. */
enum lifecycle_update {
    UPDATE_IS_NONE,
    UPDATE_IS_OPEN,
    UPDATE_IS_FINISHING,
    UPDATE_IS_SEED,
    UPDATE_IS_COUNT
};

struct lifecycle_state {
    enum life_state life;
    enum lifecycle_pause pause;
    enum lifecycle_weights weights;
    bool kv_released;
    enum lifecycle_update update;
    bool busy; /* generations run, are frozen, or came before the pause and wait */
};

#define LIFECYCLE_CALLS(X)                                                                         \
    X(CALL_GENERATE, "generate")                                                                   \
    X(CALL_PAUSE_KEEP, "pause(keep)")                                                              \
    X(CALL_PAUSE_WAIT, "pause(wait)")                                                              \
    X(CALL_PAUSE_ABORT, "pause(abort)")                                                            \
    X(CALL_RESUME, "resume")                                                                       \
    X(CALL_SLEEP_WEIGHTS_1, "sleep(1, weights)")                                                   \
    X(CALL_SLEEP_WEIGHTS_2, "sleep(2, weights)")                                                   \
    X(CALL_SLEEP_KV, "sleep(kv_cache)")                                                            \
    X(CALL_WAKE_WEIGHTS, "wake(weights)")                                                          \
    X(CALL_WAKE_KV, "wake(kv_cache)")                                                              \
    X(CALL_UPDATE_START, "update start")                                                           \
    X(CALL_UPDATE_RECEIVE, "update")                                                               \
    X(CALL_UPDATE_FINISH, "update finish")                                                         \
    X(CALL_UPDATE_ABORT, "update abort")                                                           \
    X(CALL_RESET_CACHE, "reset_cache")                                                             \
    X(CALL_ABORT_REQUESTS, "abort_requests")                                                       \
    X(CALL_LORA_LOAD, "load_lora_adapter")                                                         \
    X(CALL_LORA_UNLOAD, "unload_lora_adapter")                                                     \
    X(CALL_DRAIN, "drain")
enum lifecycle_call {
#define X(constant, name) constant,
    LIFECYCLE_CALLS(X)
#undef X
        CALL_COUNT
};

const char *lifecycle_pause_name(enum lifecycle_pause pause);       /* "none", "keep", ... */
const char *lifecycle_weights_name(enum lifecycle_weights weights); /* "asleep", ... */

/* lifecycle_check - does the call work in this state?
 * Errors: ERR_STARTING, ERR_DRAINING (the life cycle). For a generate ERR_ASLEEP,
 *         ERR_UNSYNCED: the message names what has to happen first. For any other call
 *         ERR_CONFLICT: the message has the reason, the whole state, and the calls that work in
 *         it. */
int lifecycle_check(const struct lifecycle_state *s, enum lifecycle_call call, struct err *e);

#endif
