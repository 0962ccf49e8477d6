/* NCCL's unique id, in the three forms in which trainers hand it over: 128 raw bytes (a torch
 * process group), base64 in a request, and vLLM's pickle of a ctypes structure.
 *
 * The pickle is recognised by its fixed shape, never interpreted. The id itself is passed to NCCL
 * unchanged (NCCL hashes all of it); only the address in it is read, for logs and because NCCL will
 * connect to it. */
#ifndef BATON_TRANSPORT_NCCL_NCCL_ID_H
#define BATON_TRANSPORT_NCCL_NCCL_ID_H

#include "base/err.h"
#include "base/net/cidr.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum {
    NCCL_ID_NBYTES = 128,
    NCCL_ID_BASE64_LEN = (NCCL_ID_NBYTES + 2) / 3 * 4, /* 172, with its padding */
    NCCL_ID_PICKLE_NBYTES_MIN = 140,
    NCCL_ID_PICKLE_NBYTES_MAX = 4096
};

/* nccl_id_from_raw - read a store's value that is the id itself.
 * @out  written on success only, here and below
 * Errors: ERR_UNREADABLE (not 128 bytes). Threads: any, here and below. */
int nccl_id_from_raw(uint8_t out[NCCL_ID_NBYTES], const uint8_t *value, size_t nbytes,
                     struct err *e);

/* nccl_id_from_pickle - read a store's value that is pickle.dumps(ncclUniqueId), of any module, in
 * protocol 4 or 5 (Python's default since 3.8).
 * Errors: ERR_UNREADABLE (names the missing part of the shape). */
int nccl_id_from_pickle(uint8_t out[NCCL_ID_NBYTES], const uint8_t *value, size_t nbytes,
                        struct err *e);

/* nccl_id_from_base64 - read an id in base64: the standard alphabet, padded, 172 characters.
 * @text   [len], need not end in NUL
 * @field  the member's JSON pointer
 * Errors: ERR_BAD_REQUEST at `field`. */
int nccl_id_from_base64(uint8_t out[NCCL_ID_NBYTES], const char *text, size_t len,
                        const char *field, struct err *e);

/* nccl_id_addr_text - format the address at which the bootstrap of the process that made the id
 * listens: "10.0.0.17:45123", or "no address" if there is no IP address with a port at its place.
 * NCCL does not document the layout, so an id without an address is refused only if addresses are
 * limited. Returns out. */
const char *nccl_id_addr_text(const uint8_t id[NCCL_ID_NBYTES], char out[CIDR_ADDR_TEXT_CAP]);

/* nccl_id_allow - check that NCCL may connect to the address in the id.
 * @allows  cidr_list_match with a struct cidr_list, or a callback of that form; NULL allows all
 * @field   the field of the error
 * Errors: ERR_FORBIDDEN (not allowed, or no address can be read although addresses are limited). */
int nccl_id_allow(const uint8_t id[NCCL_ID_NBYTES],
                  bool (*allows)(const void *arg, const struct sockaddr *addr), const void *arg,
                  const char *field, struct err *e);

#endif
