/* From the names of a transfer to what each tensor's change consists of. */
#include "weights/delta/delta.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What follows the last '#' of a name. */
enum part_name { PART_GAP, PART_BITMAP, PART_INDEX, PART_RANGE, PART_XOR, PART_VALUE, PART_NONE };

static const struct part_row {
    const char *name;
    bool is_values;
    enum part_name values; /* of positions: the values that belong to them */
    enum delta_kind kind;  /* of positions, or of values that have none */
} part_rows[PART_NONE] = {
    [PART_GAP] = {"gap", false, PART_XOR, DELTA_GAP},
    [PART_BITMAP] = {"bitmap", false, PART_XOR, DELTA_BITMAP},
    [PART_INDEX] = {"index", false, PART_VALUE, DELTA_INDEX},
    [PART_RANGE] = {"range", false, PART_VALUE, DELTA_RANGE},
    [PART_XOR] = {"xor", true, PART_NONE, DELTA_XOR},
    [PART_VALUE] = {"value", true, PART_NONE, DELTA_KIND_COUNT},
};

static const char compressed[] = ".zst";

struct reading {
    const struct model_spec *m;
    const struct tensor_list *parts;
    struct tensor_list_builder *result; /* owned */
    uint32_t n;                         /* tensors of it */
    struct delta_tensor *tensors;       /* owned; [parts->n_tensors] */
    enum part_name (*names)[2]; /* owned; the same: of positions and values; PART_NONE: not yet */
    struct model_spec_match last;
    bool marks; /* does the model spec have a name with a '#'? */

    /* The tensor of the last part: mostly the next part is of it too. */
    char stem[TENSOR_LIST_NAME_LEN_MAX + 1]; /* "": none */
    struct tensor_spec target;               /* its name is `stem` */
    uint32_t k, base;                        /* of the result; of the model spec */
};

enum { POSITIONS, VALUES };

static const char *part_field(char field[ERR_FIELD_MAX], const char *list, uint32_t i)
{
    (void)snprintf(field, ERR_FIELD_MAX, "/%s/%u", list, (unsigned)i);
    return field;
}

static int add_result(struct reading *r, const struct tensor_spec *t, uint32_t i, struct err *e)
{
    static const struct delta_part none = {.i = TENSOR_LIST_NO_TENSOR};
    struct err late = {0};

    if (tensor_list_builder_add(r->result, t->name, t->dtype, t->shape, t->ndim, UINT64_MAX,
                                &late) != 0) {
        char field[ERR_FIELD_MAX];

        return err_set(e, late.code, part_field(field, "names", i), "%s", late.msg);
    }
    r->tensors[r->n] = (struct delta_tensor){
        .unit = (uint32_t)dtype_nbytes(t->dtype), .positions = none, .values = none};
    r->names[r->n][POSITIONS] = r->names[r->n][VALUES] = PART_NONE;
    r->n++;
    return 0;
}

static int twice(const struct tensor_spec *t, uint32_t i, struct err *e)
{
    char field[ERR_FIELD_MAX];

    return err_set(e, ERR_BAD_REQUEST, part_field(field, "names", i),
                   "'%.*s' does not belong together with what comes before it of the same tensor: "
                   "a tensor is sent whole, or as one xor, or as one of gap, bitmap, index and "
                   "range with its xor or value",
                   utf8_cut_name(t->name), t->name);
}

static int read_whole(struct reading *r, uint32_t i, struct err *e)
{
    const struct tensor_spec *t = &r->parts->tensors[i];
    struct delta_tensor *d = &r->tensors[r->n];

    if (model_spec_match_next(r->m, &r->last, t, false, i, &r->last, e) != 0)
        return -1;
    if (tensor_list_builder_find(r->result, t->name) != TENSOR_LIST_NO_TENSOR)
        return twice(t, i, e);
    if (add_result(r, t, i, e) != 0)
        return -1;
    d->kind = DELTA_WHOLE;
    d->base = r->last.index;
    d->values = (struct delta_part){.i = i, .nbytes = t->nbytes};
    return 0;
}

/* Splits a name at its last '#'. */
struct split {
    char stem[TENSOR_LIST_NAME_LEN_MAX + 1];
    enum part_name part;
    bool zstd;
};

static int split_name(const struct reading *r, uint32_t i, struct split *out, struct err *e)
{
    const char *name = r->parts->tensors[i].name, *mark = strrchr(name, '#');
    size_t len = strlen(mark + 1), n_zst = sizeof compressed - 1;
    char field[ERR_FIELD_MAX];

    memcpy(out->stem, name, (size_t)(mark - name));
    out->stem[mark - name] = '\0';
    out->zstd = len > n_zst && strcmp(mark + 1 + len - n_zst, compressed) == 0;
    if (out->zstd)
        len -= n_zst;
    for (out->part = 0; out->part < PART_NONE; out->part++)
        if (strncmp(part_rows[out->part].name, mark + 1, len) == 0 &&
            part_rows[out->part].name[len] == '\0')
            return 0;
    return err_set(e, ERR_BAD_REQUEST, part_field(field, "names", i),
                   "'%.*s' is no part of a delta; parts of a tensor are #gap, #bitmap, #index, "
                   "#range, #xor and #value, each also with .zst",
                   utf8_cut_name(name), name);
}

/* The tensor that a part is of, as the model spec has it, and its index there. */
static int find_target(struct reading *r, const char *stem, uint32_t i, struct tensor_spec *out,
                       uint32_t *index, struct err *e)
{
    struct tensor_spec named = {.name = stem, .dtype = DTYPE_U8};
    const struct alias *alias;
    char field[ERR_FIELD_MAX];

    if (!model_spec_find(r->m, &r->last, stem, &r->last)) /* says which name is like it */
        return model_spec_match(r->m, &named, false, i, &r->last, e);
    alias = r->last.alias;
    if (alias != NULL && alias->kind != ALIAS_TIED)
        return err_set(
            e, ERR_BAD_REQUEST, part_field(field, "names", i),
            "the model keeps no tensor '%.*s' of its own (it is %s), so it has nothing "
            "that a part could change: send %s",
            utf8_cut_name(stem), stem, alias->kind == ALIAS_FUSED ? "fused of others" : "derived",
            alias->kind == ALIAS_FUSED ? "parts of those, or the whole tensor" : "none of it");
    *index = alias != NULL ? alias->targets[0] : r->last.index;
    *out = r->m->tensor_list->tensors[*index];
    return 0;
}

static int find_stem(struct reading *r, const char *stem, uint32_t i, struct err *e)
{
    if (r->stem[0] != '\0' && strcmp(stem, r->stem) == 0)
        return 0;
    r->stem[0] = '\0';
    if (find_target(r, stem, i, &r->target, &r->base, e) != 0)
        return -1;
    (void)snprintf(r->stem, sizeof r->stem, "%s", stem);
    r->target.name = r->stem;
    r->k = tensor_list_builder_find(r->result, stem);
    return 0;
}

static bool is_unsigned(enum dtype dtype)
{
    return dtype == DTYPE_U8 || dtype == DTYPE_U16 || dtype == DTYPE_U32 || dtype == DTYPE_U64;
}

/* Can a part of `target` have this dtype? */
static bool dtype_fits(const struct tensor_spec *t, enum part_name part,
                       const struct tensor_spec *target)
{
    bool signed32 = t->dtype == DTYPE_I32 && target->numel <= (uint64_t)INT32_MAX + 1;

    switch (part) {
    case PART_GAP:
        return t->dtype == DTYPE_U16;
    case PART_BITMAP:
        return t->dtype == DTYPE_U8;
    case PART_INDEX: /* a negative position of I32 is too large a one of U32 */
        return t->dtype == DTYPE_U32 || t->dtype == DTYPE_U64 || t->dtype == DTYPE_I64 || signed32;
    case PART_RANGE:
        return t->dtype == DTYPE_U64;
    case PART_XOR:
        return is_unsigned(t->dtype) && dtype_nbytes(t->dtype) == dtype_nbytes(target->dtype);
    default:
        return t->dtype == target->dtype ||
               (is_unsigned(t->dtype) && dtype_nbytes(t->dtype) == dtype_nbytes(target->dtype));
    }
}

static int check_part(const struct tensor_spec *t, const struct split *s,
                      const struct tensor_spec *target, uint32_t i, struct err *e)
{
    char field[ERR_FIELD_MAX];

    if (s->zstd ? t->dtype != DTYPE_U8 : !dtype_fits(t, s->part, target))
        return err_set(e, ERR_MISMATCH, part_field(field, "dtypes", i),
                       "part '%.*s' is %s, which is not its dtype for a tensor of %s",
                       utf8_cut_name(t->name), t->name, dtype_name(t->dtype),
                       s->zstd ? "compressed bytes" : dtype_name(target->dtype));
    return 0;
}

static int read_part(struct reading *r, uint32_t i, struct err *e)
{
    const struct tensor_spec *t = &r->parts->tensors[i];
    struct delta_part *part;
    struct delta_tensor *d;
    struct split s;
    uint32_t side;

    if (split_name(r, i, &s, e) != 0 || find_stem(r, s.stem, i, e) != 0 ||
        check_part(t, &s, &r->target, i, e) != 0)
        return -1;
    if (r->k == TENSOR_LIST_NO_TENSOR) {
        r->k = r->n;
        if (add_result(r, &r->target, i, e) != 0)
            return -1;
    }
    d = &r->tensors[r->k];
    d->base = r->base;
    side = part_rows[s.part].is_values ? VALUES : POSITIONS;
    part = side == VALUES ? &d->values : &d->positions;
    if (part->i != TENSOR_LIST_NO_TENSOR)
        return twice(t, i, e);
    *part = (struct delta_part){.i = i, .zstd = s.zstd};
    r->names[r->k][side] = s.part;
    if (s.part == PART_INDEX && !s.zstd)
        d->position_nbytes = (uint32_t)dtype_nbytes(t->dtype);
    return 0;
}

/* Reads the shape of a part. @like  it has that one's; NULL: it is [n], or [k, 2] for `pairs` */
static int settle_shape(struct delta_part *part, const struct tensor_list *parts,
                        const struct tensor_spec *like, bool pairs, struct err *e)
{
    const struct tensor_spec *t = &parts->tensors[part->i];
    char field[ERR_FIELD_MAX], shape[180];
    bool fits;

    if (part->zstd || (like == NULL && !pairs))
        fits = t->ndim == 1;
    else if (pairs)
        fits = t->ndim == 2 && t->shape[1] == 2;
    else
        fits = t->ndim == like->ndim &&
               memcmp(t->shape, like->shape, t->ndim * sizeof *t->shape) == 0;
    part->nbytes = part->zstd ? 0 : t->nbytes;
    if (fits)
        return 0;
    return err_set(e, ERR_MISMATCH, part_field(field, "shapes", part->i),
                   "part '%.*s' has shape %s, and needs %s", utf8_cut_name(t->name), t->name,
                   tensor_list_shape_text(t, shape, sizeof shape),
                   part->zstd || (like == NULL && !pairs) ? "[n]"
                   : pairs                                ? "[k, 2]"
                                                          : "that of its tensor");
}

/* @d  its kind is known */
static int settle_shapes(struct delta_tensor *d, const struct tensor_list *parts,
                         const struct tensor_spec *result, struct err *e)
{
    if (d->positions.i != TENSOR_LIST_NO_TENSOR &&
        settle_shape(&d->positions, parts, NULL, d->kind == DELTA_RANGE, e) != 0)
        return -1;
    return settle_shape(&d->values, parts, d->kind == DELTA_XOR ? result : NULL, false, e);
}

/* All parts are there: which kind are they? */
static int settle_kind(const struct reading *r, uint32_t k, const struct tensor_spec *result,
                       struct err *e)
{
    enum part_name positions = r->names[k][POSITIONS], values = r->names[k][VALUES];
    struct delta_tensor *d = &r->tensors[k];
    char field[ERR_FIELD_MAX];

    if (positions == PART_NONE && values == PART_NONE)
        return 0; /* whole */
    d->kind = positions != PART_NONE ? part_rows[positions].kind : part_rows[values].kind;
    if (positions != PART_NONE ? part_rows[positions].values != values
                               : d->kind == DELTA_KIND_COUNT)
        return err_set(
            e, ERR_BAD_REQUEST,
            part_field(field, "names", values != PART_NONE ? d->values.i : d->positions.i),
            "tensor '%.*s' has %s%s and %s%s: #gap and #bitmap need #xor, #index and #range need "
            "#value",
            utf8_cut_name(result->name), result->name,
            positions != PART_NONE ? "#" : "no positions",
            positions != PART_NONE ? part_rows[positions].name : "",
            values != PART_NONE ? "#" : "no values",
            values != PART_NONE ? part_rows[values].name : "");
    return settle_shapes(d, r->parts, result, e);
}

static int read_delta_parts(struct reading *r, struct delta *out, struct err *e)
{
    struct tensor_list *result;

    for (uint32_t i = 0; i < r->parts->n_tensors; i++) {
        const char *name = r->parts->tensors[i].name;
        struct model_spec_match match;
        bool whole = strchr(name, '#') == NULL ||
                     (r->marks && model_spec_find(r->m, &r->last, name, &match));

        if ((whole ? read_whole(r, i, e) : read_part(r, i, e)) != 0)
            return -1;
    }
    if (tensor_list_builder_finish(r->result, &result, e) != 0) {
        r->result = NULL;
        return -1;
    }
    r->result = NULL;
    out->result = result;
    for (uint32_t k = 0; k < result->n_tensors; k++)
        if (settle_kind(r, k, &result->tensors[k], e) != 0)
            return -1;
    out->tensors = r->tensors;
    r->tensors = NULL;
    return 0;
}

/* A look at each is cheaper than a search for each part. */
static bool spec_has_marks(const struct model_spec *m)
{
    bool found = false;

    for (uint32_t i = 0; i < m->tensor_list->n_tensors && !found; i++)
        found = strchr(m->tensor_list->tensors[i].name, '#') != NULL;
    for (uint32_t i = 0; i < m->n_aliases && !found; i++)
        found = strchr(m->aliases[i].name, '#') != NULL;
    return found;
}

int delta_of_parts(struct delta **out, const struct model_spec *m, const struct tensor_list *parts,
                   struct err *e)
{
    struct reading r = {.m = m, .parts = parts, .last = {.index = TENSOR_LIST_NO_TENSOR}};
    struct delta *d = calloc(1, sizeof *d);
    int rc = -1;

    r.marks = spec_has_marks(m);
    r.tensors = calloc(parts->n_tensors, sizeof *r.tensors);
    r.names = calloc(parts->n_tensors, sizeof *r.names);
    if (d == NULL || r.tensors == NULL || r.names == NULL)
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for a delta of %u parts",
                      (unsigned)parts->n_tensors);
    else if (tensor_list_builder_new(&r.result, e) == 0 &&
             tensor_list_builder_reserve(r.result, parts->n_tensors / 2 + 1, e) == 0)
        rc = read_delta_parts(&r, d, e);
    tensor_list_builder_free(r.result);
    free(r.tensors);
    free(r.names);
    if (rc != 0)
        delta_free(d);
    else
        *out = d;
    return rc;
}

/* Are the tensors that come whole shaped as before? */
static bool wholes_fit(const struct delta *like, const struct tensor_list *parts)
{
    for (uint32_t k = 0; k < like->result->n_tensors; k++) {
        const struct tensor_spec *result = &like->result->tensors[k];
        const struct tensor_spec *t = &parts->tensors[like->tensors[k].values.i];

        if (like->tensors[k].kind == DELTA_WHOLE &&
            (t->ndim != result->ndim ||
             memcmp(t->shape, result->shape, t->ndim * sizeof *t->shape) != 0))
            return false;
    }
    return true;
}

int delta_of_shapes(struct delta **out, const struct delta *like, const struct model_spec *m,
                    const struct tensor_list *parts, struct err *e)
{
    uint32_t n = like->result->n_tensors;
    struct delta *d;

    if (!wholes_fit(like, parts)) /* says why not */
        return delta_of_parts(out, m, parts, e);
    d = calloc(1, sizeof *d);
    if (d == NULL || (d->tensors = malloc(n * sizeof *d->tensors)) == NULL) {
        free(d);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a delta of %u tensors", (unsigned)n);
    }
    d->result = tensor_list_ref(like->result);
    memcpy(d->tensors, like->tensors, n * sizeof *d->tensors);
    for (uint32_t k = 0; k < n; k++)
        if (d->tensors[k].kind != DELTA_WHOLE &&
            settle_shapes(&d->tensors[k], parts, &d->result->tensors[k], e) != 0) {
            delta_free(d);
            return -1;
        }
    *out = d;
    return 0;
}

void delta_free(struct delta *d)
{
    if (d == NULL)
        return;
    tensor_list_unref(d->result);
    free(d->tensors);
    free(d);
}
