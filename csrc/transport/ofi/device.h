// A provider of libfabric, and the endpoint that it opens for one group of ranks.
#pragma once

#include <memory>
#include <string>

#include "transport/ofi/provider.h"

namespace ringreduce::ofi {

// Closes an object of libfabric with its owner.
struct Closing {
  template <typename T>
  void operator()(T* object) const {
    object->object.calls->close(&object->object);
  }
};
template <typename T>
using Owned = std::unique_ptr<T, Closing>;

// Memory here, with the provider's description of it if that demands one.
struct Span {
  void* at = nullptr;
  std::size_t bytes = 0;
  void* description = nullptr;
};
// Registered memory of a peer, in the provider's terms.
struct RemotePlace {
  std::uint64_t address = 0, key = 0;
};

// Not thread-safe. Its endpoint sends and receives as long as completions are read.
class Device {
 public:
  // Opens what find() has found. Throws Error, which says what is missing.
  Device(const Library& library, const Found& found);

  const std::string& provider() const { return provider_; }
  const std::string& domain() const { return domain_name_; }
  const std::string& card() const { return card_; }  // in words
  // The kind of its names; only endpoints of one kind reach each other.
  std::uint32_t format() const { return format_; }
  const std::string& name() const { return name_; }  // for peers
  // The address of a peer's endpoint. Throws Error.
  std::uint64_t address_of(const std::string& name);

  std::size_t longest_message() const { return longest_; }
  std::size_t longest_injection() const { return inject_; }
  // Whether looking for completions costs no system call.
  bool looks_quickly() const { return quick_; }

  // These return false if it cannot take more now; they throw Error if it never will. `context` has room for
  // the provider at its beginning, and comes back with the completion.
  bool inject(std::uint64_t to, const void* data, std::size_t bytes);
  bool send(std::uint64_t to, const Span& data, void* context);
  bool receive(const Span& data, void* context);
  bool send_tagged(std::uint64_t to, std::uint64_t tag, const Span& data, void* context);
  bool receive_tagged(std::uint64_t tag, const Span& data, void* context);
  // Ends a receive that has not begun.
  void cancel(void* context);
  bool read(std::uint64_t from, const RemotePlace& place, const Span& data, void* context);

  // Whether peers' memory can be read, and whether all memory here must be registered, to send it as well.
  bool reads() const { return reads_; }
  bool needs_descriptions() const { return (memory_mode_ & memory_local) != 0; }
  // Memory that exists, until the result is closed. Null: it cannot be registered now; why_not() says why.
  Owned<Memory> registered(const void* data, std::size_t bytes);
  const std::string& why_not_registered() const { return why_not_registered_; }
  std::size_t most_regions() const { return most_regions_; }
  // Of data in registered memory that begins at `begin`, for peers.
  RemotePlace place_of(const Memory& memory, const void* begin, const void* data) const;

  // Reads up to `most` completions; -1: an operation has failed. failed() then reads it, and why.
  int completions(Completion* completions, std::size_t most);
  bool failed(FailedCompletion& completion, std::string& why);

  // Whether it may close amid messages; otherwise that can crash this process, or the peer's.
  bool closes_at_any_time() const;

  // Becomes readable when there are completions; -1: there is no such descriptor.
  int descriptor() const { return descriptor_; }
  // Whether a thread may now sleep on the descriptor.
  bool may_sleep();

 private:
  void open(Info& info);
  void open_queue();
  bool taken(ssize_t result, const char* what) const;

  const Library& library_;
  std::string provider_, domain_name_, card_, name_;
  std::uint32_t format_ = 0;
  std::size_t longest_ = 0, inject_ = 0;
  bool quick_ = false, reads_ = false;
  int memory_mode_ = 0;
  std::size_t most_regions_ = 1024;  // cards have tables of at least so many
  std::uint64_t key_bits_ = ~std::uint64_t{0};
  std::string why_not_registered_;
  int descriptor_ = -1;
  // Closed from the last to the first.
  Owned<Fabric> fabric_;
  Owned<Domain> domain_;
  Owned<Addresses> addresses_;
  Owned<Queue> queue_;
  Owned<Endpoint> endpoint_;
};

}  // namespace ringreduce::ofi
