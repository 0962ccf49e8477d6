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

#endif
