/* Names of an adapter's tensors and of the modules they belong to. */
#ifndef BATON_ENGINE_LORA_ADAPTER_NAMES_H
#define BATON_ENGINE_LORA_ADAPTER_NAMES_H

#include "engine/lora/adapter.h"
#include "weights/model/model_tensors.h"

enum adapter_name_kind {
    ADAPTER_NAME_HALF,    /* A or B of a module of this model */
    ADAPTER_NAME_IGNORED, /* changes nothing */
    ADAPTER_NAME_FOREIGN, /* no module of this model */
    ADAPTER_NAME_REFUSED  /* would change what is computed, in a way that is not supported */
};

struct adapter_name {
    enum adapter_name_kind kind;
    uint32_t layer; /* of a half, and so are the next two */
    enum adapter_module module;
    bool is_b;
    const char *why; /* REFUSED; static */
};

/* adapter_name_parse - "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"; the prefix
 * up to the second "model." may be absent. */
struct adapter_name adapter_name_parse(const char *name, uint32_t n_layers);

/* adapter_module_path - "model.layers.0.self_attn.q_proj". Returns out. */
const char *adapter_module_path(uint32_t layer, enum adapter_module module,
                                char out[MODEL_NAME_MAX]);

/* adapter_module_weight - the module's weight among the tensors of a layer. */
enum layer_tensor adapter_module_weight(enum adapter_module module);

#endif
