#include "simulate/simulator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "simulate/cores.h"
#include "simulate/script.h"
#include "simulate/traffic.h"

namespace ringreduce {
namespace {

constexpr std::size_t compared_posts =
    2'000'000;  // of schedules of different ranks, to see whether they are alike

// A slice may enter a round on a rank; or a message comes to a link or, behind the last one, to its receiver;
// or a core is free for what waits for it.
struct Event {
  static constexpr int of_message = -1, of_core = -2;
  double at = 0;
  std::uint64_t order = 0;  // of events at one time
  int rank = 0;             // or of_message, or of_core
  int what = 0;             // slice, message or core
  bool operator<(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
};

// A slice under way on a rank.
struct Progress {
  int round = -1;
  int left = 0;               // works of the round
  std::vector<bool> is_done;  // by work
  Moment ready;               // when all that was done so far was done
};

class Simulation {
 public:
  Simulation(const Network& network, const std::function<Schedule(int)>& schedule_of,
             const Question& question);
  Answer run();

 private:
  bool repeats(const std::function<Schedule(int)>& schedule_of) const;
  void find_slices(int chunks);
  void add_slices();
  const MessageCost& cost_of(int rank, const Post& post) const;
  void push(double at, int rank, int slice);
  void push_message(int number);
  void submit(const Task& task);
  void call(int core);
  void perform(const Task& task);
  void enter_round(int rank, int slice);
  void post(int rank, int slice, const Post& post, const Moment& sent);
  void move_on(int number);
  void arrive(const Message& message);
  void work(int rank, int slice, std::size_t place, const Moment& from);
  void note(Interval interval, double begin, double end);
  Progress& progress(int rank, int slice) { return progress_[std::size_t(rank) * slices_ + slice]; }
  bool same_node(int rank, int ahead) const {
    return network_.node_of[rank] == network_.node_of[(rank + ahead) % world_];
  }
  double slowness(int rank) const { return network_.slowness.empty() ? 1 : network_.slowness[rank]; }

  const Network& network_;
  const Question& question_;
  const int world_;
  const int ranks_;         // simulated
  int slices_ = 1;          // simulated
  double chunk_bytes_ = 0;  // of a slice
  std::vector<Script> scripts_;
  Traffic traffic_;
  Cores cores_;
  std::vector<Progress> progress_;  // by rank and slice
  std::vector<Moment> slice_ended_;
  std::vector<std::unordered_map<std::uint64_t, std::queue<Moment>>>
      early_;  // by rank; messages for later rounds
  std::priority_queue<Event> events_;
  std::uint64_t pushed_ = 0;
  std::mt19937_64 random_;
  Answer answer_;
};

Simulation::Simulation(const Network& network, const std::function<Schedule(int)>& schedule_of,
                       const Question& question)
    : network_(network),
      question_(question),
      world_(network.world()),
      ranks_(repeats(schedule_of) ? network.period : world_),
      traffic_(network, ranks_ < world_),
      cores_(network, ranks_, question.switching),
      random_(question.seed) {
  int chunks = 1;
  for (int rank = 0; rank < ranks_; ++rank) {
    const Schedule schedule = schedule_of(rank);
    chunks = std::max(schedule.chunks, 1);
    scripts_.emplace_back(schedule);
  }
  find_slices(chunks);
  progress_.resize(std::size_t(ranks_) * slices_);
  early_.resize(ranks_);
  answer_.ended.resize(ranks_);
  answer_.busy_ranks.resize(ranks_);
}

// Whether it is enough to simulate as many ranks as a period has. Looks at all ranks' schedules unless they
// are long: then at as many as there is time for, in no order.
bool Simulation::repeats(const std::function<Schedule(int)>& schedule_of) const {
  // What is noted of the ranks is to be that of all.
  if (!network_.slowness.empty() || !question_.late.empty() || question_.jitter > 0 ||
      question_.intervals > 0)
    return false;
  if (network_.period == 0 || network_.period == world_) return false;
  std::vector<int> ranks(world_);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shuffle(ranks.begin() + 1, ranks.end(), std::mt19937_64(world_));
  std::unordered_map<int, Script> first;  // by place in the period
  std::size_t posts = 0;
  for (const int rank : ranks) {
    Script script(schedule_of(rank));
    posts += script.posts();
    const auto [found, is_new] = first.try_emplace(rank % network_.period, std::move(script));
    if (!is_new && !(found->second == script)) return false;
    if (posts > compared_posts) break;
  }
  return true;
}

// As the engine cuts them, but of equal length.
void Simulation::find_slices(int chunks) {
  int heaviest = 1;
  for (const Script& script : scripts_) heaviest = std::max(heaviest, script.heaviest_round());
  if (question_.slice_bytes > 0)
    slices_ =
        std::max(static_cast<int>(std::ceil(question_.bytes / chunks * heaviest / question_.slice_bytes)), 1);
  chunk_bytes_ = question_.bytes / chunks / slices_;
  answer_.slices = slices_;
  std::size_t messages = 1;
  for (const Script& script : scripts_) messages += script.sends();
  slices_ =
      std::min(slices_, std::max(static_cast<int>(question_.most_messages / messages), 4 * question_.lanes));
  slice_ended_.resize(slices_);
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
      if (!question_.late.empty()) begin.spend(question_.late[rank], Cause::delay);
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
      if (there.round < scripts_[rank].rounds())
        throw std::invalid_argument("rank " + std::to_string(rank) + " waits for ever in round " +
                                    std::to_string(there.round));
      slice_ended_[slice] = later(slice_ended_[slice], there.ready);
      answer_.ended[rank] = std::max(answer_.ended[rank], there.ready.at);
    }
    answer_.rounds = std::max(answer_.rounds, scripts_[rank].rounds());
  }
  for (const Moment& ended : slice_ended_) answer_.end = later(answer_.end, ended);
  answer_.simulated = ranks_;
  answer_.busy_links = std::move(traffic_.busy);
  answer_.simulated_slices = slices_;
  if (slices_ < answer_.slices) add_slices();
  return std::move(answer_);
}

// Those that were left out: each takes as long as one in the middle of those that were simulated, with as
// many under way before it as behind it. Slices end in groups, one in each lane.
void Simulation::add_slices() {
  const int end = slices_ - question_.lanes - 1,
            first = end - std::max((end + 1 - question_.lanes) / question_.lanes, 1) * question_.lanes;
  const double more = static_cast<double>(answer_.slices - slices_) / (end - first);
  const double all = answer_.slices / static_cast<double>(slices_);
  const Moment &last = slice_ended_[end], &before = slice_ended_[first];
  for (std::size_t cause = 0; cause < cause_count; ++cause)
    answer_.end.made_of[cause] += more * (last.made_of[cause] - before.made_of[cause]);
  const double added = more * (last.at - before.at);
  answer_.end.at += added;
  for (double& ended : answer_.ended) ended += added;
  for (auto* busy : {&answer_.busy_ranks, &answer_.busy_links}) {
    for (double& seconds : *busy) seconds *= all;
  }
  answer_.messages = static_cast<std::uint64_t>(static_cast<double>(answer_.messages) * all);
}

// Now, or when the rank's core is free.
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
  const Script& script = scripts_[rank];
  if (++there.round == script.rounds()) {
    if (const int next = slice + question_.lanes; next < slices_) {
      progress(rank, next).ready = there.ready;
      push(there.ready.at, rank, next);
    }
    return;
  }
  Moment& core = cores_.take(rank, there.ready);
  const double began = core.at;
  core.spend(question_.round * slowness(rank), Cause::round);
  for (const Post& each : script.sends(there.round)) {
    const MessageCost& cost = cost_of(rank, each);
    core.spend(cost.send * slowness(rank), Cause::send);
    core.spend(each.chunks * chunk_bytes_ * cost.send_byte * slowness(rank), Cause::copy_out);
    post(rank, slice, each, core);
  }
  answer_.busy_ranks[rank] += core.at - began;
  note({Activity::send, rank, -1, there.round, slice}, began, core.at);
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

void Simulation::post(int rank, int slice, const Post& post, const Moment& sent) {
  Moment leaves = sent;
  leaves.spend(cost_of(rank, post).latency, Cause::latency);
  if (question_.jitter > 0)
    leaves.spend(std::exponential_distribution<double>(1 / question_.jitter)(random_), Cause::delay);
  const int number = traffic_.post(rank, post.ahead, post.chunks * chunk_bytes_, leaves);
  traffic_.at(number).slice = slice;
  traffic_.at(number).round = progress(rank, slice).round;
  ++answer_.messages;
  push_message(number);
}

void Simulation::push_message(int number) {
  const Message& message = traffic_.at(number);
  const double at = (message.has_arrived() ? message.last : message.first).at;
  events_.push({at, traffic_.order(number) << 40 | (pushed_++ & 0xff'ffff'ffff), Event::of_message, number});
}

void Simulation::move_on(int number) {
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
  if (there.round >= 0 && there.round < scripts_[rank].rounds()) {
    const auto works = scripts_[rank].works(there.round);
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

// Takes in a message, or makes a local step.
void Simulation::work(int rank, int slice, std::size_t place, const Moment& from) {
  Progress& there = progress(rank, slice);
  const Post& each = scripts_[rank].works(there.round)[place];
  const bool is_local = each.ahead == 0;
  const MessageCost& cost = cost_of(rank, each);
  Moment& core = cores_.take(rank, from);
  const double began = core.at, bytes = each.chunks * chunk_bytes_;
  if (!is_local) core.spend(cost.receive * slowness(rank), Cause::receive);
  core.spend(bytes * (each.reduce ? cost.combine_byte : cost.receive_byte) * slowness(rank),
             each.reduce ? Cause::combine : Cause::copy_in);
  answer_.busy_ranks[rank] += core.at - began;
  note({is_local ? Activity::local : Activity::receive, rank, (rank + each.ahead) % world_, there.round,
        slice},
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
