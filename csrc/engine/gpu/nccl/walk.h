// Runs a program over NCCL, round by round: all messages of a round as one grouped operation, then
// combinations and copies, by our kernels. Everything goes on a stream, and nothing waits for it.
//
// A message is sent chunk by chunk, because its two ends agree on chunks, but not on which lie side by side.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/gpu/kernel_library.h"
#include "engine/planning/call.h"
#include "engine/planning/plan.h"
#include "transport/nccl/group.h"

namespace ringreduce {

class NcclWalk {
 public:
  NcclWalk(NcclGroup& group, const Call& call, const Plan& plan, int rank);

  // Bytes of temporary memory that run() needs.
  std::size_t room() const { return temp_bytes_ + round_bytes_; }
  // On the current device's stream.
  void run(char* room, void* stream, const NcclGroup::Tick& tick);

 private:
  using Actions = std::vector<Action>;

  void find_staged();
  void add_reads(const Step& step, std::vector<std::uint8_t>& read) const;
  bool must_stage(const Step& step, const std::vector<std::uint8_t>& read) const;
  std::size_t room_for(const Step& step) const;

  void run_slice(std::size_t slice);
  void run_round(const Action* first, const Action* last);
  void scale_sends(const Action* first, const Action* last);
  void exchange(const Action* first, const Action* last);
  void send(const Action& action, const char* staged);
  void receive(const Action& action, char* landing);
  void combine(const Action& action, const char* landing);
  void put_in_place(const Action& action, const char* landing);
  void local(const Action& action);

  // Calls visit(address, bytes) for every chunk of a run.
  template <class Visit>
  void each_chunk(char* run, std::size_t bytes, Visit visit) const;
  char* at(Memory memory, std::size_t offset) const { return bases_[static_cast<int>(memory)] + offset; }
  char* take_room(std::size_t bytes);
  bool is_scaled(const Move& move) const { return scales_ && move.from == Memory::input; }
  std::size_t step_of(const Action& action) const;
  void copy(char* to, const char* from, std::size_t bytes) { kernels_.copy_span(to, from, bytes, stream_); }
  void scale(char* to, const char* from, std::size_t count) {
    kernels_.scale_span(call_.dtype, to, from, count, call_.factor, stream_);
  }
  void combine_into(char* to, std::vector<const void*>& sources, const Move& move, const void* own);
  void combine_some(Op op, void* to, const void* const* sources, std::size_t number, std::size_t count);

  NcclGroup& group_;
  const KernelLibrary& kernels_ = KernelLibrary::get();
  const Call& call_;
  const Plan& plan_;
  const Program& program_;
  const Geometry& geometry_;
  const int rank_;
  const bool scales_;
  const Op between_;             // ranks
  std::size_t temp_bytes_ = 0;   // of the program's own
  std::size_t round_bytes_ = 0;  // after them, what a round needs in addition
  std::vector<char> staged_;     // by step: what it receives cannot arrive in place
  std::vector<char*> kept_;      // by step, in this round: a message in temporary memory
  std::vector<const void*> sources_;
  Layout layout_;        // if no two slices are alike
  char* bases_[3] = {};  // of this slice, by memory
  char *room_ = nullptr, *free_ = nullptr;
  void* stream_ = nullptr;
  const NcclGroup::Tick* tick_ = nullptr;
};

}  // namespace ringreduce
