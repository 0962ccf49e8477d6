/* The generate requests under way, wherever they are: being parsed, tokenized, in the queue for a
 * permit, or in the engine. So all of them can be aborted, and a pause can wait for those that came
 * before it.
 *
 * A request gets a number when it has been read (generations_arrive). It is in the list, and can be
 * aborted by its ids, once it is parsed (generations_add), until it is freed. A pause draws a line:
 * requests with smaller numbers came before it. */
#ifndef BATON_CONTROL_GENERATIONS_H
#define BATON_CONTROL_GENERATIONS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct generations;
struct generations_row;
struct version_label;

enum {
    GENERATIONS_LISTED_MAX = 256, /* sequences in one list */
    GENERATIONS_SPANS_MAX = 16,   /* versions of one sequence in it: the latest */
    GENERATIONS_ID_MAX = 255,     /* bytes of an id or a name in it */
};

/* Tokens from `start` up to the next span, or up to the last token, were made by that version. */
struct generations_span {
    uint32_t start;
    uint64_t serial;
    struct version_label *name; /* one reference */
};

/* One sequence of a generation. */
struct generations_row {
    char request_id[GENERATIONS_ID_MAX + 1];
    char model[GENERATIONS_ID_MAX + 1]; /* or adapter */
    uint32_t index;                     /* of the sequence in its request */
    bool submitted;                     /* to the engine; else it waits for its permit */
    bool ended;                         /* its request has others that run, or a slow client */
    uint32_t n_prompt, n_tokens;
    uint64_t age_us; /* of the request */
    uint32_t n_spans;
    struct generations_span spans[GENERATIONS_SPANS_MAX];
};

/* How to end a generation early, and how to describe it. Called with MTX_GENERATIONS held; may take
 * MTX_GENERATION and the locks that it takes; must not block. */
struct generations_ops {
    /* End soon with the tokens that it has, or without any if it has no permit yet. Returns false
     * when it has already ended or was aborted before. */
    bool (*abort)(void *arg);
    /* The same for what the ids name: the whole generation, or some of its sequences.
     * @ids  [n_ids], sorted by strcmp
     * Returns: 1 for the whole, else the number of sequences. */
    uint32_t (*abort_named)(void *arg, const char *const *ids, size_t n_ids);
    void (*cut)(void *arg); /* stop waiting for a client that does not read */
    /* Describe its first sequences, at most `cap`. Returns: how many sequences it has. */
    size_t (*list)(void *arg, struct generations_row *rows, size_t cap);
};

/* An entry of the list, embedded in a generation; zeroed, it is not in the list. */
struct generations_entry {
    const struct generations_ops *ops; /* these three are immutable while it is in the list */
    void *arg;
    uint64_t arrival; /* of generations_arrive; 0: generations_add sets it */

    struct generations_entry *next, **prev_next; /* guarded by the lock of the list, to the end */
    bool ended;                                  /* generations_end */
};

int generations_new(struct generations **out, struct err *e); /* ERR_NO_MEMORY */
void generations_free(struct generations *gs);                /* empty; accepts NULL */

/* All functions below accept NULL for `gs`, which keeps no list, and may be called by any thread.
 * They take MTX_GENERATIONS, and with it the locks that the ops take; none blocks. */

/* generations_on_idle - call `idle(arg)` whenever the last request that came before the line has
 * ended: no lock held; must not block. Call this before the first generations_arrive. */
void generations_on_idle(struct generations *gs, void (*idle)(void *arg), void *arg);

/* generations_arrive - a request has been read. Returns: its number, which is larger than those
 * before.
 * generations_parsed - its handler has returned: it is in the list, or was answered. No lock held.
 */
uint64_t generations_arrive(struct generations *gs);
void generations_parsed(struct generations *gs, uint64_t arrival);

/* generations_add - from now on it is in the list. It is aborted here if all that came before were
 * aborted since it arrived.
 * generations_end - it has no permit, and gets none: it makes no more tokens. No lock held.
 * generations_remove - it is freed; ends it first. Repeating either is harmless. */
void generations_add(struct generations *gs, struct generations_entry *g);
void generations_end(struct generations *gs, struct generations_entry *g);
void generations_remove(struct generations *gs, struct generations_entry *g);

/* generations_draw_line - all requests that have arrived came before the line. Returns: the line;
 * the numbers of those requests are smaller. */
uint64_t generations_draw_line(struct generations *gs);

/* generations_n_before - requests that came before the line, have not ended and were not aborted
 * all at once. generations_n - of all requests. */
size_t generations_n_before(struct generations *gs);
size_t generations_n(struct generations *gs);

/* generations_abort - end generations soon, with the tokens that they have. Those without a permit
 * end without any.
 * @ids  [n_ids], of requests or of single sequences; sorted in place; NULL: all requests that have
 *       arrived, also those that are not in the list yet
 * Returns: the number of whole requests of the list, plus the number of sequences aborted in other
 * requests. No lock held. */
uint32_t generations_abort(struct generations *gs, const char **ids, size_t n_ids);

/* generations_abort_before - the same for all requests that came before the line. */
uint32_t generations_abort_before(struct generations *gs);

/* generations_list - describe running and waiting generations, the latest first.
 * @rows  zeroed; [cap]; generations_rows_fini frees what they refer to
 * Returns: how many sequences there are; the rows of those beyond `cap` are left out. */
size_t generations_list(struct generations *gs, struct generations_row *rows, size_t cap);
void generations_rows_fini(struct generations_row *rows, size_t n);

/* generations_cut - the server stops: stop waiting for clients that do not read. Call it before
 * stopping the pool that writes to them. */
void generations_cut(struct generations *gs);

#endif
