/* The part of the template language Jinja2 that chat templates are written in, as Hugging Face's
 * transformers sets it up: trim_blocks, lstrip_blocks, break and continue, {% generation %},
 * raise_exception, strftime_now, tojson without HTML escapes, nothing escaped but what joins the
 * result of `safe`, lists and dicts that no method changes.
 *
 * Parsed once into a tree. Syntax that is not supported is refused there, by line and name, and so
 * is a filter or test that Jinja2 would not load; any other name that is not supported fails when
 * it is reached, so that a template is served until then. Rendering is bounded in work, memory,
 * depth and output, whatever the template and the values are. Rejected: recognising templates by
 * their hash, which serves only the models one has seen. */
#ifndef BATON_TEXT_JINJA_JINJA_H
#define BATON_TEXT_JINJA_JINJA_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    JINJA_SOURCE_NBYTES_MAX = 512 << 10,
    JINJA_TREE_NBYTES_MAX = 64 << 20,
    JINJA_NODES_MAX = 100000,
    JINJA_DEPTH_MAX = 150,              /* of the tree: expressions and blocks */
    JINJA_ARGS_MAX = 64,                /* of one call; parameters of one macro */
    JINJA_STEPS_MAX = 20 * 1000 * 1000, /* nodes evaluated, elements walked, 32 bytes looked at */
    JINJA_RENDER_NBYTES_MAX = 128 << 20,
    JINJA_OUTPUT_NBYTES_MAX = 16 << 20
};

struct jinja;

/* jinja_parse - @source  UTF-8
 * Errors: ERR_BAD_REQUEST at /chat_template: "line 3: ..."; ERR_NO_MEMORY. */
int jinja_parse(struct jinja **out, const char *source, size_t len, struct err *e);
void jinja_free(struct jinja *t); /* accepts NULL */

/* jinja_walks_content - does a for loop of it go over a message's content, so that content may be
 * an array of parts? */
bool jinja_walks_content(const struct jinja *t);

struct jinja_input {
    const json_t *const *layers; /* [n_layers] objects, borrowed: variables; the first that has a
                                    name gives its value */
    size_t n_layers;
    int64_t now_s; /* what strftime_now tells, in seconds since the epoch, UTC */
};

/* jinja_render - append what the template makes of the input.
 * Errors: ERR_BAD_REQUEST at /messages: the text of raise_exception, or what failed, with the
 *         template's line; a bound that was passed; ERR_NO_MEMORY. *out is then as it was.
 * Threads: any; a template may be rendered by many at once. */
int jinja_render(const struct jinja *t, const struct jinja_input *in, struct buf *out,
                 struct err *e);

#endif
