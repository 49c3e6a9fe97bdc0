// libnccl's functions: collectives and messages.
#include "fronts/nccl/calls.h"
#include "fronts/nccl/exported.h"

namespace ringreduce::nccl_api {
namespace {

// NCCL checks its own arguments.
template <class Arguments>
auto checked(const Arguments& arguments) {
  return [=](const Member& member) {
    if (!member.is_real()) check(member, arguments);
  };
}

// `forward(library, NCCL's own handle)`
template <class Forward>
nccl::Result collect(Comm comm, const Asked& asked, Stream stream, Forward forward) {
  return run(comm, Phase::launches, checked(asked), [=](Member& member) {
    if (const Comm real = member.real()) return check_real(forward(NcclLibrary::get(), real));
    nccl_api::collect(member, asked, stream);
  });
}

nccl::Result run_message(Comm comm, const Posted& posted) {
  return run(
      comm, checked(posted.message), [&](Member& member) { carry(member, {&posted, 1}); },
      [&](Member& member) { keep_for_group(member, posted); });
}

}  // namespace

RINGREDUCE_NCCL(AllReduce, const void* from, void* to, std::size_t count, DataType type, ReduceOp op,
                Comm comm, Stream stream) {
  return collect(comm, {Collective::all_reduce, from, to, count, type, op}, stream,
                 [=](const NcclLibrary& its, Comm real) {
                   return its.all_reduce(from, to, count, type, op, real, stream);
                 });
}

RINGREDUCE_NCCL(Reduce, const void* from, void* to, std::size_t count, DataType type, ReduceOp op, int root,
                Comm comm, Stream stream) {
  return collect(comm, {Collective::reduce, from, to, count, type, op, root}, stream,
                 [=](const NcclLibrary& its, Comm real) {
                   return its.reduce(from, to, count, type, op, root, real, stream);
                 });
}

RINGREDUCE_NCCL(ReduceScatter, const void* from, void* to, std::size_t count, DataType type, ReduceOp op,
                Comm comm, Stream stream) {
  return collect(comm, {Collective::reduce_scatter, from, to, count, type, op}, stream,
                 [=](const NcclLibrary& its, Comm real) {
                   return its.reduce_scatter(from, to, count, type, op, real, stream);
                 });
}

RINGREDUCE_NCCL(AllGather, const void* from, void* to, std::size_t count, DataType type, Comm comm,
                Stream stream) {
  return collect(
      comm, {Collective::all_gather, from, to, count, type}, stream,
      [=](const NcclLibrary& its, Comm real) { return its.all_gather(from, to, count, type, real, stream); });
}

RINGREDUCE_NCCL(Broadcast, const void* from, void* to, std::size_t count, DataType type, int root, Comm comm,
                Stream stream) {
  return collect(comm, {Collective::broadcast, from, to, count, type, nccl::sum, root}, stream,
                 [=](const NcclLibrary& its, Comm real) {
                   return its.broadcast(from, to, count, type, root, real, stream);
                 });
}

RINGREDUCE_NCCL(Bcast, void* data, std::size_t count, DataType type, int root, Comm comm, Stream stream) {
  return ncclBroadcast(data, data, count, type, root, comm, stream);
}

RINGREDUCE_NCCL(AlltoAll, const void* from, void* to, std::size_t count, DataType type, Comm comm,
                Stream stream) {
  return collect(comm, {Collective::all_to_all, from, to, count, type}, stream,
                 [=](const NcclLibrary&, Comm real) {
                   return call_real<nccl::AlltoAll>("AlltoAll", from, to, count, type, real, stream);
                 });
}

RINGREDUCE_NCCL(Gather, const void* from, void* to, std::size_t count, DataType type, int root, Comm comm,
                Stream stream) {
  return collect(comm, {Collective::gather, from, to, count, type, nccl::sum, root}, stream,
                 [=](const NcclLibrary&, Comm real) {
                   return call_real<nccl::Gather>("Gather", from, to, count, type, root, real, stream);
                 });
}

RINGREDUCE_NCCL(Scatter, const void* from, void* to, std::size_t count, DataType type, int root, Comm comm,
                Stream stream) {
  return collect(comm, {Collective::scatter, from, to, count, type, nccl::sum, root}, stream,
                 [=](const NcclLibrary&, Comm real) {
                   return call_real<nccl::Scatter>("Scatter", from, to, count, type, root, real, stream);
                 });
}

RINGREDUCE_NCCL(Send, const void* from, std::size_t count, DataType type, int peer, Comm comm,
                Stream stream) {
  return run_message(comm, {{const_cast<void*>(from), count, type, peer, true}, stream});
}

RINGREDUCE_NCCL(Recv, void* to, std::size_t count, DataType type, int peer, Comm comm, Stream stream) {
  return run_message(comm, {{to, count, type, peer, false}, stream});
}

}  // namespace ringreduce::nccl_api
