/* What the method that an adapter was initialized with says of the weights under it. */
#ifndef BATON_WEIGHTS_MODEL_ADAPTER_METHOD_H
#define BATON_WEIGHTS_MODEL_ADAPTER_METHOD_H

#include <stdbool.h>

/* adapter_method_changes_base - does this init_lora_weights (NULL: none) also change the base
 * weights? Over weights that were not changed so, the adapter's output is wrong;
 * ADAPTER_BASE_CHANGED says it. */
bool adapter_method_changes_base(const char *method);
#define ADAPTER_BASE_CHANGED                                                                       \
    "the base weights were changed when its training began (init_lora_weights), and unless the "   \
    "served ones are those, its output is wrong: save it with "                                    \
    "path_initial_model_for_weight_conversion of PEFT"

#endif
