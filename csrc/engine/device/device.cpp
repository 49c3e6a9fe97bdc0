#include "engine/device/device.h"

#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

constinit const Devices* all = nullptr;  // set before other static objects are made, or by one of them

}  // namespace

void Devices::add(const Devices& devices) {
  all = &devices;
}

const Devices* Devices::found() {
  return all;
}

const Devices& Devices::get() {
  if (all) return *all;
  throw Error(
      "arrays in GPU memory need ringreduce's part for GPUs, which this build lacks: build it with "
      "-DRINGREDUCE_GPU=ON");
}

}  // namespace ringreduce
