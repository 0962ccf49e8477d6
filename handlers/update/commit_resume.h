/* Resume for trainers that send buckets without a start and a finish: their resume is also the
 * finish.
 *
 * Generation always runs again afterwards. If the buckets could not be committed, the answer is
 * that error, and the previous version is still served: otherwise the trainer would assume that
 * its weights are in use. */
#ifndef BATON_HANDLERS_UPDATE_COMMIT_RESUME_H
#define BATON_HANDLERS_UPDATE_COMMIT_RESUME_H

#include "handlers/app.h"

/* Handlers of operations (server/operations.h). */

/* handle_commit_resume - commit the open auto-commit update, if there is one, then resume.
 * Answers as handle_resume, or with the error of the update. */
int handle_commit_resume(struct app *app, struct http_request *x, struct err *e);

#endif
