// How the streams of TcpTransport begin, end and time out.
#include <algorithm>

#include "transport/tcp/tcp.h"

namespace ringreduce {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds beat_every{100};
constexpr milliseconds stranger_has{5000};

}  // namespace

void TcpTransport::begin(Stream& stream) {
  if (!stream.dialed()) --strangers_;
  Link& link = links_[stream.peer()];
  control_.connected_to(stream.peer());
  link.hang_ups = 0;
  if (stream.purpose() == Purpose::pulse) return;
  if (stream.dialed()) dial_of(stream.peer(), Purpose::frames) = {};
  link.ready.push_back(&stream);
  share_among_streams(stream);
  dispatch(stream.peer());
}

// --- ending ----------------------------------------------------------------------------------------------

void TcpTransport::bury() {
  looked_for_broken_ = false;
  std::vector<Stream*> dead;
  for (const auto& [id, stream] : streams_) {
    if (!stream->broken().empty()) dead.push_back(stream.get());
  }
  for (Stream* stream : dead) bury(*stream);
}

void TcpTransport::bury(Stream& buried) {
  const auto found = streams_.find(buried.id);
  const std::unique_ptr<Stream> stream = std::move(found->second);
  streams_.erase(found);
  if (!stream->proved()) {
    if (stream->dialed()) return dial_failed(*stream);
    --strangers_;
    // A rank may close while it dials.
    const bool knew_the_job = stream->state() >= Stream::State::proving;
    if (!(knew_the_job && stream->ended())) complain(*stream);
    return;
  }
  const int peer = stream->peer();
  Link& link = links_[peer];
  if (stream->purpose() == Purpose::pulse) {
    if (!stream->dialed()) return;
    dial_of(peer, Purpose::pulse) = {};
    if (control_.has_said_bye(peer)) return;
    return control_.lost(
        peer,
        stream->ended() && link.ready.empty() ? "has closed its communicator or died" : stream->broken(),
        stream->died());
  }
  std::erase(link.ready, stream.get());
  stream->forget();
  if (stream->retired()) return;
  // Its last words may come over another stream.
  if (!control_.has_said_bye(peer)) control_.lost(peer, stream->broken(), stream->died());
  dispatch(peer);
}

// --- time ------------------------------------------------------------------------------------------------

void TcpTransport::look_at_clock(Clock::time_point now) {
  clock_looked_ = now;
  std::vector<Stream*> late;
  for (const auto& [id, stream] : streams_) {
    if (!stream->proved() && !stream->dialed() && now - stream->since > stranger_has)
      late.push_back(stream.get());
  }
  for (Stream* stream : late) {
    serve(*stream);  // its words may have waited for us
    if (stream->proved() && stream->broken().empty()) continue;
    bury(*stream);
  }
  for (int peer = 0; peer < world; ++peer) {
    look_at_dial(peer, Purpose::frames, now);
    look_at_dial(peer, Purpose::pulse, now);
    Link& link = links_[peer];
    if (!link.retry || now < *link.retry) continue;
    link.retry.reset();
    dispatch(peer);
  }
}

void TcpTransport::look_after(int peer) {
  if (peer == rank || control_.has_left(peer) || closed_) return;
  Link& link = links_[peer];
  const auto now = Clock::now();
  if (now - link.beat < beat_every) return;
  link.beat = now;
  const auto& attempts = dial_of(peer, Purpose::pulse).attempts;
  if (attempts.empty()) return dial(peer, Purpose::pulse);
  if (attempts[0]->state() != Stream::State::connecting) attempts[0]->beat();
}

}  // namespace ringreduce
