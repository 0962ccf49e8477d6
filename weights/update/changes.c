/* Contents are found by a table of their checksums, so that a comparison takes time in proportion
 * to the number of tensors, of which there may be a hundred thousand. */
#include "weights/update/changes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *change_name(enum change change)
{
    static const char *const names[CHANGE_COUNT] = {[CHANGE_NOT_SENT] = "not_sent",
                                                    [CHANGE_NOT_COMPARED] = "not_compared",
                                                    [CHANGE_UNCHANGED] = "unchanged",
                                                    [CHANGE_CHANGED] = "changed"};

    return names[change];
}

const char *change_warning_name(enum change_warning warning)
{
    static const char *const names[CHANGE_WARNING_COUNT] = {
        [CHANGE_WARN_NOTHING] = "nothing_changed",
        [CHANGE_WARN_FEW] = "few_unchanged",
        [CHANGE_WARN_EQUAL] = "equal_to_another"};

    return names[warning];
}

/* Of n words w and a last one t, which is the low bytes of w (0 if the length is a multiple of 4):
 * A = n w + t, and B = w n (n + 1) / 2 + (n + 1) t. Hence (n + 1) A - B = w n (n + 1) / 2. */
bool checksum_is_constant(const struct checksum *sum, uint64_t nbytes)
{
    uint64_t n = nbytes / 4, mask = (UINT64_C(1) << (8 * (nbytes % 4))) - 1;
    uint64_t triangle = n % 2 == 0 ? n / 2 * (n + 1) : (n + 1) / 2 * n;
    uint64_t of_words = (n + 1) * sum->a - sum->b, w;

    if (n == 0)
        return true;
    w = of_words / triangle;
    return of_words % triangle == 0 && w <= UINT32_MAX && sum->a - n * w == (w & mask);
}

/* An open hash table of contents: the first tensor of each. */
struct contents {
    const struct tensor_list *tensor_list;
    const struct digest *digests;
    uint32_t *slots; /* owned; [mask + 1]; TENSOR_LIST_NO_TENSOR: empty */
    uint32_t mask;
};

/* Constant tensors (zero biases, norms of ones) and tiny ones are equal without a fault. */
static bool tells_apart(const struct tensor_spec *t, const struct digest *d)
{
    return d->known && t->nbytes >= CHANGES_TINY_NBYTES &&
           !checksum_is_constant(&d->sum, t->nbytes);
}

static bool same_content(const struct contents *c, uint32_t i, const struct checksum *sum,
                         uint64_t nbytes)
{
    return c->tensor_list->tensors[i].nbytes == nbytes && checksum_equal(c->digests[i].sum, *sum);
}

/* The slot of a content, or the empty one where it belongs. */
static uint32_t *contents_slot_of(const struct contents *c, const struct checksum *sum,
                                  uint64_t nbytes)
{
    uint64_t hash = (sum->a ^ (sum->b << 1) ^ nbytes) * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t at = (uint32_t)(hash >> 32) & c->mask;

    while (c->slots[at] != TENSOR_LIST_NO_TENSOR && !same_content(c, c->slots[at], sum, nbytes))
        at = (at + 1) & c->mask;
    return &c->slots[at];
}

static int contents_init(struct contents *out, const struct tensor_list *tensor_list,
                         const struct digest *digests, struct err *e)
{
    struct contents c = {.tensor_list = tensor_list, .digests = digests};
    uint32_t n = 2;

    while (n < 2 * tensor_list->n_tensors)
        n *= 2;
    c.mask = n - 1;
    c.slots = malloc(n * sizeof *c.slots);
    if (c.slots == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to compare two versions");
    memset(c.slots, 0xff, n * sizeof *c.slots); /* TENSOR_LIST_NO_TENSOR */
    for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
        const struct tensor_spec *t = &tensor_list->tensors[i];
        uint32_t *slot;

        if (!tells_apart(t, &digests[i]))
            continue;
        slot = contents_slot_of(&c, &digests[i].sum, t->nbytes);
        if (*slot == TENSOR_LIST_NO_TENSOR)
            *slot = i;
    }
    *out = c;
    return 0;
}

static enum change change_of(const struct digest *before, const struct digest *now)
{
    if (!now->sent)
        return CHANGE_NOT_SENT;
    if (!before->known || !now->known)
        return CHANGE_NOT_COMPARED;
    return checksum_equal(before->sum, now->sum) ? CHANGE_UNCHANGED : CHANGE_CHANGED;
}

static bool is_large(const struct tensor_spec *t, const struct digest *d)
{
    return t->numel >= CHANGES_LARGE_NUMEL && tells_apart(t, d);
}

static void changes_compare_with_before(struct change_report *r,
                                        const struct tensor_list *tensor_list,
                                        const struct digest *before, const struct digest *now)
{
    for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
        enum change change = change_of(&before[i], &now[i]);
        struct tensor_change *t = &r->tensors[i];

        *t = (struct tensor_change){.change = (uint8_t)change, .other = TENSOR_LIST_NO_TENSOR};
        t->newly_unchanged = change == CHANGE_UNCHANGED && !before[i].unchanged &&
                             is_large(&tensor_list->tensors[i], &now[i]);
        r->counts.n[change]++;
        r->counts.n_newly_unchanged += t->newly_unchanged;
    }
}

/* The tensor that had these bytes in the version before. */
static uint32_t other_before(const struct contents *before, uint32_t i, const struct digest *now)
{
    return *contents_slot_of(before, &now[i].sum, before->tensor_list->tensors[i].nbytes);
}

/* Another tensor that has the same bytes now, and did not have the same before. */
static uint32_t other_now(const struct contents *now, uint32_t i, const struct digest *before)
{
    uint32_t k = *contents_slot_of(now, &now->digests[i].sum, now->tensor_list->tensors[i].nbytes);

    if (k == i || k == TENSOR_LIST_NO_TENSOR || !before[k].known ||
        checksum_equal(before[k].sum, before[i].sum))
        return TENSOR_LIST_NO_TENSOR;
    return k;
}

static int compare_with_others(struct change_report *r, const struct tensor_list *tensor_list,
                               const struct digest *before, const struct digest *now, struct err *e)
{
    struct contents was, is;

    if (r->counts.n[CHANGE_CHANGED] == 0)
        return 0;
    if (contents_init(&was, tensor_list, before, e) != 0)
        return -1;
    if (contents_init(&is, tensor_list, now, e) != 0) {
        free(was.slots);
        return -1;
    }
    for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
        struct tensor_change *t = &r->tensors[i];

        if (t->change != CHANGE_CHANGED || !tells_apart(&tensor_list->tensors[i], &now[i]))
            continue;
        t->other = other_before(&was, i, now);
        t->other_before = t->other != TENSOR_LIST_NO_TENSOR;
        if (!t->other_before)
            t->other = other_now(&is, i, before);
        r->counts.n_equal_to_another += t->other != TENSOR_LIST_NO_TENSOR;
    }
    free(was.slots);
    free(is.slots);
    return 0;
}

static void changes_judge(struct change_counts *c, bool same_label)
{
    uint64_t n_stayed = c->n_newly_unchanged;
    uint64_t n_compared = (uint64_t)c->n[CHANGE_CHANGED] + c->n[CHANGE_UNCHANGED];
    bool nothing = n_compared > 0 && c->n[CHANGE_CHANGED] == 0 && c->n[CHANGE_NOT_COMPARED] == 0;

    c->repeated = nothing && same_label;
    c->warnings[CHANGE_WARN_NOTHING] = nothing && !same_label;
    c->warnings[CHANGE_WARN_FEW] = n_stayed > 0 &&
                                   n_stayed * 100 <
                                       CHANGES_FEW_PERCENT * (n_stayed + c->n[CHANGE_CHANGED]);
    c->warnings[CHANGE_WARN_EQUAL] = c->n_equal_to_another > 0;
}

int change_report_make(struct change_report **out, const struct tensor_list *tensor_list,
                       const struct change_before *before, struct digest *now, const char *label,
                       struct err *e)
{
    uint32_t n = tensor_list->n_tensors;
    struct change_report *r = calloc(1, sizeof *r + n * sizeof r->tensors[0]);

    if (r == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to compare two versions");
    r->refs = 1;
    r->n_tensors = n;
    r->counts.known = true;
    r->counts.before_serial = before->serial;
    (void)snprintf(r->counts.before_label, sizeof r->counts.before_label, "%s", before->label);
    changes_compare_with_before(r, tensor_list, before->digests, now);
    if (compare_with_others(r, tensor_list, before->digests, now, e) != 0) {
        free(r);
        return -1;
    }
    changes_judge(&r->counts, label[0] != '\0' && strcmp(label, before->label) == 0);
    for (uint32_t i = 0; i < n; i++) {
        now[i].unchanged = before->digests[i].unchanged;
        if (r->counts.n[CHANGE_CHANGED] > 0 && r->tensors[i].change >= CHANGE_UNCHANGED)
            now[i].unchanged = r->tensors[i].change == CHANGE_UNCHANGED;
    }
    *out = r;
    return 0;
}
