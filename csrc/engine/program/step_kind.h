// The kinds of a program's steps. Also for device code, which reads no other part of a program.
#pragma once

#include <cstdint>

namespace ringreduce {

enum class StepKind : std::uint8_t { send, combine, receive, local, local_combine };

}  // namespace ringreduce
