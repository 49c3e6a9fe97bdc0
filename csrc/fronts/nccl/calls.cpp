#include "fronts/nccl/calls.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "fronts/nccl/real.h"
#include "gpu/device/library.h"
#include "reduce/identity.h"

namespace ringreduce::nccl_api {
namespace {

DType dtype_of(nccl::DataType type) {
  if (type < std::size(nccl::dtypes)) return nccl::dtypes[type];
  throw Refusal(nccl::invalid_argument, "unknown datatype " + std::to_string(static_cast<unsigned>(type)));
}

void check_rank(const Member& member, int rank, const char* what) {
  if (rank >= 0 && rank < member.world) return;
  throw Refusal(nccl::invalid_argument, std::string(what) + " is " + std::to_string(rank) +
                                            ", but there are " + std::to_string(member.world) + " ranks");
}

void check_memory(const Member& member, const void* memory, std::size_t count, const char* what) {
  if (count == 0) return;
  const std::string which = std::string(what) + " buffer ";
  if (!memory) throw Refusal(nccl::invalid_argument, which + "is null");
  int device = 0;
  CudaLibrary::check(CudaLibrary::get().device_of(&device, memory));
  if (device == member.device) return;
  throw Refusal(nccl::invalid_argument,
                which + (device < 0 ? "is not in GPU memory" : "is on GPU " + std::to_string(device)) +
                    ", but the communicator uses GPU " + std::to_string(member.device));
}

// Copies bytes from GPU memory in stream order, and waits for them.
void fetch(void* to, const void* from, std::size_t bytes, nccl::Stream stream) {
  const CudaLibrary& cuda = CudaLibrary::get();
  int captured = 0;
  CudaLibrary::check(cuda.is_captured(&captured, stream));
  if (captured) {
    throw Refusal(nccl::invalid_usage, "messages and factors in GPU memory cannot be captured into a graph");
  }
  CudaLibrary::check(cuda.move(to, from, bytes, stream));
  CudaLibrary::check(cuda.synchronize(stream));
}

double value_of(const void* scalar, DType dtype) {
  if (kind_of(dtype) != NumberKind::floating) {
    throw Refusal(nccl::invalid_argument,
                  std::string("factors are for floating-point types only, not for ") + name_of(dtype));
  }
  std::uint64_t bits = 0;
  std::memcpy(&bits, scalar, size_of(dtype));
  // The exponent of the number 1 is the bias, which is odd, and its fraction is 0.
  const std::uint64_t one = identity_of(dtype, Op::prod), largest = identity_of(dtype, Op::min);
  const int fraction_bits = std::countr_zero(one);
  const std::uint64_t hidden = std::uint64_t{1} << fraction_bits, sign = std::bit_ceil(largest);
  const std::uint64_t magnitude = bits & (sign - 1), fraction = magnitude & (hidden - 1);
  const bool has_infinity = (largest & (hidden - 1)) == 0;
  double value = NAN;
  if (magnitude == largest && has_infinity) {
    value = HUGE_VAL;
  } else if (magnitude <= largest) {
    const auto exponent = static_cast<int>(magnitude >> fraction_bits);
    const auto significand = static_cast<double>(exponent == 0 ? fraction : fraction + hidden);
    const auto bias = static_cast<int>(one >> fraction_bits);
    value = std::ldexp(significand, std::max(exponent, 1) - bias - fraction_bits);
  }
  return (bits & sign) != 0 ? -value : value;
}

void set_op(Call& call, Member& member, nccl::ReduceOp op, nccl::Stream stream) {
  if (op < std::size(nccl::ops)) {
    call.op = nccl::ops[op];
    return;
  }
  const Member::Factor factor = member.factor(op);
  if (factor.dtype != call.dtype) {
    throw Refusal(nccl::invalid_argument, std::string("the operator is for ") + name_of(factor.dtype) +
                                              ", but the buffers have type " + name_of(call.dtype));
  }
  call.factor = factor.value;
  if (!factor.in_device_memory) return;
  const OnDevice there(CudaLibrary::get(), member.device);
  alignas(8) char scalar[8];
  fetch(scalar, factor.in_device_memory, size_of(call.dtype), stream);
  call.factor = value_of(scalar, call.dtype);
}

Transfer transfer_for(const Message& message) {
  Transfer transfer;
  transfer.sends = message.sends;
  transfer.dtype = dtype_of(message.type);
  transfer.peer = message.peer;
  transfer.count = message.count;
  return transfer;
}

// Whether the buffer is used: a collective with a root may omit it on other ranks.
bool has_input(const Member& member, const Asked& asked) {
  return has_array(asked.collective, true, member.rank == asked.root);
}
bool has_output(const Member& member, const Asked& asked) {
  return has_array(asked.collective, false, member.rank == asked.root);
}

// Those of a stream make progress together.
void launch(Communicator& own, int device, std::span<const Posted> messages) {
  std::vector<nccl::Stream> streams;
  for (const Posted& one : messages) {
    if (std::find(streams.begin(), streams.end(), one.stream) == streams.end()) streams.push_back(one.stream);
  }
  for (const nccl::Stream stream : streams) {
    std::vector<Transfer> transfers;
    for (const Posted& one : messages) {
      if (one.stream != stream) continue;
      transfers.push_back(transfer_for(one.message));
      transfers.back().data = one.message.data;
    }
    own.device().exchange(device, transfers, stream);
  }
}

void pass_through_host(Communicator& own, std::span<const Posted> messages) {
  const auto room_for = [](const Transfer& transfer) {
    return std::shared_ptr<char[]>(new char[transfer.bytes() + 1]);
  };
  for (const auto& [message, stream] : messages) {
    if (!message.sends) continue;
    Transfer transfer = transfer_for(message);
    const auto held = room_for(transfer);
    transfer.data = held.get();
    fetch(held.get(), message.data, transfer.bytes(), stream);
    own.submit(transfer, held);
  }
  for (const auto& [message, stream] : messages) {
    if (message.sends) continue;
    Transfer transfer = transfer_for(message);
    const auto held = room_for(transfer);
    transfer.data = held.get();
    own.transfer(transfer);
    fetch(message.data, held.get(), transfer.bytes(), stream);
  }
}

}  // namespace

void check(const Member& member, const Asked& asked) {
  dtype_of(asked.type);
  if (rooted(asked.collective)) check_rank(member, asked.root, "the root");
  if (reduces(asked.collective) && asked.op > nccl::avg) member.factor(asked.op);
  if (has_input(member, asked)) check_memory(member, asked.input, asked.count, "the send");
  if (has_output(member, asked)) check_memory(member, asked.output, asked.count, "the receive");
}

void collect(Member& member, const Asked& asked, nccl::Stream stream) {
  if (asked.count == 0) return;
  Call call;
  call.collective = asked.collective;
  call.count = asked.count;
  call.dtype = dtype_of(asked.type);
  call.root = asked.root;
  call.device = member.device;
  if (has_input(member, asked)) call.input = asked.input;
  if (has_output(member, asked)) call.output = asked.output;
  if (call.collective == Collective::broadcast && !call.input) call.input = call.output;
  if (reduces(call.collective)) set_op(call, member, asked.op, stream);
  try {
    member.use([&](Communicator& own) { own.device().enqueue(call, stream); });
  } catch (const InvalidArgument& refused) {  // the arguments are right, but it is not served here
    throw Refusal(nccl::invalid_usage, refused.what());
  }
}

void check(const Member& member, const Message& message) {
  dtype_of(message.type);
  check_rank(member, message.peer, "the peer");
  check_memory(member, message.data, message.count, message.sends ? "the send" : "the receive");
}

void carry(Member& member, std::span<const Posted> messages) {
  if (messages.empty()) return;
  if (const nccl::Comm real = member.real()) {
    const NcclLibrary& theirs = NcclLibrary::get();
    for (const auto& [one, stream] : messages) {
      check_real(one.sends ? theirs.send(one.data, one.count, one.type, one.peer, real, stream)
                           : theirs.recv(one.data, one.count, one.type, one.peer, real, stream));
    }
    return;
  }
  member.use([&](Communicator& own) {
    const OnDevice there(CudaLibrary::get(), member.device);
    own.device().carries_messages() ? launch(own, member.device, messages) : pass_through_host(own, messages);
  });
}

Member::Factor read_factor(const void* scalar, nccl::DataType type, nccl::Residence residence) {
  const DType dtype = dtype_of(type);
  if (!scalar) throw Refusal(nccl::invalid_argument, "the scalar is null");
  const char zero[8] = {};
  value_of(zero, dtype);  // refuses types that are not floats
  if (residence == nccl::in_device_memory) return {dtype, 1, scalar};
  return {dtype, value_of(scalar, dtype), nullptr};
}

}  // namespace ringreduce::nccl_api
