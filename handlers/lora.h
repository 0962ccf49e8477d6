/* Adapters of requests: loading them, and what replies say of them.
 *
 * A load reads files or a body, and may wait for a trainer that is still writing: it runs on
 * threads of its own, where it keeps neither an update nor a pause waiting. */
#ifndef BATON_HANDLERS_LORA_H
#define BATON_HANDLERS_LORA_H

#include "base/err.h"
#include "base/workers.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LORA_THREADS = 4,
    LORA_QUEUE_MAX = 256,
    LORA_TIMEOUT_S_DEFAULT = 30,
    LORA_TIMEOUT_S_MAX = 600,
    LORA_NAMES_TOLD_MAX = 4096 /* of each list in a reply; the counts beside them are whole */
};

struct app;
struct lora_loads;

/* lora_loads_new - start the threads. Errors: those of workers_new. */
int lora_loads_new(struct lora_loads **out, struct err *e);
void lora_loads_stop(struct lora_loads *l); /* ends what runs soon, answers it, joins; repeatable */
void lora_loads_free(struct lora_loads *l); /* stops first; accepts NULL */

/* lora_loads_post - run the job on one of the threads. Errors: those of workers_post. */
int lora_loads_post(struct lora_loads *l, struct job *job, struct err *e);

/* lora_loads_stopping - true, relaxed, once what runs has to end. */
const atomic_bool *lora_loads_stopping(const struct lora_loads *l);

enum lora_ended { LORA_LOADED, LORA_UNCHANGED, LORA_FAILED, LORA_ENDED_COUNT };

/* lora_loads_count - a job ended so. Any thread. */
void lora_loads_count(struct lora_loads *l, enum lora_ended how);

struct lora_stats {
    uint64_t n_ended[LORA_ENDED_COUNT]; /* ever */
    size_t n_queued;
};
void lora_stats(struct lora_loads *l, struct lora_stats *out); /* any thread */

/* lora_gauges_json - how many, how much of what is allowed (new); JSON null without an engine. */
json_t *lora_gauges_json(const struct app *app);

/* lora_valid_json - [{name, revision, valid}] of what is loaded now, after a commit (new). */
json_t *lora_valid_json(const struct app *app);

#endif
