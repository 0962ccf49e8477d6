/* What happened lately: the last updates and the last errors, for /v1/status. The end of an update
 * is logged, counted and kept by one call, with the same members for a server with weights, a fleet
 * and a request that was refused. */
#ifndef BATON_CONTROL_HISTORY_H
#define BATON_CONTROL_HISTORY_H

#include "base/err.h"
#include "base/net/actor.h"
#include "weights/update/update.h"

#include <stddef.h>
#include <stdint.h>

struct history;
struct metrics;

enum {
    HISTORY_UPDATES_MAX = 32,
    HISTORY_ERRORS_MAX = 32,
    HISTORY_ERROR_EVENT_US = 1000000 /* between two events about one record */
};

enum update_outcome { OUTCOME_COMMITTED, OUTCOME_ABORTED, OUTCOME_REFUSED };
const char *update_outcome_name(enum update_outcome outcome);

/* Microseconds that an update spent in each phase. wait: in none of the others, because the server
 * waited for the trainer's requests, for earlier work or for memory. */
struct update_times {
    uint64_t wait_us, receive_us, proof_us, commit_us, whole_us;
};

/* The end of an update, or a request of an update that was refused. */
struct update_record {
    enum update_outcome outcome;
    char update_id[UPDATE_ID_MAX + 1];          /* "": of a refused request it is not known */
    char weight_version[VERSION_LABEL_MAX + 1]; /* "": none */
    uint64_t serial;                            /* 0: not committed */
    uint64_t nbytes;                            /* received */
    uint64_t nbytes_made;                       /* of a delta: of the tensors that it made */
    struct update_base base;                    /* what it builds on */
    uint32_t n_tensors;                         /* received */
    uint32_t n_upstreams;                       /* fleet: that serve the new version */
    uint64_t n_checksums;                       /* as in struct update_info */
    const char *source;                         /* static, or NULL */
    const char *route;                          /* static: of a refused request; or NULL */
    const char *coverage;                       /* static: of a fleet's commit; or NULL */
    struct change_counts changes;               /* of a commit of own weights */
    struct update_times times;                  /* wait_us is computed */
    struct err error;                           /* clean if it is committed */
    struct actor actor;                         /* that started it, or sent the request */
    uint64_t ended_at_us;                       /* wall clock; set by history_add_update */
    uint64_t n;                                 /* refused: how often in a row */
};

struct error_record {
    enum err_code code;
    const char *route; /* static: "POST /v1/pause" as its pattern; NULL: no route matched */
    char param[ERR_FIELD_MAX], message[ERR_MSG_MAX]; /* of the last one */
    uint64_t first_at_us, last_at_us;                /* wall clock */
    uint64_t event_at_us;                            /* of the last event `error` about it */
    uint64_t n;
};

/* history_new - @metrics  borrowed; counts each update. Errors: ERR_NO_MEMORY. */
int history_new(struct history **out, struct metrics *metrics, struct err *e);
void history_free(struct history *h); /* accepts NULL */

/* history_add_update - log, count and keep the end of an update; the oldest is forgotten. Refused
 * requests of one kind in a row (code, param, route and key) are one record with a count.
 * @r  copied. Threads: any; takes MTX_LEAF. Blocks: no. */
void history_add_update(struct history *h, const struct update_record *r);

/* history_add_error - keep an error that a request was answered with, or that ended an update. The
 * same code at the same route is one record; of too many, the one that was last seen longest ago is
 * forgotten. An event `error` tells of it, for each record at most once in HISTORY_ERROR_EVENT_US.
 * @route  static, or NULL. Threads and blocking: as above. */
void history_add_error(struct history *h, const char *route, const struct err *e);

/* history_updates, history_errors - copy the records, the oldest (the one last seen longest ago)
 * first. Returns: how many. @out  [HISTORY_UPDATES_MAX], [HISTORY_ERRORS_MAX] */
size_t history_updates(struct history *h, struct update_record *out);
size_t history_errors(struct history *h, struct error_record *out);

#endif
