/* `weight_versions` in a relayed reply: which versions of the weights made it. No other byte of the
 * reply changes. The bytes may be cut anywhere; memory is bounded.
 *
 * A JSON object gets one member more, its last one; in a list each object gets it. A stream of
 * events gets one event more, before "data: [DONE]" or at its end. What has the member already, and
 * what is neither, stays as it is.
 *
 * A span is exact if the engine names the versions of each sequence itself, all of which this
 * server has committed under different labels; or if no update has touched the engine since the
 * grant. Else there are the first and the last version, and neither is exact. */
#ifndef BATON_FLEET_PROXY_REPLY_VERSIONS_H
#define BATON_FLEET_PROXY_REPLY_VERSIONS_H

#include "base/buf.h"
#include "fleet/members/fleet.h"
#include "http/client/http.h"

struct reply_versions;

/* reply_versions_applies - can a reply with this head get them? */
bool reply_versions_applies(const struct http_head *head);

/* reply_versions_new - of a reply to which they apply; free with reply_versions_free. NULL: no
 * memory.
 * @t  granted; it and the fleet are borrowed */
struct reply_versions *reply_versions_new(struct fleet *f, const struct fleet_ticket *t,
                                          const struct http_head *head);
void reply_versions_free(struct reply_versions *v); /* accepts NULL */

/* reply_versions_feed - append to `out` what is to be sent when these bytes have come.
 * reply_versions_end - the same at the end of a whole reply. out->failed: no memory. */
void reply_versions_feed(struct reply_versions *v, const char *data, size_t len, struct buf *out);
void reply_versions_end(struct reply_versions *v, struct buf *out);

#endif
