/* A parsed template. Immutable, in one arena. */
#ifndef BATON_TEXT_JINJA_AST_H
#define BATON_TEXT_JINJA_AST_H

#include "text/jinja/arena.h"
#include "text/jinja/value.h"

#include <stdbool.h>
#include <stdint.h>

enum node_kind {
    /* Expressions: kids are expressions. */
    N_CONST,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT,   /* key, value, key, value */
    N_ATTR,   /* .text */
    N_ITEM,   /* kids: object, key */
    N_SLICE,  /* kids: object, start, stop, step; NULL where left out */
    N_CALL,   /* kids: callee, positional ..., named ...; names in keys */
    N_UNPACK, /* an argument with a '*' */
    N_FORMAT, /* the filter; kids: format; then as N_CALL */
    N_METHOD, /* kids: object; then the slots of its callee, NULL where left out */
    N_FILTER,
    N_TEST,
    N_COND, /* kids: test, value, else or NULL */
    N_AND,
    N_OR,
    N_NOT,
    N_NEG,
    N_POS,
    N_BINARY,
    N_CONCAT,
    N_COMPARE, /* kids: operands; ops in keys' place: op of kid i+1 in ops[i] */
    N_REFUSED, /* what fails when it is reached; the message in text */
    /* Statements. */
    N_DATA,
    N_OUTPUT,
    N_IF,           /* kids: test, or NULL for else; body; next in other.nodes[0] */
    N_FOR,          /* kids: target, iterable, filter or NULL; body; other = else */
    N_SET,          /* kids: target, value */
    N_SET_BLOCK,    /* kids: target, filters over N_CAPTURED or NULL; body */
    N_FILTER_BLOCK, /* kids: filters over N_CAPTURED; body */
    N_CAPTURED,     /* in the filters of such a block: the text of its body */
    N_MACRO,        /* kids: defaults or NULL; params in syms; body */
    N_SCOPE,        /* {% generation %} */
    N_BREAK,
    N_CONTINUE
};

enum binary_op { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW };
enum compare_op { CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE, CMP_IN, CMP_NOT_IN };

#define NO_INNER 0xffffffffU

struct node;

struct block {
    struct node **nodes; /* [n] */
    uint32_t *unset;     /* [n_unset]: names that are undefined where it begins (frames.h) */
    uint32_t n, n_unset;
};

struct node {
    enum node_kind kind;
    unsigned op; /* binary_op; id of a callee; V_LIST ... */
    uint32_t line;
    uint32_t depth; /* 1 + that of the deepest below */
    uint32_t sym;   /* N_NAME, N_MACRO, and the namespace of an N_ATTR target */
    uint32_t n_kids;
    struct node **kids;
    unsigned inner;  /* N_FILTER that hands on: id of the filter or test it names; or NO_INNER */
    uint32_t n_keys; /* N_CALL: named arguments, the last ones of kids */
    struct text *keys;
    const uint8_t *ops;   /* N_COMPARE: [n_kids - 1] */
    const uint32_t *syms; /* N_MACRO: [n_kids] */
    struct text text;     /* N_DATA; the name of N_ATTR, N_METHOD, N_FILTER, N_TEST */
    struct value value;   /* N_CONST */
    struct block body, other;
};

struct jinja {
    struct arena arena;   /* holds all of it */
    struct text *symbols; /* [n_symbols]: every name that is read or assigned */
    uint32_t n_symbols, symbols_cap, loop_sym;
    uint32_t n_nodes;
    struct block body;
    bool walks_content; /* a for loop goes over some message's `content` */
};

#endif
