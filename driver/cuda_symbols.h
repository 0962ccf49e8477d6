/* The part of CUDA's driver API that baton uses, as macros: functions, constants, sizes.
 *
 * The same rows generate the table that the loader fills (driver/cuda.h), the prototypes that the
 * fake (tests/fakes/libcuda) is compiled against, and, where a toolkit is installed, the comparison
 * with its own header (tests/unit/driver/test_cuda_header.c). No types are declared here, so that
 * the comparison can expand the rows with the toolkit's types. Rejected: including cuda.h, because
 * every build would then need the toolkit.
 *
 * Source: cuda.h of CUDA 13.0 (CUDA_VERSION 13000); none of it has changed since 11.4. */
#ifndef BATON_DRIVER_CUDA_SYMBOLS_H
#define BATON_DRIVER_CUDA_SYMBOLS_H

/* Row: field, exported symbol, required, arguments. Spelt as libcuda exports it: cuda.h hides _v2
 * behind a #define, dlsym does not, and bare cuMemAlloc is the old call with 32-bit sizes. */
#define CU_SYMBOLS(X)                                                                              \
    X(get_error_name, cuGetErrorName, true, (CUresult result, const char **text))                  \
    X(get_error_string, cuGetErrorString, true, (CUresult result, const char **text))              \
    X(init, cuInit, true, (unsigned flags))                                                        \
    X(driver_get_version, cuDriverGetVersion, true, (int *version))                                \
    X(device_get_count, cuDeviceGetCount, true, (int *n))                                          \
    X(device_get, cuDeviceGet, true, (CUdevice * dev, int ordinal))                                \
    X(device_get_name, cuDeviceGetName, true, (char *name, int cap, CUdevice dev))                 \
    X(device_get_uuid, cuDeviceGetUuid_v2, true, (CUuuid * uuid, CUdevice dev))                    \
    X(device_get_uuid_parent, cuDeviceGetUuid, false, (CUuuid * uuid, CUdevice dev))               \
    X(device_total_mem, cuDeviceTotalMem_v2, true, (size_t * nbytes, CUdevice dev))                \
    X(device_get_attribute, cuDeviceGetAttribute, true,                                            \
      (int *value, CUdevice_attribute attribute, CUdevice dev))                                    \
    X(device_can_access_peer, cuDeviceCanAccessPeer, true,                                         \
      (int *can, CUdevice dev, CUdevice peer))                                                     \
    X(primary_ctx_retain, cuDevicePrimaryCtxRetain, true, (CUcontext * ctx, CUdevice dev))         \
    X(primary_ctx_release, cuDevicePrimaryCtxRelease_v2, true, (CUdevice dev))                     \
    X(ctx_set_current, cuCtxSetCurrent, true, (CUcontext ctx))                                     \
    X(ctx_push_current, cuCtxPushCurrent_v2, true, (CUcontext ctx))                                \
    X(ctx_pop_current, cuCtxPopCurrent_v2, true, (CUcontext * ctx))                                \
    X(ctx_enable_peer_access, cuCtxEnablePeerAccess, true, (CUcontext peer, unsigned flags))       \
    X(mem_get_info, cuMemGetInfo_v2, true, (size_t * nbytes_free, size_t * nbytes_total))          \
    X(mem_alloc, cuMemAlloc_v2, true, (CUdeviceptr * dev, size_t nbytes))                          \
    X(mem_free, cuMemFree_v2, true, (CUdeviceptr dev))                                             \
    X(mem_get_address_range, cuMemGetAddressRange_v2, true,                                        \
      (CUdeviceptr * base, size_t * nbytes, CUdeviceptr dev))                                      \
    X(mem_host_alloc, cuMemHostAlloc, true, (void **host, size_t nbytes, unsigned flags))          \
    X(mem_free_host, cuMemFreeHost, true, (void *host))                                            \
    X(mem_host_register, cuMemHostRegister_v2, true, (void *host, size_t nbytes, unsigned flags))  \
    X(mem_host_unregister, cuMemHostUnregister, true, (void *host))                                \
    X(memcpy_dtod, cuMemcpyDtoD_v2, true, (CUdeviceptr dst, CUdeviceptr src, size_t nbytes))       \
    X(memcpy_htod, cuMemcpyHtoD_v2, true, (CUdeviceptr dst, const void *src, size_t nbytes))       \
    X(memcpy_dtoh, cuMemcpyDtoH_v2, true, (void *dst, CUdeviceptr src, size_t nbytes))             \
    X(memcpy_dtod_async, cuMemcpyDtoDAsync_v2, true,                                               \
      (CUdeviceptr dst, CUdeviceptr src, size_t nbytes, CUstream stream))                          \
    X(memcpy_htod_async, cuMemcpyHtoDAsync_v2, true,                                               \
      (CUdeviceptr dst, const void *src, size_t nbytes, CUstream stream))                          \
    X(memcpy_dtoh_async, cuMemcpyDtoHAsync_v2, true,                                               \
      (void *dst, CUdeviceptr src, size_t nbytes, CUstream stream))                                \
    X(stream_create, cuStreamCreate, true, (CUstream * stream, unsigned flags))                    \
    X(stream_destroy, cuStreamDestroy_v2, true, (CUstream stream))                                 \
    X(stream_query, cuStreamQuery, true, (CUstream stream))                                        \
    X(stream_synchronize, cuStreamSynchronize, true, (CUstream stream))                            \
    X(stream_wait_event, cuStreamWaitEvent, true,                                                  \
      (CUstream stream, CUevent event, unsigned flags))                                            \
    X(event_create, cuEventCreate, true, (CUevent * event, unsigned flags))                        \
    X(event_destroy, cuEventDestroy_v2, true, (CUevent event))                                     \
    X(event_record, cuEventRecord, true, (CUevent event, CUstream stream))                         \
    X(event_query, cuEventQuery, true, (CUevent event))                                            \
    X(event_synchronize, cuEventSynchronize, true, (CUevent event))                                \
    X(event_elapsed_time, cuEventElapsedTime, true, (float *ms, CUevent start, CUevent end))       \
    X(ipc_get_mem_handle, cuIpcGetMemHandle, true, (CUipcMemHandle * handle, CUdeviceptr dev))     \
    X(ipc_open_mem_handle, cuIpcOpenMemHandle_v2, true,                                            \
      (CUdeviceptr * dev, CUipcMemHandle handle, unsigned flags))                                  \
    X(ipc_close_mem_handle, cuIpcCloseMemHandle, true, (CUdeviceptr dev))                          \
    X(ipc_get_event_handle, cuIpcGetEventHandle, true, (CUipcEventHandle * handle, CUevent event)) \
    X(ipc_open_event_handle, cuIpcOpenEventHandle, true,                                           \
      (CUevent * event, CUipcEventHandle handle))                                                  \
    X(module_load_data, cuModuleLoadData, false, (CUmodule * module, const void *image))           \
    X(module_unload, cuModuleUnload, false, (CUmodule module))                                     \
    X(module_get_function, cuModuleGetFunction, false,                                             \
      (CUfunction * function, CUmodule module, const char *name))                                  \
    X(launch_kernel, cuLaunchKernel, false,                                                        \
      (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,   \
       unsigned block_y, unsigned block_z, unsigned shared_nbytes, CUstream stream, void **params, \
       void **extra))

/* Row: enumerator or macro of cuda.h, value. Results first. */
#define CU_RESULTS(X)                                                                              \
    X(CUDA_SUCCESS, 0)                                                                             \
    X(CUDA_ERROR_INVALID_VALUE, 1)                                                                 \
    X(CUDA_ERROR_OUT_OF_MEMORY, 2)                                                                 \
    X(CUDA_ERROR_NOT_INITIALIZED, 3)                                                               \
    X(CUDA_ERROR_NO_DEVICE, 100)                                                                   \
    X(CUDA_ERROR_INVALID_DEVICE, 101)                                                              \
    X(CUDA_ERROR_INVALID_IMAGE, 200)                                                               \
    X(CUDA_ERROR_INVALID_CONTEXT, 201)                                                             \
    X(CUDA_ERROR_MAP_FAILED, 205)                                                                  \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217)                                                     \
    X(CUDA_ERROR_INVALID_HANDLE, 400)                                                              \
    X(CUDA_ERROR_NOT_FOUND, 500)                                                                   \
    X(CUDA_ERROR_NOT_READY, 600)                                                                   \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704)                                                 \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712)                                              \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713)                                                  \
    X(CUDA_ERROR_UNKNOWN, 999)

#define CU_CONSTANTS(X)                                                                            \
    X(CU_DEVICE_ATTRIBUTE_INTEGRATED, 18)                                                          \
    X(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 41)                                                  \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                                            \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)                                            \
    X(CU_STREAM_DEFAULT, 0)                                                                        \
    X(CU_STREAM_NON_BLOCKING, 1)                                                                   \
    X(CU_EVENT_DEFAULT, 0)                                                                         \
    X(CU_EVENT_BLOCKING_SYNC, 1)                                                                   \
    X(CU_EVENT_DISABLE_TIMING, 2)                                                                  \
    X(CU_EVENT_INTERPROCESS, 4)                                                                    \
    X(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, 1)                                                       \
    X(CU_MEMHOSTALLOC_PORTABLE, 1)                                                                 \
    X(CU_MEMHOSTREGISTER_PORTABLE, 1)                                                              \
    X(CU_IPC_HANDLE_SIZE, 64)

/* Row: type, bytes. */
#define CU_SIZES(X)                                                                                \
    X(CUresult, 4)                                                                                 \
    X(CUdevice, 4)                                                                                 \
    X(CUdevice_attribute, 4)                                                                       \
    X(CUdeviceptr, 8)                                                                              \
    X(CUcontext, 8)                                                                                \
    X(CUstream, 8)                                                                                 \
    X(CUevent, 8)                                                                                  \
    X(CUmodule, 8)                                                                                 \
    X(CUfunction, 8)                                                                               \
    X(CUuuid, 16)                                                                                  \
    X(CUipcMemHandle, 64)                                                                          \
    X(CUipcEventHandle, 64)

#endif
