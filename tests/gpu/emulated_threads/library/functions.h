// What stands for the address of a kernel: what launching it does, and what CUDA knows of it.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <set>

namespace ringreduce::emulated {

struct Function {
  // Checks what would fault, and puts the work into the stream.
  std::function<void(const void* parameter, void* stream)> launch;
  std::size_t stack_bytes = 512;      // of a thread
  bool waits = false;                 // for other kernels
  std::set<int> loaded = {};          // on which devices
  std::map<int, int> carveouts = {};  // by device, where one was chosen
};

}  // namespace ringreduce::emulated
