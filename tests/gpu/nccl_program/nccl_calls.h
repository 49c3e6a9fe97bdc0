/* As much of NCCL's interface as program.c calls, and of libringreduce_cuda.so's. */
#pragma once

#include <stddef.h>

typedef struct ncclComm* ncclComm_t;
typedef void* cudaStream_t;
typedef struct {
  char internal[128];
} ncclUniqueId;
typedef int ncclResult_t;

enum { ncclSuccess = 0, ncclInvalidArgument = 4 };
typedef enum {
  ncclInt32 = 2,
  ncclInt64 = 4,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9
} ncclDataType_t;
typedef enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg } ncclRedOp_t;
typedef enum { ncclScalarDevice, ncclScalarHostImmediate } ncclScalarResidence_t;

#define NCCL_CALL ncclComm_t comm, cudaStream_t stream
ncclResult_t ncclGetVersion(int* version);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int devices, const int* device);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, void* config);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommCount(ncclComm_t comm, int* count);
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank);
ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device);
ncclResult_t ncclCommRegister(ncclComm_t comm, void* memory, size_t bytes, void** handle);
ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle);
ncclResult_t ncclMemAlloc(void** memory, size_t bytes);
ncclResult_t ncclMemFree(void* memory);
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, NCCL_CALL);
ncclResult_t ncclReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int root, NCCL_CALL);
ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, NCCL_CALL);
ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, NCCL_CALL);
ncclResult_t ncclBcast(void*, size_t, ncclDataType_t, int root, NCCL_CALL);
ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int root, NCCL_CALL);
ncclResult_t ncclAlltoAll(const void*, void*, size_t, ncclDataType_t, NCCL_CALL);
ncclResult_t ncclGather(const void*, void*, size_t, ncclDataType_t, int root, NCCL_CALL);
ncclResult_t ncclScatter(const void*, void*, size_t, ncclDataType_t, int root, NCCL_CALL);
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int peer, NCCL_CALL);
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int peer, NCCL_CALL);

const char* ringreduce_cuda_count_devices(int* count);
const char* ringreduce_cuda_choose_device(int device);
const char* ringreduce_cuda_move(void* to, const void* from, size_t bytes, void* stream);
const char* ringreduce_cuda_create_stream(void** stream);
const char* ringreduce_cuda_synchronize(void* stream);
