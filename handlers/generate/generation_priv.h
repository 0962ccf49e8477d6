/* What the files of a generation share: generation.c (its life), generation_limits.c (what a
 * request may ask for), generation_submit.c (its sequences in the engine). */
#ifndef BATON_HANDLERS_GENERATE_GENERATION_PRIV_H
#define BATON_HANDLERS_GENERATE_GENERATION_PRIV_H

#include "handlers/generate/generation.h"

/* generation_refuse_model - ERR_NOT_FOUND at /model. Returns -1. */
int generation_refuse_model(const struct app_generate *generate, const char *model, struct err *e);

/* generation_start - with the permit, on app->generate_executor: submit all sequences. @arg  struct
 * generation */
void generation_start(void *arg);

/* generation_fail_locked - keep the first error and cancel all sequences. The caller holds the
 * lock. */
void generation_fail_locked(struct generation *g, const struct err *e);

/* generation_schedule_work - run the work job, now or once more; any thread, without the lock.
 * @ended  all sequences have ended and the permit was given back */
void generation_schedule_work(struct generation *g, bool ended);

/* generation_pending_done - one callback fewer is pending; the last one gives the permit back and
 * schedules the reply. Any thread, without the lock. */
void generation_pending_done(struct generation *g);

#endif
