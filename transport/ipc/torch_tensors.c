/* Converts the values of a pickle to a tensor list and its handles by their schema, member by
 * member. The metadata of a tensor is checked against the tensor of which it is a part. */
#include "transport/ipc/torch_tensors.h"

#include "base/utf8.h"
#include "transport/ipc/torch_handle.h"
#include "transport/ipc/torch_pickle.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NAME_SHOWN = 160,
    WHAT_MAX = NAME_SHOWN + 16, /* "tensor '...'" */
    KEY_SHOWN = 64,
    ROOM_MIN = 64 /* initial handles of a set */
};
_Static_assert((int)PICKLE_NAME_MAX == (int)TENSOR_LIST_NAME_LEN_MAX,
               "names are read as long as plans'");

struct walk {
    struct pickle p;
    uint32_t rank;
    const char *field;
    struct tensor_list_builder *builder; /* owned */
    struct ipc_handle *handles;          /* owned; [n] of [room] */
    uint32_t n, room;
    char uuid[IPC_UUID_LEN + 1]; /* of the tensors so far; "": they have only an index */
    char what[WHAT_MAX];         /* the tensor that is being read; for messages */
    struct err *e;
};

/* One FlattenedTensorMetadata. The numbers count elements of the flattened tensor. */
struct part {
    const struct pickle_value *name, *shape, *dtype, *start, *end, *numel;
};

__attribute__((format(printf, 2, 3))) static int refuse(struct walk *w, const char *fmt, ...)
{
    char text[384];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(w->e, ERR_BAD_REQUEST, w->field, "%s%s%s", w->what,
                   w->what[0] != '\0' ? ": " : "", text);
}

static const struct pickle_value *torch_value_at(const struct walk *w, uint32_t cell)
{
    return &w->p.values[w->p.cells[cell].value];
}

static bool torch_is_text(const struct pickle_value *v, const char *text)
{
    return strlen(text) == v->n && memcmp(v->u.data, text, v->n) == 0;
}

/* A member of a dict and where its value goes. */
struct member {
    const char *name;
    const struct pickle_value **value;
};

static int read_member_once(struct walk *w, const char *whose, const struct member *members,
                            uint32_t n, const struct pickle_value *key,
                            const struct pickle_value *value)
{
    int shown = key->n < KEY_SHOWN ? (int)key->n : KEY_SHOWN;

    for (uint32_t i = 0; i < n; i++) {
        if (!torch_is_text(key, members[i].name))
            continue;
        if (*members[i].value != NULL)
            return refuse(w, "%s has '%s' twice", whose, members[i].name);
        *members[i].value = value;
        return 0;
    }
    return refuse(w, "%s has a member '%.*s', which says something that is not known here", whose,
                  shown, (const char *)key->u.data);
}

/* Requires exactly these members, each once, in any order. */
static int torch_read_dict(struct walk *w, const struct pickle_value *dict, const char *whose,
                           const struct member *members, uint32_t n)
{
    uint32_t cell = dict->u.items.first;

    for (uint32_t i = 0; i < dict->n / 2; i++) {
        const struct pickle_value *key = torch_value_at(w, cell);

        cell = w->p.cells[cell].next;
        if (read_member_once(w, whose, members, n, key, torch_value_at(w, cell)) != 0)
            return -1;
        cell = w->p.cells[cell].next;
    }
    for (uint32_t i = 0; i < n; i++)
        if (*members[i].value == NULL)
            return refuse(w, "%s has no '%s'", whose, members[i].name);
    return 0;
}

/* The dict of an object, or a plain dict instead of one. */
static const struct pickle_value *dict_of(const struct walk *w, const struct pickle_value *v,
                                          enum pickle_global class)
{
    if (v->kind == PICKLE_OBJECT && v->global == class && v->n == 1)
        return torch_value_at(w, v->u.items.first);
    return v->kind == PICKLE_DICT ? v : NULL;
}

static int check_torch_name(struct walk *w, char name[TENSOR_LIST_NAME_LEN_MAX + 1],
                            const struct pickle_value *v, uint32_t i)
{
    w->what[0] = '\0';
    if (v->kind != PICKLE_STR)
        return refuse(w, "the name of tensor %u is %s; it is a str", i, pickle_kind_name(v));
    memcpy(name, v->u.data, v->n);
    name[v->n] = '\0';
    (void)snprintf(w->what, sizeof w->what, "tensor '%.*s'", utf8_cut(name, NAME_SHOWN), name);
    return 0;
}

/* The builder checks names and their order; its JSON pointers do not fit this request. */
static int tensor_list_add(struct walk *w, const char *name, enum dtype dtype,
                           const uint64_t *shape, uint32_t ndim)
{
    if (tensor_list_builder_add(w->builder, name, dtype, shape, ndim, UINT64_MAX, w->e) == 0)
        return 0;
    (void)snprintf(w->e->field, sizeof w->e->field, "%s", w->field);
    return -1;
}

static int add_handle(struct walk *w, const struct ipc_handle *h)
{
    uint32_t wanted = w->room == 0 ? ROOM_MIN : w->room * 2;
    struct ipc_handle *larger;

    if (w->n == w->room) {
        if (w->n >= IPC_HANDLES_MAX)
            return err_set(w->e, ERR_TOO_LARGE, w->field, "more than %d tensors", IPC_HANDLES_MAX);
        larger = realloc(w->handles, wanted * sizeof *larger);
        if (larger == NULL)
            return err_set(w->e, ERR_NO_MEMORY, "", "no memory for the handles");
        w->handles = larger;
        w->room = wanted;
    }
    w->handles[w->n++] = *h;
    return 0;
}

/* All tensors of a string must be on one GPU, because one process wrote it. */
static int torch_tensors_check_gpu(struct walk *w, const char *uuid)
{
    if (w->n == 0)
        memcpy(w->uuid, uuid, sizeof w->uuid);
    if (strcmp(w->uuid, uuid) == 0)
        return 0;
    return refuse(w, "it is on GPU %s, those before it on %s; each string holds one GPU's tensors",
                  uuid[0] != '\0' ? uuid : "(an index)",
                  w->uuid[0] != '\0' ? w->uuid : "(an index)");
}

/* The flattened bucket */

static int read_tensor_part(struct walk *w, const struct pickle_value *v, uint32_t i,
                            struct part *part)
{
    const struct member members[] = {{"name", &part->name},   {"shape", &part->shape},
                                     {"dtype", &part->dtype}, {"start_idx", &part->start},
                                     {"end_idx", &part->end}, {"numel", &part->numel}};
    const struct pickle_value *dict = dict_of(w, v, PICKLE_FLAT_METADATA);

    (void)snprintf(w->what, sizeof w->what, "metadata %u", i);
    if (dict == NULL)
        return refuse(w, "it is %s, not a FlattenedTensorMetadata", pickle_kind_name(v));
    *part = (struct part){NULL};
    return torch_read_dict(w, dict, "it", members, sizeof members / sizeof members[0]);
}

static int torch_read_shape(struct walk *w, const struct pickle_value *v,
                            uint64_t shape[TENSOR_LIST_NDIM_MAX])
{
    uint32_t cell = v->u.items.first;

    if (v->kind != PICKLE_SIZE && v->kind != PICKLE_TUPLE)
        return refuse(w, "its shape is %s; it is a torch.Size", pickle_kind_name(v));
    if (v->n > TENSOR_LIST_NDIM_MAX)
        return refuse(w, "its shape has %u dimensions; %d is the limit", v->n,
                      TENSOR_LIST_NDIM_MAX);
    for (uint32_t i = 0; i < v->n; i++, cell = w->p.cells[cell].next) {
        const struct pickle_value *dim = torch_value_at(w, cell);

        if (dim->kind != PICKLE_INT || dim->u.integer < 0)
            return refuse(w, "dimension %u of its shape is not an int from 0 on", i);
        shape[i] = (uint64_t)dim->u.integer;
    }
    return 0;
}

static int read_index(struct walk *w, const struct pickle_value *v, const char *name, uint64_t *out)
{
    if (v->kind != PICKLE_INT || v->u.integer < 0)
        return refuse(w, "its %s is not an int from 0 on", name);
    *out = (uint64_t)v->u.integer;
    return 0;
}

/* The begin of the part in the flattened tensor, in bytes. [start_idx, end_idx) must be within
 * it, and have as many bytes as dtype and shape give. */
static int check_part_offset(struct walk *w, const struct part *part, const struct ipc_handle *flat,
                             uint64_t nbytes, uint64_t *at)
{
    uint64_t unit = dtype_nbytes(flat->dtype), start = 0, end = 0, numel = 0;

    if (read_index(w, part->start, "start_idx", &start) != 0 ||
        read_index(w, part->end, "end_idx", &end) != 0 ||
        read_index(w, part->numel, "numel", &numel) != 0)
        return -1;
    if (start > end || end > flat->nbytes / unit)
        return refuse(w, "it is said to be elements %llu to %llu of a flattened tensor of %llu",
                      (unsigned long long)start, (unsigned long long)end,
                      (unsigned long long)(flat->nbytes / unit));
    if (numel != end - start)
        return refuse(w, "numel is %llu, but start_idx %llu and end_idx %llu make %llu",
                      (unsigned long long)numel, (unsigned long long)start, (unsigned long long)end,
                      (unsigned long long)(end - start));
    if (numel * unit != nbytes)
        return refuse(w, "dtype and shape make %llu bytes, start_idx and end_idx %llu",
                      (unsigned long long)nbytes, (unsigned long long)(numel * unit));
    *at = start * unit;
    return 0;
}

/* Adds one part of the flattened tensor as a handle of its own. */
static int add_part(struct walk *w, const struct pickle_value *v, uint32_t i,
                    const struct ipc_handle *flat)
{
    char name[TENSOR_LIST_NAME_LEN_MAX + 1];
    struct ipc_handle h = *flat;
    struct part part;
    uint64_t numel = 0, at = 0;

    if (read_tensor_part(w, v, i, &part) != 0 || check_torch_name(w, name, part.name, i) != 0 ||
        torch_read_shape(w, part.shape, h.shape) != 0)
        return -1;
    if (part.dtype->kind != PICKLE_GLOBAL || part.dtype->global != PICKLE_DTYPE)
        return refuse(w, "its dtype is not a dtype");
    h.dtype = (enum dtype)part.dtype->dtype;
    h.ndim = part.shape->n;
    if (flat->dtype != DTYPE_U8 && flat->dtype != h.dtype)
        return refuse(w,
                      "it is of %s, and was converted to %s when it was flattened; flatten each "
                      "dtype by itself, or as uint8",
                      dtype_name(h.dtype), dtype_name(flat->dtype));
    if (!tensor_list_measure(h.dtype, h.shape, h.ndim, &numel, &h.nbytes))
        return refuse(w, "its shape makes more than 2^63 - 1 bytes");
    if (check_part_offset(w, &part, flat, h.nbytes, &at) != 0 ||
        tensor_list_add(w, name, h.dtype, h.shape, h.ndim) != 0)
        return -1;
    h.tensor_offset += at;
    return add_handle(w, &h);
}

/* If the parts are adjacent from the first byte on, they become one bucket, which is copied in
 * one piece. */
static void handles_pack(struct walk *w, const struct ipc_handle *flat)
{
    uint64_t at = flat->tensor_offset;

    for (uint32_t i = 0; i < w->n; i++) {
        if (w->handles[i].tensor_offset != at)
            return;
        at += w->handles[i].nbytes;
    }
    w->handles[0] = *flat;
    w->n = 1;
}

static int read_flat(struct walk *w, const struct pickle_value *v, struct ipc_handle *flat)
{
    if (v->kind != PICKLE_EXPORT)
        return refuse(w, "flattened_tensor is %s; it is a CUDA tensor", pickle_kind_name(v));
    if (torch_export_read(flat, w->uuid, &w->p, v, "flattened_tensor", w->field, w->e) != 0)
        return -1;
    if (flat->ndim != 1)
        return refuse(w, "flattened_tensor has %u dimensions; it has 1", flat->ndim);
    return 0;
}

static int walk_flattened(struct walk *w, const struct pickle_value *root)
{
    const struct pickle_value *tensor = NULL, *metadata = NULL;
    const struct member members[] = {{"flattened_tensor", &tensor}, {"metadata", &metadata}};
    struct ipc_handle flat;
    uint32_t cell;

    if (torch_read_dict(w, root, "the bucket", members, 2) != 0 || read_flat(w, tensor, &flat) != 0)
        return -1;
    if (metadata->kind != PICKLE_LIST)
        return refuse(w, "metadata is %s; it is a list", pickle_kind_name(metadata));
    if (metadata->n == 0 && flat.nbytes > 0)
        return refuse(w, "flattened_tensor has %llu bytes, and metadata names no tensor in it",
                      (unsigned long long)flat.nbytes);
    cell = metadata->u.items.first;
    for (uint32_t i = 0; i < metadata->n; i++, cell = w->p.cells[cell].next)
        if (add_part(w, torch_value_at(w, cell), i, &flat) != 0)
            return -1;
    if (w->n > 1)
        handles_pack(w, &flat);
    return 0;
}

/* The list of tensors */

/* Reads a pickle of one tensor that is bytes of another pickle. It may not contain further ones:
 * its result is a tensor or nothing. */
static int read_serialized(struct walk *w, const struct pickle_value *bytes, struct ipc_handle *h,
                           char uuid[IPC_UUID_LEN + 1])
{
    const struct pickle_value *root;
    struct pickle p;
    int rc;

    if (bytes->kind != PICKLE_BYTES)
        return refuse(w, "value %u of its LocalSerializedTensor is %s; it is bytes", w->rank,
                      pickle_kind_name(bytes));
    if (bytes->n > TENSORS_LOCAL_NBYTES_MAX)
        return refuse(w, "value %u of its LocalSerializedTensor has %u bytes; %d is the limit",
                      w->rank, bytes->n, TENSORS_LOCAL_NBYTES_MAX);
    if (pickle_read_tensors(&p, bytes->u.data, bytes->n, w->field, w->e) != 0)
        return -1;
    root = &p.values[p.root];
    if (root->kind == PICKLE_EXPORT)
        rc = torch_export_read(h, uuid, &p, root, w->what, w->field, w->e);
    else
        rc = refuse(w, "value %u of its LocalSerializedTensor is %s; it is a CUDA tensor", w->rank,
                    pickle_kind_name(root));
    pickle_fini(&p);
    return rc;
}

static int read_local(struct walk *w, const struct pickle_value *object, struct ipc_handle *h,
                      char uuid[IPC_UUID_LEN + 1])
{
    const struct pickle_value *values = NULL;
    const struct member members[] = {{"values", &values}};
    uint32_t cell;

    if (object->n != 1)
        return refuse(w, "its LocalSerializedTensor is empty");
    if (torch_read_dict(w, torch_value_at(w, object->u.items.first), "its LocalSerializedTensor",
                        members, 1) != 0)
        return -1;
    if (values->kind != PICKLE_LIST || values->n > TENSORS_RANKS_MAX)
        return refuse(w, "the values of its LocalSerializedTensor are no list of at most %d",
                      TENSORS_RANKS_MAX);
    if (w->rank >= values->n)
        return refuse(w, "its LocalSerializedTensor has %u values; this is the string of rank %u",
                      values->n, w->rank);
    cell = values->u.items.first;
    for (uint32_t i = 0; i < w->rank; i++)
        cell = w->p.cells[cell].next;
    return read_serialized(w, torch_value_at(w, cell), h, uuid);
}

static int torch_read_tensor(struct walk *w, const struct pickle_value *v, struct ipc_handle *h,
                             char uuid[IPC_UUID_LEN + 1])
{
    if (v->kind == PICKLE_EXPORT)
        return torch_export_read(h, uuid, &w->p, v, w->what, w->field, w->e);
    if (v->kind == PICKLE_OBJECT && v->global == PICKLE_LOCAL_TENSOR)
        return read_local(w, v, h, uuid);
    return refuse(w, "it is %s; it is a CUDA tensor, or a LocalSerializedTensor",
                  pickle_kind_name(v));
}

static int add_pair(struct walk *w, const struct pickle_value *pair, uint32_t i)
{
    char name[TENSOR_LIST_NAME_LEN_MAX + 1], uuid[IPC_UUID_LEN + 1];
    struct ipc_handle h;
    uint32_t cell;

    w->what[0] = '\0';
    if (pair->kind != PICKLE_TUPLE || pair->n != 2)
        return refuse(w, "entry %u is %s; it is a tuple of a name and a tensor", i,
                      pickle_kind_name(pair));
    cell = pair->u.items.first;
    if (check_torch_name(w, name, torch_value_at(w, cell), i) != 0 ||
        torch_read_tensor(w, torch_value_at(w, w->p.cells[cell].next), &h, uuid) != 0 ||
        torch_tensors_check_gpu(w, uuid) != 0 ||
        tensor_list_add(w, name, h.dtype, h.shape, h.ndim) != 0)
        return -1;
    return add_handle(w, &h);
}

static int walk_list(struct walk *w, const struct pickle_value *root)
{
    uint32_t cell = root->u.items.first;

    for (uint32_t i = 0; i < root->n; i++, cell = w->p.cells[cell].next)
        if (add_pair(w, torch_value_at(w, cell), i) != 0)
            return -1;
    return 0;
}

static int torch_tensors_walk_root(struct walk *w)
{
    const struct pickle_value *root = &w->p.values[w->p.root];

    if (root->kind == PICKLE_DICT)
        return walk_flattened(w, root);
    if (root->kind == PICKLE_LIST)
        return walk_list(w, root);
    return refuse(w,
                  "the pickle holds %s; it is a list of (name, tensor), or a dict of "
                  "flattened_tensor and metadata",
                  pickle_kind_name(root));
}

/* Moves the result to *out, which is zeroed. */
static int walk_finish(struct walk *w, struct torch_tensors *out)
{
    struct tensor_list_builder *builder = w->builder;
    bool some = w->n > 0;

    if (!some)
        return 0;
    w->builder = NULL;
    if (tensor_list_builder_finish(builder, &out->tensor_list, w->e) != 0)
        return -1;
    memcpy(out->uuid, w->uuid, sizeof out->uuid);
    out->handles.packed = w->n == 1;
    out->handles.n_handles = w->n;
    out->handles.n_gpus = 1;
    memcpy(out->handles.gpus[0].uuid, w->uuid, sizeof w->uuid);
    out->handles.all = w->handles;
    out->handles.gpus[0].handles = w->handles;
    w->handles = NULL;
    return 0;
}

static int torch_tensors_read_pickle(struct torch_tensors *out, const uint8_t *bytes, size_t nbytes,
                                     uint32_t rank, const char *field, struct err *e)
{
    struct walk w = {.rank = rank, .field = field, .e = e};
    struct torch_tensors made = {0};
    int rc;

    if (pickle_read_tensors(&w.p, bytes, nbytes, field, e) != 0)
        return -1;
    rc = tensor_list_builder_new(&w.builder, e);
    if (rc == 0)
        rc = torch_tensors_walk_root(&w);
    if (rc == 0)
        rc = walk_finish(&w, &made);
    tensor_list_builder_free(w.builder);
    free(w.handles);
    pickle_fini(&w.p);
    if (rc == 0)
        *out = made;
    return rc;
}

int torch_tensors_read(struct torch_tensors *out, const char *text, size_t len, uint32_t rank,
                       const char *field, struct err *e)
{
    uint8_t *bytes;
    size_t nbytes;
    int rc;

    bytes = pickle_from_base64(&nbytes, text, len, field, e);
    if (bytes == NULL)
        return -1;
    rc = torch_tensors_read_pickle(out, bytes, nbytes, rank, field, e);
    free(bytes);
    return rc;
}

void torch_tensors_fini(struct torch_tensors *t)
{
    tensor_list_unref(t->tensor_list);
    ipc_handles_fini(&t->handles);
    memset(t, 0, sizeof *t);
}
