/* The result of a request to an engine (fleet/calls/fleet_request.h). */
#ifndef BATON_FLEET_CALLS_FLEET_RESULT_H
#define BATON_FLEET_CALLS_FLEET_RESULT_H

#include "base/err.h"
#include "fleet/members/have.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct api_context;
struct fleet_control;
struct upstream_reply;

enum { FLEET_ERROR_TEXT_MAX = 300 }; /* bytes of an engine's error message that are passed on */

enum fleet_outcome {
    FLEET_SKIPPED, /* nothing had to be sent, or the adapter to be unloaded is not there */
    FLEET_OK,
    FLEET_REFUSED, /* the engine replied with an error */
    FLEET_LOST,    /* the engine does not know its own update: it was restarted */
    FLEET_UNSENT,  /* the engine was not reached: nothing has changed there */
    FLEET_UNKNOWN  /* no reply came: the engine may have processed the request, or may yet */
};

struct fleet_result {
    struct upstream *upstream; /* a reference; NULL: none */
    enum fleet_outcome outcome;
    int status;         /* of the reply; 0: none came */
    bool other_process; /* it named another one than that which was known */
    struct err why;     /* clean unless it failed; names the engine */
    char *text;         /* owned; body of the reply; NULL: none */
    size_t text_len;
};
void fleet_result_fini(struct fleet_result *result); /* accepts a zeroed one */

/* What each of several engines replied. */
struct fleet_results {
    struct fleet_result *list; /* owned; [n]; NULL: none was asked */
    size_t n;
};
void fleet_results_fini(struct fleet_results *results); /* accepts zeroed ones */

/* fleet_results_auto - the type of results that are given back at the end of the block. */
#define fleet_results_auto struct fleet_results __attribute__((cleanup(fleet_results_fini)))

/* fleet_result_read - the result of an upstream's reply, in terms of our client's errors.
 * @result  in: zeroed but for `upstream`
 * @a       its text is moved out */
void fleet_result_read(struct fleet_result *result, const char *name, struct upstream_reply *a);

/* fleet_result_read_lost - was the request refused because the engine does not know the update_id
 * that it gave out itself? Then `outcome` becomes FLEET_LOST.
 * @result  of fleet_result_read */
bool fleet_result_read_lost(struct fleet_result *result, const struct api_context *ctx,
                            const char *name);

/* fleet_result_of - that of an engine; NULL: it was not asked. */
const struct fleet_result *fleet_result_of(const struct fleet_results *results,
                                           const struct upstream *upstream);

/* result_ok - did the engine do it, or had nothing to be sent? */
bool result_ok(const struct fleet_result *result);

/* fleet_result_answer - what it says of the engine's facts (fleet/members/have.h). */
enum have_answer fleet_result_answer(const struct fleet_result *result);

/* fleet_result_may_have_run - may the engine have begun to process the request? Not if it rejected
 * it by a status that precedes any work (401, 403, 404, 405, 413, 415, 421). */
bool fleet_result_may_have_run(const struct fleet_result *result);

/* fleet_result_lacks_route - was it refused as if the engine had no such route (404, 405)? */
bool fleet_result_lacks_route(const struct fleet_result *result);

/* fleet_results_cause - the failure to report to the client: a refusal, which has a reason, before
 * a missing reply. NULL: none failed. */
const struct fleet_result *fleet_results_cause(const struct fleet_results *results);

/* fleet_results_ok - did none fail? @e  set to the cause if one did */
bool fleet_results_ok(const struct fleet_results *results, struct err *e);

/* fleet_error_after_change - make an engine's 4xx, which says that nothing was changed,
 * ERR_UPSTREAM. */
void fleet_error_after_change(struct err *e);

/* fleet_results_done - the same of a request that changes something. A 4xx says that nothing was
 * changed, so an engine's is ERR_UPSTREAM if another engine did what was asked, or may have. */
bool fleet_results_done(const struct fleet_results *results, struct err *e);

/* fleet_results_sum - sum of an integer member of the replies that are FLEET_OK. */
uint64_t fleet_results_sum(const struct fleet_results *results, const char *member);

#endif
