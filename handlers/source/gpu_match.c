/* Matching is by UUID, never by position: if a rank reads another rank's bucket, training
 * continues with wrong bytes and nothing reports it. */
#include "handlers/source/gpu_match.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { SIDE_TEXT_MAX = 180 }; /* four UUIDs */

/* Do two texts name the same GPU? @uuid  as ipc_uuid_parse makes it */
static bool same_gpu(const char *text, const char *uuid)
{
    char bare[IPC_UUID_LEN + 1];

    return ipc_uuid_parse(bare, text, strlen(text)) && strcmp(bare, uuid) == 0;
}

bool gpu_match_is_rank(const struct gpu_match_ranks *ranks, const char *uuid)
{
    for (uint32_t r = 0; r < ranks->n; r++)
        if (same_gpu(ranks->uuids[r], uuid))
            return true;
    return false;
}

const char *gpu_list_text(char *out, size_t cap, uint32_t n,
                          const char *(*at)(const void *arg, uint32_t i), const void *arg)
{
    static const char more[] = " and 4294967295 more";
    size_t len = 0;
    uint32_t i;

    out[0] = '\0';
    for (i = 0; i < n; i++) {
        const char *text = at(arg, i);

        if (len + strlen(text) + sizeof ", " + sizeof more > cap)
            break;
        len += (size_t)snprintf(out + len, cap - len, "%s%s", i > 0 ? ", " : "", text);
    }
    if (i < n)
        (void)snprintf(out + len, cap - len, " and %u more", (unsigned)(n - i));
    return out;
}

static const char *rank_at(const void *arg, uint32_t i)
{
    return ((const struct gpu_match_ranks *)arg)->uuids[i];
}

static const char *gpu_at(const void *arg, uint32_t i)
{
    return ((const struct ipc_handles *)arg)->gpus[i].uuid;
}

static const struct ipc_gpu *own_gpu(const struct gpu_match_ranks *ranks, uint32_t rank,
                                     const struct ipc_handles *h)
{
    for (uint32_t i = 0; i < h->n_gpus; i++)
        if (same_gpu(ranks->uuids[rank], h->gpus[i].uuid))
            return &h->gpus[i];
    return NULL;
}

static int refuse_unmatched(const struct gpu_match_ranks *ranks, uint32_t rank,
                            const struct ipc_handles *h, enum gpu_reach reach, const char *field,
                            struct err *e)
{
    char ours[SIDE_TEXT_MAX], theirs[SIDE_TEXT_MAX];

    if (reach == GPU_NO_PEER_ACCESS)
        return err_set(e, ERR_BAD_REQUEST, field,
                       "the handles are only for GPU %s, whose memory this server's GPU %s cannot "
                       "read: there is no peer access between the two",
                       h->gpus[0].uuid, ranks->uuids[rank]);
    return err_set(
        e, ERR_BAD_REQUEST, field,
        "there is no handle for GPU %s; this server's GPUs are %s; the handles are for %s",
        ranks->uuids[rank], gpu_list_text(ours, sizeof ours, ranks->n, rank_at, ranks),
        gpu_list_text(theirs, sizeof theirs, h->n_gpus, gpu_at, h));
}

int gpu_match(const struct ipc_gpu **rank_gpus, const struct gpu_match_ranks *ranks,
              const struct ipc_handles *h, bool sharded, const char *field, struct err *e)
{
    const struct ipc_gpu *matched[IPC_GPUS_MAX] = {NULL};
    bool single_gpu = h->n_gpus == 1 && !(sharded && gpu_match_is_rank(ranks, h->gpus[0].uuid));
    enum gpu_reach first_reach = GPU_NOT_VISIBLE;
    uint32_t n_matched = 0;

    assert(ranks->n > 0 && ranks->n <= IPC_GPUS_MAX && h->n_gpus > 0);
    for (uint32_t r = 0; r < ranks->n; r++) {
        enum gpu_reach reach = GPU_NOT_VISIBLE;

        matched[r] = own_gpu(ranks, r, h);
        if (matched[r] == NULL && single_gpu)
            reach = ranks->reach(ranks->arg, r, h->gpus[0].uuid);
        if (reach == GPU_REACHABLE)
            matched[r] = &h->gpus[0];
        if (matched[r] == NULL && !sharded)
            return refuse_unmatched(ranks, r, h, reach, field, e);
        if (r == 0)
            first_reach = reach;
        n_matched += matched[r] != NULL;
    }
    if (n_matched == 0)
        return refuse_unmatched(ranks, 0, h, first_reach, field, e);
    memcpy(rank_gpus, matched, ranks->n * sizeof rank_gpus[0]);
    return 0;
}
