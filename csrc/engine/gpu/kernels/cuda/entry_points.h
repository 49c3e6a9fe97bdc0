// What libringreduce_cuda.so exports of the kernels that are one rank's part of a collective. As in
// transport/device/cuda/entry_points.h, each returns null, or what went wrong.
#pragma once

#include "engine/gpu/kernels/cuda/errand.h"
#include "reduce/cuda/entry_points.h"

// How many of their thread blocks the current device can run at the same time. All of them are loaded then:
// loading one later could wait for a kernel that waits for the one to be loaded.
RINGREDUCE_EXPORT const char* ringreduce_cuda_fit(int* blocks);
// Launch errand->boxes.blocks thread blocks each. See engine/gpu/kernels/cuda/interpreter.h,
// engine/gpu/kernels/cuda/one_shot.h, engine/gpu/kernels/cuda/direct.h.
RINGREDUCE_EXPORT const char* ringreduce_cuda_interpret(const ringreduce::device::Errand* errand,
                                                        void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_one_shot(const ringreduce::device::Errand* errand,
                                                       void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_direct(const ringreduce::device::Errand* errand, void* stream);
