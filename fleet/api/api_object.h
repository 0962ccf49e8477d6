/* JSON objects in the form of our own API that the fleet keeps, and handlers show: what a baton
 * says of its own update, and the list of an update that the next one may repeat. Immutable,
 * counted; opaque but for what the fleet reads here. Threads: any; nothing blocks. */
#ifndef BATON_FLEET_API_API_OBJECT_H
#define BATON_FLEET_API_API_OBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct api_native;
struct api_object;

struct api_object *api_object_ref(struct api_object *o); /* returns it; both accept NULL */
void api_object_unref(struct api_object *o);

/* api_columns_of - names, dtypes or dtype_names, shapes, and plan_id of a request with tensors.
 * New; NULL: no memory. */
struct api_object *api_columns_of(const struct api_native *native);

/* api_report_read - a baton's description of its update, as in its replies to the steps of one.
 * New; NULL: it is none, or no memory. */
struct api_object *api_report_read(const char *text, size_t len);

/* api_report_make - the same of an update of engines that do not describe theirs. NULL: no memory.
 */
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
