/* Matching the tensors that a trainer sends with those that the model needs. */
#include "weights/model_spec.h"

#include "base/names.h"
#include "base/utf8.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SUGGEST_PARTS_MAX = 8,    /* leading "module."-like parts that a trainer's wrapper may add */
    SUGGEST_DISTANCE_MAX = 4, /* edits between a name and a suggestion */
    SUGGEST_MIDDLE_MAX =
        48, /* bytes between the common prefix and the common suffix of two names */
    IGNORED_PREFIX_MAX = 64,    /* bytes of an ignored alias that ends in '.', with the NUL */
    SUGGEST_STEPS_MAX = 8 << 20 /* limits the work for one suggestion to some ms for any model */
};

static const char rotary_suffix[] = ".rotary_emb.inv_freq";
static const struct alias rotary_alias = {.name = rotary_suffix, .kind = ALIAS_IGNORED};

struct model_spec_whole {
    struct model_spec m;   /* first: a struct model spec * is a struct model_spec_whole * */
    struct names names;    /* owned; numbers are indexes into aliases */
    struct alias *aliases; /* owned */
    uint32_t *targets;     /* owned; all aliases' targets, one after the other */
};

static uint32_t count_targets(const struct alias_spec *spec)
{
    uint32_t n = 0;

    while (spec->targets != NULL && spec->targets[n] != NULL)
        n++;
    return n;
}

static int find_targets(const struct tensor_list *tensor_list, const struct alias_spec *spec,
                        uint32_t *targets, struct err *e)
{
    for (uint32_t i = 0; spec->targets != NULL && spec->targets[i] != NULL; i++) {
        targets[i] = tensor_list_find(tensor_list, spec->targets[i]);
        if (targets[i] == TENSOR_LIST_NO_TENSOR)
            return err_set(e, ERR_INTERNAL, "", "alias '%.*s' names '%.*s', which is not a tensor",
                           utf8_cut_name(spec->name), spec->name, utf8_cut_name(spec->targets[i]),
                           spec->targets[i]);
    }
    return 0;
}

/* A fused tensor's bytes are those of its targets, in order. */
static int check_fused(const struct tensor_list *tensor_list, const struct alias *a, struct err *e)
{
    const struct tensor_spec *first = &tensor_list->tensors[a->targets[0]];
    uint64_t sum = 0, numel, nbytes;

    for (uint32_t i = 0; i < a->n_targets; i++) {
        const struct tensor_spec *t = &tensor_list->tensors[a->targets[i]];
        if (t->dtype != first->dtype)
            return err_set(e, ERR_INTERNAL, "", "alias '%.*s' fuses '%.*s' (%s) with a %s tensor",
                           utf8_cut_name(a->name), a->name, utf8_cut_name(t->name), t->name,
                           dtype_name(t->dtype), dtype_name(first->dtype));
        if (t->nbytes > TENSOR_LIST_NBYTES_MAX - sum)
            return err_set(e, ERR_INTERNAL, "", "alias '%.*s' has too many bytes",
                           utf8_cut_name(a->name), a->name);
        sum += t->nbytes;
    }
    if (!tensor_list_measure(first->dtype, a->shape, a->ndim, &numel, &nbytes) || nbytes != sum)
        return err_set(e, ERR_INTERNAL, "",
                       "the shape of alias '%.*s' does not add up to its targets' %llu bytes",
                       utf8_cut_name(a->name), a->name, (unsigned long long)sum);
    return 0;
}

static int fill_alias(const struct tensor_list *tensor_list, const struct alias_spec *spec,
                      struct alias *a, uint32_t *targets, struct err *e)
{
    const struct tensor_spec *t;

    a->kind = spec->kind;
    a->n_targets = count_targets(spec);
    a->targets = targets;
    if (find_targets(tensor_list, spec, targets, e) != 0)
        return -1;
    if ((a->kind == ALIAS_IGNORED) != (a->n_targets == 0) ||
        (a->kind == ALIAS_TIED && a->n_targets != 1) || spec->ndim > TENSOR_LIST_NDIM_MAX)
        return err_set(e, ERR_INTERNAL, "", "alias '%.*s' has %u targets and %u dimensions",
                       utf8_cut_name(a->name), a->name, (unsigned)a->n_targets,
                       (unsigned)spec->ndim);
    if (a->kind == ALIAS_TIED) {
        t = &tensor_list->tensors[targets[0]];
        a->ndim = t->ndim;
        memcpy(a->shape, t->shape, sizeof a->shape);
    } else {
        a->ndim = spec->ndim;
        memcpy(a->shape, spec->shape, sizeof a->shape);
    }
    return a->kind == ALIAS_FUSED ? check_fused(tensor_list, a, e) : 0;
}

static int model_spec_add_aliases(struct model_spec_whole *w, const struct alias_spec *specs,
                                  struct err *e)
{
    uint32_t *targets = w->targets;

    for (uint32_t i = 0; i < w->m.n_aliases; i++) {
        const char *name = specs[i].name;
        if (tensor_list_find(w->m.tensor_list, name) != TENSOR_LIST_NO_TENSOR ||
            names_find(&w->names, name) != NAMES_NONE)
            return err_set(e, ERR_INTERNAL, "", "alias '%.*s' is already the name of something",
                           utf8_cut_name(name), name);
        if (names_add(&w->names, name, e) != 0)
            return -1;
        w->aliases[i].name = w->names.items[i];
        if (fill_alias(w->m.tensor_list, &specs[i], &w->aliases[i], targets, e) != 0)
            return -1;
        targets += w->aliases[i].n_targets;
    }
    return 0;
}

int model_spec_new(struct model_spec **out, struct tensor_list *tensor_list,
                   const struct alias_spec *aliases, uint32_t n_aliases, struct err *e)
{
    struct model_spec_whole *w = calloc(1, sizeof *w);
    size_t n_targets = 0;

    if (w == NULL) {
        tensor_list_unref(tensor_list);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a manifest");
    }
    names_init(&w->names);
    w->m.tensor_list = tensor_list;
    w->m.n_aliases = n_aliases;
    for (uint32_t i = 0; i < n_aliases; i++)
        n_targets += count_targets(&aliases[i]);
    w->aliases = calloc((size_t)n_aliases + 1, sizeof *w->aliases);
    w->targets = calloc(n_targets + 1, sizeof *w->targets);
    if (w->aliases == NULL || w->targets == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for %u aliases", (unsigned)n_aliases);
        goto err_free;
    }
    w->m.aliases = w->aliases;
    if (model_spec_add_aliases(w, aliases, e) != 0)
        goto err_free;
    *out = &w->m;
    return 0;

err_free:
    model_spec_free(&w->m);
    return -1;
}

void model_spec_free(struct model_spec *m)
{
    struct model_spec_whole *w = (struct model_spec_whole *)m;

    if (m == NULL)
        return;
    tensor_list_unref(w->m.tensor_list);
    free(w->m.rotary);
    free(w->m.held);
    names_fini(&w->names);
    free(w->aliases);
    free(w->targets);
    free(w);
}

/* The model spec's own copy of `name`, or NULL. */
static const char *known_name(const struct model_spec_whole *w, const char *name)
{
    uint32_t i = tensor_list_find(w->m.tensor_list, name);

    if (i != TENSOR_LIST_NO_TENSOR)
        return w->m.tensor_list->tensors[i].name;
    i = names_find(&w->names, name);
    return i != NAMES_NONE ? w->aliases[i].name : NULL;
}

/* The name without the parts that torch's wrappers put anywhere into it. */
static void strip_wrappers(char *out, size_t cap, const char *name, size_t len)
{
    static const char *const parts[] = {"_fsdp_wrapped_module.", "_checkpoint_wrapped_module.",
                                        "_orig_mod.", "module."};
    size_t n = 0;

    for (size_t at = 0; at < len && n + 1 < cap;) {
        size_t skip = 0;

        for (size_t k = 0; k < sizeof parts / sizeof parts[0] && skip == 0; k++)
            if ((at == 0 || name[at - 1] == '.') &&
                strncmp(name + at, parts[k], strlen(parts[k])) == 0)
                skip = strlen(parts[k]);
        if (skip == 0)
            out[n++] = name[at++];
        at += skip;
    }
    out[n] = '\0';
}

/* The usual mistakes of a trainer: wrappers, a missing "model.", an extra ".weight". */
static const char *suggest_by_part(const struct model_spec_whole *w, const char *name)
{
    char text[TENSOR_LIST_NAME_LEN_MAX + 16];
    const char *rest = name, *found = NULL;
    size_t len = strnlen(name, TENSOR_LIST_NAME_LEN_MAX);

    for (int i = 0; i < SUGGEST_PARTS_MAX && found == NULL; i++) {
        rest = strchr(rest, '.');
        if (rest == NULL)
            break;
        rest++;
        found = known_name(w, rest);
    }
    if (found == NULL) {
        strip_wrappers(text, sizeof text, name, len);
        found = known_name(w, text);
    }
    if (found == NULL) {
        (void)snprintf(text, sizeof text, "model.%.*s", (int)len, name);
        found = known_name(w, text);
    }
    if (found == NULL) {
        (void)snprintf(text, sizeof text, "%.*s.weight", (int)len, name);
        found = known_name(w, text);
    }
    if (found == NULL && len > 7 && strcmp(name + len - 7, ".weight") == 0) {
        (void)snprintf(text, sizeof text, "%.*s", (int)len - 7, name);
        found = known_name(w, text);
    }
    return found;
}

/* Edits between a and b, or limit + 1 if there are more. Only cells within `limit` of the
 * diagonal can matter. */
static unsigned model_spec_distance(const char *a, size_t n_a, const char *b, size_t n_b,
                                    unsigned limit, uint64_t *steps)
{
    unsigned row[SUGGEST_MIDDLE_MAX + 1];

    for (size_t j = 0; j <= n_b; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t low = i > limit ? i - limit : 1;
        size_t high = i + limit < n_b ? i + limit : n_b;
        unsigned diagonal = row[low - 1], best = limit + 1;
        row[low - 1] = low == 1 ? (unsigned)i : limit + 1;
        for (size_t j = low; j <= high; j++) {
            unsigned above = j == i + limit ? limit + 1 : row[j];
            unsigned cost = diagonal + (a[i - 1] != b[j - 1]);
            cost = above + 1 < cost ? above + 1 : cost;
            cost = row[j - 1] + 1 < cost ? row[j - 1] + 1 : cost;
            diagonal = row[j];
            row[j] = cost;
            best = cost < best ? cost : best;
        }
        *steps += high - low + 2;
        if (best > limit && row[low - 1] > limit)
            return limit + 1;
    }
    return row[n_b] <= limit ? row[n_b] : limit + 1;
}

/* As distance, without the common prefix and suffix. */
static unsigned name_distance(const char *a, size_t n_a, const char *b, size_t n_b, unsigned limit,
                              uint64_t *steps)
{
    size_t n = n_a < n_b ? n_a : n_b, head = 0, tail = 0;

    *steps += 1;
    if (n_a - n > limit || n_b - n > limit)
        return limit + 1;
    while (head < n && a[head] == b[head])
        head++;
    while (tail < n - head && a[n_a - 1 - tail] == b[n_b - 1 - tail])
        tail++;
    *steps += (head + tail) / 8;
    n_a -= head + tail;
    n_b -= head + tail;
    if (n_a > SUGGEST_MIDDLE_MAX || n_b > SUGGEST_MIDDLE_MAX)
        return limit + 1;
    return model_spec_distance(a + head, n_a, b + head, n_b, limit, steps);
}

/* The known name with the fewest edits, or NULL if none is close. The work is limited. */
static const char *suggest_by_distance(const struct model_spec_whole *w, const char *name)
{
    const struct tensor_list *tensor_list = w->m.tensor_list;
    size_t len = strnlen(name, TENSOR_LIST_NAME_LEN_MAX);
    unsigned limit = len / 4 < SUGGEST_DISTANCE_MAX ? (unsigned)(len / 4) : SUGGEST_DISTANCE_MAX;
    uint64_t n = (uint64_t)tensor_list->n_tensors + w->m.n_aliases, steps = 0;
    const char *found = NULL;

    for (uint64_t i = 0; i < n && limit > 0 && steps < SUGGEST_STEPS_MAX; i++) {
        const char *known = i < tensor_list->n_tensors
                                ? tensor_list->tensors[i].name
                                : w->aliases[i - tensor_list->n_tensors].name;
        size_t known_len = strnlen(known, len + limit + 1);
        unsigned d;
        steps += known_len / 8;
        d = name_distance(name, len, known, known_len, limit, &steps);
        if (d <= limit) {
            found = known;
            limit = d - 1; /* d > 0: an equal name would have matched */
        }
    }
    return found;
}

static int unknown_name(const struct model_spec_whole *w, const char *name, uint32_t i,
                        struct err *e)
{
    const char *near = suggest_by_part(w, name);
    char field[ERR_FIELD_MAX];

    (void)snprintf(field, sizeof field, "/names/%u", (unsigned)i);
    if (strchr(name, '#') != NULL)
        return err_set(e, ERR_MISMATCH, field,
                       "the model has no tensor '%.*s'; parts of a delta, whose names have a '#', "
                       "come in an update with \"delta\": true and \"base_version\"",
                       utf8_cut_name(name), name);
    if (near == NULL)
        near = suggest_by_distance(w, name);
    if (near == NULL)
        return err_set(e, ERR_MISMATCH, field, "the model has no tensor '%.*s'",
                       utf8_cut_name(name), name);
    return err_set(e, ERR_MISMATCH, field, "the model has no tensor '%.*s'; did you mean '%.*s'?",
                   utf8_cut_name(name), name, utf8_cut_name(near), near);
}

static int check_shape(const struct tensor_spec *t, uint32_t ndim, const uint64_t *shape,
                       uint32_t i, struct err *e)
{
    struct tensor_spec want = {.ndim = ndim};
    char field[ERR_FIELD_MAX], found[180], expected[180];

    if (t->ndim == ndim && memcmp(t->shape, shape, ndim * sizeof *shape) == 0)
        return 0;
    memcpy(want.shape, shape, ndim * sizeof *shape);
    (void)snprintf(field, sizeof field, "/shapes/%u", (unsigned)i);
    return err_set(e, ERR_MISMATCH, field, "tensor '%.*s' has shape %s, the model expects %s",
                   utf8_cut_name(t->name), t->name, tensor_list_shape_text(t, found, sizeof found),
                   tensor_list_shape_text(&want, expected, sizeof expected));
}

/* @held  `want` is F32, and a narrower float is widened */
static int check_dtype(const struct tensor_spec *t, enum dtype want, bool held, bool convert,
                       uint32_t i, struct err *e)
{
    bool could = dtype_convertible(t->dtype, want);
    char field[ERR_FIELD_MAX];

    if (t->dtype == want || (convert && could) ||
        (held && (t->dtype == DTYPE_BF16 || t->dtype == DTYPE_F16)))
        return 0;
    (void)snprintf(field, sizeof field, "/dtypes/%u", (unsigned)i);
    return err_set(e, ERR_MISMATCH, field, "tensor '%.*s' is %s, the model expects %s%s",
                   utf8_cut_name(t->name), t->name, dtype_name(t->dtype), dtype_name(want),
                   could ? "; \"convert\": true would convert it" : "");
}

bool model_spec_is_rotary(const char *name)
{
    size_t len = strlen(name), n = sizeof rotary_suffix - 1;

    return len > n && strcmp(name + len - n, rotary_suffix) == 0;
}

int model_spec_derive_rotary(struct model_spec *m, const float *inv_freq, uint32_t n, struct err *e)
{
    m->rotary = malloc(n * sizeof *m->rotary);
    if (m->rotary == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u rotary frequencies", (unsigned)n);
    memcpy(m->rotary, inv_freq, n * sizeof *m->rotary);
    m->n_rotary = n;
    return 0;
}

int model_spec_hold(struct model_spec *m, const char *name, struct err *e)
{
    uint32_t i = tensor_list_find(m->tensor_list, name);

    if (i == TENSOR_LIST_NO_TENSOR || m->tensor_list->tensors[i].dtype != DTYPE_F32)
        return err_set(e, ERR_INTERNAL, "", "'%.*s' is no F32 tensor of the model",
                       utf8_cut_name(name), name);
    if (m->held == NULL)
        m->held = calloc(m->tensor_list->n_tensors, sizeof *m->held);
    if (m->held == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a manifest");
    m->held[i] = true;
    return 0;
}

int model_spec_check_ignored(const struct model_spec *m, const struct tensor_spec *t,
                             const void *data, struct err *e)
{
    float slack = dtype_nbytes(t->dtype) >= 4
                      ? 1e-5F
                      : 1e-2F; /* relative; a narrower dtype is less exact */
    const char *from = data;

    if (!model_spec_is_rotary(t->name))
        return 0;
    for (uint32_t k = 0; k < m->n_rotary; k++) {
        float value, want = m->rotary[k];

        dtype_convert(&value, DTYPE_F32, from + k * dtype_nbytes(t->dtype), t->dtype, 1);
        if (!(value >= want * (1 - slack) && value <= want * (1 + slack)))
            return err_set(e, ERR_MISMATCH, "",
                           "'%.*s' is derived from the model's configuration: element %u must be "
                           "%.9g, and is %.9g",
                           utf8_cut_name(t->name), t->name, (unsigned)k, (double)want,
                           (double)value);
    }
    return 0;
}

int model_spec_match(const struct model_spec *m, const struct tensor_spec *t, bool convert,
                     uint32_t i, struct model_spec_match *out, struct err *e)
{
    static const struct model_spec_match none = {.index = TENSOR_LIST_NO_TENSOR};

    return model_spec_match_next(m, &none, t, convert, i, out, e);
}

/* The ignored alias that ends in '.' and begins `name`, or NULL. */
static const struct alias *find_prefix(const struct model_spec_whole *w, const char *name)
{
    char prefix[IGNORED_PREFIX_MAX];

    for (const char *dot = strchr(name, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        size_t len = (size_t)(dot - name) + 1;
        uint32_t number;

        if (len >= sizeof prefix)
            break;
        memcpy(prefix, name, len);
        prefix[len] = '\0';
        number = names_find(&w->names, prefix);
        if (number != NAMES_NONE && w->aliases[number].kind == ALIAS_IGNORED)
            return &w->aliases[number];
    }
    return NULL;
}

static const struct alias *find_alias(const struct model_spec_whole *w, const char *name)
{
    uint32_t number = names_find(&w->names, name);

    if (number != NAMES_NONE)
        return &w->aliases[number];
    return model_spec_is_rotary(name) ? &rotary_alias : find_prefix(w, name);
}

bool model_spec_find(const struct model_spec *m, const struct model_spec_match *last,
                     const char *name, struct model_spec_match *out)
{
    const struct model_spec_whole *w = (const struct model_spec_whole *)m;
    uint32_t next = last->index + 1; /* after an alias: the first */
    struct model_spec_match match = {.index = tensor_list_find_near(m->tensor_list, name, next)};

    if (match.index == TENSOR_LIST_NO_TENSOR) {
        match.alias = find_alias(w, name);
        if (match.alias == NULL)
            return false;
    }
    *out = match;
    return true;
}

int model_spec_check_shape(const struct model_spec *m, const struct model_spec_match *match,
                           const struct tensor_spec *t, uint32_t i, struct err *e)
{
    const struct alias *alias = match->alias;
    const uint64_t rotary[] = {m->n_rotary};

    if (alias == NULL)
        return check_shape(t, m->tensor_list->tensors[match->index].ndim,
                           m->tensor_list->tensors[match->index].shape, i, e);
    if (model_spec_is_rotary(t->name))
        return m->n_rotary > 0 ? check_shape(t, 1, rotary, i, e) : 0;
    return alias->kind != ALIAS_IGNORED ? check_shape(t, alias->ndim, alias->shape, i, e) : 0;
}

static int check_match(const struct model_spec *m, const struct model_spec_match *match,
                       const struct tensor_spec *t, bool convert, uint32_t i, struct err *e)
{
    const struct alias *alias = match->alias;
    uint32_t index = alias == NULL ? match->index : TENSOR_LIST_NO_TENSOR;

    if (alias != NULL && alias->kind != ALIAS_IGNORED)
        index = alias->targets[0];
    if (model_spec_check_shape(m, match, t, i, e) != 0)
        return -1;
    if (index != TENSOR_LIST_NO_TENSOR)
        return check_dtype(t, m->tensor_list->tensors[index].dtype,
                           m->held != NULL && m->held[index], convert, i, e);
    return model_spec_is_rotary(t->name) && m->n_rotary > 0
               ? check_dtype(t, DTYPE_F32, false, true, i, e)
               : 0;
}

int model_spec_match_next(const struct model_spec *m, const struct model_spec_match *last,
                          const struct tensor_spec *t, bool convert, uint32_t i,
                          struct model_spec_match *out, struct err *e)
{
    struct model_spec_match match;

    if (!model_spec_find(m, last, t->name, &match))
        return unknown_name((const struct model_spec_whole *)m, t->name, i, e);
    if (check_match(m, &match, t, convert, i, e) != 0)
        return -1;
    *out = match;
    return 0;
}
