/* Weights from the request body: bytes go from the socket straight into staging. */
#ifndef BATON_TRANSPORT_BODY_H
#define BATON_TRANSPORT_BODY_H

#include "base/err.h"
#include "http/http_request.h"
#include "weights/source.h"

/* body_source_new - @x is borrowed: it must stay unanswered until the source is closed; its head
 * has been read. The bytes that follow are the tensor list's tensors, packed, and nothing else.
 * Errors: ERR_NO_MEMORY. */
int body_source_new(struct source **out, struct http_request *x, uint64_t stall_us, struct err *e);

#endif
