#include "fronts/torch/errors.h"

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cctype>
#include <charconv>
#include <string_view>

#include "fronts/shared/gil.h"

namespace ringreduce::torch_backend {
namespace {

// The engine numbers ranks within the group; users know them by their global numbers.
std::string renumbered(const std::string& text, const GlobalRanks& ranks) {
  constexpr std::string_view word = "rank ";
  std::string result;
  std::size_t copied = 0;
  for (auto at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const std::size_t number = at + word.size();
    std::size_t rank = 0;
    const auto [end, error] = std::from_chars(text.data() + number, text.data() + text.size(), rank);
    const bool in_a_word = at > 0 && std::isalnum(static_cast<unsigned char>(text[at - 1]));
    if (in_a_word || error != std::errc() || rank >= ranks.size()) continue;
    result.append(text, copied, number - copied).append(std::to_string(ranks[rank]));
    copied = end - text.data();
  }
  result.append(text, copied);
  std::string members;
  for (const std::uint64_t rank : ranks) members += (members.empty() ? "" : ", ") + std::to_string(rank);
  return result + " (global ranks; those of this group are " + members + ")";
}

std::string in_words(const Trouble& trouble, const GlobalRanks& ranks) {
  std::string text = trouble.what();
  if (trouble.outcome == Outcome::timeout && trouble.culprit >= 0) {
    text = "Timed out waiting for rank " + std::to_string(trouble.culprit) + ": " + text;
  }
  return "ringreduce: " + (ranks.empty() ? text : renumbered(text, ranks));
}

}  // namespace

void raise(const Trouble& trouble, const GlobalRanks& ranks) {
  const std::string text = in_words(trouble, ranks);
  switch (trouble.outcome) {
    case Outcome::refused:
      C10_THROW_ERROR(Error, text);
    case Outcome::interrupted: {
      const WithGil locked;
      if (PyErr_Occurred()) throw pybind11::error_already_set();
      C10_THROW_ERROR(Error, text);
    }
    default:
      C10_THROW_ERROR(DistBackendError, text);
  }
}

// Python runs handlers in its main thread only. Other threads have nothing to check, and must not take the
// GIL, which is gone when Python ends.
void raise_if_interrupted() {
  if (gettid() != getpid()) return;
  const WithGil locked;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

std::exception_ptr as_torch(std::exception_ptr problem, const GlobalRanks& ranks) {
  try {
    if (problem) translated(ranks, [&] { std::rethrow_exception(problem); });
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace ringreduce::torch_backend
