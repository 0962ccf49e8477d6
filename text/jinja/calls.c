/* Functions that every template has, and macros. */
#include "text/jinja/names.h"
#include "text/jinja/run.h"

#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { STRFTIME_NBYTES = 256, STRFTIME_TEXT_MAX = 32 }; /* of a format; of one conversion */

struct call {
    const struct node *n;
    struct value *v; /* positional, then named */
    uint32_t n_plain, n_named;
};

int run_args(struct run *r, const struct node *n, struct value **out, uint32_t *n_plain)
{
    struct list *l, *more;
    struct value v;

    if (run_list(r, &l, n->n_kids) != 0)
        return -1;
    for (uint32_t i = 1; i < n->n_kids; i++) {
        bool unpack = n->kids[i]->kind == N_UNPACK;

        if (run_eval(r, unpack ? n->kids[i]->kids[0] : n->kids[i], &v) != 0)
            return -1;
        if (unpack && run_iterate(r, &v, &more) != 0)
            return -1;
        for (size_t k = 0; k < (unpack ? more->n : 1); k++) {
            if (run_push(r, l, unpack ? &more->items[k] : &v) != 0)
                return -1;
        }
    }
    if (l->n > JINJA_ARGS_MAX)
        return run_fail(r, "more than %d arguments", JINJA_ARGS_MAX);
    *out = l->items;
    *n_plain = (uint32_t)l->n - n->n_keys;
    return 0;
}

static int wrong_args(struct run *r, const char *name)
{
    return run_fail(r, "'%s' does not take these arguments", name);
}

static int call_range(struct run *r, const struct call *c, struct value *out)
{
    int64_t at[3] = {0, 0, 1}, n;
    struct list *l;

    if (c->n_named > 0 || c->n_plain < 1 || c->n_plain > 3)
        return wrong_args(r, "range");
    for (uint32_t i = 0; i < c->n_plain; i++) {
        if (c->v[i].type != V_INT && c->v[i].type != V_BOOL)
            return run_wrong_type(r, &c->v[i], "an integer of 'range'");
        at[c->n_plain == 1 ? 1 : i] = value_as_int(&c->v[i]);
    }
    if (at[2] == 0)
        return run_fail(r, "'range' with step 0");
    for (unsigned i = 0; i < 3; i++) {
        if (at[i] > INT32_MAX || at[i] < INT32_MIN)
            return run_fail(r, "'range' of numbers beyond 32 bits");
    }
    n = at[2] > 0 ? (at[1] - at[0] + at[2] - 1) / at[2] : (at[0] - at[1] - at[2] - 1) / -at[2];
    n = n < 0 ? 0 : n;
    if (n > RUN_RANGE_MAX)
        return run_fail(r, "'range' over %d", RUN_RANGE_MAX);
    if (run_list(r, &l, (size_t)n) != 0)
        return -1;
    for (int64_t i = 0; i < n; i++) {
        struct value v = value_int(at[0] + i * at[2]);

        if (run_push(r, l, &v) != 0)
            return -1;
    }
    *out = value_list(V_RANGE, l);
    return 0;
}

/* namespace(...) and dict(...): a dict's entries, if one is given, then the named ones. */
static int call_dict(struct run *r, const struct call *c, enum value_type type, struct value *out)
{
    struct dict *d;

    if (c->n_plain > 1 || (c->n_plain == 1 && c->v[0].type != V_DICT))
        return wrong_args(r, type == V_DICT ? "dict" : "namespace");
    if (run_dict(r, &d, 0) != 0)
        return -1;
    for (size_t i = 0; c->n_plain == 1 && i < c->v[0].u.dict->n; i++) {
        const struct dict_entry *m = &c->v[0].u.dict->entries[i];

        if (run_put(r, d, &m->key, &m->value) != 0)
            return -1;
    }
    for (uint32_t i = 0; i < c->n_named; i++) {
        struct value key = value_text(c->n->keys[i]);

        if (run_put(r, d, &key, &c->v[c->n_plain + i]) != 0)
            return -1;
    }
    *out = (struct value){.type = type, .u.dict = d};
    return 0;
}

/* The template's own words, with nothing before them: clients show them. */
static int call_raise(struct run *r, const struct call *c)
{
    char msg[ERR_MSG_MAX];
    struct value v;

    if (c->n_named > 0 || c->n_plain != 1)
        return wrong_args(r, "raise_exception");
    if (run_str(r, &c->v[0], &v) != 0)
        return -1;
    (void)snprintf(msg, sizeof msg, "%.*s", (int)(v.u.s.len < sizeof msg ? v.u.s.len : sizeof msg),
                   v.u.s.p);
    return err_set(r->e, ERR_BAD_REQUEST, "/messages", "%s",
                   msg[0] != '\0' ? msg : "the chat template refused the messages");
}

/* Appends one conversion, in English. Returns false if it is not supported. */
static bool put_time(struct buf *out, char c, const struct tm *tm)
{
    char format[] = {'%', c, '\0'}, text[STRFTIME_TEXT_MAX];
    locale_t english;

    if (c == '\0' || strchr("aAbBdHIjmMpSyY%", c) == NULL)
        return false;
    english = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (english == (locale_t)0) {
        out->failed = true;
        return true;
    }
    buf_append(out, text, strftime_l(text, sizeof text, format, tm, english));
    freelocale(english);
    return true;
}

static int call_strftime(struct run *r, const struct call *c, struct value *out)
{
    time_t now = (time_t)r->in->now_s;
    size_t mark = r->out->len;
    struct text format;
    struct tm tm;

    if (c->n_named > 0 || c->n_plain != 1 || c->v[0].type != V_STRING)
        return wrong_args(r, "strftime_now");
    format = c->v[0].u.s;
    if (format.len > STRFTIME_NBYTES)
        return run_fail(r, "a format of %zu bytes; at most %d are allowed", format.len,
                        STRFTIME_NBYTES);
    if (gmtime_r(&now, &tm) == NULL || tm.tm_year < -900 || tm.tm_year > 8099)
        return run_fail(r, "the clock is out of range");
    for (size_t i = 0; i < format.len; i++) {
        if (format.p[i] != '%')
            buf_append(r->out, format.p + i, 1);
        else if (i + 1 == format.len || !put_time(r->out, format.p[++i], &tm))
            return run_fail(r, "a conversion in a format of 'strftime_now' that is not one of "
                               "a A b B d H I j m M p S y Y %%");
    }
    return r->out->failed ? run_no_memory(r) : run_taken(r, mark, out);
}

static int param_of(const struct run *r, const struct node *m, struct text name)
{
    for (uint32_t i = 0; i < m->n_kids; i++) {
        if (text_eq(r->t->symbols[m->syms[i]], name))
            return (int)i;
    }
    return -1;
}

/* Sets the parameters that were not given to their defaults, in order: a default reads those before
 * it, those that were given, and itself as undefined. */
static int bind_defaults(struct run *r, const struct node *m, const struct value *const *given,
                         struct scope *s)
{
    struct scope *outer = r->scope;
    struct value v;
    int rc = 0;

    r->scope = s;
    for (uint32_t i = 0; i < m->n_kids && rc == 0; i++) {
        if (given[i] != NULL || m->kids[i] == NULL)
            continue;
        rc = run_eval(r, m->kids[i], &v);
        rc = rc != 0 ? rc : scope_set(r, s, m->syms[i], &v);
    }
    r->scope = outer;
    return rc;
}

/* Puts the arguments into the macro's scope. */
static int bind_macro(struct run *r, const struct call *c, const struct node *m, struct scope *s)
{
    const struct value *given[JINJA_ARGS_MAX] = {NULL};

    if (c->n_plain > m->n_kids)
        return run_fail(r, "macro takes %u arguments, %u are given", m->n_kids, c->n_plain);
    for (uint32_t i = 0; i < c->n_plain; i++)
        given[i] = &c->v[i];
    for (uint32_t i = 0; i < c->n_named; i++) {
        int at = param_of(r, m, c->n->keys[i]);

        if (at < 0 || given[at] != NULL)
            return run_fail(r, "macro takes no argument '%.*s' here",
                            (int)(c->n->keys[i].len < 64 ? c->n->keys[i].len : 64),
                            c->n->keys[i].p);
        given[at] = &c->v[c->n_plain + i];
    }
    for (uint32_t i = 0; i < m->n_kids; i++) {
        struct value none = value_undefined(r->t->symbols[m->syms[i]], V_NONE);

        if (scope_set(r, s, m->syms[i], given[i] != NULL ? given[i] : &none) != 0)
            return -1;
    }
    return bind_defaults(r, m, given, s);
}

static int call_macro(struct run *r, const struct call *c, const struct macro *m, struct value *out)
{
    struct scope *s = arena_alloc(&r->arena, sizeof *s), *outer = r->scope;
    size_t mark = r->out->len;
    uint32_t line = r->line;
    enum exec rc;

    if (s == NULL)
        return run_no_memory(r);
    s->parent = m->scope;
    if (scope_begin(r, s, &m->node->body) != 0 || bind_macro(r, c, m->node, s) != 0)
        return -1;
    r->scope = s;
    rc = run_block(r, &m->node->body);
    r->scope = outer;
    if (rc != EXEC_NEXT)
        return -1;
    r->line = line;
    return run_taken(r, mark, out);
}

static int call_any(struct run *r, const struct call *c, const struct value *callee,
                    struct value *out)
{
    if (callee->type == V_MACRO)
        return call_macro(r, c, callee->u.macro, out);
    switch ((enum function_id)callee->u.function) {
    case FUNCTION_DICT:
        return call_dict(r, c, V_DICT, out);
    case FUNCTION_NAMESPACE:
        return call_dict(r, c, V_NAMESPACE, out);
    case FUNCTION_RAISE:
        return call_raise(r, c);
    case FUNCTION_RANGE:
        return call_range(r, c, out);
    case FUNCTION_STRFTIME_NOW:
        return call_strftime(r, c, out);
    default:
        return run_fail(r, "functions cycler, joiner and lipsum are not supported");
    }
}

int run_call(struct run *r, const struct node *n, const struct value *callee, struct value *out)
{
    struct call c = {.n = n, .n_named = n->n_keys};

    if (callee->type == V_METHOD)
        return run_fail(r, "calling method '%.*s' of a value of type '%s' is not supported",
                        (int)(callee->u.s.len < 64 ? callee->u.s.len : 64), callee->u.s.p,
                        value_type_name(callee->of));
    if (callee->type != V_MACRO && callee->type != V_FUNCTION)
        return run_wrong_type(r, callee, "something to call");
    return run_args(r, n, &c.v, &c.n_plain) == 0 ? call_any(r, &c, callee, out) : -1;
}
