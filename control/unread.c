/* One sum of bytes for the process. */
#include "control/unread.h"

#include <stdatomic.h>
#include <stdlib.h>

static atomic_uint_fast64_t unread_nbytes; /* relaxed: it guards nothing */

/* @held  of the same reply, part of `unread` */
static int unread_refuse(uint64_t most, uint64_t unread, uint64_t held, uint64_t nbytes,
                         struct err *e)
{
    if (held + nbytes > most)
        return err_set(e, ERR_TOO_LARGE, "",
                       "the reply may need %llu bytes of memory, and --max-unread-bytes allows "
                       "%llu: request fewer logprobs, fewer tokens or fewer sequences at once",
                       (unsigned long long)(held + nbytes), (unsigned long long)most);
    return err_set(e, ERR_OVERLOADED, "",
                   "replies that clients have not read yet have %llu bytes, and this one would add "
                   "%llu; --max-unread-bytes allows %llu: read replies as they come, or send fewer "
                   "requests at once",
                   (unsigned long long)unread, (unsigned long long)nbytes,
                   (unsigned long long)most);
}

int unread_check(uint64_t most, uint64_t nbytes, struct err *e)
{
    uint64_t unread = atomic_load_explicit(&unread_nbytes, memory_order_relaxed);

    return unread + nbytes <= most ? 0 : unread_refuse(most, unread, 0, nbytes, e);
}

static int unread_take_share(uint64_t most, uint64_t held, uint64_t *share, uint64_t nbytes,
                             struct err *e)
{
    uint64_t unread = atomic_fetch_add_explicit(&unread_nbytes, nbytes, memory_order_relaxed);

    if (unread + nbytes <= most) {
        *share += nbytes;
        return 0;
    }
    (void)atomic_fetch_sub_explicit(&unread_nbytes, nbytes, memory_order_relaxed);
    return unread_refuse(most, unread, held, nbytes, e);
}

int unread_take(uint64_t most, uint64_t *share, uint64_t nbytes, struct err *e)
{
    return unread_take_share(most, *share, share, nbytes, e);
}

void unread_give(uint64_t *share)
{
    (void)atomic_fetch_sub_explicit(&unread_nbytes, *share, memory_order_relaxed);
    *share = 0;
}

int unread_body_new(struct unread_body **out, uint64_t most, uint64_t held, uint64_t nbytes,
                    struct err *e)
{
    struct unread_body *b = calloc(1, sizeof *b);

    if (b == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the answer");
    if (unread_take_share(most, held, &b->n_counted, nbytes, e) != 0) {
        free(b);
        return -1;
    }
    *out = b;
    return 0;
}

void unread_body_fill(struct unread_body *b, char *data, size_t nbytes)
{
    b->data = data;
    b->nbytes = nbytes;
    (void)atomic_fetch_add_explicit(&unread_nbytes, nbytes, memory_order_relaxed);
    unread_give(&b->n_counted);
    b->n_counted = nbytes;
}

void unread_body_free(void *body)
{
    struct unread_body *b = body;

    if (b == NULL)
        return;
    unread_give(&b->n_counted);
    free(b->data);
    free(b);
}
