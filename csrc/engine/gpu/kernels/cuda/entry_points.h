// What libringreduce_cuda.so exports of the kernels that are one rank's part of a collective. As in
// transport/device/cuda/entry_points.h, each returns null, or what went wrong.
#pragma once

#include "engine/gpu/kernels/cuda/errand.h"
#include "reduce/cuda/entry_points.h"

// How many of their thread blocks the current device can run at the same time. All of them are loaded then,
// and have the stacks that they need: either could wait, later, for a kernel that waits for the one to come.
RINGREDUCE_EXPORT const char* ringreduce_cuda_fit(int* blocks);
// Launches errand->boxes.blocks thread blocks, which run with those of its peers.
RINGREDUCE_EXPORT const char* ringreduce_cuda_run(const ringreduce::device::Errand* errand, void* stream);
