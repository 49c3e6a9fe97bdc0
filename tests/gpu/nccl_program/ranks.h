/* The ranks of this process, their memory, and what it should hold. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checks.h"
#include "nccl_calls.h"

#define MOST 64

static int world, first, ranks;
static struct Rank {
  int rank, device;
  ncclComm_t comm;
  cudaStream_t stream;
  char *input, *output; /* on its device, each for MOST blocks */
} all[MOST];
#define foreach(r) for (struct Rank* r = all; r < all + ranks; ++r)

static const size_t count = 5003;
static size_t room;

#define NCCL(call)                                                                                   \
  do {                                                                                               \
    WATCHED(#call);                                                                                  \
    ncclResult_t result_ = (call);                                                                   \
    if (result_ != ncclSuccess) FAIL("%s: %s", ncclGetErrorString(result_), ncclGetLastError(NULL)); \
  } while (0)
#define CUDA(call)                      \
  do {                                  \
    WATCHED(#call);                     \
    const char* failure_ = (call);      \
    if (failure_) FAIL("%s", failure_); \
  } while (0)
/* A call of all ranks here. */
#define TOGETHER(call)      \
  do {                      \
    NCCL(ncclGroupStart()); \
    foreach (r) NCCL(call); \
    NCCL(ncclGroupEnd());   \
  } while (0)

static size_t size_of(ncclDataType_t type) {
  return type == ncclInt64 || type == ncclFloat64 ? 8 : type == ncclBfloat16 ? 2 : 4;
}

static void put(void* at, ncclDataType_t type, double value) {
  if (type == ncclInt32) *(int32_t*)at = (int32_t)value;
  if (type == ncclInt64) *(int64_t*)at = (int64_t)value;
  if (type == ncclFloat32) *(float*)at = (float)value;
  if (type == ncclFloat64) *(double*)at = value;
  if (type == ncclBfloat16) {
    float same = (float)value;
    uint32_t bits;
    memcpy(&bits, &same, sizeof bits);
    *(uint16_t*)at = (uint16_t)(bits >> 16);
  }
}

/* What rank `rank` has at place `i` of block `block`. */
static double value(int rank, int block, size_t i) {
  return 1 + (rank + block + (int)i) % 3;
}

static double combined(ncclRedOp_t op, int block, size_t i, double factor) {
  double result = value(0, block, i) * factor;
  for (int rank = 1; rank < world; ++rank) {
    const double one = value(rank, block, i) * factor;
    if (op == ncclProd)
      result *= one;
    else if (op == ncclMax)
      result = result > one ? result : one;
    else if (op == ncclMin)
      result = result < one ? result : one;
    else
      result += one;
  }
  return op == ncclAvg ? result / world : result;
}

/* A block's values are those of a rank, or all ranks' combined. */
static void fill(char* to, size_t blocks, ncclDataType_t type, const struct Rank* r) {
  char* host = malloc(room);
  for (size_t b = 0; b < blocks; ++b) {
    for (size_t i = 0; i < count; ++i)
      put(host + (b * count + i) * size_of(type), type, value(r->rank, (int)b, i));
  }
  CUDA(ringreduce_cuda_move(to, host, blocks * count * size_of(type), r->stream));
  CUDA(ringreduce_cuda_synchronize(r->stream));
  free(host);
}

static void fill_all(size_t blocks, ncclDataType_t type) {
  foreach (r) {
    CUDA(ringreduce_cuda_choose_device(r->device));
    fill(r->input, blocks, type, r);
    fill(r->output, blocks, type, r);
  }
}

/* `expected` is of `count` elements, once the stream has come so far. */
static void compare(const struct Rank* r, const char* at, ncclDataType_t type, const char* expected,
                    int line) {
  const size_t bytes = count * size_of(type);
  char* host = malloc(bytes);
  CUDA(ringreduce_cuda_choose_device(r->device));
  CUDA(ringreduce_cuda_move(host, at, bytes, r->stream));
  CUDA(ringreduce_cuda_synchronize(r->stream));
  if (memcmp(host, expected, bytes) != 0) FAIL("line %d: rank %d has a wrong result", line, r->rank);
  free(host);
}

static char* expected_block(int rank, int block, ncclDataType_t type) {
  static char bytes[8 * 5003];
  for (size_t i = 0; i < count; ++i) put(bytes + i * size_of(type), type, value(rank, block, i));
  return bytes;
}

static char* expected_of_all(ncclRedOp_t op, int block, ncclDataType_t type, double factor) {
  static char bytes[8 * 5003];
  for (size_t i = 0; i < count; ++i) put(bytes + i * size_of(type), type, combined(op, block, i, factor));
  return bytes;
}

#define COMPARE(r, at, type, expected) compare(r, at, type, expected, __LINE__)
