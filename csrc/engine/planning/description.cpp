#include "engine/planning/description.h"

#include <cstdio>
#include <cstring>

#include "schedule/catalogue.h"

namespace ringreduce {
namespace {

template <typename Enum>
bool is_one_of(Enum value, int count) {
  return static_cast<int>(value) < count;
}

}  // namespace

void describe(Record& record, const Description& description) {
  std::memcpy(record.content.data(), &description, sizeof description);
}

std::string in_words(const Record& record) {
  Description call;
  std::memcpy(static_cast<void*>(&call), record.content.data(), sizeof call);
  if (!is_one_of(call.collective, collective_count) || !is_one_of(call.dtype, dtype_count) ||
      !is_one_of(call.op, op_count) || !is_one_of(call.wire, encoding_count)) {
    return "a call that this version does not know";
  }
  std::string text = call.reproducible ? "reproducible " : "";
  text += name_of(call.collective);
  if (call.collective == Collective::barrier) return text + "()";
  text += std::string("(") + name_of(call.dtype) + "[" + std::to_string(call.count) + "]";
  if (reduces(call.collective)) text += std::string(", ") + name_of(call.op);
  if (call.root >= 0) text += ", root " + std::to_string(call.root);
  if (call.wire != Encoding::none) text += std::string(", wire ") + name_of(call.wire);
  if (call.split != 0) {
    char hash[9];
    std::snprintf(hash, sizeof hash, "%08x", static_cast<unsigned>(call.split));
    text += ", of " + std::to_string(call.split >> 48) + " tensors, lengths #" + hash;
  }
  return text + ") by " + std::string(call.algorithm, strnlen(call.algorithm, sizeof call.algorithm));
}

}  // namespace ringreduce
