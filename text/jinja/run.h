/* One render: its memory, its bounds, its scopes. Every function that takes a run returns 0, or -1
 * with the run's error set; what it gives lives in the run's arena. */
#ifndef BATON_TEXT_JINJA_RUN_H
#define BATON_TEXT_JINJA_RUN_H

#include "base/buf.h"
#include "base/err.h"
#include "text/jinja/arena.h"
#include "text/jinja/ast.h"
#include "text/jinja/jinja.h"
#include "text/jinja/value.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    RUN_EVAL_DEPTH_MAX = 600,
    RUN_VALUE_DEPTH_MAX = 64,
    RUN_RANGE_MAX = 100000,
    RUN_STRIP_NBYTES_MAX = 256 /* of the characters of one strip: each is looked for in all */
};

/* Variables of one scope; assignments go to the innermost, look-ups go outwards. */
struct var {
    uint32_t sym;
    struct value value;
};

struct scope {
    struct scope *parent; /* NULL: the template's own */
    struct var *vars;
    uint32_t n, cap;
};

struct macro {
    const struct node *node;
    struct scope *scope; /* where it was defined: what its body sees */
};

struct run {
    struct arena arena;
    struct buf *out;
    size_t out_from;  /* what `out` held before */
    uint64_t n_steps; /* spent */
    unsigned depth, loop_depth;
    uint32_t line; /* of the statement that runs */
    const struct jinja *t;
    const struct jinja_input *in;
    struct scope *scope;
    struct value captured; /* the text of the set block that ends */
    struct value *context; /* [n_symbols]: what names mean that no scope has */
    struct err *e;
};

/* Failures; they return -1. run_fail puts the template's line before the message. */
__attribute__((format(printf, 2, 3))) int run_fail(struct run *r, const char *fmt, ...);
int run_no_memory(struct run *r);
/* What Python says of an undefined value that is used. */
int run_undefined(struct run *r, const struct value *v);
int run_wrong_type(struct run *r, const struct value *v, const char *wanted);

/* run_charge - n units of work more. run_charge_bytes - the same for n bytes that are looked at. */
int run_charge(struct run *r, size_t n);
int run_charge_bytes(struct run *r, size_t n);

/* Making values. */
int run_bytes(struct run *r, char **out, size_t n);
int run_concat(struct run *r, struct text a, struct text b, struct value *out);
int run_list(struct run *r, struct list **out, size_t cap);
int run_push(struct run *r, struct list *l, const struct value *v);
int run_dict(struct run *r, struct dict **out, size_t cap);
int run_put(struct run *r, struct dict *d, const struct value *key, const struct value *v);
int run_json(struct run *r, const json_t *j, struct value *out);

/* Output. run_taken moves what came since `mark` into a value. */
int run_write(struct run *r, struct text s);
int run_taken(struct run *r, size_t mark, struct value *out);

/* text.c: str() of a value as a string value; repr and JSON go to the output. */
int run_str(struct run *r, const struct value *v, struct value *out);
int run_print(struct run *r, const struct value *v);
struct json_style {
    struct text item, key; /* separators */
    struct text indent;    /* of one level */
    bool indented, sorted, ascii;
};
/* str() of a value as Markup: with &, <, >, " and ' escaped, unless it is Markup already. */
int run_escape(struct run *r, const struct value *v, struct value *out);
int run_print_json(struct run *r, const struct value *v, const struct json_style *style);

/* compare.c */
int run_equal(struct run *r, const struct value *a, const struct value *b, bool *out);
int run_less(struct run *r, const struct value *a, const struct value *b, bool *out); /* a < b */
int run_contains(struct run *r, const struct value *in, const struct value *v, bool *out);
int run_find(struct run *r, const struct dict *d, const struct value *key, struct value **out);
/* A stable sort; keys[i] belongs to items[i]. */
int run_sort(struct run *r, struct value *items, struct value *keys, size_t n, bool reverse);

/* access.c: elements, attributes, iteration. */
int run_attr(struct run *r, const struct value *v, struct text name, struct value *out);
int run_item(struct run *r, const struct value *v, const struct value *key, struct value *out);
int run_slice(struct run *r, const struct value *v, const struct value part[3], struct value *out);
int run_length(struct run *r, const struct value *v, size_t *out);
/* What `for` walks: a list that is not to be changed. Reads a V_ITER to its end. */
int run_iterate(struct run *r, const struct value *v, struct list **out);
/* "a.b.0", as the attribute= of filters goes down; `missing` stands for what is undefined. */
int run_path(struct run *r, const struct value *v, const struct value *path, struct value *out);

/* eval.c, arith.c, exec.c */
int run_eval(struct run *r, const struct node *n, struct value *out);
int run_binary(struct run *r, enum binary_op op, const struct value *a, const struct value *b,
               struct value *out);
enum exec { EXEC_FAILED = -1, EXEC_NEXT, EXEC_BREAK, EXEC_CONTINUE };
enum exec run_block(struct run *r, const struct block *b);
/* What a scope begins with: the names that its body assigns before it reads them are undefined. */
int scope_begin(struct run *r, struct scope *s, const struct block *body);
int scope_set(struct run *r, struct scope *s, uint32_t sym, const struct value *v);
int run_lookup(struct run *r, uint32_t sym, struct value *out);

/* calls.c, filters*.c, tests.c, methods.c. `args` are in the order of the callee's table; one that
 * was not given is V_UNDEFINED with given[i] false. */
struct args {
    const struct value *v;
    const bool *given;
};
int run_call(struct run *r, const struct node *n, const struct value *callee, struct value *out);
/* The arguments of a call, positional, then named: [*n_plain + n_keys], of the arena. */
int run_args(struct run *r, const struct node *n, struct value **out, uint32_t *n_plain);
int run_filter(struct run *r, const struct node *n, const struct value *in, const struct args *a,
               struct value *out);
int run_filter_by_id(struct run *r, unsigned id, const struct value *in, const struct args *a,
                     struct value *out);
int run_test(struct run *r, unsigned id, const struct value *v, const struct args *a, bool *out);
int run_method(struct run *r, unsigned id, const struct value *v, const struct args *a,
               struct value *out);
/* A list of (key, value), as d.items() gives. */
int run_pairs(struct run *r, const struct dict *d, enum value_type type, struct value *out);
/* The n values after the first of a filter that hands them on (map, select, ...). */
int run_filter_seq(struct run *r, const struct node *n, const struct value *in,
                   const struct args *a, struct value *out);

/* format.c: `format % right`; the method format, called by the N_CALL `n`; the filter, an N_FORMAT.
 */
int run_percent(struct run *r, const struct value *format, const struct value *right,
                struct value *out);
int run_format(struct run *r, const struct node *n, const struct value *format, struct value *out);
int run_format_filter(struct run *r, const struct node *n, const struct value *format,
                      struct value *out);

/* strings.c: what str does; all in code points. */
size_t text_chars(struct text s);
size_t text_char_len(const char *p, const char *end); /* bytes of the character there */
uint32_t text_char(const char *p, size_t len);
size_t text_offset(struct text s, size_t n_chars); /* byte offset, at most s.len */
bool char_is_space(uint32_t c);
/* Takes a line off, with any end that str.splitlines() knows; false if it has none. */
bool text_line(struct text *rest, struct text *line);
int run_strip(struct run *r, struct text s, const struct value *chars, int sides, struct text *out);
enum text_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE };
int run_case(struct run *r, struct text s, enum text_case how, struct value *out);
int run_replace(struct run *r, struct text s, struct text old, struct text new_text, int64_t n_max,
                struct value *out);

#endif
