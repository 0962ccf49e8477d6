/* Inside the tokenizer: reading members of tokenizer.json into C, with errors that point at them.
 */
#ifndef BATON_TEXT_TOKENIZER_MEMBERS_H
#define BATON_TEXT_TOKENIZER_MEMBERS_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { QUOTED_MAX = 80 };

/* A name from the file, cut and cleaned for a message. */
struct quoted {
    char text[QUOTED_MAX];
};
struct quoted member_quote(const char *text);

/* The JSON pointer of a member, or of an element; a base that is too long is cut. */
struct pointer {
    char text[ERR_FIELD_MAX];
};
struct pointer pointer_member(const char *base, const char *name);
struct pointer pointer_index(const char *base, size_t i);

/* Readers of the member `name` of the object `o`, whose own pointer is `base`. What they give is
 * borrowed from `o`. Errors: ERR_BAD_REQUEST at the member, absent ones included. */
int member_bool(bool *out, const json_t *o, const char *base, const char *name, struct err *e);
int member_bool_or(bool *out, const json_t *o, const char *base, const char *name, bool absent,
                   struct err *e);
int member_str(const char **out, const json_t *o, const char *base, const char *name,
               struct err *e);
int member_array(const json_t **out, const json_t *o, const char *base, const char *name,
                 struct err *e);
/* The "type" of the component `v`, which must be an object. */
int member_type(const char **out, const json_t *v, const char *field, struct err *e);
/* `v` as an id, at most TOKENIZER_ID_MAX. */
int member_id(uint32_t *out, const json_t *v, const char *field, struct err *e);

/* Refusals; they return -1. */
int member_wrong_type(const char *field, const json_t *found, const char *wanted, struct err *e);
int member_unsupported(const char *field, const char *type, const char *allowed, struct err *e);
int member_too_deep(const char *field, struct err *e);

#endif
