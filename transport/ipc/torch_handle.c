/* Converts the values of a pickle to handles by their schema, argument by argument. No value is
 * assumed to be consistent with another. */
#include "transport/ipc/torch_handle.h"

#include "transport/ipc/torch_pickle.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_ARGS = 15, HANDLE_HEAD = 2, VERSION_MAX = 3 };

/* Arguments of rebuild_cuda_tensor, in their order. */
enum arg {
    ARG_TENSOR_CLS,
    ARG_SIZE,
    ARG_STRIDE,
    ARG_TENSOR_OFFSET,
    ARG_STORAGE_CLS,
    ARG_DTYPE,
    ARG_DEVICE,
    ARG_HANDLE,
    ARG_STORAGE_NBYTES,
    ARG_STORAGE_OFFSET,
    ARG_REQUIRES_GRAD,
    ARG_REF_NAME,
    ARG_REF_SLOT,
    ARG_EVENT,
    ARG_EVENT_SYNC
};

static const char *const arg_names[N_ARGS] = {
    "tensor_cls",
    "tensor_size",
    "tensor_stride",
    "tensor_offset",
    "storage_cls",
    "dtype",
    "device",
    "storage_handle",
    "storage_size_bytes",
    "storage_offset_bytes",
    "requires_grad",
    "ref_counter_handle",
    "ref_counter_offset",
    "event_handle",
    "event_sync_required",
};

struct walk {
    struct pickle p;
    const char *field;
    uint32_t i_tensor; /* of the list; for messages */
    bool packed;
    const char *uuid; /* of the entry; for messages */
    const char *what; /* the name for messages if there is no uuid; else NULL */
    char *sender;    /* with `what`: [IPC_UUID_LEN + 1], receives the UUID in the device argument */
    bool expandable; /* it was refused because its memory is an expandable segment */
    struct err *e;
};

typedef const struct pickle_value *args_t[N_ARGS];

__attribute__((format(printf, 2, 3))) static int refuse(struct walk *w, const char *fmt, ...)
{
    char text[384], where[64] = "";
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (w->what != NULL)
        return err_set(w->e, ERR_BAD_REQUEST, w->field, "%s: %s", w->what, text);
    if (!w->packed)
        (void)snprintf(where, sizeof where, "handle %u, ", w->i_tensor);
    return err_set(w->e, ERR_BAD_REQUEST, w->field, "%sGPU %s: %s", where, w->uuid, text);
}

static const struct pickle_value *torch_handle_value_at(const struct walk *w, uint32_t cell)
{
    return &w->p.values[w->p.cells[cell].value];
}

/* The first n items of a container that has at least n. */
static void items_of(const struct walk *w, const struct pickle_value *c,
                     const struct pickle_value **out, uint32_t n)
{
    uint32_t cell = c->u.items.first;

    for (uint32_t i = 0; i < n; i++, cell = w->p.cells[cell].next)
        out[i] = torch_handle_value_at(w, cell);
}

static int want_kind(struct walk *w, args_t args, enum arg i, enum pickle_kind kind)
{
    struct pickle_value wanted = {.kind = (uint8_t)kind};

    if (args[i]->kind == kind)
        return 0;
    return refuse(w, "%s is %s; it is %s", arg_names[i], pickle_kind_name(args[i]),
                  pickle_kind_name(&wanted));
}

static int want_int(struct walk *w, args_t args, enum arg i, uint64_t max, uint64_t *out)
{
    if (want_kind(w, args, i, PICKLE_INT) != 0)
        return -1;
    if (args[i]->u.integer < 0 || (uint64_t)args[i]->u.integer > max)
        return refuse(w, "%s is %lld; it is 0 to %llu", arg_names[i], (long long)args[i]->u.integer,
                      (unsigned long long)max);
    *out = (uint64_t)args[i]->u.integer;
    return 0;
}

static int want_bool(struct walk *w, args_t args, enum arg i, bool *out)
{
    if (want_kind(w, args, i, PICKLE_BOOL) != 0)
        return -1;
    *out = args[i]->u.integer != 0;
    return 0;
}

static int want_global(struct walk *w, args_t args, enum arg i, enum pickle_global a,
                       enum pickle_global b, const char *what)
{
    if (args[i]->kind == PICKLE_GLOBAL && (args[i]->global == a || args[i]->global == b))
        return 0;
    return refuse(w, "%s is not %s", arg_names[i], what);
}

static int read_classes(struct walk *w, args_t args, struct ipc_handle *h)
{
    if (want_global(w, args, ARG_TENSOR_CLS, PICKLE_TENSOR, PICKLE_PARAMETER,
                    "torch.Tensor or torch.nn.parameter.Parameter") != 0 ||
        want_global(w, args, ARG_STORAGE_CLS, PICKLE_TYPED_STORAGE, PICKLE_UNTYPED_STORAGE,
                    "torch.storage.TypedStorage or UntypedStorage") != 0 ||
        want_global(w, args, ARG_DTYPE, PICKLE_DTYPE, PICKLE_DTYPE, "a dtype") != 0)
        return -1;
    h->is_parameter = args[ARG_TENSOR_CLS]->global == PICKLE_PARAMETER;
    h->dtype = (enum dtype)args[ARG_DTYPE]->dtype;
    return want_bool(w, args, ARG_REQUIRES_GRAD, &h->requires_grad);
}

/* Requires row-major order without gaps. The stride of a dimension of size 1 is never used, nor
 * any stride of an empty tensor: torch allows any value there, and so does this. */
static int check_contiguous(struct walk *w, const struct ipc_handle *h, uint64_t numel)
{
    uint64_t wanted = 1;

    for (uint32_t i = h->ndim; i-- > 0 && numel > 0;) {
        if (h->shape[i] != 1 && h->stride[i] != wanted)
            return refuse(w,
                          "the tensor is not contiguous: stride %llu in dimension %u, where %llu "
                          "leaves no gap; send tensor.contiguous()",
                          (unsigned long long)h->stride[i], i, (unsigned long long)wanted);
        wanted *= h->shape[i];
    }
    return 0;
}

static int read_dims(struct walk *w, args_t args, struct ipc_handle *h)
{
    const struct pickle_value *size[TENSOR_LIST_NDIM_MAX], *stride[TENSOR_LIST_NDIM_MAX];

    if (want_kind(w, args, ARG_SIZE, PICKLE_SIZE) != 0 ||
        want_kind(w, args, ARG_STRIDE, PICKLE_TUPLE) != 0)
        return -1;
    if (args[ARG_SIZE]->n > TENSOR_LIST_NDIM_MAX)
        return refuse(w, "tensor_size has %u dimensions; %d is the limit", args[ARG_SIZE]->n,
                      TENSOR_LIST_NDIM_MAX);
    if (args[ARG_SIZE]->n != args[ARG_STRIDE]->n)
        return refuse(w, "tensor_stride has %u dimensions, tensor_size has %u", args[ARG_STRIDE]->n,
                      args[ARG_SIZE]->n);
    h->ndim = args[ARG_SIZE]->n;
    items_of(w, args[ARG_SIZE], size, h->ndim);
    items_of(w, args[ARG_STRIDE], stride, h->ndim);
    for (uint32_t i = 0; i < h->ndim; i++) {
        if (stride[i]->kind != PICKLE_INT || stride[i]->u.integer < 0)
            return refuse(w, "tensor_stride %u is not an int from 0 on", i);
        h->shape[i] = (uint64_t)size[i]->u.integer;
        h->stride[i] = (uint64_t)stride[i]->u.integer;
    }
    return 0;
}

static int read_geometry(struct walk *w, args_t args, struct ipc_handle *h)
{
    uint64_t numel, first;

    if (read_dims(w, args, h) != 0 ||
        want_int(w, args, ARG_STORAGE_NBYTES, TENSOR_LIST_NBYTES_MAX, &h->storage_nbytes) != 0 ||
        want_int(w, args, ARG_STORAGE_OFFSET, TENSOR_LIST_NBYTES_MAX, &h->storage_offset) != 0 ||
        want_int(w, args, ARG_TENSOR_OFFSET, TENSOR_LIST_NBYTES_MAX, &first) != 0)
        return -1;
    if (!tensor_list_measure(h->dtype, h->shape, h->ndim, &numel, &h->nbytes))
        return refuse(w, "tensor_size makes more than 2^63 - 1 bytes");
    if (check_contiguous(w, h, numel) != 0)
        return -1;
    if (h->storage_offset > TENSOR_LIST_NBYTES_MAX - h->storage_nbytes)
        return refuse(w, "storage_offset_bytes %llu and storage_size_bytes %llu pass 2^63 - 1",
                      (unsigned long long)h->storage_offset, (unsigned long long)h->storage_nbytes);
    if (first > h->storage_nbytes / dtype_nbytes(h->dtype) ||
        h->nbytes > h->storage_nbytes - first * dtype_nbytes(h->dtype))
        return refuse(w,
                      "the tensor (%llu bytes, from element %llu on) reaches beyond its storage of "
                      "%llu bytes",
                      (unsigned long long)h->nbytes, (unsigned long long)first,
                      (unsigned long long)h->storage_nbytes);
    h->tensor_offset = first * dtype_nbytes(h->dtype);
    return 0;
}

/* The 64 bytes alone, or after torch's two bytes of version and type. */
static int read_memory(struct walk *w, args_t args, struct ipc_handle *h)
{
    const struct pickle_value *v = args[ARG_HANDLE];
    const uint8_t *b;

    if (want_kind(w, args, ARG_HANDLE, PICKLE_BYTES) != 0)
        return -1;
    b = v->u.data;
    h->has_memory = true;
    h->type = 'c';
    if (v->n == IPC_MEM_NBYTES) {
        memcpy(h->mem, b, IPC_MEM_NBYTES);
        return 0;
    }
    if (v->n < HANDLE_HEAD)
        return refuse(w, "storage_handle has %u bytes; it is %d, or %d with version and type", v->n,
                      IPC_MEM_NBYTES, IPC_MEM_NBYTES + HANDLE_HEAD);
    if (b[0] == 0)
        return refuse(w, "storage_handle has version 0, expected 1 or more");
    if (b[0] > VERSION_MAX)
        return refuse(
            w, "storage_handle has version %u, of a newer torch; versions up to %d are supported",
            b[0], VERSION_MAX);
    w->expandable = b[1] == 'e';
    if (w->expandable)
        return refuse(w,
                      "CUDA IPC handle is an expandable segment (type 'e', version %u): not "
                      "supported; set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False on the "
                      "trainer, or switch it off around weight sync",
                      b[0]);
    if (b[1] != 'c')
        return refuse(w, "storage_handle has type 0x%02x; it is 'c'", b[1]);
    if (v->n != IPC_MEM_NBYTES + HANDLE_HEAD)
        return refuse(w, "storage_handle has %u bytes; with version and type it has %d", v->n,
                      IPC_MEM_NBYTES + HANDLE_HEAD);
    h->version = b[0];
    memcpy(h->mem, b + HANDLE_HEAD, IPC_MEM_NBYTES);
    return 0;
}

/* Digits from text[*at] on, at most `max`; moves *at after them. */
static bool torch_handle_digits(const uint8_t *text, uint32_t len, uint32_t *at, uint32_t max)
{
    uint32_t n = 0;

    while (*at < len && n < max && text[*at] >= '0' && text[*at] <= '9') {
        ++*at;
        ++n;
    }
    return n > 0;
}

/* Accepts only "/torch_<pid>_<random>[_<n>]": the object with that name will be written to. */
static bool is_counter_name(const uint8_t *text, uint32_t len)
{
    static const char head[] = "/torch_";
    uint32_t at = sizeof head - 1;

    if (len > IPC_REF_NAME_MAX || len < at || memcmp(text, head, at) != 0)
        return false;
    if (!torch_handle_digits(text, len, &at, 10) || at == len || text[at++] != '_' ||
        !torch_handle_digits(text, len, &at, 20))
        return false;
    if (at == len)
        return true;
    return text[at++] == '_' && torch_handle_digits(text, len, &at, 20) && at == len;
}

static int read_counter(struct walk *w, args_t args, struct ipc_handle *h)
{
    const struct pickle_value *name = args[ARG_REF_NAME];
    uint64_t slot;

    if (want_kind(w, args, ARG_REF_NAME, PICKLE_BYTES) != 0 ||
        want_int(w, args, ARG_REF_SLOT, IPC_REF_SLOTS - 1, &slot) != 0)
        return -1;
    if (!is_counter_name(name->u.data, name->n))
        return refuse(w, "ref_counter_handle (%u bytes) is not /torch_<pid>_<number>[_<number>]",
                      name->n);
    memcpy(h->ref_name, name->u.data, name->n);
    h->ref_slot = (uint32_t)slot;
    return 0;
}

static int read_event(struct walk *w, args_t args, struct ipc_handle *h)
{
    if (want_kind(w, args, ARG_EVENT, PICKLE_BYTES) != 0 ||
        want_bool(w, args, ARG_EVENT_SYNC, &h->event_sync) != 0)
        return -1;
    if (args[ARG_EVENT]->n != IPC_EVENT_NBYTES)
        return refuse(w, "event_handle has %u bytes; it is %d", args[ARG_EVENT]->n,
                      IPC_EVENT_NBYTES);
    memcpy(h->event, args[ARG_EVENT]->u.data, IPC_EVENT_NBYTES);
    return 0;
}

/* An empty tensor shares no memory: torch sends None for these arguments. */
static int read_nothing(struct walk *w, args_t args, const struct ipc_handle *h)
{
    uint64_t slot;

    if (want_kind(w, args, ARG_REF_NAME, PICKLE_NONE) != 0 ||
        want_int(w, args, ARG_REF_SLOT, 0, &slot) != 0 ||
        want_kind(w, args, ARG_EVENT, PICKLE_NONE) != 0 ||
        want_kind(w, args, ARG_EVENT_SYNC, PICKLE_NONE) != 0)
        return -1;
    if (h->storage_nbytes != 0 || h->storage_offset != 0)
        return refuse(w, "storage_handle is None, but the storage has %llu bytes at %llu",
                      (unsigned long long)h->storage_nbytes, (unsigned long long)h->storage_offset);
    return 0;
}

/* An index has no meaning in another process; SGLang's trainers send the GPU's UUID instead. */
static int read_device(struct walk *w, args_t args, struct ipc_handle *h)
{
    const struct pickle_value *v = args[ARG_DEVICE];
    uint64_t device;

    if (w->sender != NULL && v->kind == PICKLE_STR) {
        if (ipc_uuid_parse(w->sender, (const char *)v->u.data, v->n))
            return 0;
        return refuse(w, "device '%.*s' is not the UUID of a GPU", (int)(v->n < 64 ? v->n : 64),
                      (const char *)v->u.data);
    }
    if (want_int(w, args, ARG_DEVICE, INT32_MAX, &device) != 0)
        return -1;
    h->device = (int32_t)device;
    return 0;
}

static int read_args(struct walk *w, const struct pickle_value *tuple, struct ipc_handle *h)
{
    args_t args;

    if (tuple->n != N_ARGS)
        return refuse(w, "an export has %d arguments, this has %u", N_ARGS, tuple->n);
    items_of(w, tuple, args, N_ARGS);
    if (read_classes(w, args, h) != 0 || read_geometry(w, args, h) != 0 ||
        read_device(w, args, h) != 0)
        return -1;
    if (args[ARG_HANDLE]->kind == PICKLE_NONE)
        return read_nothing(w, args, h);
    if (read_memory(w, args, h) != 0 || read_counter(w, args, h) != 0)
        return -1;
    return read_event(w, args, h);
}

/* (rebuild_cuda_tensor, args), or only args. */
static int read_export(struct walk *w, const struct pickle_value *v, struct ipc_handle *h)
{
    const struct pickle_value *pair[2];

    if (v->kind != PICKLE_TUPLE)
        return refuse(w, "an export is a tuple, this is %s", pickle_kind_name(v));
    if (v->n != 2)
        return read_args(w, v, h);
    items_of(w, v, pair, 2);
    if (pair[0]->kind != PICKLE_GLOBAL || pair[0]->global != PICKLE_REBUILD)
        return refuse(w, "the first of a pair is not rebuild_cuda_tensor");
    if (pair[1]->kind != PICKLE_TUPLE)
        return refuse(w, "the arguments of rebuild_cuda_tensor are %s, not a tuple",
                      pickle_kind_name(pair[1]));
    return read_args(w, pair[1], h);
}

/* The GPU with a UUID. Every dict of a list has them in the same order, so `guess` is nearly
 * always right and the search stays linear. */
static uint32_t find_gpu(const struct ipc_handles *set, const char *uuid, uint32_t guess)
{
    if (guess < set->n_gpus && strcmp(set->gpus[guess].uuid, uuid) == 0)
        return guess;
    for (uint32_t i = 0; i < set->n_gpus; i++)
        if (strcmp(set->gpus[i].uuid, uuid) == 0)
            return i;
    return set->n_gpus;
}

static int torch_handle_read_key(struct walk *w, const struct pickle_value *key,
                                 char uuid[IPC_UUID_LEN + 1])
{
    w->uuid = "?";
    if (ipc_uuid_parse(uuid, (const char *)key->u.data, key->n))
        return 0;
    return refuse(w, "'%.*s' is not the UUID of a GPU", (int)(key->n < 64 ? key->n : 64),
                  (const char *)key->u.data);
}

/* The first dict determines the GPUs. */
static int torch_handle_read_gpus(struct walk *w, const struct pickle_value *dict,
                                  struct ipc_handles *set)
{
    uint32_t cell = dict->u.items.first;

    w->uuid = "?";
    if (dict->n == 0 || dict->n / 2 > IPC_GPUS_MAX)
        return refuse(w, "a dict of %u GPUs; it has 1 to %d", dict->n / 2, IPC_GPUS_MAX);
    for (uint32_t i = 0; i < dict->n / 2; i++) {
        char *uuid = set->gpus[i].uuid;

        if (torch_handle_read_key(w, torch_handle_value_at(w, cell), uuid) != 0)
            return -1;
        w->uuid = uuid;
        if (find_gpu(set, uuid, set->n_gpus) < set->n_gpus)
            return refuse(w, "it is named twice in one dict");
        set->n_gpus++;
        cell = w->p.cells[w->p.cells[cell].next].next;
    }
    return 0;
}

/* Reads one handle of each GPU. As many keys as GPUs, and none repeated, means that none is
 * missing. */
static int torch_handle_read_dict(struct walk *w, const struct pickle_value *dict,
                                  struct ipc_handles *set)
{
    bool seen[IPC_GPUS_MAX] = {false};
    char uuid[IPC_UUID_LEN + 1];
    uint32_t cell = dict->u.items.first;

    w->uuid = "?";
    if (dict->n != set->n_gpus * 2)
        return refuse(w, "a dict of %u GPUs; the first has %u", dict->n / 2, set->n_gpus);
    for (uint32_t i = 0; i < set->n_gpus; i++) {
        uint32_t gpu;

        if (torch_handle_read_key(w, torch_handle_value_at(w, cell), uuid) != 0)
            return -1;
        w->uuid = uuid;
        gpu = find_gpu(set, uuid, i);
        if (gpu == set->n_gpus)
            return refuse(w, "the first dict does not name it; all dicts must have the same GPUs");
        if (seen[gpu])
            return refuse(w, "it is named twice in one dict");
        seen[gpu] = true;
        cell = w->p.cells[cell].next;
        if (read_export(w, torch_handle_value_at(w, cell),
                        &set->all[(size_t)gpu * set->n_handles + w->i_tensor]) != 0)
            return -1;
        cell = w->p.cells[cell].next;
    }
    return 0;
}

static int torch_handle_read_list(struct walk *w, const struct pickle_value *list,
                                  struct ipc_handles *set)
{
    uint32_t cell = list->u.items.first;

    for (w->i_tensor = 0; w->i_tensor < list->n; w->i_tensor++) {
        const struct pickle_value *dict = torch_handle_value_at(w, cell);

        w->uuid = "?";
        if (dict->kind != PICKLE_DICT)
            return refuse(w, "an entry of the list is %s; it is a dict of GPU UUID to export",
                          pickle_kind_name(dict));
        if (torch_handle_read_dict(w, dict, set) != 0)
            return -1;
        cell = w->p.cells[cell].next;
    }
    return 0;
}

static int reserve_handles(struct walk *w, struct ipc_handles *set)
{
    uint64_t n = (uint64_t)set->n_gpus * set->n_handles;

    if (n > IPC_HANDLES_MAX)
        return err_set(w->e, ERR_TOO_LARGE, w->field, "%llu handles; %d is the limit",
                       (unsigned long long)n, IPC_HANDLES_MAX);
    set->all = calloc(n, sizeof *set->all);
    if (set->all == NULL)
        return err_set(w->e, ERR_NO_MEMORY, "", "no memory for the handles");
    for (uint32_t i = 0; i < set->n_gpus; i++)
        set->gpus[i].handles = set->all + (size_t)i * set->n_handles;
    return 0;
}

/* The dict, or the first of the list. */
static int find_first(struct walk *w, const struct pickle_value *root,
                      const struct pickle_value **first)
{
    *first = root->kind == PICKLE_LIST && root->n > 0
                 ? torch_handle_value_at(w, root->u.items.first)
                 : root;
    if ((*first)->kind == PICKLE_DICT)
        return 0;
    return err_set(w->e, ERR_BAD_REQUEST, w->field,
                   "the pickle holds %s%s; it is a dict of GPU UUID to export, or a list of such "
                   "dicts",
                   root->kind == PICKLE_LIST ? "a list, beginning with " : "",
                   root->kind == PICKLE_LIST && root->n == 0 ? "nothing"
                                                             : pickle_kind_name(*first));
}

static int torch_handle_walk_root(struct walk *w, struct ipc_handles *set)
{
    const struct pickle_value *root = &w->p.values[w->p.root], *first;

    if (find_first(w, root, &first) != 0)
        return -1;
    w->packed = set->packed = root->kind == PICKLE_DICT;
    set->n_handles = set->packed ? 1 : root->n;
    if (torch_handle_read_gpus(w, first, set) != 0 || reserve_handles(w, set) != 0)
        return -1;
    return set->packed ? torch_handle_read_dict(w, root, set)
                       : torch_handle_read_list(w, root, set);
}

static int torch_handle_read_pickle(struct ipc_handles *out, const uint8_t *bytes, size_t nbytes,
                                    const char *field, bool *expandable, struct err *e)
{
    struct walk w = {.field = field, .e = e, .uuid = "?"};
    struct ipc_handles set = {0};
    int rc;

    if (pickle_read(&w.p, bytes, nbytes, field, e) != 0)
        return -1;
    rc = torch_handle_walk_root(&w, &set);
    *expandable = w.expandable;
    pickle_fini(&w.p);
    if (rc != 0)
        ipc_handles_fini(&set);
    else
        *out = set;
    return rc;
}

int torch_handles_check(struct ipc_handles *out, const char *text, size_t len, const char *field,
                        bool *expandable, struct err *e)
{
    uint8_t *bytes;
    size_t nbytes;
    int rc;

    *expandable = false;
    bytes = pickle_from_base64(&nbytes, text, len, field, e);
    if (bytes == NULL)
        return -1;
    rc = torch_handle_read_pickle(out, bytes, nbytes, field, expandable, e);
    free(bytes);
    return rc;
}

int torch_handles_read(struct ipc_handles *out, const char *text, size_t len, const char *field,
                       struct err *e)
{
    bool expandable;

    return torch_handles_check(out, text, len, field, &expandable, e);
}

int torch_export_read(struct ipc_handle *out, char uuid[IPC_UUID_LEN + 1], const struct pickle *p,
                      const struct pickle_value *args, const char *what, const char *field,
                      struct err *e)
{
    char sender[IPC_UUID_LEN + 1] = "";
    struct walk w = {.p = *p, .field = field, .what = what, .sender = sender, .e = e};
    struct ipc_handle h = {0};

    if (read_args(&w, args, &h) != 0)
        return -1;
    memcpy(uuid, sender, sizeof sender);
    *out = h;
    return 0;
}
