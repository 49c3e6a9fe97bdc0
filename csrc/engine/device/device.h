// Calls with arrays in a device's memory. The engine owns this interface and knows no device: gpu/ implements
// it, and registers itself when the library is loaded. A build without gpu/ serves arrays on the CPU.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/messages/transfer.h"
#include "engine/planning/call.h"
#include "transport/interface/exchange.h"

namespace ringreduce {

class Calls;
class Communicator;
class Progress;

// A call on the communicator's own stream, beside its caller's.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  virtual int device() const = 0;
  // Later work on the stream waits for it.
  virtual void let_wait(void* stream) const = 0;
  virtual bool done() const = 0;
};

// A communicator's calls with arrays in device memory, all of one device. They are launched on a stream of
// that device, and return. Without a stream, one of the communicator's own is used.
class DeviceCalls {
 public:
  // What the communicator holds on its device; nothing if no call has met the other ranks yet.
  struct Holdings {
    void* stream = nullptr;   // its own
    std::size_t bytes = 0;    // of device memory
    bool was_direct = false;  // whether the last collective that the device has ended was direct
  };

  virtual ~DeviceCalls() = default;

  // Meets the other ranks before the first call; a collective. Otherwise the first call does.
  virtual void prepare(int device) = 0;
  // Runs a collective. Later calls throw later failures.
  virtual void enqueue(const Call& call, std::optional<void*> stream) = 0;
  // The same on this communicator's own stream, after the work that `stream` has now.
  virtual std::shared_ptr<DeviceWork> enqueue_beside(const Call& call, std::optional<void*> stream,
                                                     Arrays arrays) = 0;
  // Whether it can carry messages. Only if the device was prepared.
  virtual bool carries_messages() = 0;
  // Launches messages from and to device memory, without tags. All of them make progress together. Those
  // between two ranks are matched in the order of the calls.
  virtual void exchange(int device, std::span<const Transfer> transfers, std::optional<void*> stream) = 0;
  virtual std::shared_ptr<DeviceWork> exchange_beside(int device, std::span<const Transfer> transfers,
                                                      std::optional<void*> stream, Arrays arrays) = 0;
  // Registers memory that calls may use in place: a collective, of as many bytes on all ranks. The memory is
  // known by its first byte until it is deregistered or the communicator is left.
  virtual void register_memory(int device, void* memory, std::size_t bytes) = 0;
  virtual void deregister_memory(int device, void* memory) = 0;
  virtual Holdings holdings() = 0;

  // Waits for launched work, and tells the other ranks that this one no longer needs them.
  virtual void finish() = 0;
  // Ends what is running.
  virtual void leave() = 0;
  // A forked child cannot release anything, because the device only knows the parent.
  virtual void disown() = 0;
};

// All devices of the process.
class Devices {
 public:
  // Once, when the library is loaded.
  static void add(const Devices& devices);
  // Null in a build without devices.
  static const Devices* found();
  // Throws Error in a build without devices.
  static const Devices& get();

  virtual ~Devices() = default;

  // `another` makes another group of the same ranks; a collective.
  virtual std::unique_ptr<DeviceCalls> calls_of(
      Calls& calls, Progress& progress, Exchange exchange,
      std::function<std::unique_ptr<Communicator>()> another) const = 0;
  // The device that holds this memory; for null, the calling thread's current one.
  virtual int device_of(const void* memory) const = 0;
  // Copies to, from or within a device's memory, after the stream's work so far, and waits for it.
  virtual void copy(int device, void* to, const void* from, std::size_t bytes, void* stream) const = 0;
  // Sets what looks for NCCL where the system has none: it returns a path, or nothing.
  virtual void find_nccl_by(std::string (*finder)()) const = 0;
};

}  // namespace ringreduce
