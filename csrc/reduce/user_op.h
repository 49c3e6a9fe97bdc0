// Operators that callers define.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "reduce/dtype.h"

namespace ringreduce {

// The number that calls with one have in place of an op's.
inline constexpr Op user_defined = static_cast<Op>(op_count);

// An operator failed in the middle of a call. `op`: such as "op 'add'".
struct OpFailed : std::runtime_error {
  OpFailed(const std::string& op, const std::string& why) : runtime_error(why), op(op) {}
  std::string op;
};

// It must be associative. Ranks identify it by its name.
class UserOp {
 public:
  // `element`: bytes of an element, of which the library knows nothing else; 0: it takes the library's
  // dtypes. `kind`: stands for everything but the name that ranks must agree on.
  UserOp(std::string op_name, bool does_commute, std::size_t element_bytes, std::uint64_t kind)
      : name(std::move(op_name)), commutes(does_commute), element(element_bytes), kind(kind) {}
  virtual ~UserOp() = default;
  UserOp(const UserOp&) = delete;
  UserOp& operator=(const UserOp&) = delete;

  // right[i] = left[i] op right[i]. Both spans are aligned as their elements are. May throw OpFailed.
  virtual void apply(const void* left, void* right, std::size_t count, DType dtype) const = 0;

  const std::string name;
  const bool commutes;
  const std::size_t element;
  const std::uint64_t kind;
};

// What a Combine does (reduce.h), with an operator of a caller's own.
void combine_by(const UserOp& op, DType dtype, void* const* destinations, int destination_count,
                const void* const* sources, int source_count, std::size_t count);

}  // namespace ringreduce
