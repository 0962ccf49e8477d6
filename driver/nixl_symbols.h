/* The part of NIXL's C interface that baton uses, as macros: functions and constants.
 *
 * Source: src/bindings/rust/wrapper.h of NIXL 0.9.0 to 1.5.1, which are equal in it. The types are
 * opaque pointers, ints and one struct, which driver/nixl.h copies. */
#ifndef BATON_DRIVER_NIXL_SYMBOLS_H
#define BATON_DRIVER_NIXL_SYMBOLS_H

/* Row: field, exported symbol, what it returns, arguments. All are required. */
#define NIXL_SYMBOLS(X)                                                                            \
    X(is_stub, nixl_capi_is_stub, bool, (void))                                                    \
    X(create_agent, nixl_capi_create_configured_agent, int,                                        \
      (const char *name, const struct nixl_agent_config *config, nixl_handle *agent))              \
    X(get_plugin_params, nixl_capi_get_plugin_params, int,                                         \
      (nixl_handle agent, const char *plugin, nixl_handle *mems, nixl_handle *params))             \
    X(create_backend, nixl_capi_create_backend, int,                                               \
      (nixl_handle agent, const char *plugin, nixl_handle params, nixl_handle *backend))           \
    X(create_opt_args, nixl_capi_create_opt_args, int, (nixl_handle * options))                    \
    X(opt_args_add_backend, nixl_capi_opt_args_add_backend, int,                                   \
      (nixl_handle options, nixl_handle backend))                                                  \
    X(create_reg_dlist, nixl_capi_create_reg_dlist, int, (int mem, nixl_handle *list))             \
    X(reg_dlist_add_desc, nixl_capi_reg_dlist_add_desc, int,                                       \
      (nixl_handle list, uintptr_t addr, size_t nbytes, uint64_t device, const void *meta,         \
       size_t meta_nbytes))                                                                        \
    X(destroy_reg_dlist, nixl_capi_destroy_reg_dlist, int, (nixl_handle list))                     \
    X(register_mem, nixl_capi_register_mem, int,                                                   \
      (nixl_handle agent, nixl_handle list, nixl_handle options))                                  \
    X(load_remote_md, nixl_capi_load_remote_md, int,                                               \
      (nixl_handle agent, const void *data, size_t nbytes, char **name))                           \
    X(invalidate_remote_md, nixl_capi_invalidate_remote_md, int,                                   \
      (nixl_handle agent, const char *name))                                                       \
    X(check_remote_md, nixl_capi_check_remote_md, int,                                             \
      (nixl_handle agent, const char *name, nixl_handle list))                                     \
    X(create_xfer_dlist, nixl_capi_create_xfer_dlist, int, (int mem, nixl_handle *list))           \
    X(xfer_dlist_add_desc, nixl_capi_xfer_dlist_add_desc, int,                                     \
      (nixl_handle list, uintptr_t addr, size_t nbytes, uint64_t device))                          \
    X(destroy_xfer_dlist, nixl_capi_destroy_xfer_dlist, int, (nixl_handle list))                   \
    X(create_xfer_req, nixl_capi_create_xfer_req, int,                                             \
      (nixl_handle agent, int operation, nixl_handle local, nixl_handle remote,                    \
       const char *remote_agent, nixl_handle *request, nixl_handle options))                       \
    X(post_xfer_req, nixl_capi_post_xfer_req, int,                                                 \
      (nixl_handle agent, nixl_handle request, nixl_handle options))                               \
    X(get_xfer_status, nixl_capi_get_xfer_status, int, (nixl_handle agent, nixl_handle request))   \
    X(release_xfer_req, nixl_capi_release_xfer_req, int, (nixl_handle agent, nixl_handle request)) \
    X(destroy_xfer_req, nixl_capi_destroy_xfer_req, int, (nixl_handle request))

/* Row: our name, value. */
#define NIXL_CONSTANTS(X)                                                                          \
    X(NIXL_SUCCESS, 0)                                                                             \
    X(NIXL_IN_PROGRESS, 1)                                                                         \
    X(NIXL_READ, 0)                                                                                \
    X(NIXL_DRAM, 0)                                                                                \
    X(NIXL_VRAM, 1)                                                                                \
    X(NIXL_SYNC_RW, 2)

#endif
