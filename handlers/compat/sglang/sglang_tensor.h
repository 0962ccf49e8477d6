/* SGLang's /update_weights_from_tensor: buckets of tensors in a trainer's GPU memory, by pickles
 * that are read and never executed (transport/ipc/torch_tensors.h).
 *
 * Where SGLang means something that is not so here:
 *   load_format   its custom loaders are code that a server imports by name; null, direct and
 *                 flattened_bucket are all read by what the pickles hold
 *   flush_cache   what a cache holds is keyed by the weights here
 *   update        a bucket is received, and served when the model is whole, or generation continues
 *   a rank        is a GPU with all of the model; a string that is for another one's is not read */
#ifndef BATON_HANDLERS_COMPAT_SGLANG_SGLANG_TENSOR_H
#define BATON_HANDLERS_COMPAT_SGLANG_SGLANG_TENSOR_H

#include "base/err.h"
#include "http/http_request.h"

#include <jansson.h>

extern const char *const sglang_tensor_members[];
int sglang_tensor_request(json_t **body, const struct http_request *x, struct err *e);

/* A row of the route table; in the words of dialect_sglang.h. */
#define SGLANG_TENSOR                                                                              \
    SGLANG_LONG("/update_weights_from_tensor", "sglangUpdateTensor", OPERATION_UPDATE,             \
                .session = SESSION_AUTO_COMMIT, .members = sglang_tensor_members,                  \
                .translated_members = update_members, .translate_request = sglang_tensor_request,  \
                .translate_response = sglang_update_response)

#endif
