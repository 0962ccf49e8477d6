/* What an engine's own reply says of the versions that made it, read byte by byte, and the member
 * `weight_versions` that follows from that and from what the fleet served.
 *
 * vLLM 0.33 and SGLang 0.5.23 list the versions of a sequence themselves, as {"version", "start",
 * "end"} in a member of this name within the reply, some only if the request asks for it. The list
 * counts if there is one for each sequence that has ended, that is, for each finish_reason that is
 * not null. */
#ifndef BATON_FLEET_PROXY_REPLY_SPANS_H
#define BATON_FLEET_PROXY_REPLY_SPANS_H

#include "base/buf.h"
#include "fleet/api/api_spans.h"
#include "fleet/members/fleet.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    REPLY_WORD_MAX = 16,  /* longer than each name of a member that is looked for */
    REPLY_LIST_MAX = 4096 /* bytes of an engine's own list; a longer one does not count */
};

enum reply_object { REPLY_OBJECT_NONE, REPLY_OBJECT_EMPTY, REPLY_OBJECT_FULL };

struct reply_spans {
    struct fleet *fleet;          /* borrowed */
    const struct fleet_ticket *t; /* borrowed */
    bool is_stream;               /* many JSON texts are one reply */
    bool has_member;              /* the object, or the stream, has the member itself */

    /* The engine's own lists, since the object began, or the stream. */
    struct api_spans own; /* the first one; zeroed: none can be read */
    size_t n_lists, n_finished;
    bool is_odd;    /* one cannot be read */
    bool is_single; /* all are of one version, the same */

    /* The JSON text. */
    size_t depth, object_depth; /* now; of the objects that get the member. 0: not known */
    bool in_string, escaped;
    char before; /* the last byte that is no white space */
    char word[REPLY_WORD_MAX];
    size_t word_len;                                              /* of the last string */
    enum { MEMBER_OTHER, MEMBER_VERSIONS, MEMBER_FINISH } member; /* whose value comes */
    size_t list_depth, list_len; /* of a list that is being read; depth 0: none */
    char list[REPLY_LIST_MAX];
};

void reply_spans_init(struct reply_spans *s, struct fleet *f, const struct fleet_ticket *t,
                      bool is_stream);
void reply_spans_fini(struct reply_spans *s);

/* reply_spans_byte - the next byte of the JSON text. Returns: REPLY_OBJECT_NONE, or, if this byte
 * ends an object that gets the member before it, whether that has other members. */
enum reply_object reply_spans_byte(struct reply_spans *s, char c);

/* reply_spans_next_text - another JSON text begins; what was found in the last one stays. */
void reply_spans_next_text(struct reply_spans *s);

/* reply_spans_put - append "weight_versions":[…] as of now. out->failed: no memory. */
void reply_spans_put(struct reply_spans *s, struct buf *out);

#endif
