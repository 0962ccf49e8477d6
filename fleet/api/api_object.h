/* JSON objects in the form of our own API: the bodies of requests, what a baton says of its own
 * update, and the list of an update that the next one may repeat. Immutable, counted; opaque but
 * for what the fleet reads here. Threads: any, but one that engines get is of one thread: its text
 * is made once, for all batons. Nothing blocks. Handlers have their own: fleet/api/api_json.h. */
#ifndef BATON_FLEET_API_API_OBJECT_H
#define BATON_FLEET_API_API_OBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct api_object;
struct api_tensors;

struct api_object *api_object_ref(struct api_object *o); /* returns it; both accept NULL */
void api_object_unref(struct api_object *o);

/* api_object_parse - new; NULL: it is no object, or no memory.
 * api_object_of - the body of a request of the hand-off, as if a client sent it. It is made once
 * for all engines that get these tensors. New; NULL: no memory.
 * api_load_again - the request that loads an adapter, as text to be kept (new): it loads whatever
 * is there by then. NULL: no memory. */
struct api_object *api_object_parse(const char *text, size_t len);
struct api_object *api_object_of(const struct api_tensors *tensors);
char *api_load_again(const struct api_object *native);

/* api_columns_of - names, dtypes or dtype_names, shapes, and plan_id of a request with tensors.
 * New; NULL: no memory. */
struct api_object *api_columns_of(const struct api_object *native);

/* api_report_make - an update of engines that do not describe theirs, as a baton does in its
 * replies to the steps of one. NULL: no memory. */
struct api_report_counts {
    const char *coverage;
    uint64_t n_total, n_done, n_missing, n_unseen;
    const char *const *missing; /* [n_named] */
    size_t n_named;
};
struct api_object *api_report_make(const struct api_report_counts *c);

/* api_report_coverage - the word; NULL: it says none.
 * api_report_missing - does it say how many tensors are missing?
 * api_report_count - a member that counts something; 0: it does not say. All accept NULL. */
const char *api_report_coverage(const struct api_object *report);
bool api_report_missing(const struct api_object *report, int64_t *n);
uint64_t api_report_count(const struct api_object *report, const char *member);

#endif
