/* Parsing JSON text into jansson's values, with a lack of memory kept apart from a mistake in the
 * text: jansson itself reports it as a syntax error, or not at all. Also const values for jansson,
 * and objects and arrays that become NULL when memory ends. */
#ifndef BATON_BASE_JSON_PARSE_H
#define BATON_BASE_JSON_PARSE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* json_mutable - the same value, for functions of jansson that take a mutable one and leave its
 * content as it is: json_object_foreach, json_incref, json_unpack. */
static inline json_t *json_mutable(const json_t *value)
{
    return (json_t *)(uintptr_t)value;
}

/* json_copy_all, json_deep_copy_all - json_copy and json_deep_copy, which leave out members and
 * elements for which there is no memory, without a word. Returns: new; NULL: no memory, or `value`
 * is NULL. Threads: any. */
json_t *json_copy_all(const json_t *value);
json_t *json_deep_copy_all(const json_t *value);

/* json_parse_init - set jansson's allocator, which the whole process shares. Without this call a
 * lack of memory is recognized only as far as jansson's own error shows it.
 * Threads: main's, before any other uses jansson. */
void json_parse_init(void);

/* json_parse - json_loadb, with its flags JSON_REJECT_DUPLICATES, JSON_DECODE_ANY, JSON_ALLOW_NUL.
 * @starved  set when there was no memory: the result is NULL, and *why does not describe the text
 * Threads: any. Returns: new; NULL: see *starved, then *why. */
json_t *json_parse(const char *text, size_t len, size_t flags, json_error_t *why, bool *starved);

/* json_parse_file - json_parse for files that other programs write, in which an integer may have
 * any size (transformers writes 10^30 for "no limit"): one beyond 64 bits becomes a real, so that
 * only a reader that needs it as an integer refuses it. */
json_t *json_parse_file(const char *text, size_t len, size_t flags, json_error_t *why,
                        bool *starved);

/* json_object_with - put `value` (stolen; NULL: no memory) into `object` (stolen; NULL likewise).
 * Returns the object, or NULL without memory. Threads: any. */
static inline json_t *json_object_with(json_t *object, const char *name, json_t *value)
{
    if (object != NULL && json_object_set_new(object, name, value) == 0)
        return object;
    if (object == NULL)
        json_decref(value);
    json_decref(object);
    return NULL;
}

/* json_list_append - append `item` (stolen; NULL: there was no memory to make it) to `list`
 * (stolen; NULL: an append before this one failed), so that a loop checks once, at its end. Returns
 * the list, or NULL without memory. Threads: any. */
static inline json_t *json_list_append(json_t *list, json_t *item)
{
    if (list != NULL && json_array_append_new(list, item) == 0)
        return list;
    if (list == NULL)
        json_decref(item);
    json_decref(list);
    return NULL;
}

#endif
