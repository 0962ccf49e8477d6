/* Statements, and what all of the parser stands on. Recursion is bounded twice: `nest` while
 * parsing, `depth` of the tree for those that walk it later. */
#include "text/jinja/parse.h"
#include "text/jinja/frames.h"

#include "text/jinja/run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool at_op(const struct parser *p, unsigned op)
{
    return p->tok->type == TOKEN_OP && p->tok->op == op;
}

bool at_name(const struct parser *p, const char *name)
{
    return p->tok->type == TOKEN_NAME && strlen(name) == p->tok->text.len &&
           memcmp(name, p->tok->text.p, p->tok->text.len) == 0;
}

bool skip_op(struct parser *p, unsigned op)
{
    bool is = at_op(p, op);

    p->tok += is ? 1 : 0;
    return is;
}

bool skip_name(struct parser *p, const char *name)
{
    bool is = at_name(p, name);

    p->tok += is ? 1 : 0;
    return is;
}

struct spelled spell(struct text s)
{
    struct spelled out;

    (void)snprintf(out.text, sizeof out.text, "%.*s", (int)(s.len < 40 ? s.len : 40), s.p);
    for (char *c = out.text; *c != '\0'; c++)
        *c = (unsigned char)*c < 0x20 ? ' ' : *c;
    return out;
}

static const char *token_name(const struct parser *p, struct spelled *text)
{
    switch (p->tok->type) {
    case TOKEN_EOF:
        return "the end of the template";
    case TOKEN_DATA:
        return "text";
    case TOKEN_STRING:
        return "a string";
    default:
        *text = spell(p->tok->text);
        return text->text;
    }
}

struct node *refuse_here(struct parser *p, const char *wanted)
{
    struct spelled text;
    const char *found = token_name(p, &text);

    (void)jinja_refuse(p->e, p->tok->line, "found %s where %s belongs", found, wanted);
    return NULL;
}

int expect_op(struct parser *p, unsigned op, const char *spelled)
{
    if (skip_op(p, op))
        return 0;
    (void)refuse_here(p, spelled);
    return -1;
}

int expect_name(struct parser *p, struct text *out)
{
    if (p->tok->type != TOKEN_NAME) {
        (void)refuse_here(p, "a name");
        return -1;
    }
    *out = p->tok->text;
    p->tok++;
    return 0;
}

int enter(struct parser *p)
{
    if (p->nest >= JINJA_DEPTH_MAX)
        return jinja_refuse(p->e, p->tok->line, "nests deeper than %d", JINJA_DEPTH_MAX);
    p->nest++;
    return 0;
}

struct node *node_new(struct parser *p, enum node_kind kind, uint32_t n_kids)
{
    struct node *n;

    if (p->t->n_nodes >= JINJA_NODES_MAX) {
        (void)jinja_refuse(p->e, p->tok->line, "more than %d parts in the template",
                           JINJA_NODES_MAX);
        return NULL;
    }
    n = arena_alloc(&p->t->arena, sizeof *n);
    if (n != NULL && n_kids > 0)
        n->kids = arena_array(&p->t->arena, n_kids, sizeof(struct node *));
    if (n == NULL || (n_kids > 0 && n->kids == NULL)) {
        (void)jinja_no_memory(p->e, &p->t->arena);
        return NULL;
    }
    p->t->n_nodes++;
    n->kind = kind;
    n->n_kids = n_kids;
    n->line = p->tok->line;
    return n;
}

static void deepen(struct node *n, const struct node *kid)
{
    if (kid != NULL && kid->depth > n->depth)
        n->depth = kid->depth;
}

struct node *node_done(struct parser *p, struct node *n)
{
    n->depth = 0;
    for (uint32_t i = 0; i < n->n_kids; i++)
        deepen(n, n->kids[i]);
    for (uint32_t i = 0; i < n->body.n; i++)
        deepen(n, n->body.nodes[i]);
    for (uint32_t i = 0; i < n->other.n; i++)
        deepen(n, n->other.nodes[i]);
    n->depth++;
    if (n->depth > JINJA_DEPTH_MAX) {
        (void)jinja_refuse(p->e, n->line, "nests deeper than %d", JINJA_DEPTH_MAX);
        return NULL;
    }
    return n;
}

struct node *node_refused(struct parser *p, const char *fmt, ...)
{
    struct node *n = node_new(p, N_REFUSED, 0);
    char *text = arena_bytes(&p->t->arena, ERR_MSG_MAX);
    va_list ap;

    if (n == NULL)
        return NULL;
    if (text == NULL) {
        (void)jinja_no_memory(p->e, &p->t->arena);
        return NULL;
    }
    va_start(ap, fmt);
    (void)vsnprintf(text, ERR_MSG_MAX, fmt, ap);
    va_end(ap);
    n->text = (struct text){text, strlen(text)};
    return node_done(p, n);
}

int kids_add(struct parser *p, struct kids *k, struct node *n)
{
    if (k->n == k->cap) {
        uint32_t cap = k->cap == 0 ? 4 : k->cap * 2;
        struct node **v = arena_array(&p->t->arena, cap, sizeof(struct node *));

        if (v == NULL)
            return jinja_no_memory(p->e, &p->t->arena);
        if (k->n > 0)
            memcpy(v, k->v, k->n * sizeof *v);
        k->v = v;
        k->cap = cap;
    }
    k->v[k->n++] = n;
    return 0;
}

struct node *node_of(struct parser *p, enum node_kind kind, const struct kids *k)
{
    struct node *n = node_new(p, kind, 0);

    if (n == NULL)
        return NULL;
    n->kids = k->v;
    n->n_kids = k->n;
    return node_done(p, n);
}

int intern(struct parser *p, struct text name, uint32_t *sym)
{
    struct jinja *t = p->t;

    for (uint32_t i = 0; i < t->n_symbols; i++) {
        if (text_eq(t->symbols[i], name)) {
            *sym = i;
            return 0;
        }
    }
    if (t->n_symbols == PARSE_NAMES_MAX)
        return jinja_refuse(p->e, p->tok->line, "more than %d names", PARSE_NAMES_MAX);
    t->symbols[t->n_symbols] = name;
    *sym = t->n_symbols++;
    return 0;
}

static int end_block(struct parser *p)
{
    if (p->tok->type != TOKEN_BLOCK_END) {
        (void)refuse_here(p, "%}");
        return -1;
    }
    p->tok++;
    return 0;
}

static int parse_body(struct parser *p, struct block *out, const char *const *ends);

/* The rest of a tag, its body, and the tag that ends it but for its own rest. */
static int parse_inner(struct parser *p, struct block *out, const char *const *ends)
{
    (void)skip_op(p, ':');
    return end_block(p) == 0 ? parse_body(p, out, ends) : -1;
}

/* The same for a body with a scope of its own. */
static int parse_scope(struct parser *p, struct block *out, const char *const *ends, bool in_loop)
{
    bool loop = p->in_loop, soft = p->soft;
    int rc;

    p->in_loop = in_loop;
    p->soft = false;
    rc = parse_inner(p, out, ends);
    p->in_loop = loop;
    p->soft = soft;
    return rc;
}

static struct node *parse_if(struct parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    struct node *n = node_new(p, N_IF, 1), *more;

    if (n == NULL || (n->kids[0] = parse_tuple(p, false, NULL)) == NULL ||
        parse_inner(p, &n->body, ends) != 0)
        return NULL;
    if (skip_name(p, "elif")) {
        if (enter(p) != 0 || (more = parse_if(p)) == NULL)
            return NULL;
        p->nest--;
        n->other.nodes = arena_alloc(&p->t->arena, sizeof(struct node *));
        if (n->other.nodes == NULL) {
            (void)jinja_no_memory(p->e, &p->t->arena);
            return NULL;
        }
        n->other.nodes[n->other.n++] = more;
        return node_done(p, n);
    }
    if (skip_name(p, "else") && parse_inner(p, &n->other, last) != 0)
        return NULL;
    p->tok++;
    return node_done(p, n);
}

static struct node *parse_target_name(struct parser *p, bool attribute)
{
    struct node *n;
    struct text name;
    static const char *const fixed[] = {"true", "false", "none",    "True",  "False",
                                        "None", "loop",  "varargs", "kwargs"};

    for (unsigned i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        if (at_name(p, fixed[i])) {
            (void)refuse_here(p, "a name that can be assigned");
            return NULL;
        }
    }
    n = node_new(p, N_NAME, 0);
    if (n == NULL || expect_name(p, &name) != 0 || intern(p, name, &n->sym) != 0)
        return NULL;
    n->text = name;
    if (attribute && skip_op(p, '.')) {
        n->kind = N_ATTR;
        if (expect_name(p, &n->text) != 0)
            return NULL;
    }
    return node_done(p, n);
}

/* Names, separated by commas; parentheses may stand around all. */
static struct node *parse_target(struct parser *p, bool attribute)
{
    bool parens = skip_op(p, '(');
    struct node *n = parse_target_name(p, attribute && !parens);
    struct kids k = {0};
    bool many;

    if (n == NULL || kids_add(p, &k, n) != 0)
        return NULL;
    many = at_op(p, ',');
    while (skip_op(p, ',')) {
        if (p->tok->type != TOKEN_NAME || at_name(p, "in"))
            break;
        n = parse_target_name(p, false);
        if (n == NULL || kids_add(p, &k, n) != 0)
            return NULL;
    }
    if (parens && expect_op(p, ')', ")") != 0)
        return NULL;
    return many ? node_of(p, N_TUPLE, &k) : n;
}

/* Does it end in `.content` or ['content']? Then a loop over it walks the parts of a message. */
static bool is_content(const struct node *n)
{
    while (n->kind == N_FILTER)
        n = n->kids[0];
    if (n->kind == N_ATTR)
        return text_eq(n->text, TEXT("content"));
    if (n->kind == N_NAME)
        return text_eq(n->text, TEXT("content"));
    return n->kind == N_ITEM && n->kids[1]->kind == N_CONST && n->kids[1]->value.type == V_STRING &&
           text_eq(n->kids[1]->value.u.s, TEXT("content"));
}

static int parse_for_head(struct parser *p, struct node *n)
{
    if ((n->kids[0] = parse_target(p, false)) == NULL)
        return -1;
    if (!skip_name(p, "in")) {
        (void)refuse_here(p, "'in'");
        return -1;
    }
    if ((n->kids[1] = parse_tuple(p, false, "recursive")) == NULL ||
        (skip_name(p, "if") && (n->kids[2] = parse_expression(p, true)) == NULL))
        return -1;
    if (at_name(p, "recursive"))
        return jinja_refuse(p->e, p->tok->line, "a recursive loop is not supported");
    p->t->walks_content = p->t->walks_content || is_content(n->kids[1]);
    return 0;
}

static struct node *parse_for(struct parser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL}, *const last[] = {"endfor", NULL};
    struct node *n = node_new(p, N_FOR, 3);

    if (n == NULL || parse_for_head(p, n) != 0 || parse_scope(p, &n->body, ends, true) != 0 ||
        (skip_name(p, "else") && parse_scope(p, &n->other, last, p->in_loop) != 0))
        return NULL;
    p->tok++;
    return node_done(p, n);
}

/* The filters of a set or filter block, which Jinja2 looks for before it renders, even in an if. */
static struct node *parse_block_filters(struct parser *p)
{
    struct node *n = node_new(p, N_CAPTURED, 0);
    bool soft = p->soft;

    p->soft = false;
    n = n != NULL ? parse_filter(p, n) : NULL;
    n = n != NULL ? parse_filters(p, n, true) : NULL;
    p->soft = soft;
    return n;
}

static struct node *parse_set(struct parser *p)
{
    static const char *const ends[] = {"endset", NULL};
    struct node *n = node_new(p, N_SET, 2);

    if (n == NULL || (n->kids[0] = parse_target(p, true)) == NULL)
        return NULL;
    if (skip_op(p, '=')) {
        n->kids[1] = parse_tuple(p, true, NULL);
        return n->kids[1] != NULL ? node_done(p, n) : NULL;
    }
    n->kind = N_SET_BLOCK;
    if (n->kids[0]->kind == N_TUPLE)
        return refuse_here(p, "=");
    if (at_op(p, '|') && (n->kids[1] = parse_block_filters(p)) == NULL)
        return NULL;
    if (parse_scope(p, &n->body, ends, false) != 0) /* what would a break do to the text? */
        return NULL;
    p->tok++;
    return node_done(p, n);
}

static struct node *parse_filter_block(struct parser *p)
{
    static const char *const ends[] = {"endfilter", NULL};
    struct node *n = node_new(p, N_FILTER_BLOCK, 1);

    p->tok--; /* to 'filter', in the place of the '|' */
    if (n == NULL || (n->kids[0] = parse_block_filters(p)) == NULL ||
        parse_scope(p, &n->body, ends, false) != 0)
        return NULL;
    p->tok++;
    return node_done(p, n);
}

static int parse_param(struct parser *p, struct kids *defaults, uint32_t *syms)
{
    struct node *value = NULL;
    struct text name;

    if (defaults->n >= JINJA_ARGS_MAX)
        return jinja_refuse(p->e, p->tok->line, "more than %d parameters", JINJA_ARGS_MAX);
    if (expect_name(p, &name) != 0 || intern(p, name, &syms[defaults->n]) != 0)
        return -1;
    for (uint32_t i = 0; i < defaults->n; i++) {
        if (syms[i] == syms[defaults->n])
            return jinja_refuse(p->e, p->tok->line, "parameter '%s' comes twice", spell(name).text);
    }
    if (skip_op(p, '=')) {
        value = parse_expression(p, true);
        if (value == NULL)
            return -1;
    } else if (defaults->n > 0 && defaults->v[defaults->n - 1] != NULL) {
        return jinja_refuse(p->e, p->tok->line, "parameter '%s' without a default after one with",
                            spell(name).text);
    }
    return kids_add(p, defaults, value);
}

static int parse_params(struct parser *p, struct node *n)
{
    uint32_t syms[JINJA_ARGS_MAX], *kept;
    struct kids defaults = {0};

    if (expect_op(p, '(', "(") != 0)
        return -1;
    while (!at_op(p, ')')) {
        if (defaults.n > 0 && expect_op(p, ',', ", or )") != 0)
            return -1;
        if (parse_param(p, &defaults, syms) != 0)
            return -1;
    }
    p->tok++;
    kept = arena_array(&p->t->arena, defaults.n, sizeof *kept);
    if (kept == NULL)
        return jinja_no_memory(p->e, &p->t->arena);
    memcpy(kept, syms, defaults.n * sizeof *kept);
    n->kids = defaults.v;
    n->n_kids = defaults.n;
    n->syms = kept;
    return 0;
}

static struct node *parse_macro(struct parser *p)
{
    static const char *const ends[] = {"endmacro", NULL};
    struct node *n = node_new(p, N_MACRO, 0);
    bool in_macro = p->in_macro;
    int rc;

    if (n == NULL || expect_name(p, &n->text) != 0 || intern(p, n->text, &n->sym) != 0)
        return NULL;
    p->in_macro = true;
    rc = parse_params(p, n) == 0 ? parse_scope(p, &n->body, ends, false) : -1;
    p->in_macro = in_macro;
    p->tok++;
    return rc == 0 ? node_done(p, n) : NULL;
}

static struct node *parse_generation(struct parser *p)
{
    static const char *const ends[] = {"endgeneration", NULL};
    struct node *n = node_new(p, N_SCOPE, 0);

    if (n == NULL || parse_scope(p, &n->body, ends, false) != 0)
        return NULL;
    p->tok++;
    return node_done(p, n);
}

static struct node *parse_jump(struct parser *p, enum node_kind kind, struct text name)
{
    struct node *n;

    if (!p->in_loop) {
        (void)jinja_refuse(p->e, p->tok->line, "'%s' outside a loop", spell(name).text);
        return NULL;
    }
    n = node_new(p, kind, 0);
    return n != NULL ? node_done(p, n) : NULL;
}

static struct node *parse_statement(struct parser *p)
{
    struct text name;

    if (expect_name(p, &name) != 0)
        return NULL;
    if (text_eq(name, TEXT("if"))) {
        bool soft = p->soft;
        struct node *n;

        p->soft = true;
        n = parse_if(p);
        p->soft = soft;
        return n;
    }
    if (text_eq(name, TEXT("filter")))
        return parse_filter_block(p);
    if (text_eq(name, TEXT("for")))
        return parse_for(p);
    if (text_eq(name, TEXT("set")))
        return parse_set(p);
    if (text_eq(name, TEXT("macro")))
        return parse_macro(p);
    if (text_eq(name, TEXT("generation")))
        return parse_generation(p);
    if (text_eq(name, TEXT("break")))
        return parse_jump(p, N_BREAK, name);
    if (text_eq(name, TEXT("continue")))
        return parse_jump(p, N_CONTINUE, name);
    (void)jinja_refuse(p->e, p->tok[-1].line, "tag '%s' is not supported%s", spell(name).text,
                       name.len > 3 && memcmp(name.p, "end", 3) == 0 ? " here" : "");
    return NULL;
}

static struct node *parse_output(struct parser *p)
{
    struct node *n = node_new(p, N_OUTPUT, 1);

    p->tok++;
    if (n == NULL || (n->kids[0] = parse_tuple(p, true, NULL)) == NULL)
        return NULL;
    if (p->tok->type != TOKEN_OUTPUT_END)
        return refuse_here(p, "}}");
    p->tok++;
    return node_done(p, n);
}

static struct node *parse_data(struct parser *p)
{
    struct node *n = node_new(p, N_DATA, 0);

    if (n == NULL)
        return NULL;
    n->text = p->tok->text;
    p->tok++;
    return node_done(p, n);
}

static bool at_end(const struct parser *p, const char *const *ends)
{
    for (; ends != NULL && *ends != NULL; ends++) {
        if (at_name(p, *ends))
            return true;
    }
    return false;
}

/* One piece of a body. Sets *ended when a tag stands there that ends it, its name the current
 * token; the end of the template ends the outermost only. */
static struct node *parse_piece(struct parser *p, const char *const *ends, bool *ended)
{
    struct node *n;

    if (p->tok->type == TOKEN_DATA)
        return parse_data(p);
    if (p->tok->type == TOKEN_OUTPUT)
        return parse_output(p);
    if (p->tok->type != TOKEN_BLOCK) {
        *ended = ends == NULL && p->tok->type == TOKEN_EOF;
        return *ended ? NULL : refuse_here(p, ends != NULL ? ends[ends[1] != NULL] : "a tag");
    }
    p->tok++;
    if (at_end(p, ends)) {
        *ended = true;
        return NULL;
    }
    n = parse_statement(p);
    return n != NULL && end_block(p) == 0 ? n : NULL;
}

static int parse_body(struct parser *p, struct block *out, const char *const *ends)
{
    struct kids k = {0};
    bool ended = false;

    if (enter(p) != 0)
        return -1;
    for (;;) {
        struct node *n = parse_piece(p, ends, &ended);

        if (ended)
            break;
        if (n == NULL || kids_add(p, &k, n) != 0)
            return -1;
    }
    p->nest--;
    *out = (struct block){.nodes = k.v, .n = k.n};
    return 0;
}

/* Newlines become \n, and one at the end goes. */
static int normal_source(struct jinja *t, const char *source, size_t len, struct text *out,
                         struct err *e)
{
    char *o = arena_bytes(&t->arena, len);
    size_t n = 0;

    if (o == NULL)
        return jinja_no_memory(e, &t->arena);
    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r' && i + 1 < len && source[i + 1] == '\n')
            continue;
        o[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n > 0 && o[n - 1] == '\n')
        n--;
    *out = (struct text){o, n};
    return 0;
}

static int template_parse_all(struct jinja *t, const char *source, size_t len, struct err *e)
{
    struct parser p = {.t = t, .e = e};
    struct tokens tokens;
    struct text text;

    t->symbols = arena_array(&t->arena, PARSE_NAMES_MAX, sizeof *t->symbols);
    if (t->symbols == NULL)
        return jinja_no_memory(e, &t->arena);
    if (normal_source(t, source, len, &text, e) != 0 || jinja_lex(&tokens, &t->arena, text, e) != 0)
        return -1;
    p.tok = tokens.v;
    if (intern(&p, TEXT("loop"), &t->loop_sym) != 0 || parse_body(&p, &t->body, NULL) != 0)
        return -1;
    if (frames_find(t) != 0)
        return jinja_no_memory(e, &t->arena);
    if (p.missing != NULL)
        return jinja_refuse(e, p.missing->line, "%.*s", (int)p.missing->text.len,
                            p.missing->text.p);
    return 0;
}

int jinja_parse(struct jinja **out, const char *source, size_t len, struct err *e)
{
    struct jinja *t;
    size_t n;

    if (len > JINJA_SOURCE_NBYTES_MAX)
        return err_set(e, ERR_BAD_REQUEST, "/chat_template",
                       "the template has %zu bytes; at most %d are allowed", len,
                       JINJA_SOURCE_NBYTES_MAX);
    for (size_t i = 0; i < len; i += n) {
        n = text_char_len(source + i, source + len);
        if (n == 0)
            return err_set(e, ERR_BAD_REQUEST, "/chat_template",
                           "byte %zu of the template is not UTF-8", i);
    }
    t = calloc(1, sizeof *t);
    if (t == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for a chat template");
    t->arena.nbytes_max = JINJA_TREE_NBYTES_MAX;
    if (template_parse_all(t, source, len, e) != 0) {
        jinja_free(t);
        return -1;
    }
    *out = t;
    return 0;
}

void jinja_free(struct jinja *t)
{
    if (t == NULL)
        return;
    arena_fini(&t->arena);
    free(t);
}

bool jinja_walks_content(const struct jinja *t)
{
    return t->walks_content;
}
