#include "simulate/simulator.h"

#include <algorithm>
#include <queue>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "simulate/cores.h"
#include "simulate/repetition.h"
#include "simulate/sample.h"
#include "simulate/script.h"
#include "simulate/traffic.h"

namespace ringreduce {
namespace {

// A slice may enter a round on a rank; a message reaches a link or, after the last one, its receiver; or a
// core is free for a waiting task.
struct Event {
  static constexpr int of_message = -1, of_core = -2;
  double at = 0;
  std::uint64_t order = 0;  // among events at the same time
  int rank = 0;             // or of_message, or of_core
  int what = 0;             // slice, message or core
  bool operator<(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
};

// A running slice on a rank.
struct Progress {
  int round = -1;
  int left = 0;               // works of the round
  std::vector<bool> is_done;  // by work
  Moment ready;               // when all work so far was finished
};

// Whether a rank's number matters for its records, or for what happens to it.
bool tells_ranks_apart(const Network& network, const Question& question) {
  return !network.slowness.empty() || !question.late.empty() || question.jitter > 0 || question.intervals > 0;
}

class Simulation {
 public:
  Simulation(const Network& network, const std::function<Schedule(int)>& schedule_of,
             const Question& question);
  Answer run();

 private:
  void find_ways();
  const MessageCost& cost_of(int rank, const Post& post) const;
  void push(double at, int rank, int slice);
  void push_message(int number);
  void push_arrival(const Arrival& arrival);
  void submit(const Task& task);
  void call(int core);
  void perform(const Task& task);
  void enter_round(int rank, int slice);
  void post(int rank, int slice, const Post& post, const Way& way, const MessageCost& cost,
            const Moment& sent);
  void move_on(int number);
  void arrive(const Message& message);
  void work(int rank, int slice, std::size_t place, const Moment& from);
  void note(Interval interval, double begin, double end);
  Progress& progress(int rank, int slice) { return progress_[std::size_t(rank) * slices_ + slice]; }
  const Script& script_of(int rank) const { return repetition_.scripts[rank % repetition_.scripts.size()]; }
  bool same_node(int rank, int ahead) const {
    return network_.node_of[rank] == network_.node_of[(rank + ahead) % world_];
  }
  double slowness(int rank) const { return network_.slowness.empty() ? 1 : network_.slowness[rank]; }

  const Network& network_;
  const Question& question_;
  const int world_;
  Repetition repetition_;
  const int ranks_;  // simulated
  Answer answer_;
  Sample sample_;
  const int slices_;  // simulated
  const double chunk_bytes_;
  std::vector<std::vector<Way>> ways_;  // by rank and send
  Traffic traffic_;
  Cores cores_;
  std::vector<Progress> progress_;  // by rank and slice
  std::vector<std::unordered_map<std::uint64_t, std::queue<Moment>>>
      early_;  // by rank; messages for later rounds
  std::priority_queue<Event> events_;
  std::uint64_t pushed_ = 0;
  std::mt19937_64 random_;
};

Simulation::Simulation(const Network& network, const std::function<Schedule(int)>& schedule_of,
                       const Question& question)
    : network_(network),
      question_(question),
      world_(network.world()),
      repetition_(find_repetition(network, schedule_of, !tells_ranks_apart(network, question))),
      ranks_(repetition_.ranks),
      sample_(repetition_, question),
      slices_(sample_.slices()),
      chunk_bytes_(sample_.chunk_bytes()),
      traffic_(network, ranks_),
      cores_(network, ranks_, question.switching),
      progress_(std::size_t(ranks_) * slices_),
      early_(ranks_),
      random_(question.seed) {
  find_ways();
  answer_.ended.resize(ranks_);
  answer_.busy_ranks.resize(ranks_);
}

void Simulation::find_ways() {
  for (int rank = 0; rank < ranks_; ++rank) {
    ways_.emplace_back();
    for (int round = 0; round < script_of(rank).rounds(); ++round) {
      for (const Post& post : script_of(rank).sends(round))
        ways_.back().push_back(traffic_.way(rank, (rank + post.ahead) % world_));
    }
  }
}

const MessageCost& Simulation::cost_of(int rank, const Post& post) const {
  static constexpr MessageCost nothing;
  const auto& rows = same_node(rank, post.ahead) ? question_.inside : question_.between;
  const double bytes = post.chunks * chunk_bytes_;
  for (const MessageCost& row : rows) {
    if (bytes <= row.up_to) return row;
  }
  return rows.empty() ? nothing : rows.back();
}

void Simulation::push(double at, int rank, int slice) {
  events_.push({at, pushed_++ & 0xff'ffff'ffff, rank, slice});
}

Answer Simulation::run() {
  for (int rank = 0; rank < ranks_; ++rank) {
    for (int slice = 0; slice < slices_; ++slice) {
      Moment& begin = progress(rank, slice).ready;
      if (!question_.late.empty()) begin.spend(question_.late[rank], Component::delay);
      if (slice < question_.lanes) push(begin.at, rank, slice);
    }
  }
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    if (event.rank == Event::of_message) {
      move_on(event.what);
    } else if (event.rank == Event::of_core) {
      perform(cores_.next(event.what));
      if (cores_.has_waiting(event.what)) call(event.what);
    } else {
      submit({event.rank, event.what, -1, progress(event.rank, event.what).ready});
    }
  }
  for (int rank = 0; rank < ranks_; ++rank) {
    for (int slice = 0; slice < slices_; ++slice) {
      const Progress& there = progress(rank, slice);
      if (there.round < script_of(rank).rounds())
        throw std::invalid_argument("rank " + std::to_string(rank) + " waits forever in round " +
                                    std::to_string(script_of(rank).number(std::max(there.round, 0))));
      sample_.note_slice(slice, there.ready);
      answer_.ended[rank] = std::max(answer_.ended[rank], there.ready.at);
    }
  }
  answer_.rounds = repetition_.rounds;
  answer_.simulated = ranks_;
  answer_.busy_links = std::move(traffic_.busy);
  sample_.complete(answer_);
  return std::move(answer_);
}

// Starts it now, or when the rank's core is free.
void Simulation::submit(const Task& task) {
  const int core = cores_.core_of(task.rank);
  const bool is_called = cores_.has_waiting(core);
  if (!cores_.has_to_wait(task)) return perform(task);
  if (!is_called) call(core);
}

void Simulation::call(int core) {
  events_.push({cores_.free(core).at, pushed_++ & 0xff'ffff'ffff, Event::of_core, core});
}

void Simulation::perform(const Task& task) {
  task.work < 0 ? enter_round(task.rank, task.slice) : work(task.rank, task.slice, task.work, task.ready);
}

void Simulation::enter_round(int rank, int slice) {
  Progress& there = progress(rank, slice);
  const Script& script = script_of(rank);
  if (there.round >= 0 && slice == 0) sample_.note_round(there.round, there.ready);
  if (++there.round == script.rounds()) {
    if (const int next = slice + question_.lanes; next < slices_) {
      progress(rank, next).ready = there.ready;
      push(there.ready.at, rank, next);
    }
    return;
  }
  Moment& core = cores_.take(rank, there.ready);
  const double began = core.at;
  core.spend(question_.round * slowness(rank), Component::round);
  const Way* way = ways_[rank].data() + script.first_send(there.round);
  for (const Post& each : script.sends(there.round)) {
    const MessageCost& cost = cost_of(rank, each);
    core.spend(cost.send * slowness(rank), Component::send);
    core.spend(each.chunks * chunk_bytes_ * cost.send_byte * slowness(rank), Component::copy_out);
    post(rank, slice, each, *way++, cost, core);
  }
  answer_.busy_ranks[rank] += core.at - began;
  note({Activity::send, rank, -1, script.number(there.round), slice}, began, core.at);
  there.ready = core;
  const auto works = script.works(there.round);
  there.left = static_cast<int>(works.size());
  there.is_done.assign(works.size(), false);
  for (std::size_t place = 0; place < works.size(); ++place) {
    if (works[place].ahead == 0) {
      work(rank, slice, place, there.ready);
      continue;
    }
    const auto found = early_[rank].find(std::uint64_t(slice) * world_ + works[place].ahead);
    if (found == early_[rank].end()) continue;
    const Moment came = found->second.front();
    found->second.pop();
    if (found->second.empty()) early_[rank].erase(found);
    work(rank, slice, place, came);
  }
  if (works.empty()) push(there.ready.at, rank, slice);
}

void Simulation::post(int rank, int slice, const Post& post, const Way& way, const MessageCost& cost,
                      const Moment& sent) {
  Moment leaves = sent;
  leaves.spend(cost.latency, Component::latency);
  if (question_.jitter > 0)
    leaves.spend(std::exponential_distribution<double>(1 / question_.jitter)(random_), Component::delay);
  ++answer_.messages;
  push_message(traffic_.post({.from = rank,
                              .ahead = post.ahead,
                              .slice = slice,
                              .round = script_of(rank).number(progress(rank, slice).round),
                              .way = way,
                              .bytes = post.chunks * chunk_bytes_,
                              .first = leaves,
                              .last = leaves}));
}

void Simulation::push_message(int number) {
  const Message& message = traffic_.at(number);
  const double at = (message.has_arrived() ? message.last : message.first).at;
  const Arrival arrival{at, traffic_.order(number) + 1, number};
  if (traffic_.line_up(number, arrival)) push_arrival(arrival);
}

void Simulation::push_arrival(const Arrival& arrival) {
  events_.push(
      {arrival.at, arrival.order << 40 | (pushed_++ & 0xff'ffff'ffff), Event::of_message, arrival.number});
}

void Simulation::move_on(int number) {
  if (const Arrival* next = traffic_.leave_line(number)) push_arrival(*next);
  const Message& message = traffic_.at(number);
  if (message.has_arrived()) {
    arrive(message);
    traffic_.forget(number);
    return;
  }
  const auto [link, begin, end] = traffic_.cross(number);
  const int peer = (message.from + message.ahead) % world_;
  note({Activity::transfer, link, peer, message.round, message.slice}, begin, end);
  push_message(number);
}

void Simulation::arrive(const Message& message) {
  const int rank = (message.from + message.ahead) % world_ % ranks_, ahead = world_ - message.ahead;
  Progress& there = progress(rank, message.slice);
  if (there.round >= 0 && there.round < script_of(rank).rounds()) {
    const auto works = script_of(rank).works(there.round);
    const auto found = std::lower_bound(works.begin(), works.end(), ahead,
                                        [](const Post& post, int a) { return post.ahead < a; });
    const auto place = static_cast<std::size_t>(found - works.begin());
    if (found != works.end() && found->ahead == ahead && !there.is_done[place]) {
      there.is_done[place] = true;
      submit({rank, message.slice, static_cast<int>(place), message.last});
      return;
    }
  }
  early_[rank][std::uint64_t(message.slice) * world_ + ahead].push(message.last);
}

// Takes in a message, or runs a local step.
void Simulation::work(int rank, int slice, std::size_t place, const Moment& from) {
  Progress& there = progress(rank, slice);
  const Post& each = script_of(rank).works(there.round)[place];
  const bool is_local = each.ahead == 0;
  const MessageCost& cost = cost_of(rank, each);
  Moment& core = cores_.take(rank, from);
  const double began = core.at, bytes = each.chunks * chunk_bytes_;
  if (!is_local) core.spend(cost.receive * slowness(rank), Component::receive);
  core.spend(bytes * (each.reduce ? cost.combine_byte : cost.receive_byte) * slowness(rank),
             each.reduce ? Component::combine : Component::copy_in);
  answer_.busy_ranks[rank] += core.at - began;
  note({is_local ? Activity::local : Activity::receive, rank, (rank + each.ahead) % world_,
        script_of(rank).number(there.round), slice},
       began, core.at);
  there.is_done[place] = true;
  there.ready = later(there.ready, core);
  if (--there.left == 0) push(there.ready.at, rank, slice);
}

void Simulation::note(Interval interval, double begin, double end) {
  if (answer_.intervals.size() >= question_.intervals) return;
  interval.begin = begin;
  interval.end = end;
  answer_.intervals.push_back(interval);
}

}  // namespace

Answer simulate(const Network& network, const std::function<Schedule(int)>& schedule_of,
                const Question& question) {
  return Simulation(network, schedule_of, question).run();
}

}  // namespace ringreduce
