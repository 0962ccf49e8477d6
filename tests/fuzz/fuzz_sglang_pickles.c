/* Pickles as SGLang's trainers write them, made here out of the input's bytes: a flattened bucket,
 * a list of tensors, or a list of tensors serialized for each rank, with any names, dtypes, shapes
 * and places. What is right must be read to the value; with one of the lies below it must be
 * refused, saying why; and with bytes of it changed, whatever is accepted lies within its storage.
 * (fuzz_torch_tensors has the bytes themselves.) */
#include "tests/fuzz/fuzz.h"

#include "base/buf.h"
#include "transport/ipc/torch_pickle.h"
#include "transport/ipc/torch_tensors.h"

#include <nettle/base64.h>

enum { PARTS_MAX = 12, NDIM_MAX = 4, CHANGES_MAX = 4, STORAGE_NBYTES = 1 << 24 };

#define UUID "11111111-2222-3333-4444-555555555555"

/* One lie, about the part that is picked. */
enum lie {
    LIE_NONE,
    LIE_NUMEL,     /* flattened: numel is not end - start */
    LIE_END,       /* flattened: more elements than dtype and shape make */
    LIE_BEYOND,    /* flattened: behind the end of the tensor */
    LIE_NEGATIVE,  /* flattened: start_idx */
    LIE_MEMBER,    /* a member that nobody knows */
    LIE_NAME,      /* the name of another */
    LIE_NAME_TYPE, /* no str */
    LIE_OFFSET,    /* lists: the tensor reaches beyond its storage */
    LIE_STRIDE,    /* not contiguous */
    LIE_UUID,      /* lists: on another GPU */
    LIE_PROTOCOL,
    LIE_TRAILING,
    LIE_COUNT
};

struct part {
    enum dtype dtype;
    const char *torch; /* its name there */
    uint32_t ndim;
    uint64_t shape[NDIM_MAX], numel, nbytes, at; /* bytes into the storage */
    char name[24];
};

struct made {
    struct part parts[PARTS_MAX];
    uint32_t n, form, rank, picked, unit;
    uint64_t nbytes;
    enum lie lie;
};

static const struct {
    enum dtype dtype;
    const char *torch;
} dtypes[] = {{DTYPE_F32, "float32"}, {DTYPE_BF16, "bfloat16"}, {DTYPE_F16, "float16"},
              {DTYPE_U8, "uint8"},    {DTYPE_I64, "int64"},     {DTYPE_I8, "int8"}};

/* ---- opcodes ---- */

static void put_byte(struct buf *b, unsigned byte)
{
    unsigned char c = (unsigned char)byte;

    buf_append(b, &c, 1);
}

static void put_str(struct buf *b, const char *text)
{
    put_byte(b, 0x8c); /* SHORT_BINUNICODE */
    put_byte(b, (unsigned)strlen(text));
    buf_puts(b, text);
    put_byte(b, 0x94); /* MEMOIZE */
}

static void put_bytes(struct buf *b, const void *data, size_t n)
{
    unsigned char len[4] = {(unsigned char)n, (unsigned char)(n >> 8), (unsigned char)(n >> 16), 0};

    put_byte(b, 'B'); /* BINBYTES */
    buf_append(b, len, 4);
    buf_append(b, data, n);
}

static void put_int(struct buf *b, int64_t v)
{
    put_byte(b, 0x8a); /* LONG1, of 8 bytes, little-endian */
    put_byte(b, 8);
    for (int i = 0; i < 8; i++)
        put_byte(b, (unsigned)((uint64_t)v >> (8 * i)) & 0xff);
}

static void put_global(struct buf *b, const char *module, const char *name)
{
    put_str(b, module);
    put_str(b, name);
    put_byte(b, 0x93); /* STACK_GLOBAL */
}

static void put_tuple(struct buf *b, const uint64_t *v, uint32_t n)
{
    put_byte(b, '(');
    for (uint32_t i = 0; i < n; i++)
        put_int(b, (int64_t)v[i]);
    put_byte(b, 't');
}

static void put_size(struct buf *b, const uint64_t *shape, uint32_t ndim)
{
    put_global(b, "torch", "Size");
    put_tuple(b, shape, ndim);
    put_byte(b, 0x85); /* TUPLE1 */
    put_byte(b, 'R');
}

/* ---- what is sent ---- */

/* rebuild_cuda_tensor's 15 arguments. @at  bytes into the storage */
static void put_tensor(struct buf *b, const struct made *m, const struct part *p, uint64_t at)
{
    bool lies = p == &m->parts[m->picked] || m->form == 0;
    uint64_t strides[NDIM_MAX], unit = dtype_nbytes(p->dtype), storage = STORAGE_NBYTES;
    unsigned char mem[66] = {2, 'c'}, event[64] = {0};

    for (uint32_t i = p->ndim, wanted = 1; i-- > 0; wanted *= (uint32_t)p->shape[i])
        strides[i] = wanted;
    if (lies && m->lie == LIE_STRIDE)
        strides[0] += 1;
    if (lies && m->lie == LIE_OFFSET)
        storage = at + p->nbytes - 1;
    memset(mem + 2, 0xab, 64);
    put_global(b, "sglang.srt.utils.patch_torch", "_rebuild_cuda_tensor_modified");
    put_byte(b, '(');
    put_global(b, "torch", "Tensor");
    put_size(b, p->shape, p->ndim);
    put_tuple(b, strides, p->ndim);
    put_int(b, (int64_t)(at / unit));
    put_global(b, "torch.storage", "TypedStorage");
    put_global(b, "torch", p->torch);
    put_str(b, lies && m->lie == LIE_UUID ? "99999999-2222-3333-4444-555555555555" : UUID);
    put_bytes(b, mem, sizeof mem);
    put_int(b, (int64_t)storage);
    put_int(b, 2097152);
    put_byte(b, 0x89); /* False */
    put_bytes(b, "/torch_4242_1234567890_0", 24);
    put_int(b, 3);
    put_bytes(b, event, sizeof event);
    put_byte(b, 0x88); /* True */
    put_byte(b, 't');
    put_byte(b, 'R');
}

static void put_name(struct buf *b, const struct made *m, uint32_t i)
{
    if (i == m->picked && m->lie == LIE_NAME_TYPE)
        put_int(b, 7);
    else
        put_str(b, i == m->picked && m->lie == LIE_NAME ? m->parts[(i + 1) % m->n].name
                                                        : m->parts[i].name);
}

static void put_metadata(struct buf *b, const struct made *m, uint32_t i)
{
    const struct part *p = &m->parts[i];
    enum lie lie = i == m->picked ? m->lie : LIE_NONE;
    int64_t start = (int64_t)(p->at / m->unit), numel = (int64_t)(p->nbytes / m->unit);
    int64_t end = start + numel;

    start = lie == LIE_NEGATIVE ? -1 : lie == LIE_BEYOND ? start + STORAGE_NBYTES : start;
    end = lie == LIE_BEYOND ? end + STORAGE_NBYTES : lie == LIE_END ? end + 1 : end;
    numel = lie == LIE_END || lie == LIE_NUMEL ? numel + 1 : numel;
    put_global(b, "sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata");
    buf_puts(b, ")\x81}("); /* () NEWOBJ, {}, MARK */
    put_str(b, "name");
    put_name(b, m, i);
    put_str(b, "shape");
    put_size(b, p->shape, p->ndim);
    put_str(b, "dtype");
    put_global(b, "torch", p->torch);
    put_str(b, lie == LIE_MEMBER ? "begin_idx" : "start_idx");
    put_int(b, start);
    put_str(b, "end_idx");
    put_int(b, end);
    put_str(b, "numel");
    put_int(b, numel);
    buf_puts(b, "ub"); /* SETITEMS, BUILD */
}

static void put_flattened(struct buf *b, const struct made *m)
{
    struct part flat = {.dtype = m->unit == 1 ? DTYPE_U8 : m->parts[0].dtype,
                        .torch = m->unit == 1 ? "uint8" : m->parts[0].torch,
                        .ndim = 1,
                        .shape = {m->nbytes / m->unit},
                        .nbytes = m->nbytes};

    buf_puts(b, "}(");
    put_str(b, "flattened_tensor");
    put_tensor(b, m, &flat, 0);
    put_str(b, "metadata");
    buf_puts(b, "](");
    for (uint32_t i = 0; i < m->n; i++)
        put_metadata(b, m, i);
    buf_puts(b, "eu"); /* APPENDS, SETITEMS */
}

/* A pickle of one tensor, as the value of each rank. */
static void put_local(struct buf *b, const struct made *m, uint32_t i)
{
    struct buf inner = {0};

    put_byte(&inner, 0x80);
    put_byte(&inner, 4);
    put_tensor(&inner, m, &m->parts[i], m->parts[i].at);
    put_byte(&inner, '.');
    put_global(b, "sglang.srt.model_executor.model_runner", "LocalSerializedTensor");
    buf_puts(b, ")\x81}(");
    put_str(b, i == m->picked && m->lie == LIE_MEMBER ? "value" : "values");
    buf_puts(b, "](");
    for (uint32_t k = 0; k <= m->rank; k++)
        put_bytes(b, inner.data, inner.len);
    buf_puts(b, "eub");
    buf_fini(&inner);
}

static void put_pickle(struct buf *b, const struct made *m)
{
    put_byte(b, 0x80);
    put_byte(b, m->lie == LIE_PROTOCOL ? 2 : 4);
    if (m->form == 0) {
        put_flattened(b, m);
    } else {
        buf_puts(b, "](");
        for (uint32_t i = 0; i < m->n; i++) {
            put_name(b, m, i);
            if (m->form == 1)
                put_tensor(b, m, &m->parts[i], m->parts[i].at);
            else
                put_local(b, m, i);
            put_byte(b, 0x86); /* TUPLE2 */
        }
        put_byte(b, 'e');
    }
    put_byte(b, '.');
    if (m->lie == LIE_TRAILING)
        put_byte(b, 'N');
}

/* ---- from the input ---- */

static void take_part(struct taker *t, struct part *p, uint32_t i, uint64_t at)
{
    uint32_t d = take_below(t, sizeof dtypes / sizeof dtypes[0]);

    *p = (struct part){.dtype = dtypes[d].dtype, .torch = dtypes[d].torch, .numel = 1};
    p->ndim = take_below(t, NDIM_MAX + 1);
    for (uint32_t k = 0; k < p->ndim; k++) {
        p->shape[k] = take_below(t, 9);
        p->numel *= p->shape[k];
    }
    p->nbytes = p->numel * dtype_nbytes(p->dtype);
    p->at = at;
    (void)snprintf(p->name, sizeof p->name, "layer.%u.w", i);
}

/* Does the lie say anything of what is sent? */
static bool is_told(const struct made *m)
{
    const struct part *p = &m->parts[m->picked];

    switch (m->lie) {
    case LIE_NUMEL:
    case LIE_END:
    case LIE_BEYOND:
    case LIE_NEGATIVE:
        return m->form == 0;
    case LIE_MEMBER:
        return m->form != 1;
    case LIE_NAME:
        return m->n > 1;
    case LIE_OFFSET:
        return m->form == 0 ? m->nbytes > 0 : p->nbytes > 0;
    case LIE_STRIDE: /* of a dimension of 1, and of nothing, it means nothing */
        return m->form == 0 ? m->nbytes / m->unit > 1
                            : p->numel > 0 && p->ndim > 0 && p->shape[0] > 1;
    case LIE_UUID: /* of all that there are, or of the others */
        return m->form != 0 && m->n > 1;
    default:
        return m->lie != LIE_NONE;
    }
}

static void take_made(struct taker *t, struct made *m)
{
    uint32_t one_dtype;
    uint64_t at = 0;

    memset(m, 0, sizeof *m);
    m->form = take_below(t, 3);
    m->lie = (enum lie)take_below(t, LIE_COUNT);
    m->rank = m->form == 2 ? take_below(t, 4) : 0;
    m->n = 1 + take_below(t, PARTS_MAX);
    m->picked = take_below(t, m->n);
    one_dtype = m->form == 0 ? take_below(t, 2) : 0;
    for (uint32_t i = 0; i < m->n; i++) {
        struct part *p = &m->parts[i];

        take_part(t, p, i, at);
        if (one_dtype) {
            p->dtype = m->parts[0].dtype;
            p->torch = m->parts[0].torch;
            p->nbytes = p->numel * dtype_nbytes(p->dtype);
        }
        if (m->form != 0) /* where its own dtype can begin, with room between */
            p->at = (at + 15) / 16 * 16 + 16 * (uint64_t)take_below(t, 3);
        at = p->at + p->nbytes;
    }
    m->unit = one_dtype ? dtype_nbytes(m->parts[0].dtype) : 1;
    m->nbytes = at;
}

/* ---- what must hold ---- */

static void check_sound(const struct torch_tensors *t)
{
    const struct ipc_handles *h = &t->handles;

    if (t->tensor_list == NULL) {
        CHECK(h->all == NULL);
        return;
    }
    CHECK(h->n_gpus == 1 && h->n_handles == (h->packed ? 1 : t->tensor_list->n_tensors));
    CHECK(!h->packed || t->tensor_list->nbytes <= h->all[0].nbytes);
    for (uint32_t i = 0; i < h->n_handles; i++) {
        const struct ipc_handle *one = &h->all[i];

        CHECK(h->packed || one->nbytes == t->tensor_list->tensors[i].nbytes);
        CHECK(one->nbytes <= one->storage_nbytes);
        CHECK(one->tensor_offset <= one->storage_nbytes - one->nbytes);
        CHECK(one->storage_offset <= TENSOR_LIST_NBYTES_MAX - one->storage_nbytes);
        CHECK(one->ref_slot < IPC_REF_SLOTS);
    }
}

static void check_value(const struct torch_tensors *t, const struct made *m)
{
    const struct ipc_handle *all = t->handles.all;

    CHECK(t->tensor_list != NULL && t->tensor_list->n_tensors == m->n &&
          strcmp(t->uuid, UUID) == 0);
    for (uint32_t i = 0; i < m->n; i++) {
        const struct tensor_spec *s = &t->tensor_list->tensors[i];
        const struct part *p = &m->parts[i];
        uint64_t at = t->handles.packed ? all[0].tensor_offset + s->offset : all[i].tensor_offset;

        CHECK(strcmp(s->name, p->name) == 0 && s->dtype == p->dtype && s->ndim == p->ndim);
        CHECK(memcmp(s->shape, p->shape, p->ndim * sizeof p->shape[0]) == 0);
        CHECK(s->nbytes == p->nbytes && at == p->at);
    }
}

static bool read_pickle(const struct buf *b, const struct made *m, struct torch_tensors *out)
{
    static const enum err_code codes[] = {ERR_BAD_REQUEST, ERR_TOO_LARGE, ERR_NONE};
    static const char field[] = "/serialized_named_tensors/0";
    size_t n = BASE64_ENCODE_RAW_LENGTH(b->len);
    char *text = malloc(n + 1); /* exactly, so that a read beyond it is seen */
    struct err e = {0};
    int rc;

    CHECK(text != NULL);
    base64_encode_raw(text, b->len, (const uint8_t *)b->data);
    rc = torch_tensors_read(out, text, n, m->rank, field, &e);
    free(text);
    if (rc == 0) {
        CHECK(e.code == ERR_NONE);
        check_sound(out);
        return true;
    }
    check_refusal(&e, codes, field);
    CHECK(out->tensor_list == NULL && out->handles.all == NULL);
    return false;
}

static void change(struct taker *t, struct buf *b)
{
    for (int i = 0; i < CHANGES_MAX && t->end - t->at >= 3; i++) {
        size_t at = ((size_t)take_byte(t) << 8 | take_byte(t)) % b->len;

        b->data[at] = (char)take_byte(t);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct taker in = {data, data + len};
    struct torch_tensors t = {0};
    struct buf b = {0};
    struct made m;

    take_made(&in, &m);
    put_pickle(&b, &m);
    CHECK(!b.failed);
    if (read_pickle(&b, &m, &t)) {
        CHECK(!is_told(&m));
        if (m.lie == LIE_NONE)
            check_value(&t, &m);
        torch_tensors_fini(&t);
    } else {
        CHECK(m.lie != LIE_NONE);
    }
    change(&in, &b);
    memset(&t, 0, sizeof t);
    if (read_pickle(&b, &m, &t))
        torch_tensors_fini(&t);
    buf_fini(&b);
    return 0;
}
