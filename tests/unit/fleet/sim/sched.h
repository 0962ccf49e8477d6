/* Everything that runs in front of a fleet, on one thread and under a clock that stands still until
 * nothing else can happen: the jobs of pools and the threads, each on a stack of its own; the
 * upstreams' loop; and what happens at a time. What goes on next is drawn from a seed, so that each
 * history can be repeated.
 *
 * The functions of base/ that these replace are wrapped when the test is linked. A job can be
 * overtaken wherever it waits, and where it gives its last lock back. */
#ifndef BATON_TESTS_UNIT_FLEET_SIM_SCHED_H
#define BATON_TESTS_UNIT_FLEET_SIM_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* sched_begin - a new history. What jobs of the one before have not ended is lost. @yield_percent
 * of the moments at which a job may be overtaken.
 * @ordered  what is ready runs in its order, and nothing is drawn
 */
void sched_begin(uint64_t seed, unsigned yield_percent, bool ordered);

/* sched_draw - below n. sched_chance - true so often. */
unsigned sched_draw(unsigned n);
bool sched_chance(unsigned percent);

/* sched_spawn - run it, on a stack of its own, later. */
void sched_spawn(void (*run)(void *arg), void *arg);

/* sched_after - have it called then, on the stack of the loop. sched_cancel - it will not be; all
 * that have this argument. */
void sched_after(uint64_t delay_us, void (*run)(void *arg), void *arg);
void sched_cancel(const void *arg);

/* sched_step - do the next thing. Returns: false if nothing is left to happen.
 * sched_sleep - from a job: let the others run until then.
 * sched_n_jobs - that have not ended. */
bool sched_step(void);
void sched_sleep(uint64_t us);
size_t sched_n_jobs(void);

#endif
