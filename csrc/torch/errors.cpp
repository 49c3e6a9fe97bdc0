#include "torch/errors.h"

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>

namespace ringreduce::torch_backend {
namespace {

// "; global ranks: 0 is 2, 1 is 5": messages number ranks within the group.
std::string legend(const GlobalRanks& ranks) {
  std::string text;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    text += (r == 0 ? "" : ", ") + std::to_string(r) + " is " + std::to_string(ranks[r]);
  }
  return text.empty() ? text : " (ranks of this group: " + text + " globally)";
}

}  // namespace

void raise(const Trouble& trouble, const GlobalRanks& ranks) {
  const std::string text = std::string("ringreduce: ") + trouble.what();
  switch (trouble.outcome) {
    case Outcome::refused:
      C10_THROW_ERROR(Error, text);
    case Outcome::interrupted: {
      const pybind11::gil_scoped_acquire locked;
      if (PyErr_Occurred()) throw pybind11::error_already_set();
      C10_THROW_ERROR(Error, text);
    }
    case Outcome::timeout:
      C10_THROW_ERROR(DistBackendError, std::string("ringreduce: Timed out waiting for rank ") +
                                            std::to_string(trouble.culprit) + ": " + trouble.what() +
                                            legend(ranks));
    default:
      C10_THROW_ERROR(DistBackendError, text + legend(ranks));
  }
}

void raise_if_interrupted() {
  const pybind11::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

std::exception_ptr as_torch(std::exception_ptr problem, const GlobalRanks& ranks) {
  if (!problem) return nullptr;
  try {
    std::rethrow_exception(problem);
  } catch (const Trouble& trouble) {
    try {
      raise(trouble, ranks);
    } catch (...) {
      return std::current_exception();
    }
  } catch (...) {
    return problem;
  }
}

}  // namespace ringreduce::torch_backend
