/* Shared by the files of fetch. */
#ifndef BATON_TRANSPORT_FETCH_PRIV_H
#define BATON_TRANSPORT_FETCH_PRIV_H

#include "base/net/cidr.h"
#include "transport/fetch.h"

struct fetch_prefix {
    char *from; /* owned, as are the others; none has '/' at its end */
    char *url;  /* of the server: scheme, host, port */
    char *path; /* "" or "/bucket" */
};

/* Immutable. */
struct fetch_rules {
    struct fetch_cfg cfg;
    struct fetch_prefix *prefixes; /* owned; [cfg.n_prefixes] */
    struct cidr_list private, allowed;
};

/* fetch_prefix_of - the longest that contains the URL, or NULL. @rest  of the URL: "" or "/run" */
const struct fetch_prefix *fetch_prefix_of(const struct fetch_rules *r, const char *url,
                                           const char **rest);

/* fetch_path_is_plain - may it be part of a URL as it is? fetch_refuse_path - it may not. */
bool fetch_path_is_plain(const char *path);
int fetch_refuse_path(const char *field, const char *path, struct err *e);

/* fetch_address_allowed - for struct http_call_request. @rules  struct fetch_rules */
bool fetch_address_allowed(const void *rules, const struct sockaddr *addr);

#endif
