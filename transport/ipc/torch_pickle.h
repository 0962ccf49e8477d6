/* The part of Python's pickle format that torch's CUDA IPC exports use, read and never executed.
 *
 * A pickle is a program; this reader accepts only programs that build data. Only listed opcodes and
 * globals are accepted, a global is only a number here, and the one object that is constructed is
 * torch.Size, from a tuple of integers. Rejected: a general reader with a filter on top, because it
 * would execute whatever the filter does not catch.
 *
 * Pickles that contain the tensors themselves (torch_tensors.h) use some more opcodes, which
 * pickle_read refuses: REDUCE of the rebuild function, NEWOBJ and BUILD of two classes. Their
 * results are plain values too: the arguments under another kind, and an object with a dict. */
#ifndef BATON_TRANSPORT_IPC_TORCH_PICKLE_H
#define BATON_TRANSPORT_IPC_TORCH_PICKLE_H

#include "base/err.h"
#include "memory/dtype.h"

#include <stddef.h>
#include <stdint.h>

enum {
    PICKLE_NBYTES_MAX = 64 << 20, /* of one pickle; about 212 for each tensor and GPU */
    PICKLE_ITEMS_MAX = 16 << 20,  /* values, and places of values in containers */
    PICKLE_STACK_MAX = 4096,      /* values under construction; Python's batches put 2,000 there */
    PICKLE_MARKS_MAX = 16,
    PICKLE_DEPTH_MAX = 8,  /* of containers within containers; real ones reach 5 */
    PICKLE_DIMS_MAX = 16,  /* of a torch.Size */
    PICKLE_TEXT_MAX = 255, /* bytes of a string */
    PICKLE_NAME_MAX = 1024 /* the same, in pickles with tensors' names */
};

enum pickle_kind {
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INT,
    PICKLE_STR,
    PICKLE_BYTES,
    PICKLE_GLOBAL,
    PICKLE_SIZE, /* a torch.Size: 0..PICKLE_DIMS_MAX integers from 0 on */
    PICKLE_TUPLE,
    PICKLE_LIST,
    PICKLE_DICT,
    PICKLE_EXPORT, /* a tensor: the items of its arguments */
    PICKLE_OBJECT, /* of the class `global`; one item once it is built: its dict */
    PICKLE_ERROR   /* a RuntimeError: the items of its arguments */
};

enum pickle_global {
    PICKLE_REBUILD, /* torch.multiprocessing.reductions.rebuild_cuda_tensor */
    PICKLE_TENSOR,
    PICKLE_PARAMETER,
    PICKLE_SIZE_CLASS,
    PICKLE_TYPED_STORAGE,
    PICKLE_UNTYPED_STORAGE,
    PICKLE_DTYPE,
    PICKLE_FLAT_METADATA, /* FlattenedTensorMetadata of any module */
    PICKLE_LOCAL_TENSOR,  /* LocalSerializedTensor of any module */
    PICKLE_ERROR_CLASS    /* builtins.RuntimeError */
};

struct pickle_value {
    uint8_t kind;   /* enum pickle_kind */
    uint8_t depth;  /* 0 for a value that contains no others */
    uint8_t global; /* enum pickle_global */
    uint8_t dtype;  /* enum dtype, of PICKLE_DTYPE */
    uint32_t n;     /* bytes; items; keys and values of a dict together */
    union {
        int64_t integer;     /* PICKLE_INT, PICKLE_BOOL */
        const uint8_t *data; /* PICKLE_STR (printable ASCII), PICKLE_BYTES; of the input */
        struct {
            uint32_t first, last; /* cells; only when n > 0 */
        } items;
    } u;
};

struct pickle_cell {
    uint32_t value, next;
};

struct pickle {
    struct pickle_value *values; /* owned */
    struct pickle_cell *cells;   /* owned */
    uint32_t n_values, n_cells;
    uint32_t root;
};

/* pickle_read - the value that a pickle of protocol 4 or 5 builds.
 * @out    written on success only; its values point into `data`
 * @data   [nbytes], borrowed for as long as *out is used
 * @field  the JSON pointer that errors carry
 *
 * Threads: any. Linear time, no recursion, memory at most 80 times nbytes.
 * Errors: ERR_BAD_REQUEST with the opcode or the global and its offset: one that is not listed, a
 *         length beyond the input or its frame, an unset memo entry, too deep, too large a stack,
 *         bytes after the end; ERR_TOO_LARGE (PICKLE_NBYTES_MAX, PICKLE_ITEMS_MAX);
 *         ERR_NO_MEMORY. */
int pickle_read(struct pickle *out, const uint8_t *data, size_t nbytes, const char *field,
                struct err *e);

/* pickle_read_tensors - the same, but tensors, their metadata and LocalSerializedTensor are also
 * accepted as values, and strings may be as long as tensors' names. */
int pickle_read_tensors(struct pickle *out, const uint8_t *data, size_t nbytes, const char *field,
                        struct err *e);

/* pickle_read_message - a message of a trainer over a socket (zmq_messages.h): as pickle_read, but
 * strings may be as long as tensors' names, and a RuntimeError is also accepted as a value. */
int pickle_read_message(struct pickle *out, const uint8_t *data, size_t nbytes, const char *field,
                        struct err *e);

void pickle_fini(struct pickle *p); /* accepts a zeroed one */

/* pickle_from_base64 - the bytes of a pickle that a request carries as text.
 * @text  [len], need not end in NUL
 *
 * Threads: any.
 * Returns: [*nbytes] bytes, which the caller frees; NULL on error.
 * Errors: ERR_TOO_LARGE (PICKLE_NBYTES_MAX, checked before anything is allocated) and
 *         ERR_BAD_REQUEST (ipc_base64) at `field`; ERR_NO_MEMORY. */
uint8_t *pickle_from_base64(size_t *nbytes, const char *text, size_t len, const char *field,
                            struct err *e);

/* pickle_kind_name - "an int", "a tuple", for messages. */
const char *pickle_kind_name(const struct pickle_value *v);

#endif
