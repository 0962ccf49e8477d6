/* JSON text to jansson's values, where a lack of memory is no mistake of the text: jansson reports
 * it as a syntax error, or not at all. */
#ifndef BATON_BASE_JSON_PARSE_H
#define BATON_BASE_JSON_PARSE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* json_parse_init - sets jansson's allocator, which is the whole process's. Without it a lack of
 * memory is still recognized by what jansson says, as far as that goes.
 * Threads: main's, before any other uses jansson. */
void json_parse_init(void);

/* json_parse - json_loadb, with its flags.
 * @starved  there was no memory: the result is NULL, and *why says nothing of the text
 * Threads: any. Returns: new; NULL: see *starved, then *why. */
json_t *json_parse(const char *text, size_t len, size_t flags, json_error_t *why, bool *starved);

#endif
