// Checks during long waits: what blocks them, whether the awaited ranks have closed, and which messages
// arrived instead. Also ends all requests.
#include <new>

#include "engine/messages/point_to_point.h"

namespace ringreduce {
namespace {

constexpr std::chrono::milliseconds fetched_after{5};  // until offers that nobody asks for are fetched

}  // namespace

void PointToPoint::fetch_bodies() {
  const auto before = Clock::now() - fetched_after;
  for (Aside& aside : matching_.asides()) {
    if (aside.since > before) continue;
    if (!aside.envelope.has_body || aside.body || !matching_.awaits(aside.source)) continue;
    std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[aside.envelope.bytes()]);
    if (!memory) continue;  // the message stays with its sender
    const Envelope& e = aside.envelope;
    aside.body = std::make_shared<Request>(Transfer{.sends = false,
                                                    .peer = aside.source,
                                                    .data = memory.get(),
                                                    .count = e.count,
                                                    .dtype = e.dtype,
                                                    .tag = e.tag});
    aside.body->memory = std::move(memory);
    ++requests_;
    ++fetching_;
    await_body(aside.body, aside.source, aside.envelope.number);
  }
}

// The closed rank that something waits for, any_source if a receive from any rank waits and all others have
// closed, or this rank if there is none.
int PointToPoint::closed_but_needed() const {
  bool all = transport_.world > 1;
  for (int p = 0; p < transport_.world; ++p) {
    if (p == transport_.rank) continue;
    if (!transport_.closed(p)) {
      all = false;
      continue;
    }
    const Peer& peer = peers_[p];
    if (matching_.names(p) || !peer.sends.empty() || !peer.offered.empty() || !peer.outgoing.empty() ||
        !peer.incoming.empty()) {
      return p;
    }
  }
  return all && matching_.names(any_source) ? any_source : transport_.rank;
}

void PointToPoint::look_around() {
  std::lock_guard lock(mutex_);
  fetch_bodies();
  const int gone = closed_but_needed();
  // Messages that they sent before closing can still be read, as long as anything moves.
  if (gone == transport_.rank || advance_all()) return;
  // A rank that fails reports the reason before it closes.
  transport_.check();
  const std::string own = "rank " + std::to_string(transport_.rank);
  if (gone != any_source) {
    throw Failure(
        Cause::peer_lost, gone,
        "rank " + std::to_string(gone) + " closed its communicator while " + own + " was waiting for it");
  }
  throw Failure(Cause::peer_lost, transport_.world == 2 ? 1 - transport_.rank : -1,
                "all other ranks closed their communicators while " + own +
                    " was waiting for a message from any of them");
}

std::string PointToPoint::not_asked_for(int source) const {
  constexpr int most = 3;
  std::lock_guard lock(mutex_);
  std::string text;
  int count = 0;
  for (const Aside& aside : matching_.asides()) {
    if (source != any_source && source != aside.source) continue;
    if (++count > most) continue;
    text +=
        (text.empty() ? "" : ", ") + in_words(aside.envelope) + " from rank " + std::to_string(aside.source);
  }
  if (count > most) text += " and " + std::to_string(count - most) + " more";
  return text;
}

void PointToPoint::drop(const std::exception_ptr& problem) {
  std::lock_guard lock(mutex_);
  const auto end = [&](const Requests& requests) {
    for (const RequestPointer& request : requests) {
      if (request->heir) finish(*request->heir, problem);
      finish(*request, problem);
    }
  };
  end(matching_.clear());
  for (Peer& peer : peers_) {
    for (Requests* requests : {&peer.sends, &peer.offered, &peer.outgoing, &peer.incoming}) {
      end(*requests);
      requests->clear();
    }
    peer.ready.clear();
  }
}

}  // namespace ringreduce
