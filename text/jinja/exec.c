/* Statements, and the render itself. A loop's body, its else, a macro and a set block each have a
 * scope of their own, an if has none. */
#include "text/jinja/names.h"
#include "text/jinja/run.h"

#include <string.h>

static int assign(struct run *r, struct scope *s, const struct node *target, const struct value *v);

static int exec_unpack(struct run *r, struct scope *s, const struct node *target,
                       const struct value *v)
{
    struct list *l;

    if (run_iterate(r, v, &l) != 0)
        return -1;
    if (l->n != target->n_kids)
        return run_fail(r, "%zu values for %u names", l->n, target->n_kids);
    for (uint32_t i = 0; i < target->n_kids; i++) {
        if (assign(r, s, target->kids[i], &l->items[i]) != 0)
            return -1;
    }
    return 0;
}

static int assign(struct run *r, struct scope *s, const struct node *target, const struct value *v)
{
    struct value object, key;

    if (target->kind == N_TUPLE)
        return exec_unpack(r, s, target, v);
    if (target->kind == N_NAME)
        return scope_set(r, s, target->sym, v);
    if (run_lookup(r, target->sym, &object) != 0)
        return -1;
    if (object.type != V_NAMESPACE)
        return run_wrong_type(r, &object, "a namespace");
    key = value_text(target->text);
    return run_put(r, object.u.dict, &key, v);
}

/* What a for loop walks: the elements that its filter keeps. */
static int loop_items(struct run *r, const struct node *n, struct list **out)
{
    struct scope s = {.parent = r->scope}, *outer = r->scope;
    struct value v, keep;
    struct list *all, *l;

    if (run_eval(r, n->kids[1], &v) != 0 || run_iterate(r, &v, &all) != 0)
        return -1;
    *out = all;
    if (n->kids[2] == NULL)
        return 0;
    if (run_list(r, &l, 0) != 0)
        return -1;
    for (size_t i = 0; i < all->n; i++) {
        int rc = assign(r, &s, n->kids[0], &all->items[i]);

        r->scope = &s;
        rc = rc != 0 ? rc : run_eval(r, n->kids[2], &keep);
        r->scope = outer;
        if (rc != 0 || (value_truth(&keep) && run_push(r, l, &all->items[i]) != 0))
            return -1;
    }
    *out = l;
    return 0;
}

/* One turn. Its scope is the arena's: a macro made there may outlive it. */
static enum exec exec_turn(struct run *r, const struct node *n, const struct value *loop,
                           const struct value *item)
{
    struct scope *s = arena_alloc(&r->arena, sizeof *s), *outer = r->scope;
    enum exec rc = EXEC_FAILED;

    if (s == NULL)
        return run_no_memory(r) == 0 ? EXEC_NEXT : EXEC_FAILED;
    s->parent = outer;
    if (run_charge(r, 1) != 0 || scope_begin(r, s, &n->body) != 0 ||
        scope_set(r, s, r->t->loop_sym, loop) != 0 || assign(r, s, n->kids[0], item) != 0)
        return EXEC_FAILED;
    r->scope = s;
    rc = run_block(r, &n->body);
    r->scope = outer;
    return rc;
}

/* Enters the body's own scope; the caller keeps the outer one and sets it again. */
static int enter_scope(struct run *r, const struct block *body)
{
    struct scope *s = arena_alloc(&r->arena, sizeof *s);

    if (s == NULL)
        return run_no_memory(r);
    s->parent = r->scope;
    r->scope = s;
    return scope_begin(r, s, body);
}

static enum exec exec_scope(struct run *r, const struct block *body)
{
    struct scope *outer = r->scope;
    enum exec rc = enter_scope(r, body) == 0 ? run_block(r, body) : EXEC_FAILED;

    r->scope = outer;
    return rc;
}

static enum exec exec_for(struct run *r, const struct node *n)
{
    struct loop *l = arena_alloc(&r->arena, sizeof *l);
    struct value loop = {.type = V_LOOP, .u.loop = l};
    struct list *items;
    enum exec rc = EXEC_NEXT;
    bool whole = false; /* a turn went through to its end */

    if (l == NULL) {
        (void)run_no_memory(r);
        return EXEC_FAILED;
    }
    if (loop_items(r, n, &items) != 0)
        return EXEC_FAILED;
    *l = (struct loop){.items = items->items, .n = items->n, .depth = r->loop_depth};
    r->loop_depth++;
    for (; l->i < l->n && rc != EXEC_BREAK && rc != EXEC_FAILED; l->i++) {
        rc = exec_turn(r, n, &loop, &items->items[l->i]);
        whole = whole || rc == EXEC_NEXT;
    }
    r->loop_depth--;
    if (rc == EXEC_FAILED || whole)
        return rc == EXEC_FAILED ? EXEC_FAILED : EXEC_NEXT;
    return exec_scope(r, &n->other); /* also when every turn broke off: Jinja2's `else` */
}

/* What a body in a scope of its own writes, through the filters, which see that scope, or NULL. */
static int exec_captured(struct run *r, const struct block *body, const struct node *filters,
                         struct value *out)
{
    struct scope *outer = r->scope;
    size_t mark = r->out->len;
    int rc = enter_scope(r, body);

    if (rc == 0)
        rc = run_block(r, body) == EXEC_NEXT ? run_taken(r, mark, out) : -1;
    if (rc == 0 && filters != NULL) {
        r->captured = *out;
        rc = run_eval(r, filters, out);
    }
    r->scope = outer;
    return rc;
}

static int exec_set_block(struct run *r, const struct node *n)
{
    struct value v;

    return exec_captured(r, &n->body, n->kids[1], &v) == 0 ? assign(r, r->scope, n->kids[0], &v)
                                                           : -1;
}

static int exec_filter_block(struct run *r, const struct node *n)
{
    struct value v;

    if (exec_captured(r, &n->body, n->kids[0], &v) != 0)
        return -1;
    return v.type == V_STRING ? run_write(r, v.u.s) : run_wrong_type(r, &v, "a string");
}

static int exec_macro(struct run *r, const struct node *n)
{
    struct macro *m = arena_alloc(&r->arena, sizeof *m);
    struct value v = {.type = V_MACRO, .u.macro = m};

    if (m == NULL)
        return run_no_memory(r);
    m->node = n;
    m->scope = r->scope;
    return scope_set(r, r->scope, n->sym, &v);
}

static enum exec exec_if(struct run *r, const struct node *n)
{
    struct value test;

    for (;;) {
        if (run_eval(r, n->kids[0], &test) != 0)
            return EXEC_FAILED;
        if (value_truth(&test))
            return run_block(r, &n->body);
        if (n->other.n != 1 || n->other.nodes[0]->kind != N_IF)
            return run_block(r, &n->other);
        n = n->other.nodes[0];
        r->line = n->line;
    }
}

static enum exec exec_one(struct run *r, const struct node *n)
{
    struct value v;
    int rc = 0;

    switch (n->kind) {
    case N_DATA:
        rc = run_write(r, n->text);
        break;
    case N_OUTPUT:
        rc = run_eval(r, n->kids[0], &v) == 0 ? run_print(r, &v) : -1;
        break;
    case N_IF:
        return exec_if(r, n);
    case N_FOR:
        return exec_for(r, n);
    case N_SET:
        rc = run_eval(r, n->kids[1], &v) == 0 ? assign(r, r->scope, n->kids[0], &v) : -1;
        break;
    case N_SET_BLOCK:
        rc = exec_set_block(r, n);
        break;
    case N_FILTER_BLOCK:
        rc = exec_filter_block(r, n);
        break;
    case N_MACRO:
        rc = exec_macro(r, n);
        break;
    case N_SCOPE:
        return exec_scope(r, &n->body);
    default:
        return n->kind == N_BREAK ? EXEC_BREAK : EXEC_CONTINUE;
    }
    return rc == 0 ? EXEC_NEXT : EXEC_FAILED;
}

enum exec run_block(struct run *r, const struct block *b)
{
    enum exec rc = EXEC_NEXT;

    if (r->depth >= RUN_EVAL_DEPTH_MAX) {
        (void)run_fail(r, "nests deeper than %d", RUN_EVAL_DEPTH_MAX);
        return EXEC_FAILED;
    }
    r->depth++;
    for (uint32_t i = 0; i < b->n && rc == EXEC_NEXT; i++) {
        r->line = b->nodes[i]->line;
        rc = run_charge(r, 1) == 0 ? exec_one(r, b->nodes[i]) : EXEC_FAILED;
    }
    r->depth--;
    return rc;
}

/* What each name of the template means before anything assigns it: the caller's, or Jinja's own. */
static int make_context(struct run *r)
{
    char name[256];

    r->context = arena_array(&r->arena, r->t->n_symbols, sizeof *r->context);
    if (r->context == NULL)
        return run_no_memory(r);
    for (uint32_t i = 0; i < r->t->n_symbols; i++) {
        struct text s = r->t->symbols[i];
        const json_t *j = NULL;
        unsigned id = 0;

        r->context[i] = value_undefined(s, V_NONE);
        if (s.len < sizeof name) {
            memcpy(name, s.p, s.len);
            name[s.len] = '\0';
            for (size_t k = 0; k < r->in->n_layers && j == NULL; k++)
                j = json_object_get(r->in->layers[k], name);
        }
        if (j != NULL && run_json(r, j, &r->context[i]) != 0)
            return -1;
        if (j == NULL && function_named(s, &id))
            r->context[i] = (struct value){.type = V_FUNCTION, .u.function = id};
    }
    return 0;
}

int jinja_render(const struct jinja *t, const struct jinja_input *in, struct buf *out,
                 struct err *e)
{
    size_t from = out->len;
    struct scope top = {0};
    struct run r = {.arena = {.nbytes_max = JINJA_RENDER_NBYTES_MAX},
                    .out = out,
                    .out_from = from,
                    .line = 1,
                    .t = t,
                    .in = in,
                    .scope = &top,
                    .e = e};
    int rc = make_context(&r) == 0 && scope_begin(&r, &top, &t->body) == 0 &&
                     run_block(&r, &t->body) == EXEC_NEXT
                 ? 0
                 : -1;

    arena_fini(&r.arena);
    if (rc != 0 && out->data != NULL) {
        out->len = from;
        out->data[from] = '\0';
    }
    return rc;
}
