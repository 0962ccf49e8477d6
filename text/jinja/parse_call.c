/* Calls: of functions and macros, whose arguments are matched when they run, and of filters, tests
 * and methods, whose arguments find their places here. What has no place, and a name that is not
 * known, becomes a node that fails when it is reached. */
#include "text/jinja/names.h"
#include "text/jinja/parse.h"

#include <string.h>

struct call_args {
    struct kids plain, named;
    struct text names[JINJA_ARGS_MAX];
    bool unpacks, keywords; /* a '*'; a '**' */
};

static int parse_arg(struct parser *p, struct call_args *a)
{
    struct node *n;

    if (a->plain.n + a->named.n >= JINJA_ARGS_MAX)
        return jinja_refuse(p->e, p->tok->line, "more than %d arguments", JINJA_ARGS_MAX);
    if (skip_op(p, OP_2_POW)) {
        a->keywords = true;
        return parse_expression(p, true) != NULL ? 0 : -1;
    }
    if (skip_op(p, '*')) {
        a->unpacks = true;
        n = parse_expression(p, true);
        n = n != NULL ? unary(p, N_UNPACK, n) : NULL;
        return n != NULL ? kids_add(p, &a->plain, n) : -1;
    }
    if (p->tok->type == TOKEN_NAME && p->tok[1].type == TOKEN_OP && p->tok[1].op == '=') {
        a->names[a->named.n] = p->tok->text;
        p->tok += 2;
        n = parse_expression(p, true);
        return n != NULL ? kids_add(p, &a->named, n) : -1;
    }
    if (a->named.n > 0)
        return jinja_refuse(p->e, p->tok->line, "an argument without a name after one with");
    n = parse_expression(p, true);
    return n != NULL ? kids_add(p, &a->plain, n) : -1;
}

static int parse_args(struct parser *p, struct call_args *a)
{
    const struct token *open = p->tok++;

    while (!at_op(p, ')')) {
        if (p->tok != open + 1 && expect_op(p, ',', ", or )") != 0)
            return -1;
        if (at_op(p, ')'))
            break;
        if (parse_arg(p, a) != 0)
            return -1;
    }
    p->tok++;
    return 0;
}

static int parse_slot_of(const struct callee *c, struct text name)
{
    for (int i = 0; i < CALLEE_SLOTS_MAX && c->params[i] != NULL; i++) {
        if (strlen(c->params[i]) == name.len && memcmp(c->params[i], name.p, name.len) == 0)
            return i;
    }
    return -1;
}

static int why_set(struct err *why, const char *what, struct text name, const char *rest)
{
    return err_set(why, ERR_BAD_REQUEST, "", "%s '%s' %s", what, spell(name).text, rest);
}

/* Puts the arguments from the `skip`-th on where the callee wants them; -1 with the reason. */
static int parse_call_bind(struct node **slots, const struct callee *c, const struct call_args *a,
                           uint32_t skip, const char *what, struct err *why)
{
    uint32_t n = 0;

    while (n < CALLEE_SLOTS_MAX && c->params[n] != NULL)
        n++;
    if (a->unpacks || a->keywords)
        return err_set(why, ERR_BAD_REQUEST, "",
                       "'*' and '**' in arguments of a %s are not supported", what);
    if (a->plain.n - skip > n)
        return err_set(why, ERR_BAD_REQUEST, "", "%s '%s' takes at most %u arguments here", what,
                       c->name, n);
    for (uint32_t i = skip; i < a->plain.n; i++)
        slots[i - skip] = a->plain.v[i];
    for (uint32_t i = 0; i < a->named.n; i++) {
        int slot = parse_slot_of(c, a->names[i]);

        if (slot < 0 || slots[slot] != NULL)
            return err_set(why, ERR_BAD_REQUEST, "", "%s '%s' takes no argument '%s' here", what,
                           c->name, spell(a->names[i]).text);
        slots[slot] = a->named.v[i];
    }
    for (uint32_t i = 0; i < c->n_required; i++) {
        if (slots[i] == NULL)
            return err_set(why, ERR_BAD_REQUEST, "", "%s '%s' needs its argument '%s'", what,
                           c->name, c->params[i]);
    }
    return 0;
}

/* A filter or test that is not known, with its arguments. */
static struct node *unknown(struct parser *p, const char *what, struct text name, bool in_jinja)
{
    struct call_args a = {0};
    struct node *n = node_refused(p, "%s '%s' is not supported", what, spell(name).text);

    if (n == NULL || (at_op(p, '(') && parse_args(p, &a) != 0))
        return NULL;
    if (!in_jinja && !p->soft && p->missing == NULL)
        p->missing = n;
    return n;
}

/* map, select and the like: kids are the object, the attribute or NULL, the inner callee's slots;
 * of map(attribute=...) the default is in the first slot. */
static int bind_inner(struct node *n, const struct call_args *a, struct err *why)
{
    bool is_map = n->op == FILTER_MAP;
    bool is_attr = n->op == FILTER_SELECTATTR || n->op == FILTER_REJECTATTR;
    uint32_t skip = is_attr ? 1 : 0;
    const struct callee *c;
    static const struct callee by_attribute = {.name = "map",
                                               .params = {"default", "attribute", NULL}};

    n->inner = NO_INNER;
    if (is_attr && a->plain.n == 0)
        return why_set(why, "filter", n->text, "needs an attribute");
    if (is_attr)
        n->kids[1] = a->plain.v[0];
    if (is_map && a->plain.n == 0) {
        if (parse_call_bind(n->kids + 2, &by_attribute, a, 0, "filter", why) != 0)
            return -1;
        n->kids[1] = n->kids[3];
        n->kids[3] = NULL;
        return n->kids[1] != NULL ? 0
                                  : why_set(why, "filter", n->text, "needs a filter or attribute=");
    }
    if (a->plain.n == skip)
        return a->named.n == 0 && !a->keywords
                   ? 0
                   : why_set(why, "filter", n->text, "takes no such arguments here");
    if (a->plain.v[skip]->kind != N_CONST || a->plain.v[skip]->value.type != V_STRING)
        return why_set(why, "filter", n->text, "must name what it hands on to as a string");
    c = is_map ? filter_named(a->plain.v[skip]->value.u.s)
               : test_named(a->plain.v[skip]->value.u.s);
    if (c == NULL || c->hands_on)
        return why_set(why, is_map ? "filter" : "test", a->plain.v[skip]->value.u.s,
                       "is not supported");
    n->inner = c->id;
    return parse_call_bind(n->kids + 2, c, a, skip + 1, is_map ? "filter" : "test", why);
}

/* `first`, then the arguments, as N_CALL has them. */
static struct node *parse_call_of(struct parser *p, enum node_kind kind, struct node *first)
{
    struct call_args a = {0};
    struct node *n;

    if (at_op(p, '(') && parse_args(p, &a) != 0)
        return NULL;
    if (a.keywords)
        return node_refused(p, "'**' in arguments is not supported");
    n = node_new(p, kind, 1 + a.plain.n + a.named.n);
    if (n == NULL)
        return NULL;
    n->kids[0] = first;
    if (a.plain.n > 0)
        memcpy(n->kids + 1, a.plain.v, a.plain.n * sizeof *n->kids);
    if (a.named.n > 0)
        memcpy(n->kids + 1 + a.plain.n, a.named.v, a.named.n * sizeof *n->kids);
    n->n_keys = a.named.n;
    n->keys = arena_array(&p->t->arena, a.named.n, sizeof *n->keys);
    if (n->keys == NULL) {
        (void)jinja_no_memory(p->e, &p->t->arena);
        return NULL;
    }
    memcpy(n->keys, a.names, a.named.n * sizeof *n->keys);
    return node_done(p, n);
}

struct node *parse_filter(struct parser *p, struct node *object)
{
    struct call_args a = {0};
    struct err why = {0};
    const struct callee *c;
    struct text name;
    struct node *n;

    p->tok++;
    if (expect_name(p, &name) != 0)
        return NULL;
    if (text_eq(name, TEXT("format")))
        return parse_call_of(p, N_FORMAT, object);
    c = filter_named(name);
    if (c == NULL)
        return unknown(p, "filter", name, jinja_has_filter(name));
    n = node_new(p, N_FILTER, CALLEE_SLOTS_MAX + (c->hands_on ? 2 : 1));
    if (n == NULL || (at_op(p, '(') && parse_args(p, &a) != 0))
        return NULL;
    n->op = c->id;
    n->text = name;
    n->kids[0] = object;
    if (c->hands_on ? bind_inner(n, &a, &why) != 0
                    : parse_call_bind(n->kids + 1, c, &a, 0, "filter", &why) != 0)
        return node_refused(p, "%s", why.msg);
    return node_done(p, n);
}

static struct node *parse_test(struct parser *p, struct node *n);

struct node *parse_filters(struct parser *p, struct node *n, bool only_filters)
{
    while (n != NULL) {
        if (at_op(p, '|'))
            n = parse_filter(p, n);
        else if (!only_filters && at_name(p, "is"))
            n = parse_test(p, n);
        else if (!only_filters && at_op(p, '('))
            n = parse_function(p, n);
        else
            break;
    }
    return n;
}

/* A test's one argument may come without parentheses. */
static bool at_bare_arg(const struct parser *p)
{
    switch (p->tok->type) {
    case TOKEN_NAME:
        return !at_name(p, "else") && !at_name(p, "or") && !at_name(p, "and");
    case TOKEN_STRING:
    case TOKEN_INT:
    case TOKEN_FLOAT:
        return true;
    default:
        return at_op(p, '[') || at_op(p, '{');
    }
}

static int parse_test_args(struct parser *p, struct call_args *a)
{
    struct node *n;

    if (at_op(p, '('))
        return parse_args(p, a);
    if (!at_bare_arg(p))
        return 0;
    if (at_name(p, "is"))
        return jinja_refuse(p->e, p->tok->line, "one 'is' after another");
    n = parse_postfix(p, parse_primary(p));
    return n != NULL ? kids_add(p, &a->plain, n) : -1;
}

static struct node *parse_test(struct parser *p, struct node *n)
{
    struct call_args a = {0};
    struct err why = {0};
    const struct callee *c;
    struct node *test;
    struct text name;
    bool negated;

    p->tok++;
    negated = skip_name(p, "not");
    if (expect_name(p, &name) != 0)
        return NULL;
    c = test_named(name);
    if (c == NULL)
        return unknown(p, "test", name, jinja_has_test(name));
    test = node_new(p, N_TEST, CALLEE_SLOTS_MAX + 1);
    if (test == NULL || parse_test_args(p, &a) != 0)
        return NULL;
    if (parse_call_bind(test->kids + 1, c, &a, 0, "test", &why) != 0)
        return node_refused(p, "%s", why.msg);
    test->op = c->id;
    test->text = name;
    test->kids[0] = n;
    test = node_done(p, test);
    if (!negated || test == NULL)
        return test;
    n = node_new(p, N_NOT, 1);
    if (n == NULL)
        return NULL;
    n->kids[0] = test;
    return node_done(p, n);
}

struct node *parse_method(struct parser *p, struct node *object, struct text name)
{
    const struct callee *c = method_named(name);
    struct call_args a = {0};
    struct err why = {0};
    struct node *n = node_new(p, N_METHOD, CALLEE_SLOTS_MAX + 1);

    if (n == NULL || parse_args(p, &a) != 0)
        return NULL;
    if (a.named.n > 0 && c->id != METHOD_SPLIT && c->id != METHOD_RSPLIT)
        return node_refused(p, "method '%s' takes no named arguments", c->name);
    if (parse_call_bind(n->kids + 1, c, &a, 0, "method", &why) != 0)
        return node_refused(p, "%s", why.msg);
    n->op = c->id;
    n->text = name;
    n->kids[0] = object;
    return node_done(p, n);
}

struct node *parse_function(struct parser *p, struct node *callee)
{
    return parse_call_of(p, N_CALL, callee);
}
