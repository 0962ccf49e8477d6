/* Inside the parser: statements (parse.c) and expressions (parse_expr.c, parse_call.c) over one
 * list of tokens. A function that makes a node returns NULL with the error set. */
#ifndef BATON_TEXT_JINJA_PARSE_H
#define BATON_TEXT_JINJA_PARSE_H

#include "text/jinja/ast.h"
#include "text/jinja/jinja.h"
#include "text/jinja/lexer.h"

#include <stdbool.h>

enum { PARSE_NAMES_MAX = 2000 };

struct parser {
    struct jinja *t;
    const struct token *tok; /* the current one; the last is TOKEN_EOF */
    unsigned nest;
    bool in_loop, in_macro;
    bool soft;                  /* in an if: Jinja2 looks for filters and tests there when it comes
                                   to them, elsewhere before it renders */
    const struct node *missing; /* the first N_REFUSED that Jinja2 itself would not load */
    struct err *e;
};

/* Kids as they are found; they move into the arena when their number is known. */
struct kids {
    struct node **v;
    uint32_t n, cap;
};

bool at_op(const struct parser *p, unsigned op);
bool at_name(const struct parser *p, const char *name);
bool skip_op(struct parser *p, unsigned op);
bool skip_name(struct parser *p, const char *name);
int expect_op(struct parser *p, unsigned op, const char *spelled);
int expect_name(struct parser *p, struct text *out);
struct node *refuse_here(struct parser *p, const char *wanted); /* NULL */
/* What the current token is, for messages. */
struct spelled {
    char text[48];
};
struct spelled spell(struct text s);

struct node *node_new(struct parser *p, enum node_kind kind, uint32_t n_kids);
/* A node that fails when it is reached. Neither messages nor names are longer than ERR_MSG_MAX. */
__attribute__((format(printf, 2, 3))) struct node *node_refused(struct parser *p, const char *fmt,
                                                                ...);
/* Settles the depth of a node whose kids are there. Returns it, or NULL when it is too deep. */
struct node *node_done(struct parser *p, struct node *n);
int kids_add(struct parser *p, struct kids *k, struct node *n);
struct node *unary(struct parser *p, enum node_kind kind, struct node *a); /* a may be NULL */
struct node *node_of(struct parser *p, enum node_kind kind, const struct kids *k);
int intern(struct parser *p, struct text name, uint32_t *sym);
int enter(struct parser *p);

struct node *parse_expression(struct parser *p, bool conditional);
struct node *parse_primary(struct parser *p);
struct node *parse_postfix(struct parser *p, struct node *n);
/* One expression, or a tuple when commas follow. @end  a name that ends it, or NULL */
struct node *parse_tuple(struct parser *p, bool conditional, const char *end);
struct node *parse_filter(struct parser *p, struct node *object);
struct node *parse_filters(struct parser *p, struct node *n, bool only_filters);
struct node *parse_method(struct parser *p, struct node *object, struct text name);
struct node *parse_function(struct parser *p, struct node *callee);

#endif
