// Launches one rank's part of a collective: boxes.blocks thread blocks, which run with those of its peers.
// They throw std::runtime_error, which says what CUDA has said.
#pragma once

#include "engine/gpu/kernels/cuda/errand.h"

namespace ringreduce::device {

// How many thread blocks of any of the kernels the current device can run at the same time. Loads them all.
int blocks_that_fit();

void launch_interpreter(const Errand& errand, void* stream);
void launch_one_shot(const Errand& errand, void* stream);
void launch_direct(const Errand& errand, void* stream);

}  // namespace ringreduce::device
