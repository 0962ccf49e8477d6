/* Methods of PEFT that a training of an adapter begins with. */
#include "weights/model/adapter_method.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

/* Most methods only set where the training starts. Those listed here also subtract something from
 * the base weights, or quantize them (peft 0.21, layer.py); MiCA and EVA do not. PEFT writes true
 * after converting that. It takes some names in any case. */
bool adapter_method_changes_base(const char *method)
{
    static const char *const methods[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};

    for (size_t i = 0; method != NULL && i < sizeof methods / sizeof methods[0]; i++)
        if (strncasecmp(method, methods[i], strlen(methods[i])) == 0)
            return true;
    return false;
}
