/* SGLang's /update_weights_from_tensor: buckets of tensors in a trainer's GPU memory, by pickles
 * that are read and never executed (transport/ipc/torch_tensors.h).
 * Differences from SGLang:
 *   load_format   custom loaders are code that SGLang imports by name, which is refused; null,
 * direct and flattened_bucket are all read according to the content of the pickles flush_cache has
 * no effect: caches are keyed by the weights update        a received bucket is served once the
 * model is complete or generation continues a rank        is a GPU with the whole model; strings
 * for other ranks are not read */
#ifndef BATON_HANDLERS_COMPAT_SGLANG_SGLANG_TENSOR_H
#define BATON_HANDLERS_COMPAT_SGLANG_SGLANG_TENSOR_H

#include "base/err.h"
#include "handlers/dialect.h"
#include "http/http_request.h"

#include <jansson.h>

extern const struct member sglang_tensor_members[];
int sglang_tensor_request(json_t **body, const struct http_request *x, struct err *e);

/* A row of the route table, made with the macros of dialect_sglang.h. */
#define SGLANG_TENSOR                                                                              \
    SGLANG_LONG("/update_weights_from_tensor", "sglangUpdateTensor", OPERATION_UPDATE,             \
                .session = SESSION_AUTO_COMMIT, .members = sglang_tensor_members,                  \
                .translated_members = update_members, .translate_request = sglang_tensor_request,  \
                .translate_response = sglang_update_response)

#endif
