#include "engine/messages/matching.h"

#include <algorithm>
#include <utility>

namespace ringreduce {

void Matching::post(RequestPointer receive) {
  ++waiting(receive->transfer);
  receives_.push_back(std::move(receive));
}

RequestPointer Matching::take_receive(int source, int tag) {
  const auto found = std::find_if(receives_.begin(), receives_.end(), [&](const RequestPointer& receive) {
    return fits(receive->transfer, source, tag);
  });
  if (found == receives_.end()) return nullptr;
  RequestPointer receive = std::move(*found);
  receives_.erase(found);
  --waiting(receive->transfer);
  return receive;
}

std::optional<Aside> Matching::take_aside(int source, int tag) {
  const auto found = std::find_if(asides_.begin(), asides_.end(), [&](const Aside& aside) {
    return aside.envelope.tag == tag && (source == any_source || source == aside.source);
  });
  if (found == asides_.end()) return std::nullopt;
  Aside aside = std::move(*found);
  asides_.erase(found);
  return aside;
}

std::list<RequestPointer> Matching::clear() {
  asides_.clear();
  std::fill(named_.begin(), named_.end(), 0);
  any_ = 0;
  return std::exchange(receives_, {});
}

}  // namespace ringreduce
