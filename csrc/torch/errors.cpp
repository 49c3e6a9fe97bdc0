#include "torch/errors.h"

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <regex>

namespace ringreduce::torch_backend {
namespace {

// The engine numbers ranks within the group; users know them by their global numbers.
std::string renumbered(const std::string& text, const GlobalRanks& ranks) {
  static const std::regex mention("\\brank ([0-9]+)");
  std::string result;
  auto from = text.begin();
  for (std::sregex_iterator at(text.begin(), text.end(), mention), end; at != end; ++at) {
    const std::size_t rank = std::stoul((*at)[1]);
    if (rank >= ranks.size()) continue;
    result.append(from, (*at)[1].first).append(std::to_string(ranks[rank]));
    from = (*at)[1].second;
  }
  result.append(from, text.end());
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
      const pybind11::gil_scoped_acquire locked;
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
  const pybind11::gil_scoped_acquire locked;
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
