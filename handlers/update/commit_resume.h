/* Resume, where trainers send buckets without a start and a finish: their resume is the finish too.
 *
 * Generation always runs again afterwards. If what had been sent could not be put into service, the
 * answer is that error, and the version that served before serves on: a trainer that is told
 * nothing would go on as if its weights were in use. */
#ifndef BATON_HANDLERS_UPDATE_COMMIT_RESUME_H
#define BATON_HANDLERS_UPDATE_COMMIT_RESUME_H

#include "handlers/app.h"

/* Operations' handlers (server/operations.h). */

/* handle_commit_resume - commit the auto-commit update that is open, if any, then resume. Answers
 * as handle_resume, or with what is wrong with the update. */
int handle_commit_resume(struct app *app, struct http_request *x, struct err *e);

/* handle_commit_open - only the first half: {"committed": bool, "weight_version", "serial"}, of
 * the update that was open; null when there was none, which is no error: one that was complete has
 * been committed already. */
int handle_commit_open(struct app *app, struct http_request *x, struct err *e);

#endif
