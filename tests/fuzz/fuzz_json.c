/* A JSON text of any program: what is read of it, and refused, and how that is worded, is what
 * jansson alone would say, with all flags that are used. */
#include "tests/fuzz/fuzz.h"

#include "base/json_parse.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const size_t flags[] = {0,
                               JSON_DECODE_ANY,
                               JSON_REJECT_DUPLICATES,
                               JSON_REJECT_DUPLICATES | JSON_DECODE_ANY,
                               JSON_ALLOW_NUL,
                               JSON_ALLOW_NUL | JSON_DECODE_ANY,
                               JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES | JSON_DECODE_ANY};

static void check_equal(const json_t *a, const json_t *b)
{
    char *x = json_dumps(a, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    char *y = json_dumps(b, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));

    CHECK(json_equal(a, b) && (x == NULL) == (y == NULL));
    CHECK(x == NULL || strcmp(x, y) == 0);
    free(x);
    free(y);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool begun;
    char *text = malloc(size > 0 ? size : 1); /* of exactly its length */

    CHECK(text != NULL);
    memcpy(text, data, size);
    if (!begun) {
        json_parse_init();
        json_object_seed(1);
    }
    begun = true;
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        json_error_t why, theirs;
        bool starved;
        json_t *made = json_parse(text, size, flags[i], &why, &starved);
        json_t *right = json_loadb(text, size, flags[i], &theirs);

        CHECK(!starved && (made == NULL) == (right == NULL));
        if (right != NULL)
            check_equal(made, right);
        else
            CHECK(strcmp(why.text, theirs.text) == 0);
        json_decref(made);
        json_decref(right);
    }
    free(text);
    return 0;
}
