/* Which names a scope begins without, although the caller or an outer scope may have them. */
#ifndef BATON_TEXT_JINJA_FRAMES_H
#define BATON_TEXT_JINJA_FRAMES_H

#include "text/jinja/ast.h"

/* frames_find - set `unset` of the template's body and of each body with a scope of its own.
 *
 * In Jinja2 each of these is a function's variables. One that the statements of a scope, but those
 * in an if, assign before they read it is undefined until then: a loop, a macro or a set block
 * above the assignment does not see the caller's value. If an outer scope has the name, its value
 * is what the scope begins with.
 * @t  parsed whole
 * Returns -1 if there is no memory in the arena. */
int frames_find(struct jinja *t);

#endif
