#include "transport/ipc/torch_export.h"

#include "base/buf.h"

#include <assert.h>
#include <nettle/base64.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    PICKLE_PROTOCOL = 4,
    EVENT_NBYTES = IPC_EVENT_NBYTES, /* zeros: nothing to wait for */
};

/* Members of a FlattenedTensorMetadata. */
enum member { NAME, SHAPE, DTYPE, START, END, NUMEL, N_MEMBERS };

/* What is written once and referred to later. Further entries are the slabs' handles. */
enum memo {
    MEMO_TENSOR,
    MEMO_SIZE,
    MEMO_STORAGE,
    MEMO_REBUILD,
    MEMO_REF_NAME,
    MEMO_EVENT,
    MEMO_METADATA,
    MEMO_MEMBERS,
    MEMO_DTYPES = MEMO_MEMBERS + N_MEMBERS,
    MEMO_UUIDS = MEMO_DTYPES + DTYPE_COUNT,
    MEMO_SLABS = MEMO_UUIDS + IPC_GPUS_MAX
};

struct writer {
    struct buf out;
    uint32_t *memo; /* owned; by enum memo: 1 + the number of the memo entry; 0: not written yet */
    uint32_t n_memo;
    const char *uuids[IPC_GPUS_MAX]; /* those that MEMO_UUIDS are for; NULL: none yet */
};

static void torch_export_put(struct writer *w, const void *data, size_t len)
{
    buf_append(&w->out, data, len);
}

static void put_op(struct writer *w, uint8_t op)
{
    torch_export_put(w, &op, 1);
}

/* The low n bytes, little-endian. */
static void put_le(struct writer *w, uint64_t value, unsigned n)
{
    uint8_t bytes[8];

    for (unsigned i = 0; i < n; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    torch_export_put(w, bytes, n);
}

static void put_int(struct writer *w, uint64_t value)
{
    static const struct {
        uint64_t max;
        char op;
        unsigned n;
    } forms[] = {{UINT8_MAX, 'K', 1}, {UINT16_MAX, 'M', 2}, {INT32_MAX, 'J', 4}};
    unsigned n = 1;

    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        if (value <= forms[i].max) {
            put_op(w, (uint8_t)forms[i].op);
            put_le(w, value, forms[i].n);
            return;
        }
    assert(value <= INT64_MAX);
    while (n < 8 && value >> (8 * n - 1) != 0) /* the highest bit is the sign */
        n++;
    put_op(w, 0x8a); /* LONG1 */
    put_op(w, (uint8_t)n);
    put_le(w, value, n);
}

static void put_bool(struct writer *w, bool value)
{
    put_op(w, value ? 0x88 : 0x89);
}

static void torch_export_put_text(struct writer *w, const char *text)
{
    size_t len = strlen(text);

    if (len <= UINT8_MAX) {
        put_op(w, 0x8c); /* SHORT_BINUNICODE */
        put_le(w, len, 1);
    } else {
        put_op(w, 'X');
        put_le(w, len, 4);
    }
    torch_export_put(w, text, len);
}

static void torch_export_put_bytes(struct writer *w, const void *data, uint8_t len)
{
    put_op(w, 'C'); /* SHORT_BINBYTES */
    put_op(w, len);
    torch_export_put(w, data, len);
}

/* Returns true if the value was written before, and refers to it. Otherwise the caller writes it,
 * and then calls put_memoized. */
static bool put_known(struct writer *w, uint32_t key)
{
    uint32_t entry = w->memo[key];

    if (entry == 0)
        return false;
    put_op(w, entry - 1 <= UINT8_MAX ? 'h' : 'j'); /* BINGET, LONG_BINGET */
    put_le(w, entry - 1, entry - 1 <= UINT8_MAX ? 1 : 4);
    return true;
}

static void put_memoized(struct writer *w, uint32_t key)
{
    put_op(w, 0x94); /* MEMOIZE */
    w->memo[key] = ++w->n_memo;
}

static void put_global(struct writer *w, uint32_t key, const char *module, const char *name)
{
    if (put_known(w, key))
        return;
    torch_export_put_text(w, module);
    torch_export_put_text(w, name);
    put_op(w, 0x93); /* STACK_GLOBAL */
    put_memoized(w, key);
}

static void put_text_once(struct writer *w, uint32_t key, const char *text)
{
    if (put_known(w, key))
        return;
    torch_export_put_text(w, text);
    put_memoized(w, key);
}

static void put_bytes_once(struct writer *w, uint32_t key, const void *data, uint8_t len)
{
    if (put_known(w, key))
        return;
    torch_export_put_bytes(w, data, len);
    put_memoized(w, key);
}

static uint32_t uuid_index(struct writer *w, const char *uuid)
{
    uint32_t i = 0;

    while (i < IPC_GPUS_MAX - 1 && w->uuids[i] != NULL && strcmp(w->uuids[i], uuid) != 0)
        i++;
    assert(w->uuids[i] == NULL || strcmp(w->uuids[i], uuid) == 0);
    w->uuids[i] = uuid;
    return i;
}

static void put_shape(struct writer *w, const struct tensor_spec *t)
{
    put_global(w, MEMO_SIZE, "torch", "Size");
    put_op(w, '(');
    for (uint32_t i = 0; i < t->ndim; i++)
        put_int(w, t->shape[i]);
    put_op(w, 't');
    put_op(w, 0x85); /* TUPLE1: the arguments */
    put_op(w, 'R');
}

/* Of a contiguous tensor; a dimension of 0 counts as 1, as in torch. */
static void put_strides(struct writer *w, const struct tensor_spec *t)
{
    uint64_t stride[TENSOR_LIST_NDIM_MAX], n = 1;

    for (uint32_t i = t->ndim; i-- > 0;) {
        stride[i] = n;
        n *= t->shape[i] != 0 ? t->shape[i] : 1;
    }
    put_op(w, '(');
    for (uint32_t i = 0; i < t->ndim; i++)
        put_int(w, stride[i]);
    put_op(w, 't');
}

static void put_dtype(struct writer *w, enum dtype d)
{
    put_global(w, MEMO_DTYPES + (uint32_t)d, "torch", dtype_torch_name(d));
}

static void put_uuid(struct writer *w, const char *uuid)
{
    put_text_once(w, MEMO_UUIDS + uuid_index(w, uuid), uuid);
}

/* The 15 arguments of rebuild_cuda_tensor.
 * @named  the device is the UUID of the GPU; else it is index 0, which the receiver replaces */
static void put_arguments(struct writer *w, const struct torch_exports *x,
                          const struct torch_place *p, bool named)
{
    static const uint8_t no_event[EVENT_NBYTES];
    const struct torch_slab *slab = &x->slabs[p->slab];

    assert(p->slab < x->n_slabs && p->offset + p->tensor->nbytes <= slab->nbytes);
    assert(p->offset % dtype_nbytes(p->tensor->dtype) == 0);
    put_op(w, '(');
    put_global(w, MEMO_TENSOR, "torch", "Tensor");
    put_shape(w, p->tensor);
    put_strides(w, p->tensor);
    put_int(w, p->offset / dtype_nbytes(p->tensor->dtype));
    put_global(w, MEMO_STORAGE, "torch.storage", "TypedStorage");
    put_dtype(w, p->tensor->dtype);
    if (named)
        put_uuid(w, slab->uuid);
    else
        put_int(w, 0);
    put_bytes_once(w, MEMO_SLABS + p->slab, slab->mem, IPC_MEM_NBYTES);
    put_int(w, slab->nbytes);
    put_int(w, slab->begin);
    put_bool(w, false);
    put_bytes_once(w, MEMO_REF_NAME, x->ref_name, (uint8_t)strlen(x->ref_name));
    put_int(w, x->ref_slot);
    put_bytes_once(w, MEMO_EVENT, no_event, EVENT_NBYTES);
    put_bool(w, false);
    put_op(w, 't');
}

/* What begins and ends the pickle's root. */
static const char list_begin[] = "](", list_end[] = "e.", dict_begin[] = "}(", dict_end[] = "u.";

static int torch_export_begin(struct writer *w, const struct torch_exports *x, const char *root,
                              struct err *e)
{
    *w = (struct writer){.memo = calloc(MEMO_SLABS + (size_t)x->n_slabs, sizeof *w->memo)};
    assert(strlen(x->ref_name) <= IPC_REF_NAME_MAX);
    if (w->memo == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory to export the weights");
    put_op(w, 0x80);
    put_op(w, PICKLE_PROTOCOL);
    torch_export_put(w, root, strlen(root));
    return 0;
}

/* Puts the items into the root, ends the pickle, and encodes it. */
static char *torch_export_end(struct writer *w, const char *root, struct err *e)
{
    char *text = NULL;

    torch_export_put(w, root, strlen(root));
    if (!w->out.failed)
        text = malloc(BASE64_ENCODE_RAW_LENGTH(w->out.len) + 1);
    if (text != NULL) {
        base64_encode_raw(text, w->out.len, (const uint8_t *)w->out.data);
        text[BASE64_ENCODE_RAW_LENGTH(w->out.len)] = '\0';
    } else {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory to export the weights");
    }
    buf_fini(&w->out);
    free(w->memo);
    return text;
}

char *torch_export_handles(const struct torch_exports *x, const struct torch_gpu *gpus,
                           uint32_t n_gpus, struct err *e)
{
    struct writer w;

    assert(n_gpus > 0 && n_gpus <= IPC_GPUS_MAX);
    if (torch_export_begin(&w, x, list_begin, e) != 0)
        return NULL;
    for (uint32_t i = 0; i < x->n_tensors; i++) {
        put_op(&w, '}');
        put_op(&w, '(');
        for (uint32_t k = 0; k < n_gpus; k++) {
            put_uuid(&w, gpus[k].uuid);
            put_arguments(&w, x, &gpus[k].places[i], false);
        }
        put_op(&w, 'u');
    }
    return torch_export_end(&w, list_end, e);
}

char *torch_export_packed(const struct torch_exports *x, const struct torch_gpu *gpus,
                          uint32_t n_gpus, struct err *e)
{
    struct writer w;

    assert(n_gpus > 0 && n_gpus <= IPC_GPUS_MAX);
    if (torch_export_begin(&w, x, dict_begin, e) != 0)
        return NULL;
    for (uint32_t k = 0; k < n_gpus; k++) {
        put_uuid(&w, gpus[k].uuid);
        put_arguments(&w, x, &gpus[k].places[0], false);
    }
    return torch_export_end(&w, dict_end, e);
}

/* A tensor, which is made by SGLang's own function. */
static void put_tensor(struct writer *w, const struct torch_exports *x, const struct torch_place *p)
{
    put_global(w, MEMO_REBUILD, "sglang.srt.utils.patch_torch", "_rebuild_cuda_tensor_modified");
    put_arguments(w, x, p, true);
    put_op(w, 'R');
}

char *torch_export_named(const struct torch_exports *x, const struct torch_place *places,
                         struct err *e)
{
    struct writer w;

    if (torch_export_begin(&w, x, list_begin, e) != 0)
        return NULL;
    for (uint32_t i = 0; i < x->n_tensors; i++) {
        torch_export_put_text(&w, places[i].tensor->name);
        put_tensor(&w, x, &places[i]);
        put_op(&w, 0x86); /* TUPLE2 */
    }
    return torch_export_end(&w, list_end, e);
}

static void torch_export_put_member(struct writer *w, enum member m)
{
    static const char *const names[N_MEMBERS] = {"name",      "shape",   "dtype",
                                                 "start_idx", "end_idx", "numel"};

    put_text_once(w, MEMO_MEMBERS + (uint32_t)m, names[m]);
}

/* An object made without its constructor, and then given its members, as of any dataclass. */
static void put_metadata(struct writer *w, const struct torch_place *p)
{
    put_global(w, MEMO_METADATA, "sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata");
    put_op(w, ')');
    put_op(w, 0x81); /* NEWOBJ */
    torch_export_put(w, dict_begin, 2);
    torch_export_put_member(w, NAME);
    torch_export_put_text(w, p->tensor->name);
    torch_export_put_member(w, SHAPE);
    put_shape(w, p->tensor);
    torch_export_put_member(w, DTYPE);
    put_dtype(w, p->tensor->dtype);
    torch_export_put_member(w, START);
    put_int(w, p->offset);
    torch_export_put_member(w, END);
    put_int(w, p->offset + p->tensor->nbytes);
    torch_export_put_member(w, NUMEL);
    put_int(w, p->tensor->nbytes);
    put_op(w, 'u');
    put_op(w, 'b'); /* BUILD */
}

char *torch_export_bucket(const struct torch_exports *x, const struct torch_place *flat,
                          const struct torch_place *places, struct err *e)
{
    struct writer w;

    if (torch_export_begin(&w, x, dict_begin, e) != 0)
        return NULL;
    torch_export_put_text(&w, "flattened_tensor");
    put_tensor(&w, x, flat);
    torch_export_put_text(&w, "metadata");
    torch_export_put(&w, list_begin, 2);
    for (uint32_t i = 0; i < x->n_tensors; i++) {
        assert(places[i].offset % dtype_nbytes(places[i].tensor->dtype) == 0);
        assert(places[i].offset + places[i].tensor->nbytes <= flat->tensor->nbytes);
        put_metadata(&w, &places[i]);
    }
    torch_export_put(&w, list_end, 1);
    return torch_export_end(&w, dict_end, e);
}
