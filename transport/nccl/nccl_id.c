/* The three forms of a unique id, and the address in it.
 *
 * Layout, from NCCL 2.26 to 2.30: 8 bytes of magic, then a union of sockaddr_in and sockaddr_in6
 * as the host that made the id has them in memory (x86-64 and arm64: the family is little-endian).
 */
#include "transport/nccl/nccl_id.h"

#include "transport/ipc/ipc_handle.h"

#include <netinet/in.h>
#include <string.h>

enum {
    PICKLE_TAIL = 8, /* MEMOIZE TUPLE2 MEMOIZE TUPLE2 MEMOIZE REDUCE MEMOIZE STOP */
    ADDR_OFFSET = 8, /* of the sockaddr in the id */
    ID_AF_INET = 2,  /* Linux's values, which the other host wrote */
    ID_AF_INET6 = 10
};

int nccl_id_from_raw(uint8_t out[NCCL_ID_NBYTES], const uint8_t *value, size_t nbytes,
                     struct err *e)
{
    if (nbytes != NCCL_ID_NBYTES)
        return err_set(e, ERR_UNREADABLE, "",
                       "the store's value has %zu bytes; a raw NCCL unique id has %d", nbytes,
                       (int)NCCL_ID_NBYTES);
    memcpy(out, value, NCCL_ID_NBYTES);
    return 0;
}

static int refuse_pickle(const char *why, struct err *e)
{
    return err_set(e, ERR_UNREADABLE, "",
                   "the store's value is not a pickled ncclUniqueId as vLLM writes it: %s", why);
}

int nccl_id_from_pickle(uint8_t out[NCCL_ID_NBYTES], const uint8_t *value, size_t nbytes,
                        struct err *e)
{
    static const uint8_t tail[PICKLE_TAIL] = {0x94, 0x86, 0x94, 0x86, 0x94, 0x52, 0x94, 0x2e};
    static const uint8_t head[] = {0x43, NCCL_ID_NBYTES}; /* SHORT_BINBYTES and its length */
    const uint8_t *id;

    if (nbytes < NCCL_ID_PICKLE_NBYTES_MIN || nbytes > NCCL_ID_PICKLE_NBYTES_MAX)
        return err_set(e, ERR_UNREADABLE, "",
                       "the store's value has %zu bytes; a pickled ncclUniqueId has %d to %d",
                       nbytes, (int)NCCL_ID_PICKLE_NBYTES_MIN, (int)NCCL_ID_PICKLE_NBYTES_MAX);
    if (value[0] != 0x80)
        return refuse_pickle("its start is not that of a pickle", e);
    if (value[1] != 4 && value[1] != 5)
        return err_set(e, ERR_UNREADABLE, "",
                       "the store's value is a pickle of protocol %u; a pickled ncclUniqueId is "
                       "read in protocol 4 or 5",
                       value[1]);
    if (memcmp(value + nbytes - sizeof tail, tail, sizeof tail) != 0)
        return refuse_pickle("its end is not that of a pickle", e);
    id = value + nbytes - sizeof tail - NCCL_ID_NBYTES;
    if (memcmp(id - sizeof head, head, sizeof head) != 0)
        return refuse_pickle("there are no 128 raw bytes before its end", e);
    memcpy(out, id, NCCL_ID_NBYTES);
    return 0;
}

int nccl_id_from_base64(uint8_t out[NCCL_ID_NBYTES], const char *text, size_t len,
                        const char *field, struct err *e)
{
    uint8_t bytes[NCCL_ID_BASE64_LEN / 4 * 3 + 3];
    size_t nbytes;

    if (len != NCCL_ID_BASE64_LEN)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "an NCCL unique id is %d characters, the base64 of %d bytes; this has %zu",
                       (int)NCCL_ID_BASE64_LEN, (int)NCCL_ID_NBYTES, len);
    if (ipc_base64(bytes, &nbytes, text, len, "an NCCL unique id", field, e) != 0)
        return -1;
    if (nbytes != NCCL_ID_NBYTES)
        return err_set(e, ERR_BAD_REQUEST, field, "an NCCL unique id has %d bytes; this has %zu",
                       (int)NCCL_ID_NBYTES, nbytes);
    memcpy(out, bytes, NCCL_ID_NBYTES);
    return 0;
}

/* The address at which the bootstrap of the process that made the id listens. False, with *out
 * untouched: there is no IP address with a port at its place. */
static bool nccl_id_addr(const uint8_t id[NCCL_ID_NBYTES], struct sockaddr_storage *out)
{
    const uint8_t *at = id + ADDR_OFFSET;
    unsigned family = at[0] | (unsigned)at[1] << 8;
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};

    if ((family != ID_AF_INET && family != ID_AF_INET6) || (at[2] == 0 && at[3] == 0))
        return false;
    memset(out, 0, sizeof *out);
    if (family == ID_AF_INET) {
        memcpy(&v4.sin_port, at + 2, 2);
        memcpy(&v4.sin_addr, at + 4, 4);
        memcpy(out, &v4, sizeof v4);
    } else {
        memcpy(&v6.sin6_port, at + 2, 2);
        memcpy(&v6.sin6_addr, at + 8, 16);
        v6.sin6_scope_id = at[24] | (uint32_t)at[25] << 8 | (uint32_t)at[26] << 16 |
                           (uint32_t)at[27] << 24;
        memcpy(out, &v6, sizeof v6);
    }
    return true;
}

const char *nccl_id_addr_text(const uint8_t id[NCCL_ID_NBYTES], char out[CIDR_ADDR_TEXT_CAP])
{
    struct sockaddr_storage addr;

    if (nccl_id_addr(id, &addr))
        return cidr_addr_text((const struct sockaddr *)&addr, out);
    memcpy(out, "no address", sizeof "no address");
    return out;
}

int nccl_id_allow(const uint8_t id[NCCL_ID_NBYTES],
                  bool (*allows)(const void *arg, const struct sockaddr *addr), const void *arg,
                  const char *field, struct err *e)
{
    struct sockaddr_storage addr;
    char text[CIDR_ADDR_TEXT_CAP];

    if (allows == NULL)
        return 0;
    if (!nccl_id_addr(id, &addr))
        return err_set(e, ERR_FORBIDDEN, field,
                       "no address can be read from the NCCL unique id, and --nccl-allow-cidr "
                       "limits the addresses of trainers");
    if (!allows(arg, (const struct sockaddr *)&addr))
        return err_set(
            e, ERR_FORBIDDEN, field,
            "the NCCL unique id has the address %s, which --nccl-allow-cidr does not allow",
            cidr_addr_text((const struct sockaddr *)&addr, text));
    return 0;
}
