/* Calls: of functions and macros, whose arguments are matched when they run, and of filters, tests
 * and methods, whose arguments find their places here, so that what they do not know is refused. */
#include "text/jinja/names.h"
#include "text/jinja/parse.h"

#include <string.h>

struct call_args {
    struct kids plain, named;
    struct text names[JINJA_ARGS_MAX];
};

static int parse_arg(struct parser *p, struct call_args *a)
{
    struct node *n;

    if (at_op(p, '*') || at_op(p, OP_2_POW))
        return jinja_refuse(p->e, p->tok->line, "'*' and '**' in arguments are not supported");
    if (a->plain.n + a->named.n >= JINJA_ARGS_MAX)
        return jinja_refuse(p->e, p->tok->line, "more than %d arguments", JINJA_ARGS_MAX);
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
    p->tok++;
    while (!at_op(p, ')')) {
        if (a->plain.n + a->named.n > 0 && expect_op(p, ',', ", or )") != 0)
            return -1;
        if (at_op(p, ')'))
            break;
        if (parse_arg(p, a) != 0)
            return -1;
    }
    p->tok++;
    return 0;
}

static int slot_of(const struct callee *c, struct text name)
{
    for (int i = 0; i < CALLEE_SLOTS_MAX && c->params[i] != NULL; i++) {
        if (strlen(c->params[i]) == name.len && memcmp(c->params[i], name.p, name.len) == 0)
            return i;
    }
    return -1;
}

/* Puts the arguments from the `skip`-th on where the callee wants them. */
static int bind(struct parser *p, struct node **slots, const struct callee *c,
                const struct call_args *a, uint32_t skip, const char *what)
{
    uint32_t line = p->tok->line, n = 0;

    while (n < CALLEE_SLOTS_MAX && c->params[n] != NULL)
        n++;
    if (a->plain.n - skip > n)
        return jinja_refuse(p->e, line, "%s '%s' takes at most %u arguments here", what, c->name,
                            n);
    for (uint32_t i = skip; i < a->plain.n; i++)
        slots[i - skip] = a->plain.v[i];
    for (uint32_t i = 0; i < a->named.n; i++) {
        int slot = slot_of(c, a->names[i]);

        if (slot < 0 || slots[slot] != NULL)
            return jinja_refuse(p->e, line, "%s '%s' takes no argument '%s' here", what, c->name,
                                spell(a->names[i]).text);
        slots[slot] = a->named.v[i];
    }
    for (uint32_t i = 0; i < c->n_required; i++) {
        if (slots[i] == NULL)
            return jinja_refuse(p->e, line, "%s '%s' needs its argument '%s'", what, c->name,
                                c->params[i]);
    }
    return 0;
}

static struct node *refuse_name(struct parser *p, const char *what, struct text name)
{
    (void)jinja_refuse(p->e, p->tok->line, "%s '%s' is not supported", what, spell(name).text);
    return NULL;
}

/* map, select and the like: kids are the object, the attribute or NULL, the inner callee's slots;
 * of map(attribute=...) the default is in the first slot. */
static int bind_inner(struct parser *p, struct node *n, struct call_args *a)
{
    bool is_map = n->op == FILTER_MAP;
    bool is_attr = n->op == FILTER_SELECTATTR || n->op == FILTER_REJECTATTR;
    uint32_t skip = is_attr ? 1 : 0;
    const struct callee *c;
    static const struct callee by_attribute = {.name = "map",
                                               .params = {"default", "attribute", NULL}};

    n->inner = NO_INNER;
    if (is_attr && a->plain.n == 0)
        return jinja_refuse(p->e, p->tok->line, "filter '%s' needs an attribute",
                            spell(n->text).text);
    if (is_attr)
        n->kids[1] = a->plain.v[0];
    if (is_map && a->plain.n == 0) {
        if (bind(p, n->kids + 2, &by_attribute, a, 0, "filter") != 0)
            return -1;
        n->kids[1] = n->kids[3];
        n->kids[3] = NULL;
        return n->kids[1] != NULL
                   ? 0
                   : jinja_refuse(p->e, p->tok->line, "filter 'map' needs a filter or attribute=");
    }
    if (a->plain.n == skip)
        return a->named.n == 0 ? 0
                               : jinja_refuse(p->e, p->tok->line,
                                              "filter '%s' takes no named "
                                              "argument here",
                                              spell(n->text).text);
    if (a->plain.v[skip]->kind != N_CONST || a->plain.v[skip]->value.type != V_STRING)
        return jinja_refuse(p->e, p->tok->line, "filter '%s' must name the %s as a string",
                            spell(n->text).text, is_map ? "filter" : "test");
    c = is_map ? filter_named(a->plain.v[skip]->value.u.s)
               : test_named(a->plain.v[skip]->value.u.s);
    if (c == NULL || c->hands_on || (is_map && c->id == FILTER_SAFE)) {
        (void)refuse_name(p, is_map ? "filter" : "test", a->plain.v[skip]->value.u.s);
        return -1;
    }
    n->inner = c->id;
    return bind(p, n->kids + 2, c, a, skip + 1, is_map ? "filter" : "test");
}

static struct node *parse_filter(struct parser *p, struct node *object)
{
    struct call_args a = {0};
    const struct callee *c;
    struct text name;
    struct node *n;

    p->tok++;
    if (expect_name(p, &name) != 0)
        return NULL;
    c = filter_named(name);
    if (c == NULL)
        return refuse_name(p, "filter", name);
    n = node_new(p, N_FILTER, CALLEE_SLOTS_MAX + (c->hands_on ? 2 : 1));
    if (n == NULL || (at_op(p, '(') && parse_args(p, &a) != 0))
        return NULL;
    n->op = c->id;
    n->text = name;
    n->kids[0] = object;
    if (c->hands_on ? bind_inner(p, n, &a) != 0 : bind(p, n->kids + 1, c, &a, 0, "filter") != 0)
        return NULL;
    return node_done(p, n);
}

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

struct node *parse_test(struct parser *p, struct node *n)
{
    struct call_args a = {0};
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
        return refuse_name(p, "test", name);
    test = node_new(p, N_TEST, CALLEE_SLOTS_MAX + 1);
    if (test == NULL || parse_test_args(p, &a) != 0 ||
        bind(p, test->kids + 1, c, &a, 0, "test") != 0)
        return NULL;
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
    struct node *n;

    if (c == NULL)
        return refuse_name(p, "method", name);
    n = node_new(p, N_METHOD, CALLEE_SLOTS_MAX + 1);
    if (n == NULL || parse_args(p, &a) != 0)
        return NULL;
    if (a.named.n > 0 && c->id != METHOD_SPLIT && c->id != METHOD_RSPLIT) {
        (void)jinja_refuse(p->e, p->tok->line, "method '%s' takes no named arguments", c->name);
        return NULL;
    }
    if (bind(p, n->kids + 1, c, &a, 0, "method") != 0)
        return NULL;
    n->op = c->id;
    n->text = name;
    n->kids[0] = object;
    return node_done(p, n);
}

struct node *parse_function(struct parser *p, struct node *callee)
{
    struct call_args a = {0};
    struct node *n;

    if (callee->kind != N_NAME) {
        (void)jinja_refuse(p->e, p->tok->line, "only names and methods can be called");
        return NULL;
    }
    if (text_eq(callee->text, TEXT("lipsum")) || text_eq(callee->text, TEXT("cycler")) ||
        text_eq(callee->text, TEXT("joiner")))
        return refuse_name(p, "function", callee->text);
    if (parse_args(p, &a) != 0)
        return NULL;
    n = node_new(p, N_CALL, 1 + a.plain.n + a.named.n);
    if (n == NULL)
        return NULL;
    n->kids[0] = callee;
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
