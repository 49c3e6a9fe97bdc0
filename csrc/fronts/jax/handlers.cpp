// XLA's custom calls. Each makes one call of a communicator, in the thread in which XLA executes it.
#include <xla/ffi/api/ffi.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <string>

#include "fronts/shared/embedded.h"
#include "fronts/shared/group.h"
#include "fronts/shared/tables.h"

namespace ffi = xla::ffi;

namespace ringreduce {
namespace {

// In the order of DType.
constexpr ffi::DataType types[] = {ffi::DataType::F64,  ffi::DataType::F32,      ffi::DataType::F16,
                                   ffi::DataType::BF16, ffi::DataType::F8E4M3FN, ffi::DataType::F8E5M2,
                                   ffi::DataType::S64,  ffi::DataType::S32,      ffi::DataType::S16,
                                   ffi::DataType::S8,   ffi::DataType::U8,       ffi::DataType::PRED,
                                   ffi::DataType::U16,  ffi::DataType::U32,      ffi::DataType::U64,
                                   ffi::DataType::C64,  ffi::DataType::C128};
static_assert(std::size(types) == dtype_count);

// In the order of Outcome.
constexpr ffi::ErrorCode codes[] = {ffi::ErrorCode::kInvalidArgument,  ffi::ErrorCode::kAborted,
                                    ffi::ErrorCode::kDeadlineExceeded, ffi::ErrorCode::kFailedPrecondition,
                                    ffi::ErrorCode::kCancelled,        ffi::ErrorCode::kInternal};

DType dtype_of(ffi::DataType type) {
  return same<DType>(types, type).value();  // Python has checked it
}

// XLA is built without exceptions.
template <typename Function>
ffi::Error without_exceptions(Function function) {
  try {
    function();
    return ffi::Error::Success();
  } catch (const Trouble& trouble) {
    if (trouble.outcome == Outcome::interrupted) postpone_exception();
    return {codes[static_cast<int>(trouble.outcome)], std::string("ringreduce: ") + trouble.what()};
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("ringreduce: ") + error.what());
  } catch (...) {
    return ffi::Error::Internal("ringreduce: unknown error");
  }
}

template <Collective collective>
ffi::Error run_collective(ffi::Token, ffi::AnyBuffer x, ffi::Result<ffi::Token>,
                          ffi::Result<ffi::AnyBuffer> out, std::int64_t comm, std::int64_t count,
                          std::int64_t op, std::int64_t root) {
  return without_exceptions([&] {
    run(comm, Call{.collective = collective,
                   .input = x.untyped_data(),
                   .output = out->untyped_data(),
                   .count = static_cast<std::size_t>(count),
                   .dtype = dtype_of(x.element_type()),
                   .op = static_cast<Op>(op),
                   .root = static_cast<int>(root)});
  });
}

Transfer transfer_of(bool sends, const ffi::AnyBuffer& array, std::int64_t peer, std::int64_t tag) {
  return {.sends = sends,
          .peer = static_cast<int>(peer),
          .data = array.untyped_data(),
          .count = array.element_count(),
          .dtype = dtype_of(array.element_type()),
          .tag = static_cast<int>(tag)};
}

ffi::Error send(ffi::Token, ffi::AnyBuffer x, ffi::Result<ffi::Token>, std::int64_t comm, std::int64_t dest,
                std::int64_t tag) {
  return without_exceptions([&] { run(comm, transfer_of(true, x, dest, tag)); });
}

ffi::Error recv(ffi::Token, ffi::Result<ffi::Token>, ffi::Result<ffi::AnyBuffer> out, std::int64_t comm,
                std::int64_t source, std::int64_t tag) {
  return without_exceptions([&] { run(comm, transfer_of(false, *out, source, tag)); });
}

ffi::Error sendrecv(ffi::Token, ffi::AnyBuffer x, ffi::Result<ffi::Token>, ffi::Result<ffi::AnyBuffer> out,
                    std::int64_t comm, std::int64_t dest, std::int64_t source, std::int64_t tag) {
  return without_exceptions(
      [&] { swap(comm, transfer_of(true, x, dest, tag), transfer_of(false, *out, source, tag)); });
}

auto collective_call() {
  return ffi::Ffi::Bind()
      .Arg<ffi::Token>()
      .Arg<ffi::AnyBuffer>()
      .Ret<ffi::Token>()
      .Ret<ffi::AnyBuffer>()
      .Attr<std::int64_t>("comm")
      .Attr<std::int64_t>("count")
      .Attr<std::int64_t>("op")
      .Attr<std::int64_t>("root");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(ringreduce_jax_all_reduce, run_collective<Collective::all_reduce>,
                              collective_call());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ringreduce_jax_all_gather, run_collective<Collective::all_gather>,
                              collective_call());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ringreduce_jax_reduce_scatter, run_collective<Collective::reduce_scatter>,
                              collective_call());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ringreduce_jax_all_to_all, run_collective<Collective::all_to_all>,
                              collective_call());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ringreduce_jax_broadcast, run_collective<Collective::broadcast>,
                              collective_call());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ringreduce_jax_send, send,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Token>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::Token>()
                                  .Attr<std::int64_t>("comm")
                                  .Attr<std::int64_t>("dest")
                                  .Attr<std::int64_t>("tag"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(ringreduce_jax_recv, recv,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Token>()
                                  .Ret<ffi::Token>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::int64_t>("comm")
                                  .Attr<std::int64_t>("source")
                                  .Attr<std::int64_t>("tag"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(ringreduce_jax_sendrecv, sendrecv,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Token>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::Token>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::int64_t>("comm")
                                  .Attr<std::int64_t>("dest")
                                  .Attr<std::int64_t>("source")
                                  .Attr<std::int64_t>("tag"));

}  // namespace ringreduce
