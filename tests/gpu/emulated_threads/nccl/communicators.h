// What callers hold as ncclComm_t: one rank's end of a clique. Unless its caller blocks: joining, ending, and
// every third group take a few looks at its state before they are done, as NCCL does where connections are
// still to be made.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "clique.h"

namespace ringreduce::emulated {

class Communicator {
 public:
  Communicator(std::shared_ptr<Clique> clique, int rank);

  // Of a caller that gave no configuration.
  bool blocks = false;
  // What it returns when it is done, if its caller blocks.
  nccl::Result when_done(nccl::Result result);

  int rank() const { return rank_; }
  Clique& clique() const { return *clique_; }
  // Puts a group's operations into a stream, now or in a while.
  nccl::Result launch(std::vector<Operation> operations, void* stream);
  nccl::Result state();
  nccl::Result finalize();
  // Throws std::logic_error unless it was finalized.
  void check_over();

  nccl::ReduceOp add_factor(const void* scalar, nccl::DataType type);
  void remove_factor(nccl::ReduceOp op);
  std::vector<char> factor(nccl::ReduceOp op);
  void* add_memory(void* memory, std::size_t bytes);
  void remove_memory(void* handle);

 private:
  struct Group {
    std::vector<Operation> operations;
    void* stream;
  };
  void put(Group group);

  const std::shared_ptr<Clique> clique_;
  const int rank_;
  std::mutex mutex_;
  std::unique_ptr<Group> waiting_;
  int looks_ = 0;
  std::uint64_t groups_ = 0;
  bool finalized_ = false;
  const std::shared_ptr<char> alive_;  // as are all groups on streams, and in graphs
  std::map<unsigned, std::vector<char>> factors_;
  std::map<void*, std::size_t> memory_;
};

// NCCL does so where it has worked on a communicator's: a thread that has no context gets the first one's.
void go_back_to_device();

// By id. Throws std::invalid_argument if the world is another than another rank's.
std::shared_ptr<Clique> clique_of(const std::string& id, int world);

}  // namespace ringreduce::emulated
