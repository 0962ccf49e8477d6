/* The versions that this server itself keeps and hands over: its store, the memory of its GPU, and
 * who reads it. A version's tensors are cells, each with the version and the tensor that it is of;
 * memory that was given back, or is being written, has cells of none. */
#ifndef BATON_TESTS_UNIT_FLEET_SIM_STAGE_H
#define BATON_TESTS_UNIT_FLEET_SIM_STAGE_H

#include "tests/unit/fleet/sim/world.h"

#include <jansson.h>

struct fleet_control;

/* stage_begin - of a history: nothing is committed. stage_open - begin to hand over, before the
 * loop runs. stage_stop - when it has stopped. stage_close - when the executor has, too. */
void stage_begin(void);
void stage_open(struct fleet_control *fc);
void stage_stop(void);
void stage_close(void);

/* stage_commit - a version; wait until it was handed over once, if `waits`. From a job, then.
 * stage_answer - clean: it was handed over. stage_rename - record another name of it. Errors:
 * ERR_CONFLICT: it is not handed over. */
void stage_commit(bool waits);
const struct err *stage_answer(void); /* to the last one that has waited */
int stage_rename(void *label, struct err *e);

/* stage_bytes - where a request says that its tensors are. */
struct stage_bytes {
    const struct stage_cell *at;
    int first, n; /* tensors */
    int version;  /* that is handed over */
    unsigned attempt;
    char ref_name[64]; /* of a counter; "": it is read before the answer */
    unsigned ref_slot;
};

/* stage_find - Returns: false: the tensors are not of this server.
 * @body  has the names of those that are packed */
bool stage_find(struct stage_bytes *out, const char *text, const json_t *body);

/* stage_read - the engine reads them, now or when its GPU gets to it. */
void stage_read(struct engine *g, const struct stage_bytes *b);

/* stage_keeps_window - until its process ends. */
bool stage_keeps_window(const struct engine *g);

#endif
