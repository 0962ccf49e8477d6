/* Lists of tensors as they were said before: the text of each column, and the plan that they made.
 *
 * A trainer says the same names, dtypes and shapes with every update. That they are the same is
 * found by comparing bytes, which costs a hundredth of reading them. Nothing is guessed: a column
 * is known when all of its bytes are. */
#ifndef BATON_WEIGHTS_LIST_MEMO_H
#define BATON_WEIGHTS_LIST_MEMO_H

#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct plan;

enum {
    LIST_MEMO_MAX = 256,         /* lists: a model's buckets */
    LIST_MEMO_NBYTES = 32 << 20, /* of text, of all of them */
    LIST_MEMO_TENSORS = 1 << 19  /* of the plans of all of them, which take more than their text */
};

enum list_column { LIST_NAMES, LIST_DTYPES, LIST_SHAPES, LIST_SIZES, LIST_COLUMNS };

/* A column in the text of a request, from its '[' to its ']'. */
struct list_text {
    const char *text; /* NULL: it was not given */
    size_t len;
};

/* One list. Counted; immutable but for what is said of it. */
struct known_list {
    struct list_text columns[LIST_COLUMNS]; /* in `bytes` */
    struct plan *plan;                      /* counted */

    atomic_uint refs; /* relaxed up, acq_rel down */
    uint64_t used;    /* guarded by the memo's lock; larger = later */
    size_t nbytes;    /* of `bytes` */
    char bytes[];
};

struct list_memo;

int list_memo_new(struct list_memo **out, struct err *e); /* Errors: ERR_NO_MEMORY */
void list_memo_free(struct list_memo *m); /* accepts NULL; lists that are held stay until let go */

/* list_memo_find - a list one of whose columns stands at the beginning of a text.
 * @m      may be NULL: nothing is known
 * @which  the column
 * @text   [len], at a '['; need not end where the column does
 * @first  borrowed: the list to compare with before others, or NULL
 * Returns one reference, or NULL. Threads: any. Never blocks for long; compares without a lock. */
struct known_list *list_memo_find(struct list_memo *m, enum list_column which, const char *text,
                                  size_t len, struct known_list *first);

/* list_memo_get - the list that has these columns and no others; as list_memo_find. `m` not NULL.
 */
struct known_list *list_memo_get(struct list_memo *m, const struct list_text columns[LIST_COLUMNS]);

/* list_memo_keep - remember that these columns made this plan; what was used longest ago makes
 * room. Does nothing if they are too long or too many, or there is no memory.
 * @columns  copied. @plan  borrowed; a reference is taken */
void list_memo_keep(struct list_memo *m, const struct list_text columns[LIST_COLUMNS],
                    struct plan *plan);

/* known_list_has - is this column of the list the same text? Both not given: yes. */
bool known_list_has(const struct known_list *l, enum list_column which, struct list_text text);

void known_list_unref(struct known_list *l); /* accepts NULL */

#endif
