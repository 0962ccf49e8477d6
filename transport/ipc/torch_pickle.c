/* A stack machine without calls that accepts only the listed opcodes. Values are immutable,
 * except a list or dict on top of the stack, which no other value can contain: what is memoized
 * and fetched again is immutable, so no cycle can be built. */
#include "transport/ipc/torch_pickle.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PROTOCOL_MIN = 4,
    PROTOCOL_MAX = 5,
    FRAME_HEAD = 8,
    INT_NBYTES_MAX = 8,
    ROOM_MIN = 256, /* initial entries of a pool */
    TEXT_SHOWN = 80 /* bytes of a name in a message */
};

enum op {
    OP_MARK = 0x28,
    OP_EMPTY_TUPLE = 0x29,
    OP_STOP = 0x2e,
    OP_BINBYTES = 0x42,
    OP_SHORT_BINBYTES = 0x43,
    OP_BININT = 0x4a,
    OP_BININT1 = 0x4b,
    OP_BININT2 = 0x4d,
    OP_NONE = 0x4e,
    OP_REDUCE = 0x52,
    OP_BINUNICODE = 0x58,
    OP_EMPTY_LIST = 0x5d,
    OP_APPEND = 0x61,
    OP_BUILD = 0x62,
    OP_APPENDS = 0x65,
    OP_BINGET = 0x68,
    OP_LONG_BINGET = 0x6a,
    OP_SETITEM = 0x73,
    OP_TUPLE = 0x74,
    OP_SETITEMS = 0x75,
    OP_EMPTY_DICT = 0x7d,
    OP_PROTO = 0x80,
    OP_NEWOBJ = 0x81,
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_LONG1 = 0x8a,
    OP_SHORT_BINUNICODE = 0x8c,
    OP_STACK_GLOBAL = 0x93,
    OP_MEMOIZE = 0x94,
    OP_FRAME = 0x95
};

/* Names of opcodes that real senders may use, for the message that refuses them. */
static const struct {
    uint8_t op;
    const char *name;
} refused[] = {
    {0x30, "POP"},
    {0x31, "POP_MARK"},
    {0x32, "DUP"},
    {0x46, "FLOAT"},
    {0x47, "BINFLOAT"},
    {0x49, "INT"},
    {0x4c, "LONG"},
    {0x50, "PERSID"},
    {0x51, "BINPERSID"},
    {0x53, "STRING"},
    {0x54, "BINSTRING"},
    {0x55, "SHORT_BINSTRING"},
    {0x56, "UNICODE"},
    {0x62, "BUILD"},
    {0x63, "GLOBAL"},
    {0x64, "DICT"},
    {0x67, "GET"},
    {0x69, "INST"},
    {0x6c, "LIST"},
    {0x6f, "OBJ"},
    {0x70, "PUT"},
    {0x71, "BINPUT"},
    {0x72, "LONG_BINPUT"},
    {0x81, "NEWOBJ"},
    {0x82, "EXT1"},
    {0x83, "EXT2"},
    {0x84, "EXT4"},
    {0x8b, "LONG4"},
    {0x8d, "BINUNICODE8"},
    {0x8e, "BINBYTES8"},
    {0x8f, "EMPTY_SET"},
    {0x90, "ADDITEMS"},
    {0x91, "FROZENSET"},
    {0x92, "NEWOBJ_EX"},
    {0x96, "BYTEARRAY8"},
    {0x97, "NEXT_BUFFER"},
    {0x98, "READONLY_BUFFER"},
};

/* Module, name and number; dtypes have torch's names. Rows without a module are those that
 * SGLang's trainers send: the classes moved between releases, and trainers have copies of them.
 * The name determines how the arguments are laid out; no module is ever loaded. Only pickles
 * with tensors may use them, and only messages may use an error. */
static const struct global_row {
    const char *module, *name;
    uint8_t global, dtype;
} globals[] = {{"torch.multiprocessing.reductions", "rebuild_cuda_tensor", PICKLE_REBUILD, 0},
               {"torch", "Tensor", PICKLE_TENSOR, 0},
               {"torch.nn.parameter", "Parameter", PICKLE_PARAMETER, 0},
               {"torch", "Size", PICKLE_SIZE_CLASS, 0},
               {"torch.storage", "TypedStorage", PICKLE_TYPED_STORAGE, 0},
               {"torch.storage", "UntypedStorage", PICKLE_UNTYPED_STORAGE, 0},
               {NULL, "_rebuild_cuda_tensor_modified", PICKLE_REBUILD, 0},
               {NULL, "FlattenedTensorMetadata", PICKLE_FLAT_METADATA, 0},
               {NULL, "LocalSerializedTensor", PICKLE_LOCAL_TENSOR, 0},
               {"builtins", "RuntimeError", PICKLE_ERROR_CLASS, 0},
#define X(constant, name, bits, torch) {"torch", torch, PICKLE_DTYPE, constant},
               DTYPES(X)
#undef X
};

/* The kind of pickle. TENSORS and MESSAGE may contain strings as long as tensors' names; TENSORS
 * may contain tensors, MESSAGE errors. */
enum form { FORM_HANDLES, FORM_TENSORS, FORM_MESSAGE };

struct reader {
    struct pickle p;
    uint32_t values_room, cells_room, memo_room;
    uint32_t *memo; /* owned */
    uint32_t n_memo, n_stack, n_marks;
    const uint8_t *data;
    size_t nbytes, at;
    size_t end; /* of the frame, or of the input outside of frames */
    bool in_frame, stopped;
    enum form form;
    size_t op_at; /* of the opcode that is being read */
    const char *field;
    struct err *e;
    uint32_t stack[PICKLE_STACK_MAX];
    uint32_t marks[PICKLE_MARKS_MAX]; /* heights of the stack */
};

__attribute__((format(printf, 2, 3))) static int refuse(struct reader *r, const char *fmt, ...)
{
    char text[384];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(r->e, ERR_BAD_REQUEST, r->field, "pickle, byte %zu: %s", r->op_at, text);
}

/* Grows a pool for one more entry; it doubles, so that all growing together is linear. */
static int pool_grow(struct reader *r, void **pool, uint32_t *room, uint32_t n, size_t each)
{
    uint32_t wanted = *room == 0 ? ROOM_MIN : *room * 2;
    void *larger;

    if (n < *room)
        return 0;
    if (n >= PICKLE_ITEMS_MAX)
        return err_set(
            r->e, ERR_TOO_LARGE, r->field,
            "pickle, byte %zu: more than %d values; send the tensors in several requests", r->op_at,
            PICKLE_ITEMS_MAX);
    larger = realloc(*pool, wanted * each);
    if (larger == NULL)
        return err_set(r->e, ERR_NO_MEMORY, "", "no memory for the pickle");
    *pool = larger;
    *room = wanted;
    return 0;
}

/* The next n bytes of the input; NULL, with the error set, if there are fewer. */
static const uint8_t *reader_take(struct reader *r, uint64_t n)
{
    const uint8_t *bytes = r->data + r->at;

    if (n > r->end - r->at) {
        (void)refuse(r, "%s: %llu bytes are needed, %zu are left",
                     r->in_frame ? "an operand reaches beyond its frame" : "the pickle is cut off",
                     (unsigned long long)n, r->end - r->at);
        return NULL;
    }
    r->at += n;
    return bytes;
}

static uint64_t little_endian(const uint8_t *bytes, size_t n)
{
    uint64_t value = 0;

    for (size_t i = n; i-- > 0;)
        value = value << 8 | bytes[i];
    return value;
}

static int take_int(struct reader *r, size_t n, uint64_t *out)
{
    const uint8_t *bytes = reader_take(r, n);

    if (bytes == NULL)
        return -1;
    *out = little_endian(bytes, n);
    return 0;
}

static int push_index(struct reader *r, uint32_t index)
{
    if (r->n_stack == PICKLE_STACK_MAX)
        return refuse(r, "more than %d values are unfinished: nested too deep, or a batch too long",
                      PICKLE_STACK_MAX);
    r->stack[r->n_stack++] = index;
    return 0;
}

static int stack_push(struct reader *r, struct pickle_value v)
{
    void *pool = r->p.values;

    if (pool_grow(r, &pool, &r->values_room, r->p.n_values, sizeof v) != 0)
        return -1;
    r->p.values = pool;
    r->p.values[r->p.n_values] = v;
    return push_index(r, r->p.n_values++);
}

static int push_kind(struct reader *r, enum pickle_kind kind)
{
    bool container = kind == PICKLE_TUPLE || kind == PICKLE_LIST || kind == PICKLE_DICT;

    return stack_push(r, (struct pickle_value){.kind = (uint8_t)kind, .depth = container});
}

static int push_int(struct reader *r, enum pickle_kind kind, int64_t integer)
{
    return stack_push(r, (struct pickle_value){.kind = (uint8_t)kind, .u.integer = integer});
}

/* The number of values above the last mark. */
static uint32_t above_mark(const struct reader *r)
{
    return r->n_stack - (r->n_marks > 0 ? r->marks[r->n_marks - 1] : 0);
}

static int stack_need(struct reader *r, uint32_t n)
{
    if (above_mark(r) < n)
        return refuse(r, "opcode 0x%02x needs %u values on the stack, there are %u",
                      r->data[r->op_at], n, above_mark(r));
    return 0;
}

static struct pickle_value *stack_top(struct reader *r, uint32_t i)
{
    return &r->p.values[r->stack[r->n_stack - 1 - i]];
}

/* Removes the last mark; *n receives the number of values above it. */
static int pop_mark(struct reader *r, uint32_t *n)
{
    if (r->n_marks == 0)
        return refuse(r, "opcode 0x%02x needs a mark, there is none", r->data[r->op_at]);
    *n = above_mark(r);
    r->n_marks--;
    return 0;
}

/* Moves the n topmost values into the container `into`, in their order. */
static int move_items(struct reader *r, uint32_t into, uint32_t n)
{
    void *pool;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t index = r->stack[r->n_stack - n + i], cell = r->p.n_cells;
        struct pickle_value *c;
        uint8_t depth = (uint8_t)(r->p.values[index].depth + 1);

        if (depth > PICKLE_DEPTH_MAX)
            return refuse(r, "containers are nested more than %d deep", PICKLE_DEPTH_MAX);
        pool = r->p.cells;
        if (pool_grow(r, &pool, &r->cells_room, cell, sizeof *r->p.cells) != 0)
            return -1;
        r->p.cells = pool;
        r->p.n_cells++;
        r->p.cells[cell] = (struct pickle_cell){.value = index, .next = cell};
        c = &r->p.values[into];
        if (c->n == 0)
            c->u.items.first = cell;
        else
            r->p.cells[c->u.items.last].next = cell;
        c->u.items.last = cell;
        c->n++;
        c->depth = depth > c->depth ? depth : c->depth;
    }
    r->n_stack -= n;
    return 0;
}

static int make_tuple(struct reader *r, uint32_t n)
{
    uint32_t index;

    if (push_kind(r, PICKLE_TUPLE) != 0)
        return -1;
    index = r->stack[--r->n_stack];
    return move_items(r, index, n) != 0 ? -1 : push_index(r, index);
}

/* Moves n values into the container below them: items into a list, pairs into a dict. */
static int op_extend(struct reader *r, enum pickle_kind kind, uint32_t n)
{
    struct pickle_value *c;

    if (stack_need(r, n + 1) != 0)
        return -1;
    c = stack_top(r, n);
    if (c->kind != kind)
        return refuse(r, "opcode 0x%02x adds to %s, here to %s", r->data[r->op_at],
                      kind == PICKLE_LIST ? "a list" : "a dict", pickle_kind_name(c));
    if (kind == PICKLE_DICT && n % 2 != 0)
        return refuse(r, "a dict is given %u keys and values, which make no pairs", n);
    for (uint32_t i = 1; kind == PICKLE_DICT && i < n; i += 2)
        if (stack_top(r, i)->kind != PICKLE_STR)
            return refuse(r, "a dict's key is %s; it is a str", pickle_kind_name(stack_top(r, i)));
    return move_items(r, r->stack[r->n_stack - 1 - n], n);
}

static int read_text(struct reader *r, size_t n_len)
{
    bool names = r->form != FORM_HANDLES;
    const char *what = names ? "the names of tensors" : "UUIDs and torch's names";
    uint64_t len, max = names ? PICKLE_NAME_MAX : PICKLE_TEXT_MAX;
    struct pickle_value v = {.kind = PICKLE_STR};

    if (take_int(r, n_len, &len) != 0)
        return -1;
    v.u.data = reader_take(r, len);
    if (v.u.data == NULL)
        return -1;
    if (len > max)
        return refuse(r, "a str has %llu bytes; %s have at most %llu", (unsigned long long)len,
                      what, (unsigned long long)max);
    for (uint64_t i = 0; i < len; i++)
        if (v.u.data[i] < 0x20 || v.u.data[i] > 0x7e)
            return refuse(r, "a str holds byte 0x%02x; %s are printable ASCII", v.u.data[i], what);
    v.n = (uint32_t)len;
    return stack_push(r, v);
}

static int torch_pickle_read_bytes(struct reader *r, size_t n_len)
{
    struct pickle_value v = {.kind = PICKLE_BYTES};
    uint64_t len;

    if (take_int(r, n_len, &len) != 0)
        return -1;
    v.u.data = reader_take(r, len);
    if (v.u.data == NULL)
        return -1;
    v.n = (uint32_t)len;
    return stack_push(r, v);
}

static int pickle_read_int(struct reader *r, size_t n)
{
    uint64_t value;

    if (take_int(r, n, &value) != 0)
        return -1;
    return push_int(r, PICKLE_INT, n == 4 ? (int64_t)(int32_t)(uint32_t)value : (int64_t)value);
}

static int read_long(struct reader *r)
{
    uint64_t n, value;

    if (take_int(r, 1, &n) != 0)
        return -1;
    if (n > INT_NBYTES_MAX)
        return refuse(r, "an int of %llu bytes; the longest has %d", (unsigned long long)n,
                      INT_NBYTES_MAX);
    if (take_int(r, n, &value) != 0)
        return -1;
    if (n > 0 && n < INT_NBYTES_MAX && (value >> (n * 8 - 1) & 1) != 0)
        value |= UINT64_MAX << (n * 8);
    return push_int(r, PICKLE_INT, (int64_t)value);
}

static int memo_put(struct reader *r)
{
    void *pool = r->memo;

    if (stack_need(r, 1) != 0 ||
        pool_grow(r, &pool, &r->memo_room, r->n_memo, sizeof *r->memo) != 0)
        return -1;
    r->memo = pool;
    r->memo[r->n_memo++] = r->stack[r->n_stack - 1];
    return 0;
}

static int memo_get(struct reader *r, size_t n_index)
{
    const struct pickle_value *v;
    uint64_t index;

    if (take_int(r, n_index, &index) != 0)
        return -1;
    if (index >= r->n_memo)
        return refuse(r, "memo %llu is fetched, %u are set", (unsigned long long)index, r->n_memo);
    v = &r->p.values[r->memo[index]];
    if (v->kind != PICKLE_STR && v->kind != PICKLE_BYTES && v->kind != PICKLE_GLOBAL &&
        v->kind != PICKLE_TUPLE && v->kind != PICKLE_SIZE && v->kind != PICKLE_EXPORT)
        return refuse(r, "memo %llu is %s, which may not be used twice", (unsigned long long)index,
                      pickle_kind_name(v));
    return push_index(r, r->memo[index]);
}

static bool pickle_is_text(const struct pickle_value *v, const char *text)
{
    return text != NULL && strlen(text) == v->n && memcmp(v->u.data, text, v->n) == 0;
}

static int refuse_global(struct reader *r, const struct pickle_value *module,
                         const struct pickle_value *name)
{
    int n_module = module->n < TEXT_SHOWN ? (int)module->n : TEXT_SHOWN;
    int n_name = name->n < TEXT_SHOWN ? (int)name->n : TEXT_SHOWN;

    if (pickle_is_text(module, globals[0].module) && pickle_is_text(name, "rebuild_tensor"))
        return refuse(r, "a tensor is on the CPU (rebuild_tensor); only CUDA tensors have handles");
    if (pickle_is_text(module, "torch._utils"))
        return refuse(r,
                      "a tensor is pickled with its bytes (torch._utils.%.*s), and reading it "
                      "would execute code; send CUDA tensors through ForkingPickler, or the bytes "
                      "as application/vnd.safetensors",
                      n_name, (const char *)name->u.data);
    return refuse(r,
                  "global '%.*s.%.*s' is none of rebuild_cuda_tensor, %sTensor, Parameter, Size, "
                  "TypedStorage, UntypedStorage and the dtypes that can be served",
                  n_module, (const char *)module->u.data, n_name, (const char *)name->u.data,
                  r->form == FORM_TENSORS
                      ? "_rebuild_cuda_tensor_modified, FlattenedTensorMetadata, "
                        "LocalSerializedTensor, "
                      : "");
}

static bool global_fits(const struct reader *r, const struct global_row *g,
                        const struct pickle_value *module)
{
    if (g->module == NULL)
        return r->form == FORM_TENSORS;
    return pickle_is_text(module, g->module) &&
           (g->global != PICKLE_ERROR_CLASS || r->form == FORM_MESSAGE);
}

static int read_global(struct reader *r)
{
    const struct pickle_value *module, *name;

    if (stack_need(r, 2) != 0)
        return -1;
    module = stack_top(r, 1);
    name = stack_top(r, 0);
    if (module->kind != PICKLE_STR || name->kind != PICKLE_STR)
        return refuse(r, "a global is named by %s and %s; both are str", pickle_kind_name(module),
                      pickle_kind_name(name));
    for (size_t i = 0; i < sizeof globals / sizeof globals[0]; i++) {
        const struct global_row *g = &globals[i];

        if (!pickle_is_text(name, g->name) || !global_fits(r, g, module))
            continue;
        r->n_stack -= 2;
        return stack_push(r, (struct pickle_value){
                                 .kind = PICKLE_GLOBAL, .global = g->global, .dtype = g->dtype});
    }
    return refuse_global(r, module, name);
}

static const char *global_name(const struct pickle_value *v)
{
    for (size_t i = 0; i < sizeof globals / sizeof globals[0]; i++)
        if (globals[i].global == v->global && globals[i].dtype == v->dtype)
            return globals[i].name;
    return "a global";
}

/* torch.Size((d0, d1, ...)) */
static int reduce_size(struct reader *r, const struct pickle_value *args)
{
    const struct pickle_value *dims;
    struct pickle_value size;

    if (args->kind != PICKLE_TUPLE || args->n != 1)
        return refuse(r, "torch.Size is built from a tuple of one tuple");
    dims = &r->p.values[r->p.cells[args->u.items.first].value];
    if (dims->kind != PICKLE_TUPLE || dims->n > PICKLE_DIMS_MAX)
        return refuse(r, "torch.Size is built from a tuple of at most %d ints", PICKLE_DIMS_MAX);
    for (uint32_t i = 0, at = dims->u.items.first; i < dims->n; i++, at = r->p.cells[at].next) {
        const struct pickle_value *dim = &r->p.values[r->p.cells[at].value];

        if (dim->kind != PICKLE_INT || dim->u.integer < 0)
            return refuse(r, "dimension %u of a torch.Size is not an int from 0 on", i);
    }
    size = *dims;
    size.kind = PICKLE_SIZE;
    r->n_stack -= 2;
    return stack_push(r, size);
}

/* rebuild_cuda_tensor(...), RuntimeError(...): the tuple of arguments as another kind. */
static int reduce_as(struct reader *r, enum pickle_kind kind, const struct pickle_value *args)
{
    struct pickle_value made = *args;

    if (args->kind != PICKLE_TUPLE)
        return refuse(r, "the arguments of %s are %s, not a tuple", global_name(stack_top(r, 1)),
                      pickle_kind_name(args));
    made.kind = (uint8_t)kind;
    r->n_stack -= 2;
    return stack_push(r, made);
}

static int op_reduce(struct reader *r)
{
    const struct pickle_value *callable;

    if (stack_need(r, 2) != 0)
        return -1;
    callable = stack_top(r, 1);
    if (callable->kind == PICKLE_GLOBAL && callable->global == PICKLE_SIZE_CLASS)
        return reduce_size(r, stack_top(r, 0));
    if (r->form == FORM_TENSORS && callable->kind == PICKLE_GLOBAL &&
        callable->global == PICKLE_REBUILD)
        return reduce_as(r, PICKLE_EXPORT, stack_top(r, 0));
    if (callable->kind == PICKLE_GLOBAL && callable->global == PICKLE_ERROR_CLASS)
        return reduce_as(r, PICKLE_ERROR, stack_top(r, 0));
    return refuse(r, "REDUCE would call %s; it may only build torch.Size%s",
                  callable->kind == PICKLE_GLOBAL ? global_name(callable)
                                                  : pickle_kind_name(callable),
                  r->form == FORM_TENSORS ? " and CUDA tensors" : "");
}

/* Makes an object without arguments, of a class that has only a dict. */
static int make_object(struct reader *r)
{
    const struct pickle_value *class, *args;
    uint8_t global;

    if (stack_need(r, 2) != 0)
        return -1;
    class = stack_top(r, 1);
    args = stack_top(r, 0);
    if (class->kind != PICKLE_GLOBAL ||
        (class->global != PICKLE_FLAT_METADATA && class->global != PICKLE_LOCAL_TENSOR))
        return refuse(r,
                      "NEWOBJ would make %s; it may only make FlattenedTensorMetadata and "
                      "LocalSerializedTensor",
                      class->kind == PICKLE_GLOBAL ? global_name(class) : pickle_kind_name(class));
    global = class->global;
    if (args->kind != PICKLE_TUPLE || args->n != 0)
        return refuse(r, "NEWOBJ of %s has arguments; it has none", global_name(class));
    r->n_stack -= 2;
    return stack_push(r,
                      (struct pickle_value){.kind = PICKLE_OBJECT, .depth = 1, .global = global});
}

/* Sets the dict of an object, once: no other value can contain either. */
static int op_build(struct reader *r)
{
    const struct pickle_value *object, *state;

    if (stack_need(r, 2) != 0)
        return -1;
    object = stack_top(r, 1);
    state = stack_top(r, 0);
    if (object->kind != PICKLE_OBJECT || object->n != 0)
        return refuse(r, "BUILD changes %s%s; it may only fill a new object",
                      object->kind == PICKLE_OBJECT ? "again " : "", pickle_kind_name(object));
    if (state->kind != PICKLE_DICT)
        return refuse(r, "BUILD fills an object with %s; it is a dict", pickle_kind_name(state));
    return move_items(r, r->stack[r->n_stack - 2], 1);
}

static int torch_pickle_begin_frame(struct reader *r)
{
    uint64_t n;

    if (r->in_frame)
        return refuse(r, "a frame within a frame");
    if (take_int(r, FRAME_HEAD, &n) != 0)
        return -1;
    if (n > r->nbytes - r->at)
        return refuse(r, "a frame of %llu bytes, but %zu are left", (unsigned long long)n,
                      r->nbytes - r->at);
    r->in_frame = true;
    r->end = r->at + n;
    return 0;
}

static int op_stop(struct reader *r)
{
    if (r->n_marks != 0 || r->n_stack != 1)
        return refuse(r, "the pickle stops with %u values and %u marks; it leaves one value",
                      r->n_stack, r->n_marks);
    if (r->at != r->nbytes)
        return refuse(r, "%zu trailing bytes follow the end of the pickle", r->nbytes - r->at);
    r->p.root = r->stack[0];
    r->stopped = true;
    return 0;
}

static int begin_mark(struct reader *r)
{
    if (r->n_marks == PICKLE_MARKS_MAX)
        return refuse(r, "more than %d marks are open: nested too deep", PICKLE_MARKS_MAX);
    r->marks[r->n_marks++] = r->n_stack;
    return 0;
}

static int refuse_op(struct reader *r, uint8_t op)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (refused[i].op == op)
            return refuse(r, "opcode %s (0x%02x) is not part of an export of torch",
                          refused[i].name, op);
    return refuse(r, "opcode 0x%02x is not part of an export of torch", op);
}

/* Opcodes that push one value read from the bytes after them. */
static int step_value(struct reader *r, uint8_t op)
{
    switch (op) {
    case OP_NONE:
        return push_kind(r, PICKLE_NONE);
    case OP_NEWTRUE:
    case OP_NEWFALSE:
        return push_int(r, PICKLE_BOOL, op == OP_NEWTRUE);
    case OP_EMPTY_TUPLE:
        return push_kind(r, PICKLE_TUPLE);
    case OP_EMPTY_LIST:
        return push_kind(r, PICKLE_LIST);
    case OP_EMPTY_DICT:
        return push_kind(r, PICKLE_DICT);
    case OP_BININT1:
        return pickle_read_int(r, 1);
    case OP_BININT2:
        return pickle_read_int(r, 2);
    case OP_BININT:
        return pickle_read_int(r, 4);
    case OP_LONG1:
        return read_long(r);
    case OP_SHORT_BINUNICODE:
        return read_text(r, 1);
    case OP_BINUNICODE:
        return read_text(r, 4);
    case OP_SHORT_BINBYTES:
        return torch_pickle_read_bytes(r, 1);
    case OP_BINBYTES:
        return torch_pickle_read_bytes(r, 4);
    case OP_BINGET:
        return memo_get(r, 1);
    case OP_LONG_BINGET:
        return memo_get(r, 4);
    default:
        return refuse_op(r, op);
    }
}

/* Opcodes that work on what is on the stack. */
static int reader_step(struct reader *r, uint8_t op)
{
    uint32_t n = 0;

    switch (op) {
    case OP_FRAME:
        return torch_pickle_begin_frame(r);
    case OP_STOP:
        return op_stop(r);
    case OP_MARK:
        return begin_mark(r);
    case OP_MEMOIZE:
        return memo_put(r);
    case OP_STACK_GLOBAL:
        return read_global(r);
    case OP_REDUCE:
        return op_reduce(r);
    case OP_NEWOBJ:
        return r->form == FORM_TENSORS ? make_object(r) : refuse_op(r, op);
    case OP_BUILD:
        return r->form == FORM_TENSORS ? op_build(r) : refuse_op(r, op);
    case OP_TUPLE1:
    case OP_TUPLE2:
    case OP_TUPLE3:
        n = (uint32_t)op - OP_TUPLE1 + 1;
        return stack_need(r, n) != 0 ? -1 : make_tuple(r, n);
    case OP_TUPLE:
        return pop_mark(r, &n) != 0 ? -1 : make_tuple(r, n);
    case OP_APPEND:
        return op_extend(r, PICKLE_LIST, 1);
    case OP_APPENDS:
        return pop_mark(r, &n) != 0 ? -1 : op_extend(r, PICKLE_LIST, n);
    case OP_SETITEM:
        return op_extend(r, PICKLE_DICT, 2);
    case OP_SETITEMS:
        return pop_mark(r, &n) != 0 ? -1 : op_extend(r, PICKLE_DICT, n);
    default:
        return step_value(r, op);
    }
}

static int check_protocol(struct reader *r)
{
    if (r->nbytes < 2 || r->data[0] != OP_PROTO)
        return refuse(r, "no pickle of protocol %d or %d begins here", PROTOCOL_MIN, PROTOCOL_MAX);
    if (r->data[1] < PROTOCOL_MIN || r->data[1] > PROTOCOL_MAX)
        return refuse(r, "protocol %d; torch's exports are written in protocol %d or %d",
                      r->data[1], PROTOCOL_MIN, PROTOCOL_MAX);
    r->at = 2;
    return 0;
}

static int reader_run(struct reader *r)
{
    if (check_protocol(r) != 0)
        return -1;
    while (!r->stopped) {
        const uint8_t *op;

        r->op_at = r->at;
        if (r->in_frame && r->at == r->end) {
            r->in_frame = false;
            r->end = r->nbytes;
        }
        op = reader_take(r, 1);
        if (op == NULL || reader_step(r, *op) != 0)
            return -1;
    }
    return 0;
}

static int read_as(struct pickle *out, const uint8_t *data, size_t nbytes, enum form form,
                   const char *field, struct err *e)
{
    struct reader r = {
        .data = data, .nbytes = nbytes, .end = nbytes, .form = form, .field = field, .e = e};
    int rc;

    if (nbytes > PICKLE_NBYTES_MAX)
        return err_set(e, ERR_TOO_LARGE, field, "the pickle has %zu bytes; %d is the limit", nbytes,
                       PICKLE_NBYTES_MAX);
    rc = reader_run(&r);
    free(r.memo);
    if (rc != 0)
        pickle_fini(&r.p);
    else
        *out = r.p;
    return rc;
}

int pickle_read(struct pickle *out, const uint8_t *data, size_t nbytes, const char *field,
                struct err *e)
{
    return read_as(out, data, nbytes, FORM_HANDLES, field, e);
}

int pickle_read_tensors(struct pickle *out, const uint8_t *data, size_t nbytes, const char *field,
                        struct err *e)
{
    return read_as(out, data, nbytes, FORM_TENSORS, field, e);
}

int pickle_read_message(struct pickle *out, const uint8_t *data, size_t nbytes, const char *field,
                        struct err *e)
{
    return read_as(out, data, nbytes, FORM_MESSAGE, field, e);
}

void pickle_fini(struct pickle *p)
{
    free(p->values);
    free(p->cells);
    memset(p, 0, sizeof *p);
}

const char *pickle_kind_name(const struct pickle_value *v)
{
    static const char *const names[] = {
        [PICKLE_NONE] = "None",         [PICKLE_BOOL] = "a bool",     [PICKLE_INT] = "an int",
        [PICKLE_STR] = "a str",         [PICKLE_BYTES] = "bytes",     [PICKLE_GLOBAL] = "a global",
        [PICKLE_SIZE] = "a torch.Size", [PICKLE_TUPLE] = "a tuple",   [PICKLE_LIST] = "a list",
        [PICKLE_DICT] = "a dict",       [PICKLE_EXPORT] = "a tensor", [PICKLE_OBJECT] = "an object",
        [PICKLE_ERROR] = "an error",
    };

    return names[v->kind];
}
