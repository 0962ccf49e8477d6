/* Updates that the server fetches itself, from the directories of deltas that a trainer publishes
 * (weights/delta/pull.h): a pull stages and proves a version while the server goes on, and the
 * request that names it commits it. */
#ifndef BATON_HANDLERS_UPDATE_PULL_H
#define BATON_HANDLERS_UPDATE_PULL_H

#include "base/err.h"

#include <stdbool.h>

struct app;
struct http_request;

/* handle_pull - members source (a directory beneath --allow-path, or a URL beneath a
 * --fetch-prefix), version, name, base. Version 0 begins a run: what is served must be the model of
 * `base`, if that is a path which can be read, else the one that the server started with.
 * Answers {version, served, n_versions, n_tensors, base, base_read, fetch_s, total_s}; "served" is
 * null if no version of this directory is known to be; "base": "unchecked" without such a model,
 * and for the whole run that began so. Threads: any; what blocks runs on one of
 * control/source_threads.h. The answer comes when the version is proven, or with the reason why
 * not; nothing of a refused one is kept. Errors: ERR_CONFLICT (a pull is under way), those of
 * source_threads_post. The answer may be one of fetch_open, of pull_open, of an update's start, of
 * its bytes and of its proof; ERR_PRECONDITION (another directory; the same version with other
 * bytes; the base model is not served), ERR_FORBIDDEN. */
int handle_pull(struct app *app, struct http_request *x, struct err *e);

/* pull_is_named - is `path` the name of what was pulled, or of the version that is served, and no
 * path? The name of a refused pull is none. Threads: any. */
bool pull_is_named(const struct app *app, const char *path);

/* pull_commit - commit what was pulled, and answer as a finish does.
 * @label           the version's name, which must be its number; NULL: its number
 * @abort_requests  end every generation, once the request has been checked
 * Threads: any; the answer may come from another.
 * Errors: ERR_CONFLICT (nothing is pulled), ERR_PRECONDITION at /weight_version (another version is
 * pulled), those of updates_finish and store_set_label. The answer may be an error of the commit;
 * the pull then begins again. */
int pull_commit(struct app *app, struct http_request *x, const char *label, bool abort_requests,
                struct err *e);

/* handle_pull_commit - the same for a request with the members name and version. */
int handle_pull_commit(struct app *app, struct http_request *x, struct err *e);

/* Clients of SkyRL begin and end an update around the commit of what they fetched; both say nothing
 * of it.
 * pull_session_start - does one begin now? It does if a version of SkyRL's form waits for its
 * commit: its update is still open.
 * pull_session_finish - does one end now? Errors: ERR_CONFLICT: it does, but nothing was committed
 * since its start.
 * Threads: any. */
bool pull_session_start(struct app *app);
int pull_session_finish(bool *ended, struct app *app, struct err *e);

#endif
