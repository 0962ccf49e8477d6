/* What the steps of an update share. */
#ifndef BATON_HANDLERS_FLEET_RUN_H
#define BATON_HANDLERS_FLEET_RUN_H

#include "handlers/fleet_priv.h"

/* Some parts, as they are asked. */
struct fleet_batch {
    size_t n;
    size_t part[FLEET_MAX]; /* indexes of s->parts */
    struct fleet_to to[FLEET_MAX];
};
void batch_add(struct fleet_batch *b, struct fleet_session *s, size_t part, const json_t *body);

bool said_good(const struct fleet_said *said);
uint64_t fleet_step_us(const struct app *app);
bool fleet_is_open(struct fleet_control *fc, const struct fleet_session *s);
bool fleet_stands(struct app *app, const struct fleet_session *s); /* by --min-ready */
int refuse_ended(const struct fleet_session *s, struct err *e);

/* fleet_tell_cause - the error that a client is told of what failed at the parts that are out.
 * @e  clean; set. No lock held. */
void fleet_tell_cause(struct app *app, const struct fleet_session *s, struct err *e);

/* fleet_release - let go on what stands still for the update and was not touched, having closed
 * what was started there. What fails is fenced. In a turn.
 * @dropped  only those that are out */
void fleet_release(struct app *app, struct fleet_session *s, bool dropped);

/* fleet_fence_parts - those that were touched and did not get to their end. No lock held. */
void fleet_fence_parts(struct app *app, struct fleet_session *s);

/* fleet_check_marks - drops, and fences, those whose process is not the one that took what came so
 * far: they tell of another update, or do not answer. No lock held. Blocks.
 * Errors: too few are left; fleet_ask_about's. */
int fleet_check_marks(struct app *app, struct fleet_session *s, struct err *e);

/* fleet_abort_parts - tell those in two phases that it is over. */
void fleet_abort_parts(struct app *app, struct fleet_session *s, const char *reason);

#endif
