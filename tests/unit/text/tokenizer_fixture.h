/* What the tokenizer's tests share: the fixture's tokenizer.json, as it is or with members changed.
 */
#ifndef BATON_TESTS_TOKENIZER_FIXTURE_H
#define BATON_TESTS_TOKENIZER_FIXTURE_H

#include "text/tokenizer.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define FIXTURE_DIR FIXTURES "/kjv-qwen3-1m"    /* byte-level */
#define SPELLED_DIR FIXTURES "/tiny-llama2-spm" /* byte fallback */

static inline json_t *fixture_json(const char *path)
{
    json_error_t error;
    json_t *v = json_load_file(path, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);

    assert(v != NULL);
    return v;
}

/* Parses `root`, which it steals. */
static inline int fixture_parse(struct tokenizer **out, json_t *root, struct err *e)
{
    char *text = json_dumps(root, JSON_ENCODE_ANY);
    int rc;

    assert(text != NULL);
    rc = tokenizer_parse(out, text, strlen(text), e);
    free(text);
    json_decref(root);
    return rc;
}

/* Sets the member of `o` named by a list of keys; digits index arrays. Steals `value`. */
static inline void fixture_set(json_t *o, const char *const *keys, size_t n, json_t *value)
{
    for (size_t i = 0; i + 1 < n; i++) {
        o = json_is_array(o) ? json_array_get(o, strtoul(keys[i], NULL, 10))
                             : json_object_get(o, keys[i]);
        assert(o != NULL);
    }
    if (json_is_array(o))
        (void)json_array_set_new(o, strtoul(keys[n - 1], NULL, 10), value);
    else if (value == NULL)
        (void)json_object_del(o, keys[n - 1]);
    else
        (void)json_object_set_new(o, keys[n - 1], value);
}

#endif
