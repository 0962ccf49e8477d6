/* The group object of /v1/weight_transfer. */
#include "handlers/transfer_json.h"

#include "base/clock.h"
#include "control/weight_transfer.h"
#include "handlers/reply.h"

static json_t *transfer_text_or_null(const char *text)
{
    return text[0] != '\0' ? json_string(text) : json_null();
}

static json_t *transfer_ranks_json(const struct weight_transfer_cfg *cfg, uint32_t rank_offset)
{
    json_t *ranks = json_array();

    for (uint32_t i = 0; i < cfg->n_devices; i++) {
        const struct device *d = cfg->devices[i];

        ranks = json_list_append(ranks,
                                 json_pack("{s:I, s:s, s:s}", "rank", (json_int_t)(rank_offset + i),
                                           "place", device_name(d), "uuid", device_about(d)->uuid));
    }
    return ranks;
}

json_t *transfer_json_of(const struct weight_transfer *t, const struct nccl_join_info *info)
{
    static const struct nccl_join_info none = {0};
    const struct weight_transfer_cfg *cfg = weight_transfer_config(t);
    const struct nccl_join_info *i = info != NULL ? info : &none;
    char trainer[NCCL_VERSION_TEXT_MAX];
    bool some = info != NULL;

    nccl_version_text(trainer, i->trainer_version);
    return json_pack(
        "{s:s, s:s?, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o}", "state",
        some ? nccl_group_state_name(i->state) : "none", "transport", some ? "nccl" : NULL,
        "world_size", some ? json_integer(i->world_size) : json_null(), "rank_offset",
        some ? json_integer(i->rank_offset) : json_null(), "ranks",
        some ? transfer_ranks_json(cfg, i->rank_offset) : json_array(), "nccl_version",
        transfer_text_or_null(cfg->nccl->version), "nccl_library",
        transfer_text_or_null(cfg->nccl->path), "trainer_nccl_version",
        transfer_text_or_null(trainer), "bootstrap", transfer_text_or_null(i->bootstrap), "master",
        transfer_text_or_null(i->master), "group_name", transfer_text_or_null(i->group_name),
        "error", error_json(&i->error), "nbytes_received", (json_int_t)i->nbytes_received,
        "n_broadcasts", (json_int_t)i->n_broadcasts, "age_s",
        some ? json_real((double)(clock_now_us() - i->begun_us) / 1e6) : json_null());
}

json_t *transfer_json(struct weight_transfer *t)
{
    struct nccl_join_info info;

    return transfer_json_of(t, weight_transfer_info(t, &info) ? &info : NULL);
}
