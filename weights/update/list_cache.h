/* LRU cache of tensor lists and their layouts.
 *
 * A trainer sends the same lists with every update. A list is found by its key: the plan_id under
 * which it was registered, the text of its columns, or the ids of the lists from which it was
 * merged. Keys are compared byte by byte. Equal lists share one tensor list, even if their keys
 * differ.
 *
 * A registered list is evicted only by other registered lists, because a trainer holds its
 * plan_id. */
#ifndef BATON_WEIGHTS_UPDATE_LIST_CACHE_H
#define BATON_WEIGHTS_UPDATE_LIST_CACHE_H

#include "base/err.h"
#include "weights/tensor_list.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct layout;
struct model_spec;

enum {
    LIST_CACHE_MAX = 320,           /* entries: a model's buckets, and lists merged from them */
    LIST_CACHE_NBYTES = 320 << 20,  /* of all of these: keys, and LIST_TENSOR_NBYTES a tensor */
    LIST_CACHE_REGISTERED_MAX = 64, /* entries beside these */
    LIST_TENSOR_NBYTES = 256        /* estimate for one tensor in a list and its layouts */
};

enum list_key_kind { LIST_BY_ID, LIST_BY_TEXT, LIST_BY_PARTS };
enum list_column { LIST_NAMES, LIST_DTYPES, LIST_SHAPES, LIST_SIZES, LIST_COLUMNS };

/* A column in the text of a request, from its '[' to its ']'; or ids. */
struct list_text {
    const char *text; /* NULL: it was not given */
    size_t len;       /* then 0 */
};

/* The key of a list. */
struct list_key {
    enum list_key_kind kind;
    struct list_text text[LIST_COLUMNS]; /* BY_TEXT: its columns. BY_ID, BY_PARTS: [0] is the id, or
                                            those of its parts one after the other */
};

/* One list. Counted. */
struct list_entry {
    struct list_key key;             /* immutable; in `bytes` */
    struct tensor_list *tensor_list; /* counted; immutable once cached */
    size_t nbytes;                   /* immutable; counted against LIST_CACHE_NBYTES */

    struct layout *layouts[2]; /* counted; guarded by the cache's lock; [convert], or NULL */
    void *said;                /* owned; set once, under the cache's lock; what it points to never
                                  changes: what a user of the list has read from it. Or NULL */
    void (*said_free)(void *);
    atomic_uint refs; /* relaxed up, acq_rel down */
    char bytes[];
};

struct list_cache;

/* list_cache_new - @model_spec borrowed; layouts are made for it. Errors: ERR_NO_MEMORY. */
int list_cache_new(struct list_cache **out, const struct model_spec *model_spec, struct err *e);
void list_cache_free(struct list_cache *c); /* accepts NULL; entries that are held stay */

/* All below: any thread, no MTX_LEAF lock held; they block for no longer than keys are compared.
 * `c` NULL acts as an empty cache that stores nothing. */

/* list_cache_get - a reference to the tensor list with this key, or NULL. */
struct tensor_list *list_cache_get(struct list_cache *c, const struct list_key *key);

/* list_cache_put - cache a list; evicts the least recently used lists if needed.
 * @key          copied
 * @tensor_list  one reference; replaced by a reference to an equal tensor list if one is cached
 * Returns: false, with *tensor_list unchanged, if there is no memory or the list does not fit into
 * LIST_CACHE_NBYTES. */
bool list_cache_put(struct list_cache *c, const struct list_key *key,
                    struct tensor_list **tensor_list);

/* list_cache_find - find a LIST_BY_TEXT entry whose column is a prefix of @text.
 * @text   [len], at a '['; need not end where the column does
 * @first  borrowed: the entry to compare with before others, or NULL
 * Returns one reference, or NULL. */
struct list_entry *list_cache_find(struct list_cache *c, enum list_column which, const char *text,
                                   size_t len, struct list_entry *first);
void list_entry_unref(struct list_entry *l); /* accepts NULL */

/* list_cache_layout - the layout of a tensor list; cached if the tensor list is. `c` not NULL.
 * @out  one reference. Errors: ERR_MISMATCH, ERR_NO_MEMORY. */
int list_cache_layout(struct list_cache *c, const struct tensor_list *tensor_list, bool convert,
                      struct layout **out, struct err *e);

/* list_cache_entry - an entry with this tensor list (one reference), or NULL.
 * @said  what is kept with it, as long as the reference is; or NULL
 * list_cache_keep - keep what was read from its list with an entry. Returns: false, and it stays
 * the caller's, if something is kept already. */
struct list_entry *list_cache_entry(struct list_cache *c, const struct tensor_list *tensor_list,
                                    const void **said);
bool list_cache_keep(struct list_cache *c, struct list_entry *l, void *said,
                     void (*said_free)(void *));

#endif
