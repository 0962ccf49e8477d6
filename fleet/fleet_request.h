/* One operation of ours to several upstreams at the same time, and what came of it at each. */
#ifndef BATON_FLEET_FLEET_REQUEST_H
#define BATON_FLEET_FLEET_REQUEST_H

#include "base/err.h"
#include "fleet/api/upstream_api.h"
#include "fleet/members/fleet.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_control;
struct upstream_reply;

enum fleet_outcome {
    FLEET_SKIPPED, /* nothing had to be sent, or nobody wanted to */
    FLEET_OK,
    FLEET_REFUSED, /* it answered with an error */
    FLEET_LOST,    /* it knows nothing of the update that it had begun: it was restarted */
    FLEET_UNSENT,  /* it was not reached: nothing has changed there */
    FLEET_UNKNOWN  /* it was sent, and no answer came: it may have been done, or be done yet */
};

struct fleet_result {
    size_t upstream;
    enum fleet_outcome outcome;
    int status;     /* 0: it did not answer */
    struct err why; /* clean unless it failed; ours: names the upstream */
    char *text;     /* owned; of its answer; NULL: none */
    size_t text_len;
};
void fleet_results_free(struct fleet_result *results, size_t n); /* accepts NULL */

/* One of those asked. */
struct fleet_target {
    size_t upstream;
    const json_t *body; /* borrowed; NULL: an empty one */
    struct api_context about;
    bool until_down; /* it is not waited for once it is down: FLEET_UNKNOWN, ERR_UNSYNCED */
};

/* fleet_request - ask, and wait for the last answer.
 * @targets    [n], n <= FLEET_MAX
 * @results  [n], in the order of `targets`; written on success; to be freed with fleet_results_free
 * Threads: control's. Blocks: up to timeout_us.
 * Errors: api_make_request's (its dialect has no words for it): nobody was asked; ERR_NO_MEMORY: so
 * too; ERR_DRAINING: what became of it is not known. */
int fleet_request(struct fleet_control *fc, enum api_op op, const struct fleet_target *targets,
                  size_t n, uint64_t timeout_us, struct fleet_result **results, struct err *e);

/* fleet_query - the same with a question about itself. */
int fleet_query(struct fleet_control *fc, enum api_query q, const struct fleet_target *targets,
                size_t n, uint64_t timeout_us, struct fleet_result **results, struct err *e);

/* fleet_validate - has each of them words for it? Errors: api_make_request's. */
int fleet_validate(struct fleet_control *fc, enum api_op op, const struct fleet_target *targets,
                   size_t n, struct err *e);

/* fleet_result_read - what an upstream's answer means to our client.
 * @results  upstream is set; the text is moved out of `a` */
void fleet_result_read(struct fleet_result *results, const char *name, struct upstream_reply *a);

/* fleet_result_read_lost - was the part of an upstream in an update refused because there is no
 * such update? FLEET_LOST then.
 * @results  of fleet_result_read */
bool fleet_result_read_lost(struct fleet_result *results, const struct api_context *about,
                            const char *name);

/* fleet_result_may_have_run - may it have begun to work on it? Not if its door refused it. */
bool fleet_result_may_have_run(const struct fleet_result *results);

/* fleet_results_cause - the failure that a client is told of first: a refusal, which says why,
 * before silence. NULL: none failed. */
const struct fleet_result *fleet_results_cause(const struct fleet_result *results, size_t n);

/* fleet_results_sum - of a member of what the good ones said. */
uint64_t fleet_results_sum(const struct fleet_result *result, size_t n, const char *member);

/* fleet_results_ok - did all of them do it? @e  set if not */
bool fleet_results_ok(const struct fleet_result *results, size_t n, struct err *e);

/* fleet_wire_code - the error of that name in our own error bodies; ERR_NONE: there is none. */
enum err_code fleet_wire_code(const char *name);

#endif
