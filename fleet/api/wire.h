/* Our operations in the words of an upstream: which request asks it for what, and how its answers
 * read. Tables and JSON only; nothing is sent here. */
#ifndef BATON_FLEET_API_WIRE_H
#define BATON_FLEET_API_WIRE_H

#include "base/err.h"
#include "fleet/members/fleet.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What an SGLang calls a group that was given no name. */
#define WIRE_SGLANG_GROUP "weight_update_group"

enum wire_dialect { WIRE_BATON, WIRE_VLLM, WIRE_SGLANG, WIRE_DIALECTS };

/* wire_dialect_parse - "baton", "vllm", "sglang". Errors: ERR_BAD_REQUEST at `field`. */
int wire_dialect_parse(enum wire_dialect *out, const char *name, const char *field, struct err *e);
const char *wire_dialect_name(enum wire_dialect d);

enum wire_op {
    WIRE_INIT,
    WIRE_LEAVE, /* the group with the trainer */
    WIRE_START,
    WIRE_UPDATE,
    WIRE_VERIFY,
    WIRE_FINISH,
    WIRE_ABORT,
    WIRE_PAUSE,
    WIRE_RESUME,
    WIRE_SLEEP,
    WIRE_WAKE,
    WIRE_RESET_CACHE,   /* of prefixes; "running": preempt what runs, "external": beyond it too */
    WIRE_RESET_ENCODER, /* of what was made of images: where that is another cache */
    WIRE_RESET_STORAGE, /* of prefixes in the storage beyond an SGLang's memory (HiCache) */
    WIRE_RETRACT,       /* what is held gives up its KV: where its reset does not do that */
    WIRE_ABORT_REQUESTS,
    WIRE_LORA_LOAD,
    WIRE_LORA_UNLOAD,
    WIRE_RENEW,       /* the lease of its update */
    WIRE_TENSOR_LIST, /* which tensors are to come */
    WIRE_LABEL,       /* another name for what it serves */
    WIRE_OPS
};

/* How the trainer's group packs tensors, as was said when it was formed; zeroed: not at all. */
struct wire_packing {
    bool packed;
    uint64_t bucket_nbytes; /* 0: not said */
};

/* What differs from upstream to upstream in one operation. */
struct wire_about {
    const char *release; /* of upstream_saw; NULL or one that says nothing: taken for the newest */
    struct wire_packing group;
    const char *group_name; /* it was joined under; NULL or "": under none */
    const char *update_id;  /* the upstream's own, of its start; of the others, which have none, the
                               version that they are to tell until the update ends; NULL: none */
    bool has_rank_offset;
    uint64_t rank_offset; /* of its first rank in the trainer's group */
    bool has_begun;       /* its own update is open: WIRE_START was not refused */
};

enum { WIRE_PATH_MAX = 256 };

struct wire_request {
    const char *method; /* static; NULL: this dialect needs nothing sent for it */
    char path[WIRE_PATH_MAX];
    const char *older; /* static: its path in older releases, to be asked where `path` is a 404;
                          NULL: the same */
    char *body;        /* owned, NUL behind it; NULL: none */
    size_t body_len;
};
void wire_request_fini(struct wire_request *r); /* accepts a zeroed one */

/* wire_make - the request for one upstream.
 * @native  borrowed; the body that our own route takes for it
 * Errors: ERR_BAD_REQUEST at the member that this dialect has no words for; ERR_NO_MEMORY.
 *         *out is empty then. */
int wire_make(struct wire_request *out, enum wire_dialect d, enum wire_op op, const json_t *native,
              const struct wire_about *about, struct err *e);

/* wire_is_two_phase - can it prove an update without serving it? Where not, every byte that comes
 * changes what it serves. */
bool wire_is_two_phase(enum wire_dialect d);

/* What is asked of it about itself. */
enum wire_question {
    WIRE_WHO,      /* the process, and the version that it serves */
    WIRE_LABEL_OF, /* the version, where WIRE_WHO does not say */
    WIRE_NAME,     /* the version alone */
    WIRE_RANKS,    /* how many ranks it is in a trainer's group */
    WIRE_TOKEN,    /* one token: does it still generate? */
    WIRE_RELEASE,  /* of its software, where its wire differs by that */
    WIRE_CONFIG,   /* its configuration, as a vLLM tells it */
    WIRE_QUESTIONS
};

/* wire_ask - the request of a question; none where this dialect needs none for it.
 * Errors: ERR_NO_MEMORY. */
int wire_ask(struct wire_request *out, enum wire_dialect d, enum wire_question q, struct err *e);

/* wire_read_who - what an answer of status 200 to WIRE_WHO says.
 * @text  not NUL-terminated. An answer that says nothing leaves *out empty. */
void wire_read_who(struct upstream_saw *out, enum wire_dialect d, const char *text, size_t len);

/* wire_read_label - what an answer to WIRE_LABEL_OF says: out->label, which it leaves as it is
 * where that was not asked (status 0), and empty where the upstream knows no such question. Errors:
 * ERR_UNREADABLE: it does not say. */
int wire_read_label(struct upstream_saw *out, enum wire_dialect d, int status, const char *text,
                    size_t len, struct err *e);

/* wire_other_dialect - what to write if an answer of this status to WIRE_WHO, which every upstream
 * of the dialect knows, is another dialect's: "; if it is no baton, …"; "" for other statuses. */
const char *wire_other_dialect(enum wire_dialect d, int status);

/* wire_read_release - what an answer to WIRE_RELEASE says: out->release, which it leaves as it is
 * where the answer does not say it. */
void wire_read_release(struct upstream_saw *out, int status, const char *text, size_t len);

/* Where vLLM says how tensors are packed: in each update before these releases, and since then when
 * its transfer is set up; and what it has since when. */
#define VLLM_PACKS_HANDLES_AT_INIT 27
#define VLLM_PACKS_GROUP_AT_INIT   28
#define VLLM_TAKES_UNIQUE_ID       30
#define VLLM_SHUTS_TRANSFER_DOWN   32
#define VLLM_RELEASES_KV           31

/* vllm_has - is a release 0.`minor` or later? One that cannot be read, and one built from sources
 * without their tags ("0.1.dev1+g…"), are taken for the newest. */
bool vllm_has(const char *release, unsigned minor);

/* wire_refuses_key - does this status of an answer say that we are not let in: by our key, or by
 * the name in the URL (421, of a baton)?
 * wire_refuses_relayed - the same, of the answer to a client's request: a vLLM and an SGLang refuse
 * a key by 401, and what they forbid (403) is what was asked for, a route that is switched off. A
 * baton forbids no such request but for its key.
 * wire_refusal - what such a status says of the upstream, and what to do: "wants a key, …".
 * @has_key  one was sent */
bool wire_refuses_key(int status);
bool wire_refuses_relayed(enum wire_dialect d, int status);
const char *wire_refusal(int status, bool has_key);

/* wire_read_name - what an answer of status 200 to WIRE_NAME says; "": that it has none.
 * @out  of one that is longer its first WIRE_NAME_MAX bytes, which is more than any name of ours
 * Errors: ERR_UNREADABLE: it does not say. */
enum { WIRE_NAME_MAX = 257 };
int wire_read_name(char out[WIRE_NAME_MAX + 1], enum wire_dialect d, const char *text, size_t len,
                   struct err *e);

/* wire_read_ranks - of WIRE_RANKS. Errors: ERR_UNREADABLE: it does not say. */
int wire_read_ranks(uint64_t *out, enum wire_dialect d, const char *text, size_t len,
                    struct err *e);

/* wire_read_config - what an answer of status 200 to WIRE_CONFIG says, with the names of a vLLM's
 * configuration; of an SGLang, what means the same there. New; NULL on errors.
 * Errors: ERR_UNREADABLE: it does not say. */
json_t *wire_read_config(enum wire_dialect d, const char *text, size_t len, struct err *e);

/* wire_read_process - the process that an answer to WIRE_START of a baton names; "": none. */
void wire_read_process(char out[FLEET_LABEL_MAX + 1], const char *text, size_t len);

/* wire_read_update_id - of an answer to WIRE_START of a baton. Errors: ERR_UNREADABLE. */
enum { WIRE_UPDATE_ID_MAX = 64 };
int wire_read_update_id(char out[WIRE_UPDATE_ID_MAX + 1], const char *text, size_t len,
                        struct err *e);

/* wire_read_open_update - of an answer of a baton to WIRE_WHO. False: none is open there. */
bool wire_read_open_update(char out[WIRE_UPDATE_ID_MAX + 1], const char *text, size_t len);

/* wire_read_done - does an answer of status 200 say that the operation was done, as it was asked
 * for?
 * @native, @about  as they were given to wire_make
 * Errors: ERR_UPSTREAM: what it says instead. */
int wire_read_done(enum wire_dialect d, enum wire_op op, const json_t *native,
                   const struct wire_about *about, const char *text, size_t len, struct err *e);

/* wire_resets_surely - does an answer of success to WIRE_RESET_CACHE prove that the cache is empty?
 * Many versions of vLLM answer alike when nothing was reset, but never where they were told to
 * preempt what runs.
 * @native  as it was given to wire_make */
bool wire_resets_surely(enum wire_dialect d, const json_t *native, const char *text, size_t len);

/* wire_read_absent - does an answer that refuses to unload an adapter say that it has none of that
 * name? */
bool wire_read_absent(enum wire_dialect d, const char *name, int status, const char *text,
                      size_t len);

/* wire_read_error - the message of an answer that is no success: as each of the three says it, or
 * the beginning of its text. @out  of at least 2 bytes; "" when it is empty */
void wire_read_error(char *out, size_t cap, const char *text, size_t len);

#endif
