// Cuts texts to the room that there is for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace ringreduce {

// The bytes of a text's beginning that fit, without a part of a character in UTF-8.
inline std::size_t length_within(std::string_view text, std::size_t room) {
  std::size_t length = std::min(text.size(), room);
  while (length < text.size() && length > 0 && (text[length] & 0xC0) == 0x80) --length;
  return length;
}

}  // namespace ringreduce
