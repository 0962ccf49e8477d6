/* The digest of a version's weights, and what a file says of them. */
#include "weights/state/version_content.h"

#include "base/hex.h"

#include <stdio.h>

void content_text(struct sha256_ctx *ctx, char out[CONTENT_LEN + 1])
{
    uint8_t digest[SHA256_DIGEST_SIZE];

    sha256_digest(ctx, sizeof digest, digest);
    hex_text(out, digest, sizeof digest);
}

/* Begins with the model spec; each tensor's checksum follows, in its order. */
static void content_begin(struct sha256_ctx *ctx, const struct tensor_list *spec)
{
    sha256_init(ctx);
    sha256_update(ctx, TENSOR_LIST_DIGEST_LEN, (const uint8_t *)spec->digest);
}

static void content_add(struct sha256_ctx *ctx, const struct checksum *sum)
{
    char text[CHECKSUM_LEN + 1];

    checksum_text(sum, text);
    sha256_update(ctx, CHECKSUM_LEN, (const uint8_t *)text);
}

void content_of(const struct tensor_list *spec, const struct checksum *sums,
                char out[CONTENT_LEN + 1])
{
    struct sha256_ctx ctx;

    content_begin(&ctx, spec);
    for (uint32_t i = 0; i < spec->n_tensors; i++)
        content_add(&ctx, &sums[i]);
    content_text(&ctx, out);
}

int content_of_version(struct store *s, const struct version *v, char out[CONTENT_LEN + 1],
                       struct err *e)
{
    const struct tensor_list *spec = store_model_spec(s)->tensor_list;
    struct sha256_ctx ctx;
    struct checksum sum;

    content_begin(&ctx, spec);
    for (uint32_t i = 0; i < spec->n_tensors; i++) {
        if (store_checksum(s, v, i, &sum, e) != 0)
            return -1;
        content_add(&ctx, &sum);
    }
    content_text(&ctx, out);
    return 0;
}

json_t *content_metadata(const char *label, const struct tensor_list *spec,
                         const struct checksum *sums)
{
    static const char prefix[] = "baton.checksum.";
    char key[sizeof prefix + TENSOR_LIST_NAME_LEN_MAX], text[CHECKSUM_LEN + 1];
    json_t *m = json_object();

    (void)json_object_set_new(m, "format", json_string("pt")); /* transformers asks for it */
    if (label != NULL)
        (void)json_object_set_new(m, "baton.weight_version", json_string(label));
    for (uint32_t i = 0; i < spec->n_tensors; i++) {
        (void)snprintf(key, sizeof key, "%s%s", prefix, spec->tensors[i].name);
        checksum_text(&sums[i], text);
        if (json_object_set_new(m, key, json_string(text)) != 0) {
            json_decref(m);
            return NULL;
        }
    }
    return m;
}
