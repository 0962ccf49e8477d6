/* What a trainer, an operator and others ask of the fleet: each request is a job. */
#ifndef BATON_TESTS_UNIT_FLEET_SIM_ASK_H
#define BATON_TESTS_UNIT_FLEET_SIM_ASK_H

#include "tests/unit/fleet/sim/world.h"

/* ask_begin_history - nothing is asked yet.
 * ask_scenario - begin it. ask_event - begin what happens meanwhile.
 * ask_update - a whole one. ask_recover - resume and wake all. ask_all_ended - have they? */
void ask_begin_history(void);
void ask_scenario(enum scenario scenario);
void ask_event(enum event event, struct engine *g);
void ask_update(unsigned n_chunks);
void ask_recover(void);
bool ask_all_ended(void);

/* ask_commit - of a version that this server hands over. ask_join - the last engine. */
void ask_commit(void);

/* ask_begin - a request that has to end within this time. ask_end - it has. */
struct ask *ask_begin(const char *what, uint64_t limit_us);
void ask_end(struct ask *a);

#endif
