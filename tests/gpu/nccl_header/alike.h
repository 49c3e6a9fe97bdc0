// Whether what entry_points.h declares is what a real nccl.h does.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "gpu/libnccl/entry_points.h"

namespace ours = ringreduce::nccl;

// What goes through the same registers, and means the same as far as the compiler knows: theirs are enums and
// pointers to types of their own.
template <class Ours, class Theirs>
constexpr bool is_alike() {
  if constexpr (std::is_enum_v<Ours>) {
    return std::is_enum_v<Theirs> && sizeof(Ours) == sizeof(Theirs);
  } else if constexpr (std::is_pointer_v<Ours>) {
    return std::is_pointer_v<Theirs>;
  } else if constexpr (std::is_same_v<Ours, ours::UniqueId>) {
    return std::is_same_v<Theirs, ncclUniqueId>;
  } else {
    return std::is_same_v<Ours, Theirs>;
  }
}

template <class Ours, class Theirs>
struct Alike : std::false_type {};
template <class R, class... Ours, class S, class... Theirs>
struct Alike<R(Ours...), S(Theirs...)> {
  static constexpr bool compare() {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
      return false;
    } else {
      return is_alike<R, S>() && (is_alike<Ours, Theirs>() && ...);
    }
  }
  static constexpr bool value = compare();
};

template <class Ours, class Theirs>
constexpr bool is_same(Ours our_number, Theirs their_number) {
  return static_cast<int>(our_number) == static_cast<int>(their_number);
}
