/* One revision of a LoRA adapter: for each layer and module an optional pair A [r, in], B [out, r].
 *
 * Immutable once made, and complete: its bytes are in one block of its own, and of the file or
 * message that they came from only the names are kept, for a delta that builds on it
 * (engine/lora/adapter_delta.h). It is made only when every tensor is known and fits the model, or
 * when the caller allowed a part. */
#ifndef BATON_ENGINE_LORA_ADAPTER_H
#define BATON_ENGINE_LORA_ADAPTER_H

#include "base/err.h"
#include "base/names.h"
#include "engine/lora/adapter_config.h"
#include "memory/non_finite.h"
#include "weights/model/model_config.h"
#include "weights/safetensors.h"
#include "weights/tensor_list.h"

#include <stdbool.h>
#include <stdint.h>

enum { ADAPTER_TENSORS_MAX = 1 << 16, ADAPTER_ALIGN = 64, ADAPTER_DIGEST_LEN = 64 };

#define ADAPTER_NBYTES_MAX ((uint64_t)1 << 40)

enum adapter_module {
    ADAPTER_Q,
    ADAPTER_K,
    ADAPTER_V,
    ADAPTER_O,
    ADAPTER_GATE,
    ADAPTER_UP,
    ADAPTER_DOWN,
    ADAPTER_MODULE_COUNT
};

struct adapter_pair {
    uint32_t r; /* 0: the module has no pair */
    float scale;
    const void *a; /* [r][in], aligned to ADAPTER_ALIGN, in its dtype: BF16, F16 or F32 */
    const void *b; /* [out][r] */
    enum dtype a_dtype, b_dtype;
};

struct adapter; /* immutable */

/* adapter_free - give the memory back to the system, which may take milliseconds for each GB.
 * Accepts NULL. Threads: any. */
void adapter_free(struct adapter *a);

const struct adapter_pair *adapter_pair(const struct adapter *a, uint32_t layer,
                                        enum adapter_module module);
uint32_t adapter_rank(const struct adapter *a);   /* the largest of its pairs */
uint64_t adapter_nbytes(const struct adapter *a); /* what it takes from the system */

/* adapter_digest - SHA-256, in hex, over what generation depends on, in the order of the model:
 * places, dtypes, ranks, scales and bytes. Two adapters with one digest compute the same, whatever
 * they are called and however their files were laid out. */
const char *adapter_digest(const struct adapter *a);

/* adapter_tensors - the tensors that it has, as they came; the adapter's own.
 * adapter_bytes - those of tensor i of them.
 * adapter_checksums - of each of them; the adapter's own. */
struct tensor_list *adapter_tensors(const struct adapter *a);
const void *adapter_bytes(const struct adapter *a, uint32_t i);
const struct checksum *adapter_checksums(const struct adapter *a);

/* adapter_config_text - its adapter_config.json, as it came; the adapter's own. */
const char *adapter_config_text(const struct adapter *a);

/* ---- making one ---- */

struct adapter_spec {
    const struct model_config *model;  /* borrowed */
    const struct adapter *base;        /* borrowed; what comes are parts of a delta of it, and the
                                          adapter gets its tensors. NULL: whole tensors come */
    struct adapter_config *config;     /* borrowed; its match_cpu_us is counted up */
    uint32_t rank_max;                 /* --max-lora-rank */
    uint64_t nbytes_max;               /* of one adapter; at most ADAPTER_NBYTES_MAX */
    bool allow_partial;                /* accept what matches, if anything does */
    enum non_finite_policy non_finite; /* of tensors that match */
};

/* What became of each tensor. Names as they came; `missing` are paths of modules. */
struct adapter_report {
    struct names matched;
    struct names unmatched;  /* no module of this model, or one that the config leaves out */
    struct names ignored;    /* known to change nothing: stored rotary frequencies */
    struct names missing;    /* the config targets them, but they have no tensors */
    struct names non_finite; /* hold NaN or infinity; NON_FINITE_WARN */
    uint32_t n_keys_ignored;
    bool base_changed; /* trained from base weights that were changed at its start (PiSSA, ...) */
};
void adapter_report_fini(struct adapter_report *r); /* accepts a zeroed one */

struct adapter_builder;

/* adapter_builder_new - check everything that can be checked before a byte of a tensor is read.
 * @tensor_list  names, dtypes and shapes of the tensors that are present; borrowed for the call,
 *               with spec->base as long as the builder
 * Errors: those of adapter_delta_new; an error of the config with a delta is at /adapter_config;
 *         ERR_MISMATCH at /names/<i>: dtype or shape does not fit, a half of a pair is missing;
 *         ERR_MISMATCH: no tensor matches (also with allow_partial: an adapter that changes nothing
 *         is a mistake), or not all do, or a module has none; ERR_BAD_REQUEST: a tensor that is not
 *         supported, a rank over rank_max, a module named twice; ERR_TOO_LARGE
 *         (ADAPTER_TENSORS_MAX, nbytes_max); ERR_NO_MEMORY. */
int adapter_builder_new(struct adapter_builder **out, const struct adapter_spec *spec,
                        const struct tensor_list *tensor_list, struct err *e);
void adapter_builder_free(struct adapter_builder *b); /* accepts NULL */

/* adapter_builder_nbytes - what the adapter will take (adapter_nbytes), and the parts of a delta
 * until then. */
uint64_t adapter_builder_nbytes(const struct adapter_builder *b);

/* adapter_builder_reserve - take the memory. Errors: ERR_NO_STAGING (the machine has less memory
 * left), ERR_NO_MEMORY. */
int adapter_builder_reserve(struct adapter_builder *b, struct err *e);

/* adapter_builder_place - where the bytes of tensor i of the tensor list go, all of them; NULL when
 * the adapter does not need them. After adapter_builder_reserve. */
void *adapter_builder_place(const struct adapter_builder *b, uint32_t i);

/* adapter_builder_came - tensor i of the tensor list that the builder was made with is in its
 * place, or was read and is not needed. Call it once for each, while its bytes are in a cache.
 * Errors: ERR_NON_FINITE at /names/<i>, ERR_NO_MEMORY. */
int adapter_builder_came(struct adapter_builder *b, const struct tensor_list *tensor_list,
                         uint32_t i, struct err *e);

/* adapter_builder_apply - all parts of a delta are in place: make the tensors. Without one nothing.
 * @made  checksums of tensors of the adapter; those of others are not looked at
 * Blocks: no; one pass over the adapter, and one over what has a checksum.
 * Errors: those of delta_merge_* (field ""); ERR_CHECKSUM, ERR_NON_FINITE (field ""),
 * ERR_NO_MEMORY.
 */
int adapter_builder_apply(struct adapter_builder *b, const struct made_sums *made, struct err *e);

/* adapter_builder_finish - all bytes are in place: the adapter, the report (the
 * caller's, may be NULL). Consumes the builder. Reads every byte, for the digest. */
struct adapter *adapter_builder_finish(struct adapter_builder *b, struct adapter_report *report);

/* adapter_module_shape - outputs and inputs of a module's linear layer in this model. */
void adapter_module_shape(const struct model_config *c, enum adapter_module module, uint32_t *n_out,
                          uint32_t *n_in);

#endif
