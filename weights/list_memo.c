/* Lists are compared outside the lock, which therefore only ever guards which ones there are. */
#include "weights/list_memo.h"

#include "base/mtx.h"
#include "weights/plan.h"

#include <stdlib.h>
#include <string.h>

struct list_memo {
    struct mtx lock;                         /* rank MTX_LEAF; guards all below */
    struct known_list *lists[LIST_MEMO_MAX]; /* [n], counted */
    size_t n, nbytes;
    uint64_t n_tensors, clock;
};

int list_memo_new(struct list_memo **out, struct err *e)
{
    struct list_memo *m = calloc(1, sizeof *m);

    if (m == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the lists that came before");
    mtx_init(&m->lock, MTX_LEAF);
    *out = m;
    return 0;
}

static struct known_list *list_ref(struct known_list *l)
{
    (void)atomic_fetch_add_explicit(&l->refs, 1, memory_order_relaxed);
    return l;
}

void known_list_unref(struct known_list *l)
{
    if (l == NULL || atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) != 1)
        return;
    plan_unref(l->plan);
    free(l);
}

void list_memo_free(struct list_memo *m)
{
    if (m == NULL)
        return;
    for (size_t i = 0; i < m->n; i++)
        known_list_unref(m->lists[i]);
    mtx_fini(&m->lock);
    free(m);
}

/* No column is the beginning of a longer one: the last byte is the ']' of its own '['. */
static bool begins_with(const char *text, size_t len, const struct known_list *l,
                        enum list_column which)
{
    const struct list_text *column = &l->columns[which];

    return column->text != NULL && column->len <= len &&
           memcmp(column->text, text, column->len) == 0;
}

bool known_list_has(const struct known_list *l, enum list_column which, struct list_text text)
{
    if (text.text == NULL || l->columns[which].text == NULL)
        return text.text == l->columns[which].text;
    return text.len == l->columns[which].len && begins_with(text.text, text.len, l, which);
}

static size_t all_of(struct list_memo *m, struct known_list *out[LIST_MEMO_MAX])
{
    size_t n;

    mtx_lock(&m->lock);
    n = m->n;
    for (size_t i = 0; i < n; i++)
        out[i] = list_ref(m->lists[i]);
    mtx_unlock(&m->lock);
    return n;
}

/* Lets go of all of `lists` but one, which is in use again; `found` is `n` if none is. */
static struct known_list *take_found(struct list_memo *m, struct known_list *const *lists, size_t n,
                                     size_t found)
{
    for (size_t i = 0; i < n; i++)
        if (i != found)
            known_list_unref(lists[i]);
    if (found == n)
        return NULL;
    mtx_lock(&m->lock);
    lists[found]->used = ++m->clock;
    mtx_unlock(&m->lock);
    return lists[found];
}

struct known_list *list_memo_find(struct list_memo *m, enum list_column which, const char *text,
                                  size_t len, struct known_list *first)
{
    struct known_list *lists[LIST_MEMO_MAX];
    size_t n, found = 0;

    if (first != NULL && begins_with(text, len, first, which))
        return list_ref(first);
    if (m == NULL)
        return NULL;
    n = all_of(m, lists);
    while (found < n && !begins_with(text, len, lists[found], which))
        found++;
    return take_found(m, lists, n, found);
}

static bool has_all(const struct known_list *l, const struct list_text columns[LIST_COLUMNS])
{
    for (size_t i = 0; i < LIST_COLUMNS; i++)
        if (!known_list_has(l, (enum list_column)i, columns[i]))
            return false;
    return true;
}

struct known_list *list_memo_get(struct list_memo *m, const struct list_text columns[LIST_COLUMNS])
{
    struct known_list *lists[LIST_MEMO_MAX];
    size_t n = all_of(m, lists), found = 0;

    while (found < n && !has_all(lists[found], columns))
        found++;
    return take_found(m, lists, n, found);
}

static struct known_list *copy_of(const struct list_text columns[LIST_COLUMNS], size_t nbytes,
                                  struct plan *plan)
{
    struct known_list *l = calloc(1, sizeof *l + nbytes);
    char *at;

    if (l == NULL)
        return NULL;
    at = l->bytes;
    for (size_t i = 0; i < LIST_COLUMNS; i++) {
        if (columns[i].text == NULL)
            continue;
        memcpy(at, columns[i].text, columns[i].len);
        l->columns[i] = (struct list_text){at, columns[i].len};
        at += columns[i].len;
    }
    l->plan = plan_ref(plan);
    l->nbytes = nbytes;
    atomic_init(&l->refs, 1);
    return l;
}

/* The one that was used longest ago, or NULL if there is room. */
static struct known_list *drop_locked(struct list_memo *m, const struct known_list *next)
{
    size_t oldest = 0;
    struct known_list *l;

    if (m->n < LIST_MEMO_MAX && m->nbytes + next->nbytes <= LIST_MEMO_NBYTES &&
        m->n_tensors + next->plan->n_tensors <= LIST_MEMO_TENSORS)
        return NULL;
    for (size_t i = 1; i < m->n; i++)
        if (m->lists[i]->used < m->lists[oldest]->used)
            oldest = i;
    l = m->lists[oldest];
    m->lists[oldest] = m->lists[--m->n];
    m->nbytes -= l->nbytes;
    m->n_tensors -= l->plan->n_tensors;
    return l;
}

static void insert(struct list_memo *m, struct known_list *l)
{
    struct known_list *dropped[LIST_MEMO_MAX], *one;
    size_t n = 0;

    mtx_lock(&m->lock);
    while ((one = drop_locked(m, l)) != NULL)
        dropped[n++] = one;
    l->used = ++m->clock;
    m->lists[m->n++] = l;
    m->nbytes += l->nbytes;
    m->n_tensors += l->plan->n_tensors;
    mtx_unlock(&m->lock);
    while (n > 0)
        known_list_unref(dropped[--n]);
}

void list_memo_keep(struct list_memo *m, const struct list_text columns[LIST_COLUMNS],
                    struct plan *plan)
{
    struct known_list *l;
    size_t nbytes = 0;

    for (size_t i = 0; i < LIST_COLUMNS; i++) {
        if (columns[i].len > LIST_MEMO_NBYTES - nbytes)
            return;
        nbytes += columns[i].len;
    }
    if (plan->n_tensors > LIST_MEMO_TENSORS)
        return;
    l = copy_of(columns, nbytes, plan);
    if (l != NULL)
        insert(m, l);
}
