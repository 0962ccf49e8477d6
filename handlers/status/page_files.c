/* The files as bytes of this binary. CMakeLists.txt names them, and compiles this file again when
 * one has changed. */
#include "handlers/status/page.h"

#define PAGE_FILE(name, path)                                                                      \
    __asm__(".pushsection .rodata, \"a\"\n"                                                        \
            ".globl " #name "\n" #name ":\n"                                                       \
            ".incbin \"" path "\"\n"                                                               \
            ".L" #name "_end:\n"                                                                   \
            ".balign 8\n"                                                                          \
            ".globl " #name "_len\n" #name "_len:\n"                                               \
            ".quad .L" #name "_end - " #name "\n"                                                  \
            ".popsection\n")

PAGE_FILE(page_status_html, BATON_PAGE_STATUS);
PAGE_FILE(page_docs_html, BATON_PAGE_DOCS);
PAGE_FILE(page_openapi_json, BATON_PAGE_OPENAPI);
