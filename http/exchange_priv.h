/* The front's half of an exchange. Private to http/exchange.c, the front, and their tests.
 *
 * An exchange has one reference of the front (exchange_new) and one of whoever it was dispatched to
 * (exchange_ref). The front detaches before it lets go: from then on nobody touches the front. */
#ifndef BATON_HTTP_EXCHANGE_PRIV_H
#define BATON_HTTP_EXCHANGE_PRIV_H

#include "base/err.h"
#include "base/mtx.h"
#include "http/exchange.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Embedded in the front's request. */
struct exchange_front {
    /* There is something new to look at: an answer, stream bytes, a reader of the body.
     * Any thread, MTX_EXCHANGE held; must not block. */
    void (*wake)(struct exchange_front *front);
};

enum exchange_answer { ANSWER_NONE, ANSWER_REPLY, ANSWER_STREAM };

/* A posted read; on the reader's stack, registered under the lock. */
struct exchange_reader {
    char *dst;
    uint64_t left;
    bool to_end;  /* wants no bytes, only the end */
    bool surplus; /* bytes came where the end was wanted */
};

struct exchange_private {
    struct mtx lock;              /* rank MTX_EXCHANGE; guards down to the blank line */
    struct exchange_front *front; /* borrowed; NULL once detached */
    enum exchange_answer answer;
    bool gone;
    bool paused; /* the front waits for stream bytes or for a reader */
    void (*on_gone)(void *arg);
    void *on_gone_arg;
    void (*on_drained)(void *arg); /* when at most drained_most bytes are unsent */
    void *on_drained_arg;
    size_t drained_most;
    bool reply_held; /* reply has not been taken by the front */
    char *unsent;                    /* owned; bytes [unsent_head, unsent_end) wait to be sent */
    size_t unsent_head, unsent_end, unsent_cap;
    size_t unsent_kept; /* taken by the front, and not by the socket */
    bool stream_closed, stream_complete, stream_failed;
    struct cnd body_moved;
    struct exchange_reader *reader;
    bool body_ended;
    uint64_t body_moved_us; /* last byte handed to the reader, or its start */
    uint64_t body_taken;    /* bytes handed to readers */
    struct exchange_reply reply; /* of a stream: its head; immutable then */

    void
        *strings; /* owned: the block that path, query and headers lie in; front, before dispatch */
    atomic_uint n_refs;
};

/* exchange_new - an empty exchange with one reference; every string is "".
 * @front  borrowed until exchange_detach; may be NULL
 * Errors: ERR_NO_MEMORY. */
int exchange_new(struct exchange **out, struct exchange_front *front, struct err *e);
struct exchange *exchange_ref(struct exchange *x);
void exchange_unref(struct exchange *x); /* accepts NULL; releases a reply that was never taken */

/* exchange_mark_gone - the peer went: runs on_gone, wakes readers. Repeating it is harmless. */
void exchange_mark_gone(struct exchange *x);

/* exchange_detach - the front is done with it. Marks it gone unless the answer was sent whole. */
void exchange_detach(struct exchange *x, bool sent);

enum exchange_answer exchange_answered(struct exchange *x);

/* exchange_refuse - the front answers for itself, before it dispatched. @r moved in. */
void exchange_refuse(struct exchange *x, const struct exchange_reply *r);

/* exchange_reply_take - move the reply out; the caller releases its data. Asserts that it is there.
 */
void exchange_reply_take(struct exchange *x, struct exchange_reply *out);

/* What a stream has to send. */
enum exchange_stream_state { STREAM_BYTES, STREAM_EMPTY, STREAM_END, STREAM_CUT };

/* exchange_stream_take - move up to `cap` bytes out; on STREAM_EMPTY the exchange is paused: the
 * next write wakes the front. */
enum exchange_stream_state exchange_stream_take(struct exchange *x, char *out, size_t cap,
                                                size_t *n);

/* exchange_stream_kept - of what was taken, so much has not been sent yet. */
void exchange_stream_kept(struct exchange *x, size_t n);

/* exchange_body_feed - offer n > 0 body bytes to the reader. Returns how many it took; when fewer
 * than n, the exchange is paused: the next reader (or the answer) wakes the front. */
size_t exchange_body_feed(struct exchange *x, const void *data, size_t n);
void exchange_body_over(struct exchange *x); /* the body has ended as framed */

#endif
