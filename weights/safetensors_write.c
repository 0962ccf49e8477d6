/* The head of a safetensors file. */
#include "weights/safetensors_write.h"

#include "base/buf.h"
#include "base/json_parse.h"
#include "weights/safetensors.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

enum { HEAD_ALIGN = 8 };

static json_t *safetensors_tensor_json(const struct tensor_spec *t)
{
    json_t *shape = json_array();

    for (uint32_t d = 0; d < t->ndim; d++)
        shape = json_list_append(shape, json_integer((json_int_t)t->shape[d]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_name(t->dtype), "shape", shape,
                     "data_offsets", (json_int_t)t->offset, (json_int_t)(t->offset + t->nbytes));
}

static int safetensors_write_append_piece(const char *text, size_t len, void *arg)
{
    struct buf *out = arg;

    buf_append(out, text, len);
    return out->failed ? -1 : 0;
}

/* json_dumps is not used, for the reason that handlers/reply.h has. */
static void put_header(struct buf *out, const struct tensor_spec *tensors, uint32_t n,
                       json_t *metadata)
{
    json_t *root = json_object();
    bool ok = json_object_set_new(root, "__metadata__", metadata) == 0;

    for (uint32_t i = 0; i < n && ok; i++)
        ok = json_object_set_new(root, tensors[i].name, safetensors_tensor_json(&tensors[i])) == 0;
    if (!ok || json_dump_callback(root, safetensors_write_append_piece, out, JSON_COMPACT) != 0)
        out->failed = true;
    json_decref(root);
}

int safetensors_head_make(char **out, size_t *nbytes, const struct tensor_spec *tensors, uint32_t n,
                          json_t *metadata, struct err *e)
{
    struct buf head = {0};
    uint64_t length = 0;

    buf_append(&head, &length, sizeof length);
    put_header(&head, tensors, n, metadata);
    while (head.len % HEAD_ALIGN != 0 && !head.failed)
        buf_puts(&head, " ");
    if (head.failed) {
        buf_fini(&head);
        return err_set(e, ERR_NO_MEMORY, "", "no memory for the head of a safetensors file");
    }
    length = htole64(head.len - SAFETENSORS_PREFIX);
    memcpy(head.data, &length, sizeof length);
    *out = buf_take(&head, nbytes);
    return 0;
}

/* The first tensor that ends after `at`, a place among the tensors' bytes. */
static uint32_t tensor_at(const struct tensor_list *spec, uint64_t at)
{
    uint32_t low = 0, high = spec->n_tensors;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if (spec->tensors[mid].offset + spec->tensors[mid].nbytes <= at)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

int safetensors_read_parts(const struct safetensors_parts *f, uint64_t at, uint64_t n, void *out,
                           struct err *e)
{
    uint64_t end = at + n, part = 0;
    char *to = out;

    assert(at <= f->nbytes_head + f->tensors->nbytes &&
           n <= f->nbytes_head + f->tensors->nbytes - at);
    if (at < f->nbytes_head) {
        part = end < f->nbytes_head ? n : f->nbytes_head - at;
        memcpy(to, f->head + at, part);
        at += part;
    }
    for (uint32_t i = at < end ? tensor_at(f->tensors, at - f->nbytes_head) : 0; at < end; i++) {
        const struct tensor_spec *t = &f->tensors->tensors[i];
        uint64_t offset = at - f->nbytes_head - t->offset, left = t->nbytes - offset;

        to += part;
        part = left < end - at ? left : end - at;
        if (f->read(f->arg, i, offset, part, to, e) != 0)
            return -1;
        at += part;
    }
    return 0;
}
