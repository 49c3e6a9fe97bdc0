#include "reduce/reduce.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "reduce/instruction_sets.h"
#include "reduce/string_copy.h"

namespace ringreduce {
namespace {

const InstructionSet& choose() {
  const char* wanted = std::getenv("RINGREDUCE_ISA");
  if (wanted == nullptr || *wanted == '\0') return *instruction_sets().front();
  std::string names;
  for (const InstructionSet* set : instruction_sets()) {
    if (std::string(wanted) == set->name) return *set;
    names += std::string(names.empty() ? "" : ", ") + set->name;
  }
  throw std::invalid_argument("RINGREDUCE_ISA=" + std::string(wanted) + ": this machine has " + names);
}

const InstructionSet& in_use() {
  static const InstructionSet& set = choose();
  return set;
}

}  // namespace

Combine combine_for(DType dtype, Op op) {
  return in_use().combine[static_cast<int>(dtype)][static_cast<int>(op)];
}

void copy(void* const* destinations, int destination_count, const void* source, std::size_t bytes) {
  if (destination_count == 1 && bytes >= least_without_fetching && string_copy::pays()) {
    return string_copy::copy(destinations[0], source, bytes);
  }
  in_use().copy(destinations, destination_count, source, bytes);
}

void copy_own(void* destination, const void* source, std::size_t bytes) {
  if (bytes >= string_copy::pays_for_own_from()) return string_copy::copy(destination, source, bytes);
  copy(&destination, 1, source, bytes);
}

bool copies_without_fetching() {
  return string_copy::pays();
}

Codec codec_for(Encoding wire) {
  return in_use().codec[static_cast<int>(wire)];
}

void check_instruction_set() {
  choose();
}

const char* instruction_set() {
  return in_use().name;
}

}  // namespace ringreduce
