/* A pickle in JSON: base64. */
#include "transport/ipc/ipc_handle.h"
#include "transport/ipc/torch_pickle.h"

#include <stdlib.h>

uint8_t *pickle_from_base64(size_t *nbytes, const char *text, size_t len, const char *field,
                            struct err *e)
{
    uint8_t *bytes;

    if (len / 4 > (PICKLE_NBYTES_MAX + 2) / 3) {
        (void)err_set(e, ERR_TOO_LARGE, field,
                      "the base64 has %zu characters; a pickle has at most %d bytes", len,
                      PICKLE_NBYTES_MAX);
        return NULL;
    }
    bytes = malloc(len / 4 * 3 + 3);
    if (bytes == NULL) {
        (void)err_set(e, ERR_NO_MEMORY, "", "no memory for the pickle");
        return NULL;
    }
    if (ipc_base64(bytes, nbytes, text, len, "the pickle", field, e) != 0) {
        free(bytes);
        return NULL;
    }
    return bytes;
}
