/* Memory of what generations have made and clients have not read yet: batches, whole JSON replies,
 * and the outputs behind both and behind streams that wait for their client. Its sum, over all
 * routes of the process, is at most --max-unread-bytes: without a limit clients that do not read
 * would fill the memory, because a generation has given its permit back when its reply is sent.
 * `most` is that option.
 *
 * All functions: any thread; none blocks. */
#ifndef BATON_CONTROL_UNREAD_H
#define BATON_CONTROL_UNREAD_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* unread_check - is there room for so many bytes now? Takes none: for a request of which nothing
 * has been computed yet. Errors: as unread_take. */
int unread_check(uint64_t most, uint64_t nbytes, struct err *e);

/* unread_take - take room for nbytes more, before they are allocated.
 * @share  what one owner has taken; grows
 * Errors: ERR_OVERLOADED, ERR_TOO_LARGE (more than --max-unread-bytes by itself). */
int unread_take(uint64_t most, uint64_t *share, uint64_t nbytes, struct err *e);

void unread_give(uint64_t *share); /* all of it; 0 afterwards */

/* A body that is counted until it is freed: the client has read it, or is gone. */
struct unread_body {
    char *data; /* owned; [nbytes] */
    size_t nbytes;
    uint64_t n_counted; /* by unread_take */
};

/* unread_body_new - an empty body with room for about nbytes.
 * @held  what the same reply has taken besides
 * Errors: those of unread_take; ERR_NO_MEMORY. */
int unread_body_new(struct unread_body **out, uint64_t most, uint64_t held, uint64_t nbytes,
                    struct err *e);

/* unread_body_fill - give it its data, of which it then counts exactly the length.
 * @data  owned from now on */
void unread_body_fill(struct unread_body *b, char *data, size_t nbytes);

void unread_body_free(void *body); /* accepts NULL; void: it releases the data of a reply */

#endif
