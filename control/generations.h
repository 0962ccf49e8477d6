/* The list of all generations under way, from before each queues for its permit until it is freed,
 * so that some or all can be aborted. */
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
    /* End soon with the tokens that it has, or without any if it queues for its permit. Returns
     * false when it has already ended or was aborted before. */
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

    struct generations_entry *next, **prev_next; /* guarded by the lock of the list */
};

int generations_new(struct generations **out, struct err *e); /* ERR_NO_MEMORY */
void generations_free(struct generations *gs);                /* empty; accepts NULL */

/* generations_add, generations_remove - accept NULL for `gs`, which keeps no list. Repeating
 * generations_remove is harmless. */
void generations_add(struct generations *gs, struct generations_entry *g);
void generations_remove(struct generations *gs, struct generations_entry *g);

/* generations_abort - end generations soon, with the tokens that they have. Those that queue for a
 * permit end without any.
 * @ids  [n_ids], of requests or of single sequences; sorted in place; NULL: all generations
 * Returns: the number of whole requests, plus the number of sequences aborted in other requests.
 * Threads: any. Takes MTX_GENERATIONS, then MTX_GENERATION and the locks that it takes.
 * Blocks: no. */
uint32_t generations_abort(struct generations *gs, const char **ids, size_t n_ids);

/* generations_list - describe running and waiting generations, the latest first.
 * @rows  zeroed; [cap]; generations_rows_fini frees what they refer to
 * Returns: how many sequences there are; the rows of those beyond `cap` are left out.
 * Threads: any. Takes MTX_GENERATIONS, then MTX_GENERATION. Blocks: no. */
size_t generations_list(struct generations *gs, struct generations_row *rows, size_t cap);
void generations_rows_fini(struct generations_row *rows, size_t n);

/* generations_cut - the server stops: stop waiting for clients that do not read. Call it before
 * stopping the pool that writes to them. */
void generations_cut(struct generations *gs);

#endif
