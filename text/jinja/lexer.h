/* A template as tokens. Text between tags comes already trimmed as the tags say. */
#ifndef BATON_TEXT_JINJA_LEXER_H
#define BATON_TEXT_JINJA_LEXER_H

#include "base/err.h"
#include "text/jinja/arena.h"
#include "text/jinja/value.h"

#include <stddef.h>
#include <stdint.h>

enum token_type {
    TOKEN_EOF,
    TOKEN_DATA,
    TOKEN_OUTPUT, /* {{ */
    TOKEN_OUTPUT_END,
    TOKEN_BLOCK, /* {% */
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INT,
    TOKEN_FLOAT,
    TOKEN_OP
};

/* Operators of two characters; those of one are the character. */
enum { TOKEN_OP_BASE = 256, OP_2_EQ, OP_2_NE, OP_2_LE, OP_2_GE, OP_2_FLOORDIV, OP_2_POW };

struct token {
    enum token_type type;
    unsigned op;
    uint32_t line;
    struct text text; /* TOKEN_STRING: decoded; any other: as it stands in the source */
    int64_t i;
    double f;
};

struct tokens {
    struct token *v; /* [n], the last is TOKEN_EOF; of the arena */
    size_t n, cap;
};

/* jinja_lex - @source  lives as long as the arena; newlines are \n, none at the end
 * Errors: ERR_BAD_REQUEST at /chat_template, with the line; ERR_NO_MEMORY. */
int jinja_lex(struct tokens *out, struct arena *a, struct text source, struct err *e);

/* jinja_refuse - as err_set, at /chat_template, "line <line>: " before the message. -1. */
__attribute__((format(printf, 3, 4))) int jinja_refuse(struct err *e, uint32_t line,
                                                       const char *fmt, ...);
int jinja_no_memory(struct err *e, const struct arena *a);

#endif
