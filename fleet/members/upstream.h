/* One engine, from when it is added until nothing refers to it any more. It is counted: the list of
 * the fleet has a reference, and so has each permit, request, result, part of an update and job
 * that is about it. One that was removed stays in the list, so that it is the same engine if it is
 * added again, until another one needs its place.
 *
 * What is known of it belongs to fleet/members (struct upstream in fleet_priv.h), and beside that
 * to the control plane (struct fleet_engine). */
#ifndef BATON_FLEET_MEMBERS_UPSTREAM_H
#define BATON_FLEET_MEMBERS_UPSTREAM_H

#include "fleet/api/upstream_api.h"
#include "fleet/members/have.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_engine;
struct http_target;
struct upstream;
struct upstream_config;

/* upstream_ref - a reference; returns `u`, which the caller refers to already, or has from a list.
 * upstream_unref - the last one frees it. Accepts NULL. Threads: any. */
struct upstream *upstream_ref(struct upstream *u);
void upstream_unref(struct upstream *u);

/* upstream_loosen - the caller's reference is loose from now on: the engine may leave the list all
 * the same. upstream_unref_loose ends such a one. Threads: any. */
void upstream_loosen(struct upstream *u);
void upstream_unref_loose(struct upstream *u);

/* upstream_number - a larger one was made later; never 0, and never the same again. */
uint64_t upstream_number(const struct upstream *u);

/* upstream_config - how the engine is reached and asked: the newest, which stays as it is, and
 * valid until upstreams_free, after another one replaced it. upstream_name, its URL, never changes.
 * upstream_kind, upstream_caps_of, upstream_target - of its configuration now.
 * upstream_is_removed - is it not configured any more? Threads: any. */
const struct upstream_config *upstream_config(const struct upstream *u);
const char *upstream_name(const struct upstream *u);
enum upstream_kind upstream_kind(const struct upstream *u);
const struct upstream_caps *upstream_caps_of(const struct upstream *u);
const struct http_target *upstream_target(const struct upstream *u);
bool upstream_is_removed(const struct upstream *u);

/* upstream_have - what is known of its process now; a copy. Threads: any.
 * upstream_may_be_paused - as have_may_be_paused. */
struct engine_have upstream_have(const struct upstream *u);
bool upstream_may_be_paused(const struct upstream *u);

/* upstream_note_closed - it reports that it keeps no update open. That counts for nothing while a
 * start that was not answered may still be executed. Threads: any. */
void upstream_note_closed(struct upstream *u);

/* upstream_set_control - what the control plane knows of it; freed with it. Before it is in a list
 * that other threads have. upstream_control - NULL: there is no control plane. Threads: any. */
void upstream_set_control(struct upstream *u, struct fleet_engine *control,
                          void (*control_free)(struct fleet_engine *control));
struct fleet_engine *upstream_control(const struct upstream *u);

/* Engines in the order in which they were added, the removed ones included. Immutable and counted,
 * with a reference to each: they are there as long as the list is. */
struct upstream_list {
    atomic_uint n_refs;
    size_t n;
    struct upstream *items[]; /* [n] */
};

/* upstream_list_ref, upstream_list_unref - as above. Threads: any. */
struct upstream_list *upstream_list_ref(struct upstream_list *list);
void upstream_list_unref(struct upstream_list *list);

/* upstream_list_auto - the type of a list that is given back at the end of the block. */
#define upstream_list_auto struct upstream_list __attribute__((cleanup(upstream_list_end)))
static inline void upstream_list_end(struct upstream_list **list)
{
    upstream_list_unref(*list);
}

#endif
