/* What --stage needs of the upstreams before the first hand-off. */
#ifndef BATON_SERVER_SERVE_STAGE_H
#define BATON_SERVER_SERVE_STAGE_H

struct upstreams;

/* serve_stage_warn - log a warning for each upstream whose address is of no interface here: memory
 * is mapped on one host only. It is no error, since a proxy here may lead to an engine here.
 * Threads: main, before upstreams are called. Blocks: on look-ups of names, up to
 * STAGE_LOOKUP_S for each upstream; one that cannot be looked up gets no warning. */
enum { STAGE_LOOKUP_S = 3 };
void serve_stage_warn(struct upstreams *u);

#endif
