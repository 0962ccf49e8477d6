/* Did an update bring the whole model, where no engine can tell? Engines that overwrite their
 * weights accept whatever arrives, and report success for half a model too. So the names of each
 * tensor list are compared with a model spec: that of --model or --manifest, else what the last
 * whole update that was committed brought. Before the first such update the spec is unknown, and so
 * is the coverage.
 *
 * Only missing names are refused, and shapes that differ from a configured spec. Anything else
 * (scales of quantized tensors, another dtype) is left to the engine. Where two-phase engines take
 * part, their verification decides, and whether all came again that was refused here, of which they
 * never heard. */
#ifndef BATON_FLEET_UPDATE_FLEET_COVERAGE_H
#define BATON_FLEET_UPDATE_FLEET_COVERAGE_H

#include "base/err.h"
#include "weights/model_spec.h"

#include <stdbool.h>

struct api_object;
struct fleet_control;
struct fleet_session;
struct fleet_spec;
struct fleet_coverage;
struct fleet_tensors;

/* fleet_spec_set - the model spec that each update has to bring, from the configuration.
 * @m     moved, also on failure
 * @from  static: "--model", "--manifest"
 * Threads: before any request. Errors: ERR_NO_MEMORY. */
int fleet_spec_set(struct fleet_control *fc, struct model_spec *m, const char *from, struct err *e);
void fleet_spec_unref(struct fleet_spec *spec); /* under the lock, or at shutdown; accepts NULL */

/* fleet_spec_get - where the spec is from (static: an option, or "update"), and its size. Returns
 * false: no spec is known.
 * fleet_last_coverage - of the last committed update: static; NULL: there was none. */
bool fleet_spec_get(struct fleet_control *fc, const char **from, uint32_t *n_tensors);
const char *fleet_last_coverage(struct fleet_control *fc);

/* fleet_coverage_start - count the tensors of a session that is about to open. If it may be the
 * rest of a push that was cut off (cut_off of the fleet's control), what that one had has to come
 * in it. Errors: ERR_NO_MEMORY. */
int fleet_coverage_start(struct fleet_control *fc, struct fleet_session *s, struct err *e);
void fleet_coverage_free(
    struct fleet_coverage *c); /* under the lock, or at shutdown; accepts NULL */

/* The tensor names of one request. */
struct fleet_names {
    bool seen;
    struct tensor_list *tensor_list; /* one reference; NULL: it has none, or they cannot be read */
    uint64_t n_unread; /* requests of unknown names that had been refused when this one began */
};
void fleet_names_fini(struct fleet_names *l);

/* fleet_names_read - read the names of a request that the handlers have checked. Pickles are
 * parsed, never executed. The names in a pickle that cannot be parsed, and those behind a path,
 * stay unknown. Errors: ERR_BAD_REQUEST at /serialized_named_tensors/<i>: that rank gets fewer
 * tensors than others, and the update is not sharded; ERR_NO_MEMORY; t->list_error. */
int fleet_names_read(struct fleet_names *out, struct fleet_control *fc,
                     const struct fleet_session *s, const struct fleet_tensors *t, struct err *e);

/* fleet_names_of_refused - those in a request that may be wrong in anything; zeroed if it names
 * none, or not all of them can be read.
 * @names  [n]; NULL: none; a NULL in it: not a name */
void fleet_names_of_refused(struct fleet_names *out, const char *const *names, size_t n);

/* All below are called by the owner of the parts (`sending`, or the owner of the operation lock).
 *
 * fleet_coverage_check - before the first byte of a request is sent. Errors: ERR_INCOMPLETE: its
 * names are unseen, and the configuration has a spec to compare them with; ERR_MISMATCH at
 * /shapes/<i>; ERR_PRECONDITION at /names/<i>: the tensor was sent before, and an engine would
 * count it as another one. */
int fleet_coverage_check(const struct fleet_control *fc, const struct fleet_session *s,
                         const struct fleet_names *l, struct err *e);

/* fleet_coverage_add - the engines that still take part accepted the tensors. Threads: any, where
 * only batons take part. */
void fleet_coverage_add(struct fleet_control *fc, struct fleet_session *s,
                        const struct fleet_names *l);

/* fleet_coverage_refuse - a request with tensors was refused: they have to come again, or the
 * update is not whole. @l  zeroed: its names are not known, and any request that begins after it
 * may be that one again
 * @why  kept in the session. Threads: any; no lock held. */
void fleet_coverage_refuse(struct fleet_control *fc, struct fleet_session *s,
                           const struct fleet_names *l, const struct err *why);

/* What a push of no update's name had when it was aborted, before its trainer ended it. Its trainer
 * may go on with the rest of it, which looks like another. Of several in a row the first cause. */
struct fleet_cut_off {
    struct err why; /* clean: there was none */
    struct tensor_list
        *names;  /* one reference; of what came, and of what was refused; NULL: none */
    bool unread; /* tensors of unknown names came too, or may have */
};

/* fleet_coverage_begin_push - what comes from now on is not the rest of a push before. Under the
 * lock of the fleet's control. */
void fleet_coverage_begin_push(struct fleet_session *s);

/* fleet_coverage_verify - did every tensor of the model arrive, and all that were refused? Errors:
 * ERR_INCOMPLETE, which names some that did not; or unseen names, as above. */
int fleet_coverage_verify(struct fleet_control *fc, const struct fleet_session *s, struct err *e);

/* fleet_coverage_commit - the update is committed: the next ones have to bring what this one
 * brought, unless the spec is from the configuration. */
void fleet_coverage_commit(struct fleet_control *fc, struct fleet_session *s);

/* fleet_coverage_name - of the last report, also in a copy of a session: "whole", "as_before" (all
 * that the last whole update brought), "partial" (as its start said), "incomplete" or "unknown". */
const char *fleet_coverage_name(const struct fleet_session *s);

/* fleet_coverage_is_weaker - of two reports of an update, does this one promise less? */
bool fleet_coverage_is_weaker(const struct api_object *report, const struct api_object *than);

#endif
