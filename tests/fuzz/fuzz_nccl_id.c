/* A stranger's unique id in its three forms: a refusal explains itself and writes nothing, and what
 * is accepted is in the input, byte for byte. */
#include "transport/nccl/nccl_id.h"

#include <assert.h>
#include <nettle/base64.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check(int rc, const struct err *e, enum err_code code, const uint8_t *id,
                  const uint8_t *wanted)
{
    char text[CIDR_ADDR_TEXT_CAP];

    if (rc != 0) {
        assert(e->code == code && e->msg[0] != '\0' && strlen(e->msg) < ERR_MSG_MAX - 1);
        for (size_t i = 0; i < NCCL_ID_NBYTES; i++)
            assert(id[i] == 0x5a);
        return;
    }
    assert(e->code == ERR_NONE && memcmp(id, wanted, NCCL_ID_NBYTES) == 0);
    assert(strlen(nccl_id_addr_text(id, text)) < CIDR_ADDR_TEXT_CAP);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    char text[BASE64_ENCODE_RAW_LENGTH(NCCL_ID_NBYTES)];
    uint8_t id[NCCL_ID_NBYTES];
    struct err e = {0};
    int rc;

    memset(id, 0x5a, sizeof id);
    rc = nccl_id_from_pickle(id, data, len, &e);
    check(rc, &e, ERR_UNREADABLE, id, rc == 0 ? data + len - 8 - NCCL_ID_NBYTES : data);

    memset(id, 0x5a, sizeof id);
    err_clear(&e);
    rc = nccl_id_from_raw(id, data, len, &e);
    assert((rc == 0) == (len == NCCL_ID_NBYTES));
    check(rc, &e, ERR_UNREADABLE, id, data);

    memset(id, 0x5a, sizeof id);
    err_clear(&e);
    rc = nccl_id_from_base64(id, (const char *)data, len, "/nccl_unique_id", &e);
    check(rc, &e, ERR_BAD_REQUEST, id, id);
    if (rc == 0) {
        assert(len == sizeof text);
        base64_encode_raw(text, NCCL_ID_NBYTES, id);
        assert(memcmp(text, data, sizeof text) == 0); /* there is one way to write an id */
    }
    return 0;
}
