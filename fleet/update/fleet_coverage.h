/* Did an update bring the whole model, where nobody who receives it can tell? Engines that
 * overwrite what they serve take what comes and say that all went well, also of half a model. So
 * the names of each list are held against a spec: of --model or --manifest, else of what the last
 * whole update brought that ended well. Before the first one nothing is known, and that is what is
 * told.
 *
 * Only missing names are refused, and shapes that a given spec says otherwise. What else comes (the
 * scales of quantized tensors, another dtype) is the engine's to judge. Where those in two phases
 * take part, their proof is the one that counts. */
#ifndef BATON_FLEET_UPDATE_FLEET_COVERAGE_H
#define BATON_FLEET_UPDATE_FLEET_COVERAGE_H

#include "base/err.h"
#include "weights/model_spec.h"

#include <jansson.h>
#include <stdbool.h>

struct fleet_control;
struct fleet_session;
struct fleet_spec;
struct fleet_coverage;

/* fleet_spec_set - what each update has to bring, from now on.
 * @m     moved, also on failure
 * @from  static: "--model", "--manifest"
 * Threads: before any request. Errors: ERR_NO_MEMORY. */
int fleet_spec_set(struct fleet_control *fc, struct model_spec *m, const char *from, struct err *e);
void fleet_spec_unref(struct fleet_spec *spec); /* with the lock, or at the end; accepts NULL */

/* fleet_spec_json - {"from", "n_tensors"} (new), or JSON null: nothing is known. NULL: no memory.
 * fleet_last_coverage - of the last update that was committed: static; NULL: there was none. */
json_t *fleet_spec_json(struct fleet_control *fc);
const char *fleet_last_coverage(struct fleet_control *fc);

/* fleet_coverage_start - of a session that is about to open. Errors: ERR_NO_MEMORY. */
int fleet_coverage_start(struct fleet_control *fc, struct fleet_session *s, struct err *e);
void fleet_coverage_free(struct fleet_coverage *c); /* with the lock, or at the end; accepts NULL */

/* The names of a request that brings tensors. */
struct fleet_names {
    bool seen;
    struct tensor_list *tensor_list; /* one reference; NULL: it brings none, or they are not seen */
};
void fleet_names_fini(struct fleet_names *l);

/* fleet_names_read - of a request that the routes have checked. Pickles are read, never executed;
 * of one that cannot be read, and of a path, nothing is seen. Errors: ERR_NO_MEMORY and such. */
int fleet_names_read(struct fleet_names *out, const struct fleet_control *fc,
                     const struct fleet_session *s, const json_t *body, struct err *e);

/* All below: by whoever has the session's upstreams to itself (`sending`, or its end).
 *
 * fleet_coverage_check - before the first byte of it is sent. Errors: ERR_MISMATCH at /shapes/<i>;
 * ERR_CONFLICT at /names/<i>: it came before, and an upstream would take it for another. */
int fleet_coverage_check(const struct fleet_session *s, const struct fleet_names *l, struct err *e);

/* fleet_coverage_add - the upstreams that are left have it. */
void fleet_coverage_add(struct fleet_control *fc, struct fleet_session *s,
                        const struct fleet_names *l);

/* fleet_coverage_verify - has all come that has to? Errors: ERR_INCOMPLETE, which names some. */
int fleet_coverage_verify(const struct fleet_session *s, struct err *e);

/* fleet_coverage_commit - it ended well: what it brought is what the next one has to bring, unless
 * that was given. */
void fleet_coverage_commit(struct fleet_control *fc, struct fleet_session *s);

/* fleet_coverage_name - as it was told last, also of a copy of a session: "whole", "as_before" (all
 * that the last one brought), "partial" (as it said), "incomplete" or "unknown". */
const char *fleet_coverage_name(const struct fleet_session *s);

#endif
