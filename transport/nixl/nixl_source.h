/* Tensors that are read by NIXL out of the memory of a trainer's processes, on this host or on
 * others. */
#ifndef BATON_TRANSPORT_NIXL_NIXL_SOURCE_H
#define BATON_TRANSPORT_NIXL_NIXL_SOURCE_H

#include "base/err.h"
#include "transport/nixl/nixl.h"
#include "transport/nixl/nixl_plan.h"
#include "weights/source.h"

/* nixl_source_new - the source of a plan's tensors. Nothing is read yet.
 * @n       borrowed; outlives the source
 * @plan    finished; moved in, also on an error
 * @agents  [count], each with its strings: moved in likewise
 * Threads: any; those of a source afterwards. A fill may fail with the errors of nixl_begin and
 * nixl_wait: they name the tensor. Once it has failed, or the source is closed, the memory of the
 * trainer is not read any more, and nothing is written by it.
 * Errors: ERR_NO_MEMORY. */
int nixl_source_new(struct source **out, struct nixl *n, struct nixl_plan *plan,
                    struct nixl_agent *agents, uint32_t count, struct err *e);

void nixl_agents_free(struct nixl_agent *agents, uint32_t count); /* accepts NULL */

#endif
