#include "fronts/shared/group.h"

#include <cstring>
#include <string>

#include "engine/communicator/communicator.h"
#include "transport/compose/choose.h"
#include "transport/interface/log.h"
#include "transport/memory/block_pool.h"
#include "transport/memory/shared_heap.h"

namespace ringreduce {
namespace {

Outcome outcome_of(Cause cause) {
  if (cause == Cause::timeout) return Outcome::timeout;
  return cause == Cause::damaged ? Outcome::other : Outcome::failed;
}

[[noreturn]] void throw_trouble(const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const Failure& failure) {
    throw Trouble(outcome_of(failure.cause), failure.culprit, failure.what());
  } catch (const InvalidArgument& error) {
    throw Trouble(Outcome::refused, -1, error.what());
  } catch (const Closed& error) {
    throw Trouble(Outcome::closed, -1, error.what());
  } catch (const Interrupted& error) {
    throw Trouble(Outcome::interrupted, -1, error.what());
  } catch (const Error& error) {
    throw Trouble(Outcome::other, error.culprit, error.what());
  } catch (const std::runtime_error& error) {
    throw Trouble(Outcome::other, -1, error.what());
  }  // an exception that the front itself threw, in its steps or its meeting, passes unchanged
}

template <typename Function>
auto translated(Function function) {
  try {
    return function();
  } catch (...) {
    throw_trouble(std::current_exception());
  }
}

std::exception_ptr as_trouble(const std::exception_ptr& problem) {
  if (!problem) return nullptr;
  try {
    throw_trouble(problem);
  } catch (...) {
    return std::current_exception();
  }
}

void tell(const std::shared_ptr<Work>& work, Completion completion) {
  // The work is alive while it ends. Keeping it here would keep it forever.
  work->then([of = work.get(), to = std::move(completion)]() noexcept {
    to(as_trouble(of->exception()), of->source());
  });
}

std::unique_ptr<Communicator> connect(int rank, int world, Meeting& meeting,
                                      const Group::Settings& settings) {
  const Exchange exchange = [&](const std::string& blob) {
    std::vector<std::string> all;
    for (const auto& one : meeting.exchange({blob.begin(), blob.end()})) {
      all.emplace_back(one.begin(), one.end());
    }
    return all;
  };
  Options options;
  options.timeout = settings.timeout;
  if (settings.reproducible) options.reproducible = *settings.reproducible;
  options.poll = settings.poll;
  options.gpu = settings.gpu;
  options.members = settings.members;
  auto communicator = std::make_unique<Communicator>(
      connect_transport(rank, world, exchange, settings.shared_memory ? "shm" : "", nullptr, {},
                        options.tuned ? options.tuned->digest : 0),
      options);
  communicator->settle();
  return communicator;
}

}  // namespace

Trouble::Trouble(Outcome outcome, int culprit, const char* text)
    : outcome(outcome),
      culprit(culprit),
      text_(std::make_shared<std::vector<char>>(text, text + std::strlen(text) + 1)) {}

Group::Group(int rank, int world, Meeting& meeting, const Settings& settings)
    : communicator_(translated([&] { return connect(rank, world, meeting, settings); })) {}

Group::~Group() = default;

void Group::run(const Call& call) {
  translated([&] { communicator_->run(call); });
}

void Group::run(Steps& steps) {
  translated([&] { communicator_->run(steps); });
}

void Group::enqueue(const Call& call, void* stream) {
  translated([&] { communicator_->device().enqueue(call, stream); });
}

void Group::prepare(int device) {
  translated([&] { communicator_->device().prepare(device); });
}

void Group::register_memory(int device, void* memory, std::size_t bytes) {
  translated([&] { communicator_->device().register_memory(device, memory, bytes); });
}

void Group::deregister_memory(int device, void* memory) {
  translated([&] { communicator_->device().deregister_memory(device, memory); });
}

bool Group::carries_messages() const {
  return communicator_->device().carries_messages();
}

void Group::exchange(int device, const std::vector<Transfer>& transfers, void* stream) {
  translated([&] { communicator_->device().exchange(device, transfers, stream); });
}

void Group::submit(std::unique_ptr<Steps> steps, Completion completion) {
  translated([&] { tell(communicator_->submit(std::move(steps)), std::move(completion)); });
}

void Group::submit(const Transfer& transfer, Arrays arrays, Completion completion) {
  translated([&] { tell(communicator_->submit(transfer, std::move(arrays)), std::move(completion)); });
}

bool Group::in_a_call() const {
  return communicator_->in_a_call();
}

bool Group::lacks_a_rank() const {
  return communicator_->lacks_a_rank();
}

bool Group::oversubscribed() const {
  return communicator_->oversubscribed();
}

int Group::latest() const {
  return communicator_->latest();
}

std::vector<char> Group::latest_call(int late) const {
  const std::string text = communicator_->latest_call(late);
  return {text.c_str(), text.c_str() + text.size() + 1};
}

void Group::close() {
  translated([&] { communicator_->close(); });
}

void Group::leave() {
  translated([&] { communicator_->leave(); });
}

void run(std::int64_t communicator, const Call& call) {
  translated([&] { Communicator::numbered(communicator)->run(call); });
}

void run(std::int64_t communicator, const Transfer& transfer) {
  translated([&] { Communicator::numbered(communicator)->transfer(transfer); });
}

void swap(std::int64_t communicator, const Transfer& send, const Transfer& receive) {
  translated([&] { Communicator::numbered(communicator)->swap(send, receive); });
}

bool says() {
  return log::says(log::Level::info);
}

void say(int rank, const char* text) {
  log::say(log::Level::info, "rank " + std::to_string(rank), text);
}

void write_to_stderr(const char* text) {
  log::write_to_stderr(text);
}

void* allocate_shared(std::size_t bytes) {
  return shared_heap::allocate(bytes);
}

void free_shared(void* memory) {
  shared_heap::free(memory);
}

void* allocate_block(std::size_t bytes, bool for_communication) {
  using block_pool::Kind;
  return block_pool::allocate(bytes, for_communication ? Kind::shared : Kind::undefined);
}

bool free_block(void* memory) {
  return block_pool::free(memory);
}

}  // namespace ringreduce
