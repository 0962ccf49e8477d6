/* Converts the values of a pickle to a message by their schema, member by member. */
#include "transport/zmq/zmq_messages.h"

#include "base/utf8.h"
#include "transport/ipc/torch_handle.h"
#include "transport/ipc/torch_pickle.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMBERS = 4, PAIR = 2, KEY_SHOWN = 64 };
_Static_assert((int)PICKLE_NAME_MAX == (int)TENSOR_LIST_NAME_LEN_MAX,
               "names are read as long as plans'");

struct walk {
    struct pickle p;
    struct tensor_list_builder *builder; /* owned */
    uint32_t i;                          /* of the list; for messages */
    struct err *e;
};

/* One dict of the list. */
struct entry {
    const struct pickle_value *name, *shape, *dtype, *offset;
};

__attribute__((format(printf, 2, 3))) static int refuse(struct walk *w, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(w->e, ERR_BAD_REQUEST, "", "tensor %u of the list: %s", (unsigned)w->i, text);
}

static const struct pickle_value *message_value_at(const struct walk *w, uint32_t cell)
{
    return &w->p.values[w->p.cells[cell].value];
}

static bool message_is_text(const struct pickle_value *v, const char *text)
{
    return strlen(text) == v->n && memcmp(v->u.data, text, v->n) == 0;
}

/* Requires exactly these members, each once, in any order. */
static int read_entry(struct walk *w, const struct pickle_value *dict, struct entry *out)
{
    const struct {
        const char *name;
        const struct pickle_value **to;
    } members[MEMBERS] = {{"name", &out->name},
                          {"shape", &out->shape},
                          {"dtype", &out->dtype},
                          {"offset", &out->offset}};
    uint32_t cell = dict->u.items.first;

    if (dict->kind != PICKLE_DICT)
        return refuse(w, "it is %s, not a dict", pickle_kind_name(dict));
    for (uint32_t k = 0; k < dict->n / 2; k++) {
        const struct pickle_value *key = message_value_at(w, cell);
        uint32_t m = 0;

        while (m < MEMBERS && !message_is_text(key, members[m].name))
            m++;
        if (m == MEMBERS)
            return refuse(w, "member '%.*s' says something that is not known here",
                          key->n < KEY_SHOWN ? (int)key->n : KEY_SHOWN, (const char *)key->u.data);
        if (*members[m].to != NULL)
            return refuse(w, "it has '%s' twice", members[m].name);
        cell = w->p.cells[cell].next;
        *members[m].to = message_value_at(w, cell);
        cell = w->p.cells[cell].next;
    }
    for (uint32_t m = 0; m < MEMBERS; m++)
        if (*members[m].to == NULL)
            return refuse(w, "it has no '%s'", members[m].name);
    return 0;
}

static int message_read_shape(struct walk *w, const struct pickle_value *v,
                              uint64_t shape[TENSOR_LIST_NDIM_MAX])
{
    uint32_t cell = v->u.items.first;

    if (v->kind != PICKLE_SIZE && v->kind != PICKLE_TUPLE && v->kind != PICKLE_LIST)
        return refuse(w, "its shape is %s; it is a torch.Size", pickle_kind_name(v));
    if (v->n > TENSOR_LIST_NDIM_MAX)
        return refuse(w, "its shape has %u dimensions; %d is the limit", (unsigned)v->n,
                      TENSOR_LIST_NDIM_MAX);
    for (uint32_t i = 0; i < v->n; i++, cell = w->p.cells[cell].next) {
        const struct pickle_value *dim = message_value_at(w, cell);

        if (dim->kind != PICKLE_INT || dim->u.integer < 0)
            return refuse(w, "dimension %u of its shape is not an int from 0 on", (unsigned)i);
        shape[i] = (uint64_t)dim->u.integer;
    }
    return 0;
}

static int add_entry(struct walk *w, const struct pickle_value *v, uint64_t *offset)
{
    char name[TENSOR_LIST_NAME_LEN_MAX + 1];
    uint64_t shape[TENSOR_LIST_NDIM_MAX];
    struct entry x = {NULL};

    if (read_entry(w, v, &x) != 0 || message_read_shape(w, x.shape, shape) != 0)
        return -1;
    if (x.name->kind != PICKLE_STR)
        return refuse(w, "its name is %s; it is a str", pickle_kind_name(x.name));
    if (x.dtype->kind != PICKLE_GLOBAL || x.dtype->global != PICKLE_DTYPE)
        return refuse(w, "its dtype is %s; it is a torch.dtype", pickle_kind_name(x.dtype));
    if (x.offset->kind != PICKLE_INT || x.offset->u.integer < 0)
        return refuse(w, "its offset is not an int from 0 on");
    memcpy(name, x.name->u.data, x.name->n);
    name[x.name->n] = '\0';
    *offset = (uint64_t)x.offset->u.integer;
    return tensor_list_builder_add(w->builder, name, (enum dtype)x.dtype->dtype, shape, x.shape->n,
                                   UINT64_MAX, w->e);
}

/* @out  zeroed */
static int message_read_list(struct walk *w, const struct pickle_value *root,
                             struct zmq_message *out)
{
    uint32_t cell = root->u.items.first;
    struct tensor_list_builder *b;

    out->kind = ZMQ_MESSAGE_TENSORS;
    out->offsets = calloc(root->n > 0 ? root->n : 1, sizeof out->offsets[0]);
    if (out->offsets == NULL)
        return err_set(w->e, ERR_NO_MEMORY, "", "no memory for a list of %u tensors",
                       (unsigned)root->n);
    if (tensor_list_builder_new(&w->builder, w->e) != 0)
        return -1;
    for (w->i = 0; w->i < root->n; w->i++, cell = w->p.cells[cell].next)
        if (add_entry(w, message_value_at(w, cell), &out->offsets[w->i]) != 0)
            return -1;
    b = w->builder;
    w->builder = NULL;
    return tensor_list_builder_finish(b, &out->tensor_list, w->e);
}

static int read_buffer(struct walk *w, const struct pickle_value *root, struct zmq_message *out)
{
    const struct pickle_value *rebuild, *args;

    out->kind = ZMQ_MESSAGE_BUFFER;
    rebuild = root->n == PAIR ? message_value_at(w, root->u.items.first) : NULL;
    if (rebuild == NULL || rebuild->kind != PICKLE_GLOBAL || rebuild->global != PICKLE_REBUILD)
        return err_set(w->e, ERR_BAD_REQUEST, "",
                       "the buffer is not a pair of rebuild_cuda_tensor and its arguments");
    args = message_value_at(w, w->p.cells[root->u.items.first].next);
    if (torch_export_read(&out->buffer, out->uuid, &w->p, args, "the buffer", "", w->e) != 0)
        return -1;
    if (out->buffer.dtype == DTYPE_U8 && out->buffer.ndim == 1 && out->buffer.has_memory)
        return 0;
    return err_set(w->e, ERR_BAD_REQUEST, "",
                   "the buffer is of %s with %u dimensions and %llu bytes; it is one dimension of "
                   "uint8, and not empty",
                   dtype_name(out->buffer.dtype), (unsigned)out->buffer.ndim,
                   (unsigned long long)out->buffer.nbytes);
}

static int read_root(struct walk *w, struct zmq_message *out)
{
    const struct pickle_value *root = &w->p.values[w->p.root];

    switch (root->kind) {
    case PICKLE_NONE:
        out->kind = ZMQ_MESSAGE_NONE;
        return 0;
    case PICKLE_ERROR:
        out->kind = ZMQ_MESSAGE_ERROR;
        return 0;
    case PICKLE_LIST:
        return message_read_list(w, root, out);
    case PICKLE_TUPLE:
        return read_buffer(w, root, out);
    default:
        return err_set(w->e, ERR_BAD_REQUEST, "",
                       "the message holds %s; it is a buffer's handle, a list of tensors, None, or "
                       "a RuntimeError",
                       pickle_kind_name(root));
    }
}

int zmq_message_read(struct zmq_message *out, const void *data, size_t nbytes, struct err *e)
{
    struct zmq_message made = {0};
    struct walk w = {.e = e};
    int rc;

    if (pickle_read_message(&w.p, data, nbytes, "", e) != 0)
        return -1;
    rc = read_root(&w, &made);
    tensor_list_builder_free(w.builder);
    pickle_fini(&w.p);
    if (rc != 0) {
        e->field[0] = '\0'; /* the builder's JSON pointers do not fit this request */
        zmq_message_fini(&made);
        return -1;
    }
    *out = made;
    return 0;
}

void zmq_message_fini(struct zmq_message *m)
{
    tensor_list_unref(m->tensor_list);
    free(m->offsets);
    memset(m, 0, sizeof *m);
}

/* The bytes of a tensor, for the check that no two overlap. */
struct extent {
    uint64_t at, end;
    uint32_t i;
};

static int compare_extents(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;

    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->end != y->end ? (x->end < y->end ? -1 : 1) : 0;
}

static int check_overlaps(const struct zmq_message *m, struct err *e)
{
    const struct tensor_spec *t = m->tensor_list->tensors;
    struct extent *x = calloc(m->tensor_list->n_tensors, sizeof *x);
    int rc = 0;

    if (x == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u tensors",
                       (unsigned)m->tensor_list->n_tensors);
    for (uint32_t i = 0; i < m->tensor_list->n_tensors; i++)
        x[i] = (struct extent){m->offsets[i], m->offsets[i] + t[i].nbytes, i};
    qsort(x, m->tensor_list->n_tensors, sizeof *x, compare_extents);
    for (uint32_t i = 1, last = 0; i < m->tensor_list->n_tensors && rc == 0; i++) {
        const char *first = t[x[last].i].name, *second = t[x[i].i].name;

        if (x[i].at < x[last].end && x[i].at < x[i].end)
            rc = err_set(e, ERR_BAD_REQUEST, "",
                         "'%.*s' begins at byte %llu of the buffer, and '%.*s' ends at %llu: they "
                         "overlap",
                         utf8_cut_name(second), second, (unsigned long long)x[i].at,
                         utf8_cut_name(first), first, (unsigned long long)x[last].end);
        if (x[i].end > x[last].end)
            last = i;
    }
    free(x);
    return rc;
}

static int check_place(const struct tensor_spec *t, uint64_t offset,
                       const struct ipc_handle *buffer, struct err *e)
{
    if (t->nbytes > buffer->nbytes || offset > buffer->nbytes - t->nbytes)
        return err_set(e, ERR_BAD_REQUEST, "",
                       "'%.*s' has %llu bytes from byte %llu on, and the buffer has %llu",
                       utf8_cut_name(t->name), t->name, (unsigned long long)t->nbytes,
                       (unsigned long long)offset, (unsigned long long)buffer->nbytes);
    return 0;
}

int zmq_message_place(struct ipc_handle **out, const struct zmq_message *m,
                      const struct ipc_handle *buffer, struct err *e)
{
    const struct tensor_list *tensor_list = m->tensor_list;
    struct ipc_handle *handles;

    for (uint32_t i = 0; i < tensor_list->n_tensors; i++)
        if (check_place(&tensor_list->tensors[i], m->offsets[i], buffer, e) != 0)
            return -1;
    if (check_overlaps(m, e) != 0)
        return -1;
    handles = calloc(tensor_list->n_tensors, sizeof *handles);
    if (handles == NULL)
        return err_set(e, ERR_NO_MEMORY, "", "no memory for %u handles",
                       (unsigned)tensor_list->n_tensors);
    for (uint32_t i = 0; i < tensor_list->n_tensors; i++) {
        const struct tensor_spec *t = &tensor_list->tensors[i];

        handles[i] = *buffer;
        handles[i].dtype = t->dtype;
        handles[i].ndim = t->ndim;
        memcpy(handles[i].shape, t->shape, sizeof handles[i].shape);
        handles[i].nbytes = t->nbytes;
        handles[i].tensor_offset += m->offsets[i];
    }
    *out = handles;
    return 0;
}
