// New communicators made from old ones, of some of the ranks or of the survivors.
#include <algorithm>
#include <cstring>

#include "engine/calls/waiting.h"
#include "engine/communicator/communicator.h"
#include "engine/endings/agreement.h"
#include "engine/endings/contract.h"
#include "transport/interface/exchange.h"

namespace ringreduce {
namespace {

// " 3", or "s 1, 2, 5".
std::string listed(const std::vector<int>& ranks) {
  std::string text = ranks.size() > 1 ? "s" : "";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : " ") + std::to_string(ranks[i]);
  return text;
}

}  // namespace

// All ranks of the parent exchange, members or not, because the exchange is a collective of the parent.
std::vector<std::string> Communicator::exchange(const std::string& blob) {
  constexpr std::size_t room = 1024;
  if (blob.size() > room - sizeof(std::uint32_t)) throw Error("a blob of an exchange is too long");
  std::vector<char> mine(room), all(room * size());
  const auto length = static_cast<std::uint32_t>(blob.size());
  std::memcpy(mine.data(), &length, sizeof length);
  std::memcpy(mine.data() + sizeof length, blob.data(), blob.size());
  Call call;
  call.collective = Collective::all_gather;
  call.dtype = DType::uint8;
  call.count = room;
  call.input = mine.data();
  call.output = all.data();
  run(call);
  std::vector<std::string> blobs;
  for (int r = 0; r < size(); ++r) {
    std::uint32_t length = 0;
    std::memcpy(&length, all.data() + r * room, sizeof length);
    if (length > room - sizeof length) throw Error("a blob of an exchange is longer than its buffer");
    blobs.emplace_back(all.data() + r * room + sizeof length, length);
  }
  return blobs;
}

// Links stay valid in a new group, except between hosts whose first rank has changed: these are unknown.
std::unique_ptr<Communicator> Communicator::child(std::unique_ptr<Transport> transport,
                                                  const std::vector<int>& members, std::uint64_t group,
                                                  const GpuOptions& gpu) {
  transport->reports = calls_.transport->reports.among(members);
  transport->reports.group = group;
  Options theirs = options();
  theirs.gpu = gpu;
  theirs.members = members;
  for (int& member : theirs.members) {
    if (!options().members.empty()) member = options().members[member];
  }
  theirs.log_name = calls_.log_name + "/" + std::to_string(transport->rank);
  auto made = std::make_unique<Communicator>(std::move(transport), theirs);
  if (links_.world > 0) made->know(links_.among(members));
  made->introduce(log::Level::debug);
  return made;
}

std::unique_ptr<Communicator> Communicator::split(int color, int key, std::optional<GpuOptions> gpu) {
  usable();
  calls_.refuse_inside_another("split()");
  struct Wanted {
    int color, key;
    std::uint64_t group;
  };
  const auto wanted = exchange_values([this](const std::string& blob) { return exchange(blob); }, size(),
                                      Wanted{color, key, random_number()});
  std::vector<std::pair<int, int>> order;  // key, rank here
  for (int r = 0; r < size(); ++r) {
    if (wanted[r].color == color) order.emplace_back(wanted[r].key, r);
  }
  std::sort(order.begin(), order.end());
  if (color < 0) {
    for (int i = 0; i < calls_.transport->facts().exchanges; ++i) exchange("");
    return nullptr;
  }
  int new_rank = 0;
  while (order[new_rank].second != rank()) ++new_rank;
  const Exchange among_members = [&](const std::string& blob) {
    const auto all = exchange(blob);
    std::vector<std::string> members;
    for (const auto& [unused, r] : order) members.push_back(all[r]);
    return members;
  };
  std::vector<int> members;
  for (const auto& [unused, r] : order) members.push_back(r);
  return child(calls_.transport->among(new_rank, static_cast<int>(order.size()), among_members), members,
               wanted[members.front()].group, gpu.value_or(options().gpu));
}

namespace {

// Ranks beyond a cut may live, and shrink their group as well. At most one side may continue: the one with
// more ranks, or of two equal halves the one with the lowest rank. Ranks that have certainly ended do not
// count.
void check_majority(const std::vector<int>& members, const std::vector<int>& unreachable) {
  if (members.size() > unreachable.size()) return;
  if (members.size() == unreachable.size() && members.front() < unreachable.front()) return;
  throw Failure(Cause::minority, unreachable.front(),
                "this side of the group cannot continue: it has only rank" + listed(members) +
                    ", and cannot reach rank" + listed(unreachable) +
                    ", which may have continued. Of two halves, the one with the lowest rank continues");
}

}  // namespace

std::unique_ptr<Communicator> Communicator::shrink() {
  if (closed() || !calls_.ours()) usable();
  calls_.refuse_inside_another("shrink()");
  const auto deadline = Clock::now() + options().timeout;
  // Ranks that still wait on this communicator must leave it first.
  if (!calls_.is_over()) {
    try {
      calls_.fail(Failure(Cause::peer_lost, rank(),
                          "rank " + std::to_string(rank()) + " left the communicator with shrink()"));
    } catch (const Failure&) {
    }
  }
  const auto turn = calls_.take_turn(calls_.turn, "shrink()", {}, true);
  Agreement agreement(*calls_.transport, deadline, check_interrupt, "shrink()");
  // After every further death the survivors agree again, on fewer ranks. A rank that voted in grow() abandons
  // the vote, once, and is expected here.
  for (int attempt = 0;; ++attempt) {
    const std::vector<int> members = agreement.survivors();
    const auto new_rank = std::find(members.begin(), members.end(), rank()) - members.begin();
    const Exchange exchange = [&](const std::string& blob) { return agreement.exchange(members, blob); };
    try {
      const std::vector<int> unreachable = agreement.unreachable(members);
      check_majority(members, unreachable);
      // Its number follows from its members: they are the survivors of this group.
      std::uint64_t group = calls_.transport->reports.group;
      for (const int member : members)
        group = contract::history(group, static_cast<std::uint64_t>(member) + 1);
      auto made = child(
          calls_.transport->among(static_cast<int>(new_rank), static_cast<int>(members.size()), exchange),
          members, group, options().gpu);
      if (!unreachable.empty()) left_behind_.push_back(calls_.transport);
      made->inherit(*this);
      return made;
    } catch (const Failure& failure) {
      if (failure.cause != Cause::peer_lost || attempt == 2 * size()) throw;
    }
  }
}

// No rank may continue with a group that the others abandon. A vote gives what shrink() gives: each rank that
// returns has seen that all have the result, and a rank that must agree again finds the dead rank missing.
bool Communicator::agree(bool yes, Clock::duration timeout) {
  if (closed() || !calls_.ours()) usable();
  const auto turn = calls_.take_turn(calls_.turn, "grow()", timeout, true);
  Agreement agreement(*calls_.transport, Clock::now() + calls_.or_default(timeout), check_interrupt,
                      "grow()");
  for (int attempt = 0;; ++attempt) {
    const std::vector<int> members = agreement.survivors();
    try {
      const auto votes = agreement.exchange(members, yes ? "yes" : "no");
      if (static_cast<int>(members.size()) == size()) {
        return std::all_of(votes.begin(), votes.end(), [](const auto& vote) { return vote == "yes"; });
      }
    } catch (const OtherCall& left) {
      if (static_cast<int>(members.size()) == size()) {
        calls_.fail(
            Failure(left.cause, left.culprit,
                    "rank " + std::to_string(left.culprit) + " called shrink(), and this rank grow()"));
      }
    } catch (const Failure& failure) {
      if (failure.cause != Cause::peer_lost || attempt == size()) throw;
      continue;
    }
    int lost = 0;
    while (lost < static_cast<int>(members.size()) && members[lost] == lost) ++lost;
    calls_.fail(Failure(Cause::peer_lost, lost,
                        "rank " + std::to_string(lost) + " died while the group was growing"));
  }
}

}  // namespace ringreduce
