/* The files that the server serves to browsers: the page at /, the documentation of the API at
 * /docs, and /openapi.json. They are bytes of this binary, without any data of this server. */
#ifndef BATON_HANDLERS_STATUS_PAGE_H
#define BATON_HANDLERS_STATUS_PAGE_H

#include <stdbool.h>
#include <stddef.h>

struct page_file {
    const char *data; /* static; not terminated */
    size_t len;
};

extern const char page_status_html[], page_docs_html[], page_openapi_json[];
extern const size_t page_status_html_len, page_docs_html_len, page_openapi_json_len;

enum { PAGE_POLICY_CAP = 257 };

/* page_policy - write the Content-Security-Policy of a page: its one inline script and its one
 * inline style by their hashes, requests to this server, and nothing else.
 * Returns false: the page has no such script or style. */
bool page_policy(char out[PAGE_POLICY_CAP], const struct page_file *page);

#endif
