/* What must hold whatever happens. The truth is in the doubles; what the fleet believes counts for
 * nothing. Only that a process has begun may be unknown to it, until a probe could tell.
 *
 *   I4   an engine that gets a request of a client serves the fleet's version, whole, under its
 *        name, with caches and adapters of it
 *   I7   tensors, the end of an update, and an SGLang's wake are not sent where it is not known
 * what the engine has I8   no tensors before all are prepared; no resume before the end, nor of
 * torn weights I9   the fleet's version never goes back, and is the fleet's before it makes tokens
 *   I10  each request ends once, in time
 *   I11  an engine that does not serve says why, and is healed if it can be
 *   I14  what an engine reports is what it has
 *   I17  between the end of an update and its answer an engine gets no request */
#ifndef BATON_TESTS_UNIT_FLEET_SIM_CHECK_H
#define BATON_TESTS_UNIT_FLEET_SIM_CHECK_H

#include "tests/unit/fleet/sim/engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* check_fail - the first failure of a history stays. check_failed - NULL: none. */
__attribute__((format(printf, 1, 2))) void check_fail(const char *fmt, ...);
const char *check_failed(void);
void check_begin(void);

/* For the doubles. */
size_t check_index_of(const struct engine *g);
uint64_t check_turn(void);
unsigned check_accepted(int target); /* the chunks of this update that the fleet has taken */
bool check_is_removed(const struct engine *g);
bool check_is_fenced(const struct engine *g);
bool check_is_open(int target); /* this update, still */
bool check_runs_request(const struct engine *g);
void check_token(struct engine *g, bool held); /* it makes one */
void check_stale(const struct engine *g, const char *what);
void check_stray(struct engine *g); /* it is asked for what may be meant for another process */
void check_tensors(struct engine *g, int target);
void check_repeat(const struct engine *g, int target, unsigned chunk);
void check_finish(const struct engine *g, bool labelled);
void check_resume(const struct engine *g);
void check_crash(struct engine *g, const char *what); /* NULL: that may be */

/* check_now - at each turn. check_requests - clients ask for tokens, now. */
void check_now(void);
void check_requests(void);

#endif
