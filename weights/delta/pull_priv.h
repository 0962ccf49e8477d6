/* What the readers of the forms share. */
#ifndef BATON_WEIGHTS_DELTA_PULL_PRIV_H
#define BATON_WEIGHTS_DELTA_PULL_PRIV_H

#include "base/file_stamp.h"
#include "base/json_reader.h"
#include "base/names.h"
#include "memory/hash.h"
#include "weights/delta/delta.h"
#include "weights/delta/pull.h"

enum { PULL_FILE_NAME_MAX = 255, PULL_VALUE_MAX = 256 };

enum pull_how {
    PULL_WHOLE,    /* the file has the tensor's bytes */
    PULL_XOR,      /* a zstd frame of new xor old */
    PULL_OVERWRITE /* a zstd frame of a count, byte positions, and bytes, as slime has it */
};

/* What a version says of one tensor. */
struct pull_change {
    uint32_t index; /* of the model spec's tensor */
    uint32_t file;  /* of the pull's files */
    enum pull_how how;
    uint64_t offset, nbytes;     /* of the payload, in the file */
    char sum[HASH_TEXT_MAX + 1]; /* of the new tensor's bytes; "": none */
    enum hash_kind hash;
};

struct pull_version {
    uint64_t number;
    bool whole;                  /* a checkpoint: it needs no version before it */
    struct pull_change *changes; /* owned; [n] */
    uint32_t n, cap;
    uint32_t *of; /* owned; [the model spec's tensors]: number in `changes`, or UINT32_MAX */
};

struct pull_file {
    int fd; /* owned */
    struct file_stamp stamp;
    uint64_t version;
    char name[PULL_FILE_NAME_MAX + 1];
};

struct pull {
    struct pull_cfg cfg;
    struct pull_version *versions; /* owned; [n_versions], ascending */
    uint32_t n_versions;
    struct pull_file *files; /* owned; [n_files] */
    uint32_t n_files;
    struct tensor_list *list; /* owned; NULL: nothing changes */
    uint64_t reading;         /* the version that is read */
    uint64_t nbytes_left;     /* that its fetched files may still have */
    uint64_t nbytes_all_left; /* ... and those of all versions together */
    uint32_t *index;          /* owned; [list->n_tensors]: of the model spec */
};

/* The head of a payload file. */
struct pull_head {
    struct tensor_list *list; /* owned */
    uint64_t nbytes_head;
    uint32_t file;                   /* of the pull's files */
    char (*sums)[HASH_TEXT_MAX + 1]; /* owned; [list->n_tensors] what __metadata__ says of each; ""
                                        for nothing, or if it is too long to be a hash */
};

/* pull_say_version - put "version 3: " before a message. Returns -1. */
int pull_say_version(struct err *e, uint64_t version);

/* pull_open_directory - open the directory of a version, to read and list it.
 * @fd  -1: there is none, and files are fetched
 * Errors: ERR_NOT_FOUND, ERR_FORBIDDEN, ERR_UNREADABLE. */
int pull_open_directory(int *fd, const struct pull *p, uint64_t version, struct err *e);

/* pull_read_text - read a file of a version's directory.
 * @out  malloc'ed; NULL: there is none and `optional` is set
 * Errors: ERR_NOT_FOUND, ERR_FORBIDDEN, ERR_UNREADABLE, ERR_TOO_LARGE, ERR_NO_MEMORY. */
int pull_read_text(char **out, size_t *len, const struct pull *p, int dirfd, const char *name,
                   bool optional, struct err *e);

/* pull_check_file_name - a plain name that ends in ".safetensors". Errors: ERR_BAD_REQUEST. */
int pull_check_file_name(const char *name, struct err *e);

/* pull_see_files - is every file of the directory whose name ends in ".safetensors" in `files`?
 * @add  they are added instead
 * Errors: ERR_BAD_REQUEST, ERR_TOO_LARGE, ERR_UNREADABLE, ERR_NO_MEMORY. */
int pull_see_files(int dirfd, struct names *files, bool add, struct err *e);

/* pull_open_file - open a payload file, add it to the pull's files, and read its head.
 * Errors: as pull_read_text, and ERR_BAD_REQUEST as safetensors_parse. */
int pull_open_file(struct pull_head *out, struct pull *p, int dirfd, const char *name,
                   uint64_t version, struct err *e);
void pull_head_fini(struct pull_head *h); /* accepts a zeroed one */

/* pull_add_change - add what a version says of a tensor; the frame's head is read and checked.
 * What another file says of the same tensor must be the same bytes.
 * Errors: ERR_BAD_REQUEST, ERR_UNREADABLE, ERR_NO_MEMORY. */
int pull_add_change(struct pull *p, struct pull_version *v, const struct pull_change *c,
                    struct err *e);

/* pull_add_payload - the same for tensor i of a payload file, which a frame has to be: U8, of one
 * dimension. @c  all but the place of the payload */
int pull_add_payload(struct pull *p, struct pull_version *v, const struct pull_head *h, uint32_t i,
                     struct pull_change c, struct err *e);

/* pull_target - the model spec's tensor of a name in a delta. Errors: ERR_MISMATCH (unknown),
 * ERR_BAD_REQUEST (fused or ignored: it has no bytes of its own here). */
int pull_target(uint32_t *index, const struct pull *p, const char *name, struct err *e);

/* pull_pread - read exactly so many bytes of a file. Errors: ERR_UNREADABLE. */
int pull_pread(const struct pull_file *f, void *out, uint64_t nbytes, uint64_t offset,
               struct err *e);

/* Memory for the bytes of one change of a tensor: one reference each, NULL until it is needed. */
struct pull_rooms {
    struct slab *payload, *content;
};

/* How to make a tensor's bytes, and what they have to be. */
struct delta_change {
    const struct pull_file *file; /* the bytes are there, from `offset` on; NULL: as below */
    uint64_t offset;
    struct delta_tensor how;
    struct delta_bytes positions, values;
    enum hash_kind hash;
    const char *sum; /* of the bytes that are made; NULL: not known */
};

/* pull_next - the first version, by its number in `versions`, from k on that changes a tensor of
 * the model spec; PULL_NO_CHANGE: none.
 * pull_change - what it says. @out  valid until the next call with these rooms. Errors: those of
 * pull_source's fill.
 * pull_finish - after the last. Errors: ERR_UNREADABLE: a file changed. */
#define PULL_NO_CHANGE UINT32_MAX
uint32_t pull_next(const struct pull *p, uint32_t index, uint32_t k);
int pull_change(struct delta_change *out, const struct pull *p, uint32_t index, uint32_t k,
                struct store *store, struct pull_rooms *rooms, struct err *e);
int pull_finish(const struct pull *p, struct err *e);

/* The readers: read what version v->number says. Errors: those of pull_open. */
int pull_read_slime(struct pull *p, struct pull_version *v, struct err *e);
int pull_read_skyrl(struct pull *p, struct pull_version *v, struct err *e);

/* pull_syntax - make an error of a JSON reader's failure. @name  of the file. Returns -1. */
int pull_syntax(const struct json_reader *r, const char *name, struct err *e);

#endif
