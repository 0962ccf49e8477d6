/* Expressions. The order in which operators bind is Jinja2's, which is not Python's everywhere:
 * '~' binds tighter than '+', '**' joins from the left, a filter binds tighter than a sign. */
#include "text/jinja/names.h"
#include "text/jinja/parse.h"

#include <string.h>

static struct node *binary(struct parser *p, enum node_kind kind, unsigned op, struct node *a,
                           struct node *b)
{
    struct node *n = node_new(p, kind, 2);

    if (n == NULL)
        return NULL;
    n->op = op;
    n->kids[0] = a;
    n->kids[1] = b;
    return node_done(p, n);
}

struct node *unary(struct parser *p, enum node_kind kind, struct node *a)
{
    struct node *n = a != NULL ? node_new(p, kind, 1) : NULL;

    if (n == NULL)
        return NULL;
    n->kids[0] = a;
    return node_done(p, n);
}

static struct node *constant(struct parser *p, struct value v)
{
    struct node *n = node_new(p, N_CONST, 0);

    if (n != NULL)
        n->value = v;
    return n != NULL ? node_done(p, n) : NULL;
}

static bool tuple_ends(const struct parser *p, const char *end)
{
    return p->tok->type == TOKEN_OUTPUT_END || p->tok->type == TOKEN_BLOCK_END || at_op(p, ')') ||
           (end != NULL && at_name(p, end));
}

struct node *parse_tuple(struct parser *p, bool conditional, const char *end)
{
    struct kids k = {0};
    struct node *n;

    if (tuple_ends(p, end))
        return refuse_here(p, "an expression");
    n = parse_expression(p, conditional);
    if (n == NULL || !at_op(p, ','))
        return n;
    if (kids_add(p, &k, n) != 0)
        return NULL;
    while (skip_op(p, ',')) {
        if (tuple_ends(p, end))
            break;
        n = parse_expression(p, conditional);
        if (n == NULL || kids_add(p, &k, n) != 0)
            return NULL;
    }
    return node_of(p, N_TUPLE, &k);
}

static struct node *parse_parens(struct parser *p)
{
    struct kids none = {0};
    struct node *n;

    p->tok++;
    n = at_op(p, ')') ? node_of(p, N_TUPLE, &none) : parse_tuple(p, true, NULL);
    return n != NULL && expect_op(p, ')', ")") == 0 ? n : NULL;
}

static struct node *expr_parse_list(struct parser *p)
{
    struct kids k = {0};

    p->tok++;
    while (!at_op(p, ']')) {
        struct node *n;

        if (k.n > 0 && expect_op(p, ',', ", or ]") != 0)
            return NULL;
        if (at_op(p, ']'))
            break;
        n = parse_expression(p, true);
        if (n == NULL || kids_add(p, &k, n) != 0)
            return NULL;
    }
    p->tok++;
    return node_of(p, N_LIST, &k);
}

static struct node *parse_dict(struct parser *p)
{
    struct kids k = {0};

    p->tok++;
    while (!at_op(p, '}')) {
        struct node *n;

        if (k.n > 0 && expect_op(p, ',', ", or }") != 0)
            return NULL;
        if (at_op(p, '}'))
            break;
        n = parse_expression(p, true);
        if (n == NULL || kids_add(p, &k, n) != 0 || expect_op(p, ':', ":") != 0)
            return NULL;
        n = parse_expression(p, true);
        if (n == NULL || kids_add(p, &k, n) != 0)
            return NULL;
    }
    p->tok++;
    return node_of(p, N_DICT, &k);
}

/* Strings side by side are one. */
static struct node *parse_strings(struct parser *p)
{
    struct text s = p->tok->text;

    for (p->tok++; p->tok->type == TOKEN_STRING; p->tok++) {
        char *both = arena_bytes(&p->t->arena, s.len + p->tok->text.len);

        if (both == NULL) {
            (void)jinja_no_memory(p->e, &p->t->arena);
            return NULL;
        }
        memcpy(both, s.p, s.len);
        memcpy(both + s.len, p->tok->text.p, p->tok->text.len);
        s = (struct text){both, s.len + p->tok->text.len};
    }
    return constant(p, value_text(s));
}

static struct node *expr_parse_name(struct parser *p)
{
    struct text name = p->tok->text;
    struct node *n;

    if (skip_name(p, "true") || skip_name(p, "True"))
        return constant(p, value_bool(true));
    if (skip_name(p, "false") || skip_name(p, "False"))
        return constant(p, value_bool(false));
    if (skip_name(p, "none") || skip_name(p, "None"))
        return constant(p, VALUE_NONE);
    if (at_name(p, "self") || at_name(p, "super") || at_name(p, "caller") ||
        (p->in_macro && (at_name(p, "varargs") || at_name(p, "kwargs")))) {
        n = node_refused(p, "'%s' is not supported", spell(name).text);
        p->tok++;
        return n;
    }
    n = node_new(p, N_NAME, 0);
    if (n == NULL || intern(p, name, &n->sym) != 0)
        return NULL;
    n->text = name;
    p->tok++;
    return node_done(p, n);
}

struct node *parse_primary(struct parser *p)
{
    const struct token *t = p->tok;

    switch (t->type) {
    case TOKEN_NAME:
        return expr_parse_name(p);
    case TOKEN_STRING:
        return parse_strings(p);
    case TOKEN_INT:
        p->tok++;
        return constant(p, value_int(t->i));
    case TOKEN_FLOAT:
        p->tok++;
        return constant(p, value_float(t->f));
    default:
        break;
    }
    if (at_op(p, '('))
        return parse_parens(p);
    if (at_op(p, '['))
        return expr_parse_list(p);
    if (at_op(p, '{'))
        return parse_dict(p);
    return refuse_here(p, "an expression");
}

/* One end of a slice: NULL in *out where it is left out. */
static int slice_part(struct parser *p, struct node **out)
{
    *out = NULL;
    if (at_op(p, ':') || at_op(p, ']'))
        return 0;
    *out = parse_expression(p, true);
    return *out != NULL ? 0 : -1;
}

static struct node *parse_subscript(struct parser *p, struct node *object)
{
    struct node *part[3] = {NULL, NULL, NULL}, *n;

    p->tok++;
    if (at_op(p, ']'))
        return refuse_here(p, "a key");
    if (slice_part(p, &part[0]) != 0)
        return NULL;
    if (part[0] != NULL && !at_op(p, ':'))
        return expect_op(p, ']', "]") == 0 ? binary(p, N_ITEM, 0, object, part[0]) : NULL;
    if (expect_op(p, ':', ":") != 0 || slice_part(p, &part[1]) != 0 ||
        (skip_op(p, ':') && slice_part(p, &part[2]) != 0) || expect_op(p, ']', "]") != 0)
        return NULL;
    n = node_new(p, N_SLICE, 4);
    if (n == NULL)
        return NULL;
    n->kids[0] = object;
    memcpy(n->kids + 1, part, sizeof part);
    return node_done(p, n);
}

static struct node *parse_attribute(struct parser *p, struct node *object)
{
    struct node *n, *key;
    struct text name;

    p->tok++;
    if (p->tok->type == TOKEN_INT) {
        key = constant(p, value_int(p->tok->i));
        p->tok++;
        return key != NULL ? binary(p, N_ITEM, 0, object, key) : NULL;
    }
    if (expect_name(p, &name) != 0)
        return NULL;
    if (at_op(p, '(') && method_named(name) != NULL)
        return parse_method(p, object, name);
    n = unary(p, N_ATTR, object);
    if (n != NULL)
        n->text = name;
    return n;
}

struct node *parse_postfix(struct parser *p, struct node *n)
{
    while (n != NULL) {
        if (at_op(p, '.'))
            n = parse_attribute(p, n);
        else if (at_op(p, '['))
            n = parse_subscript(p, n);
        else if (at_op(p, '('))
            n = parse_function(p, n);
        else
            break;
    }
    return n;
}

static struct node *parse_unary(struct parser *p, bool filters)
{
    struct node *n;

    if (enter(p) != 0)
        return NULL;
    if (skip_op(p, '-'))
        n = unary(p, N_NEG, parse_unary(p, false));
    else if (skip_op(p, '+'))
        n = unary(p, N_POS, parse_unary(p, false));
    else
        n = parse_primary(p);
    n = parse_postfix(p, n);
    if (n != NULL && filters)
        n = parse_filters(p, n, false);
    p->nest--;
    return n;
}

/* Operators from loose to tight; '~' stands between them and joins many at once. */
struct level {
    unsigned tokens[4];
    enum binary_op ops[4];
    unsigned n;
};
static const struct level sums = {{'+', '-'}, {OP_ADD, OP_SUB}, 2};
static const struct level products = {
    {'*', '/', OP_2_FLOORDIV, '%'}, {OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD}, 4};
static const struct level powers = {{OP_2_POW}, {OP_POW}, 1};

static bool at_level(struct parser *p, const struct level *l, unsigned *op)
{
    for (unsigned i = 0; i < l->n; i++) {
        if (at_op(p, l->tokens[i])) {
            *op = l->ops[i];
            return true;
        }
    }
    return false;
}

static struct node *parse_power(struct parser *p)
{
    struct node *a = parse_unary(p, true), *b;
    unsigned op = 0;

    while (a != NULL && at_level(p, &powers, &op)) {
        p->tok++;
        b = parse_unary(p, true);
        a = b != NULL ? binary(p, N_BINARY, op, a, b) : NULL;
    }
    return a;
}

static struct node *parse_product(struct parser *p)
{
    struct node *a = parse_power(p), *b;
    unsigned op = 0;

    while (a != NULL && at_level(p, &products, &op)) {
        p->tok++;
        b = parse_power(p);
        a = b != NULL ? binary(p, N_BINARY, op, a, b) : NULL;
    }
    return a;
}

static struct node *parse_concat(struct parser *p)
{
    struct node *n = parse_product(p);
    struct kids k = {0};

    if (n == NULL || !at_op(p, '~'))
        return n;
    if (kids_add(p, &k, n) != 0)
        return NULL;
    while (skip_op(p, '~')) {
        n = parse_product(p);
        if (n == NULL || kids_add(p, &k, n) != 0)
            return NULL;
    }
    return node_of(p, N_CONCAT, &k);
}

static struct node *parse_sum(struct parser *p)
{
    struct node *a = parse_concat(p), *b;
    unsigned op = 0;

    while (a != NULL && at_level(p, &sums, &op)) {
        p->tok++;
        b = parse_concat(p);
        a = b != NULL ? binary(p, N_BINARY, op, a, b) : NULL;
    }
    return a;
}

static bool skip_comparison(struct parser *p, uint8_t *op)
{
    static const unsigned tokens[] = {OP_2_EQ, OP_2_NE, '<', OP_2_LE, '>', OP_2_GE};
    static const uint8_t ops[] = {CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE};

    for (unsigned i = 0; i < sizeof ops; i++) {
        if (skip_op(p, tokens[i])) {
            *op = ops[i];
            return true;
        }
    }
    if (skip_name(p, "in")) {
        *op = CMP_IN;
        return true;
    }
    if (at_name(p, "not") && p->tok[1].type == TOKEN_NAME && text_eq(p->tok[1].text, TEXT("in"))) {
        p->tok += 2;
        *op = CMP_NOT_IN;
        return true;
    }
    return false;
}

static struct node *parse_compare(struct parser *p)
{
    struct node *n = parse_sum(p);
    uint8_t ops[JINJA_ARGS_MAX];
    struct kids k = {0};
    uint8_t *kept;

    if (n == NULL || kids_add(p, &k, n) != 0)
        return NULL;
    while (k.n <= JINJA_ARGS_MAX && skip_comparison(p, &ops[k.n - 1])) {
        if (k.n == JINJA_ARGS_MAX) {
            (void)jinja_refuse(p->e, p->tok->line, "more than %d comparisons in a chain",
                               JINJA_ARGS_MAX - 1);
            return NULL;
        }
        n = parse_sum(p);
        if (n == NULL || kids_add(p, &k, n) != 0)
            return NULL;
    }
    if (k.n == 1)
        return n;
    n = node_of(p, N_COMPARE, &k);
    kept = n != NULL ? arena_alloc(&p->t->arena, k.n) : NULL;
    if (n != NULL && kept == NULL)
        (void)jinja_no_memory(p->e, &p->t->arena);
    if (kept == NULL)
        return NULL;
    memcpy(kept, ops, k.n - 1);
    n->ops = kept;
    return n;
}

static struct node *parse_not(struct parser *p)
{
    struct node *n;

    if (!at_name(p, "not"))
        return parse_compare(p);
    if (enter(p) != 0)
        return NULL;
    p->tok++;
    n = unary(p, N_NOT, parse_not(p));
    p->nest--;
    return n;
}

static struct node *parse_and(struct parser *p)
{
    struct node *a = parse_not(p), *b;

    while (a != NULL && skip_name(p, "and")) {
        b = parse_not(p);
        a = b != NULL ? binary(p, N_AND, 0, a, b) : NULL;
    }
    return a;
}

static struct node *parse_or(struct parser *p)
{
    struct node *a = parse_and(p), *b;

    while (a != NULL && skip_name(p, "or")) {
        b = parse_and(p);
        a = b != NULL ? binary(p, N_OR, 0, a, b) : NULL;
    }
    return a;
}

/* "a if b else c": kids are b, a, c. */
static struct node *parse_conditional(struct parser *p)
{
    const struct node *missing = p->missing;
    struct node *a = parse_or(p);

    while (a != NULL && skip_name(p, "if")) {
        struct node *n = node_new(p, N_COND, 3);

        if (n == NULL || (n->kids[0] = parse_or(p)) == NULL)
            return NULL;
        n->kids[1] = a;
        if (skip_name(p, "else") && (n->kids[2] = parse_expression(p, true)) == NULL)
            return NULL;
        p->missing = missing; /* whatever it was, it is in a conditional */
        a = node_done(p, n);
    }
    return a;
}

struct node *parse_expression(struct parser *p, bool conditional)
{
    struct node *n;

    if (enter(p) != 0)
        return NULL;
    n = conditional ? parse_conditional(p) : parse_or(p);
    p->nest--;
    return n;
}
