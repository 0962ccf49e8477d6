/* The policy for values that are not finite.
 *
 * Bytes written to host memory are checked piece by piece (update_pieces.c). Bytes copied between
 * GPUs without conversion are checked there, in the pass that computes the checksum; a tensor with
 * such values is then copied to the host to count them. Names that are no weights (PART_IGNORED)
 * are not checked, nor are bytes that a GPU copies without a checksum. */
#include "base/log.h"
#include "weights/update/update_chunk_priv.h"

#include <stdio.h>
#include <stdlib.h>

static const struct tensor_spec *update_finite_part_spec(const struct rank_fill *r, uint32_t i)
{
    return &r->tensor_list->tensors[i];
}

bool finite_is_checked(const struct rank_fill *r, uint32_t i)
{
    return r->layout->parts[i].how != PART_IGNORED &&
           non_finite_bits(update_finite_part_spec(r, i)->dtype).top != 0;
}

/* Records a name, borrowed from the model spec. Returns false if it is recorded already. */
static bool non_finite_note(struct non_finite_names *names, const char *name)
{
    for (uint32_t i = 0; i < names->n && i < UPDATE_NON_FINITE_MAX; i++)
        if (names->names[i] == name)
            return false;
    if (names->n < UPDATE_NON_FINITE_MAX)
        names->names[names->n] = name;
    names->n++;
    return true;
}

/* The model spec's name of tensor i, which outlives the chunk. */
static const char *finite_name_of(const struct fill *f, const struct part *part)
{
    return part->match.alias != NULL ? part->match.alias->name
                                     : target_spec(f, part->match.index)->name;
}

static void finite_warn(const struct fill *f, const char *name, const struct non_finite *found)
{
    struct log_rec r;

    log_begin(&r, LOG_WARN, "weights.non_finite");
    log_str(&r, "tensor", name);
    log_str(&r, "weight_version", f->job->label);
    log_str(&r, "update_id", f->session->id);
    log_u64(&r, "n", found->n);
    log_str(&r, "first", non_finite_what(found));
    log_u64(&r, "index", found->first);
    log_end(&r);
}

/* Applies the policy to values that are not finite. @as the dtype of the bytes that were checked */
static int finite_found(const struct fill *f, uint32_t rank, uint32_t i,
                        const struct non_finite *found, enum dtype as, struct err *e)
{
    const struct rank_fill *r = &f->ranks[rank];
    const struct tensor_spec *t = update_finite_part_spec(r, i);
    const char *label = f->job->label;
    char field[48], of[VERSION_LABEL_MAX + 48];

    if (f->non_finite == NON_FINITE_WARN) {
        if (non_finite_note(&f->job->non_finite, finite_name_of(f, &r->layout->parts[i])))
            finite_warn(f, t->name, found);
        return 0;
    }
    (void)snprintf(field, sizeof field, "/names/%u", i);
    (void)snprintf(of, sizeof of, "%s%s%s%.100s%s", as != t->dtype ? " as " : "",
                   as != t->dtype ? dtype_name(as) : "", label[0] != '\0' ? " of '" : "", label,
                   label[0] != '\0' ? "'" : "");
    (void)non_finite_refuse(found, t->name, t->numel, of, field, e);
    chunk_refield(f->job->chunk, rank, e);
    return -1;
}

int finite_check_host(const struct fill *f, uint32_t rank, uint32_t i, const void *bytes,
                      struct err *e)
{
    const struct tensor_spec *t = update_finite_part_spec(&f->ranks[rank], i);
    struct non_finite found = {0};

    if (f->non_finite == NON_FINITE_ALLOW || !finite_is_checked(&f->ranks[rank], i) ||
        !non_finite_in(bytes, t->nbytes, t->dtype))
        return 0;
    non_finite_count(&found, bytes, t->nbytes, t->dtype, 0);
    return finite_found(f, rank, i, &found, t->dtype, e);
}

int finite_check_filled(const struct fill *f, uint32_t i, const void *bytes, struct err *e)
{
    return pieces_suspect(f, i) ? finite_check_host(f, 0, i, bytes, e) : 0;
}

int finite_check_converted(const struct fill *f, uint32_t rank, uint32_t i, const void *bytes,
                           const struct tensor_spec *to, struct err *e)
{
    struct non_finite found = {0};

    if (f->non_finite == NON_FINITE_ALLOW || !non_finite_in(bytes, to->nbytes, to->dtype))
        return 0;
    non_finite_count(&found, bytes, to->nbytes, to->dtype, 0);
    return finite_found(f, rank, i, &found, to->dtype, e);
}

/* A tensor that is converted or tied is checked when it is on the host. */
enum dtype finite_copied(const struct fill *f, uint32_t rank, uint32_t i)
{
    return f->non_finite != NON_FINITE_ALLOW && f->ranks[rank].layout->parts[i].how == PART_DIRECT
               ? update_finite_part_spec(&f->ranks[rank], i)->dtype
               : DTYPE_NONE;
}

int finite_check_copied(struct fill *f, uint32_t rank, uint32_t i, struct err *e)
{
    const struct part *part = &f->ranks[rank].layout->parts[i];
    uint64_t at = 0;
    uint32_t n;
    const uint32_t *targets = match_targets(&part->match, &n);
    void *bytes;

    if (fill_scratch(f, &bytes, e) != 0)
        return -1;
    for (uint32_t k = 0; k < n; k++) {
        uint64_t nbytes = target_spec(f, targets[k])->nbytes;

        if (place_read(f->store, rank, (char *)bytes + at,
                       dst_region_target(f, dst_region_of_rank(f, rank), part, k), nbytes, e) != 0)
            return -1;
        at += nbytes;
    }
    return finite_check_host(f, rank, i, bytes, e);
}

void non_finite_join(struct non_finite_names *to, const struct non_finite_names *from)
{
    for (uint32_t i = 0; i < from->n && i < UPDATE_NON_FINITE_MAX; i++)
        (void)non_finite_note(to, from->names[i]);
    if (from->n > UPDATE_NON_FINITE_MAX)
        to->n += from->n - UPDATE_NON_FINITE_MAX;
}
