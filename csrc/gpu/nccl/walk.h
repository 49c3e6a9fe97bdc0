// Runs a program over NCCL, round by round: all messages of a round as one grouped operation, then
// combinations and copies, by our kernels. Everything is launched on a stream, and nothing waits for it.
//
// A message is sent chunk by chunk, because its two ends agree on chunks, but not on which lie side by side.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/planning/call.h"
#include "engine/planning/plan.h"
#include "gpu/kernels/kernel_library.h"
#include "gpu/libnccl/group.h"

namespace ringreduce {

class NcclWalk {
 public:
  NcclWalk(NcclGroup& group, const Call& call, const Plan& plan, int rank);

  // Bytes of temporary memory that run() needs.
  std::size_t room() const { return temp_bytes_ + wide_bytes_ + round_bytes_; }
  // On the current device's stream.
  void run(char* room, void* stream, const NcclGroup::Tick& tick);

 private:
  using Actions = std::vector<Action>;
  static constexpr std::size_t line = 256;
  // Of a combination.
  struct Source {
    const void* at;
    bool is_message;
  };
  struct Targets {
    void* values;   // null: none
    void* message;  // null: none
    bool quantize = false;
  };

  void find_staged();
  void add_reads(const Step& step, std::vector<std::uint8_t>& read) const;
  bool must_stage(const Step& step, const std::vector<std::uint8_t>& read) const;
  std::size_t room_for(const Step& step) const;

  void run_slice(std::size_t slice);
  void run_round(const Action* first, const Action* last);
  void convert(std::size_t slice, Memory memory);
  void prepare_sends(const Action* first, const Action* last);
  void prepare_send(const Action& action);
  void exchange(const Action* first, const Action* last);
  void send(const Action& action, const char* staged);
  void receive(const Action& action, char* landing);
  void combine(const Action& action, const char* landing);
  void put_in_place(const Action& action, const char* landing);
  void local(const Action& action);

  bool has_partial(const Step& step) const;
  bool coded() const { return geometry_.wire != Encoding::none; }
  bool narrow() const { return geometry_.narrow != Encoding::none; }
  std::size_t message_bytes(std::size_t count) const {
    return coded() ? encoded_bytes(geometry_.wire, count) : count * geometry_.element;
  }
  // Calls visit(address, bytes) for every chunk of a run of messages.
  template <class Visit>
  void each_chunk(char* run, std::size_t bytes, Visit visit) const;
  char* at(Memory memory, std::size_t offset) const { return bases_[static_cast<int>(memory)] + offset; }
  static std::size_t in_lines(std::size_t bytes) { return (bytes + line - 1) / line * line; }
  char* take_room(std::size_t bytes);
  bool is_scaled(const Move& move) const { return scales_ && !narrow() && move.from == Memory::input; }
  std::size_t step_of(const Action& action) const;
  void copy(char* to, const char* from, std::size_t bytes) { kernels_.copy_span(to, from, bytes, stream_); }
  void scale(char* to, const char* from, std::size_t count) {
    kernels_.scale_span(dtype_, to, from, count, factor_, stream_);
  }
  void combine_sources(const Move& move, const Targets& targets, char* partial);
  void combine_some(Encoding wire, Op op, double factor, const Targets& targets, const Source* sources,
                    std::size_t number, std::size_t count);

  NcclGroup& group_;
  const KernelLibrary& kernels_ = KernelLibrary::get();
  const Call& call_;
  const Plan& plan_;
  const Program& program_;
  const Geometry& geometry_;
  const int rank_;
  const DType dtype_;  // that is computed with
  const bool scales_;
  const double factor_;
  const Op between_;             // ranks
  std::size_t temp_bytes_ = 0;   // of the program's own
  std::size_t wide_bytes_ = 0;   // after them, a slice's values as float32
  std::size_t round_bytes_ = 0;  // after them, what a round needs in addition
  std::vector<char> staged_;     // by step: what it receives cannot arrive in place
  std::vector<char*> kept_;      // by step, in this round: a message in temporary memory
  std::vector<Source> sources_;
  Layout layout_;        // if no two slices are alike
  char* bases_[3] = {};  // of this slice, by memory
  char *room_ = nullptr, *free_ = nullptr;
  void* stream_ = nullptr;
  const NcclGroup::Tick* tick_ = nullptr;
};

}  // namespace ringreduce
