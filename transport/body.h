/* Weights from the request body: bytes are read from the socket directly into staging. */
#ifndef BATON_TRANSPORT_BODY_H
#define BATON_TRANSPORT_BODY_H

#include "base/err.h"
#include "http/http_request.h"
#include "weights/source.h"

/* body_source_new - a source over the body of a request, which contains the tensors of the tensor
 * list, packed, and nothing else.
 * @x  borrowed; its head has been read; must stay unanswered until the source is closed
 * Errors: ERR_NO_MEMORY. */
int body_source_new(struct source **out, struct http_request *x, uint64_t stall_us, struct err *e);

#endif
