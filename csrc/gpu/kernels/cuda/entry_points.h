// The functions of libringreduce_cuda.so for the kernels that run one rank's part of a collective. As in
// gpu/device/cuda/entry_points.h, each returns null, or an error text.
#pragma once

#include "gpu/kernels/cuda/errand.h"
#include "gpu/reduce/entry_points.h"

// How many of their thread blocks the current device can run at the same time. Afterwards, all are loaded,
// have their stacks, and fit onto a multiprocessor together. They could otherwise wait, later, for a kernel
// that waits for the next one.
RINGREDUCE_EXPORT const char* ringreduce_cuda_fit(int* blocks);
// Launches errand->boxes.blocks thread blocks, which run together with those of its peers.
RINGREDUCE_EXPORT const char* ringreduce_cuda_run(const ringreduce::device::Errand* errand, void* stream);
// Launches `pairs` times `boxes.lanes` thread blocks, which run together with those of the messages' other
// ends.
RINGREDUCE_EXPORT const char* ringreduce_cuda_carry(const ringreduce::device::Messages* messages,
                                                    void* stream);
