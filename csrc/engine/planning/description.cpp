#include "engine/planning/description.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "schedule/catalogue.h"
#include "transport/interface/cut.h"

namespace ringreduce {
namespace {

// The content of a record. A call with an op of the caller's own has its name in `split` and `algorithm`,
// after the number of the algorithm in the catalogue.
struct Description {
  std::uint64_t count = 0;  // elements
  std::uint64_t split = 0;  // see Call::split
  std::int32_t root = -1;   // -1: none
  Collective collective{};
  DType dtype{};
  Op op{};
  std::uint8_t reproducible : 1 = 0;  // whether the rank's communicator is
  std::uint8_t scales : 1 = 0;        // whether its values have a factor
  Encoding wire = Encoding::none;
  char algorithm[21] = {};
  std::uint16_t bucket = 0;  // its number, from 1; 0: none
};
static_assert(sizeof(Description) <= sizeof(Record::content));

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdull;
}

constexpr std::size_t named_bytes = sizeof(Description::split) + sizeof(Description::algorithm) - 1;
constexpr unsigned char not_in_catalogue = 0xff;

// The end of the name, which tells more than its module does.
void put_op(const UserOp& op, std::string_view algorithm, Description& made) {
  const Entry* const entry = find_algorithm(made.collective, algorithm);
  std::string name = op.name;
  if (name.size() > named_bytes) name = "..." + name.substr(name.size() - named_bytes + 3);
  name.resize(named_bytes);
  std::memcpy(&made.split, name.data(), sizeof made.split);
  made.algorithm[0] = static_cast<char>(entry ? entry - catalogue().data() : not_in_catalogue);
  std::memcpy(made.algorithm + 1, name.data() + sizeof made.split, named_bytes - sizeof made.split);
}

std::string op_of(const Description& call) {
  if (call.op != user_defined) return name_of(call.op);
  char name[named_bytes];
  std::memcpy(name, &call.split, sizeof call.split);
  std::memcpy(name + sizeof call.split, call.algorithm + 1, sizeof name - sizeof call.split);
  return std::string(name, strnlen(name, sizeof name));
}

std::string algorithm_of(const Description& call) {
  if (call.op != user_defined) {
    return std::string(call.algorithm, strnlen(call.algorithm, sizeof call.algorithm));
  }
  const auto number = static_cast<unsigned char>(call.algorithm[0]);
  return number < catalogue().size() ? std::string(catalogue()[number].name) : "an algorithm of its own";
}

template <typename Enum>
bool is_one_of(Enum value, int count) {
  return static_cast<int>(value) < count;
}

}  // namespace

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

Shape shape_of(const Call& call, int world) {
  const bool whole = !has_blocks(call.collective);
  if (!call.input_extents) return {call.count, whole ? call.count : call.count * world, call.count};
  Shape shape;
  for (const Extents* extents : {call.input_extents, call.output_extents}) {
    for (std::size_t n : extents->count) shape.longest = std::max(shape.longest, n);
  }
  shape.total = shape.longest * world;
  const bool known = !is_blind(call);
  for (std::size_t n : call.input_extents->count) shape.hash = mix(shape.hash, known ? n : 0);
  return shape;
}

void describe(const Call& call, const Shape& shape, bool reproducible, std::string_view algorithm,
              Plan& plan) {
  Description made;
  made.count = call.input_extents ? shape.total : call.count;
  made.root = rooted(call.collective) ? call.root : -1;
  made.collective = call.collective;
  made.dtype = call.dtype;
  made.op = call.user_op ? user_defined : call.op;
  made.reproducible = reproducible;
  made.scales = call.factor.has_value();
  made.wire = call.wire;
  if (call.user_op) {
    put_op(*call.user_op, algorithm, made);
  } else {
    made.split = call.split;
    std::memcpy(made.algorithm, algorithm.data(), length_within(algorithm, sizeof made.algorithm));
  }
  std::memcpy(plan.record.content.data(), &made, sizeof made);
  std::uint64_t contract = hash_of(algorithm);
  for (std::uint64_t value :
       {static_cast<std::uint64_t>(call.collective), static_cast<std::uint64_t>(call.dtype),
        static_cast<std::uint64_t>(reduces(call.collective) ? made.op : Op{}),
        static_cast<std::uint64_t>(made.root), shape.hash, is_blind(call) ? 0 : made.count,
        static_cast<std::uint64_t>(plan.geometry.slice), std::uint64_t{reproducible} | made.scales << 1,
        static_cast<std::uint64_t>(call.wire), call.user_op ? call.user_op->kind : call.split,
        plan.variant}) {
    contract = mix(contract, value);
  }
  plan.contract = contract;
}

Kind kind_of(const Record& record) {
  Description call;
  std::memcpy(static_cast<void*>(&call), record.content.data(), sizeof call);
  return {call.collective, algorithm_of(call)};
}

void set_count(Record& record, std::uint64_t count) {
  std::memcpy(record.content.data() + offsetof(Description, count), &count, sizeof count);
}

void name_bucket(Record& record, int number) {
  const auto named = static_cast<std::uint16_t>(number + 1);
  std::memcpy(record.content.data() + offsetof(Description, bucket), &named, sizeof named);
}

std::string in_words(const Record& record) {
  Description call;
  std::memcpy(static_cast<void*>(&call), record.content.data(), sizeof call);
  if (!is_one_of(call.collective, collective_count) || !is_one_of(call.dtype, dtype_count) ||
      !is_one_of(call.op, op_count + 1) || !is_one_of(call.wire, encoding_count)) {
    return "a call unknown to this version";
  }
  std::string text = call.reproducible ? "reproducible " : "";
  text += name_of(call.collective);
  if (call.collective == Collective::barrier) return text + "()";
  text += std::string("(") + name_of(call.dtype) + "[" + std::to_string(call.count) + "]";
  if (reduces(call.collective)) text += ", " + op_of(call) + (call.scales ? " with a factor" : "");
  if (call.root >= 0) text += ", root " + std::to_string(call.root);
  if (call.wire != Encoding::none) text += std::string(", wire ") + name_of(call.wire);
  if (call.split != 0 && call.op != user_defined && call.split >> 48 == 0) {
    constexpr std::uint64_t behind = (std::uint64_t{1} << number_of_memory_at) - 1;
    text += ", " + std::to_string(call.split & behind) + " bytes behind the begin of registered memory";
    if ((call.split & in_place_there) != 0) text += ", in place";
  } else if (call.split != 0 && call.op != user_defined) {
    char hash[9];
    std::snprintf(hash, sizeof hash, "%08x", static_cast<unsigned>(call.split));
    text += ", of " + std::to_string(call.split >> 48) + " tensors, lengths #" + hash;
  }
  if (call.bucket != 0) text += ", bucket " + std::to_string(call.bucket - 1);
  return text + ") by " + algorithm_of(call);
}

}  // namespace ringreduce
