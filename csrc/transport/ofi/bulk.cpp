// How large messages go over a fabric.
#include <algorithm>
#include <cstring>

#include "transport/ofi/ofi.h"
#include "transport/tcp/checksum.h"

namespace ringreduce {
namespace {

// Of a message that carries the bytes of one frame.
std::uint64_t tag_of(std::uint64_t key, std::uint32_t bulk) {
  return key << 16 | (bulk & 0xffff);
}

}  // namespace

// --- sending ---------------------------------------------------------------------------------------------

// The region that a frame lies in, if it needs one. A provider that demands it gets a copy of what we do not
// register.
ofi::Regions::User OfiTransport::region_of(Outgoing& frame, ofi::Regions& regions) {
  const bool must = device_->needs_descriptions();
  if (!must && !device_->reads()) return nullptr;
  if (frame.buffer) return regions.of(*frame.buffer);
  ofi::Regions::User region = regions.of(frame.data, frame.header.bytes);
  if (region || !must) return region;
  frame.buffer = pool_.take(frame.header.bytes);
  std::copy_n(frame.data, frame.header.bytes, frame.buffer->data);
  frame.data = frame.buffer->data;
  counted_.copied_to_send.add(frame.header.bytes);
  return regions.of(*frame.buffer);
}

bool OfiTransport::send_bulk(int peer, Waiting& next) {
  Peer& theirs = peers_[peer];
  Outgoing& frame = next.frame;
  const std::uint32_t number = next.bulk != 0 ? next.bulk : std::max(theirs.bulk + 1, std::uint32_t{1});
  const std::size_t rail = rail_of(number);
  const auto& [device, regions] = rails_[rail];
  ofi::Regions::User region = region_of(frame, *regions);
  if (!region && device_->needs_descriptions()) return false;
  const bool offers = region && device_->reads() && next.bulk == 0;
  if (next.bulk == 0) {
    ofi::RemotePlace place;
    if (offers) place = device->place_of(*region->memory, region->begin, frame.data);
    const auto where = std::as_bytes(std::span(&place, offers ? 1 : 0));
    if (!send_whole(peer, where, tail_of(peer, frame.header, number), {})) return false;
    next.bulk = theirs.bulk = number;
  }
  Operation& operation = begin(offers ? Operation::Kind::offer : Operation::Kind::send, peer);
  operation.frame = frame;
  operation.region = std::move(region);
  if (offers) {
    theirs.offers[next.bulk] = &operation;
  } else {
    const std::uint64_t tag = tag_of(theirs.key_there, next.bulk);
    const ofi::Span bytes = operation.span(const_cast<std::byte*>(frame.data), frame.header.bytes);
    if (!device->send_tagged(theirs.addresses[rail], tag, bytes, &operation)) {
      end(operation);
      return false;
    }
  }
  counted_.sent.add(frame.header.bytes);
  return true;
}

// A peer that has left may have read it before, or reads it no more.
void OfiTransport::offer_was_read(int peer, std::uint32_t number) {
  const auto offer = peers_[peer].offers.extract(number);
  if (!offer.empty()) return finish(*offer.mapped(), 0);
  if (!control_.has_left(peer)) throw Error("a receipt for bytes that it was not offered");
}

void OfiTransport::drop_offers(int peer) {
  for (const auto& [number, operation] : std::exchange(peers_[peer].offers, {})) finish(*operation, 0);
}

// --- receiving -------------------------------------------------------------------------------------------

// `place`: where the peer has the bytes; empty: they come by themselves.
void OfiTransport::bulk_comes(int peer, const Tail& tail, std::span<const std::byte> place) {
  if (tail.header.bytes == 0) throw Error("a frame without bytes");
  const bool reads = !place.empty();
  if (reads && (place.size() != sizeof(ofi::RemotePlace) || !device_->reads()))
    throw Error("a place that cannot be read");
  Operation& operation = begin(Operation::Kind::bulk, peer);
  operation.header = tail.header;
  operation.rail = rail_of(tail.bulk);
  try {
    operation.landing = frames_.land(peer, tail.header);
  } catch (const Error&) {
    end(operation);
    throw;
  }
  if (reads) {
    operation.number = tail.bulk;
    std::memcpy(&operation.place, place.data(), sizeof operation.place);
  } else {
    operation.tag = tag_of(tail.key, tail.bulk);
  }
  receive(operation);
}

// If a provider demands registered memory, and the landing is not, the bytes come to a buffer first.
bool OfiTransport::post_bulk(Operation& operation) {
  const Landing& landing = operation.landing;
  const std::size_t bytes = operation.header.bytes;
  const auto& [device, regions] = rails_[operation.rail];
  if (device->needs_descriptions() && !operation.region) {
    operation.region = landing.buffer ? regions->of(*landing.buffer) : regions->of(landing.at, bytes);
    if (!operation.region && !landing.buffer) {
      if (!operation.buffer) operation.buffer = pool_.take(bytes);
      operation.region = regions->of(*operation.buffer);
    }
    if (!operation.region) return false;
  }
  const ofi::Span where = operation.span(operation.place_here(), bytes);
  if (operation.number == 0) return device->receive_tagged(operation.tag, where, &operation);
  const Peer& theirs = peers_[operation.peer];  // whose addresses may come later, over a socket
  return theirs.is_known() &&
         device->read(theirs.addresses[operation.rail], operation.place, where, &operation);
}

// Gives back what bulk that nobody gets has taken.
void OfiTransport::drop(Operation& operation) {
  if (operation.buffer) pool_.release(operation.buffer);
  if (operation.landing.buffer) pool_.release(operation.landing.buffer);
}

void OfiTransport::bulk_came(Operation& operation) {
  const int peer = operation.peer;
  const std::size_t bytes = operation.header.bytes;
  if (checks_frames() && !is_intact(operation.header, operation.place_here())) {
    damaged_from_ = peer;
    return drop(operation);
  }
  if (operation.buffer) {
    std::copy_n(operation.buffer->data, bytes, operation.landing.at);
    pool_.release(std::exchange(operation.buffer, nullptr));
    counted_.copied_on_receipt.add(bytes);
  }
  counted_.received.add(bytes);
  frames_.landed(peer, operation.header, operation.landing);
  if (operation.number == 0) return;
  counted_.read.add(bytes);
  FrameHeader receipt;
  receipt.kind = FrameKind::credit;
  if (checks_frames()) seal(receipt, nullptr);
  peers_[peer].waiting.push_front({Outgoing{receipt}, operation.number});
  push(peer);
}

// --- counting --------------------------------------------------------------------------------------------

std::vector<TransportCount> OfiTransport::counts() const {
  const Lock lock(mutex_);
  std::uint64_t registrations = counted_.registrations;
  for (const Rail& rail : rails_) registrations += rail.regions->registrations();
  return {{"bytes_sent", counted_.sent},
          {"bytes_received", counted_.received},
          {"bytes_read_remotely", counted_.read},
          {"bytes_copied_to_send", counted_.copied_to_send},
          {"bytes_copied_on_receipt", counted_.copied_on_receipt},
          {"registrations", registrations}};
}

}  // namespace ringreduce
