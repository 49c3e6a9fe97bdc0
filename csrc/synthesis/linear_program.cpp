#include "synthesis/linear_program.h"

#include <cmath>

namespace ringreduce {
namespace {

constexpr double small = 1e-9;
// Equal rows would tie, and the method could cycle, so each has slightly more than the next.
constexpr double apart = 1e-6;

}  // namespace

LinearProgram::LinearProgram(const std::vector<double>& rows)
    : size_(static_cast<int>(rows.size())), basis_(rows.size()), inverse_(rows.size() * rows.size()) {
  double golden = 0;
  for (int row = 0; row < size_; ++row) {
    golden += 0.6180339887498949;
    golden -= std::floor(golden);
    basis_[row].amount = rows[row] * (1 + apart * golden);
    inverse_[static_cast<std::size_t>(row) * size_ + row] = 1;
  }
  prices_.assign(rows.size(), 0);
}

int LinearProgram::use(const std::vector<double>& column) {
  pivot(variables_, column);
  return variables_++;
}

void LinearProgram::leave_over(int row) {
  std::vector<double> column(size_);
  column[row] = 1;
  pivot(-1, column);
}

void LinearProgram::pivot(int variable, const std::vector<double>& column) {
  std::vector<double> change(size_);
  int out = -1;
  double least = 0;
  for (int i = 0; i < size_; ++i) {
    for (int row = 0; row < size_; ++row) {
      if (column[row] != 0) change[i] += inverse_[static_cast<std::size_t>(i) * size_ + row] * column[row];
    }
    if (change[i] <= small) continue;
    const double most = basis_[i].amount / change[i];
    if (out < 0 || most < least) {
      out = i;
      least = most;
    }
  }
  if (out < 0) return;  // it uses no row
  double* const leaving = &inverse_[static_cast<std::size_t>(out) * size_];
  for (int row = 0; row < size_; ++row) leaving[row] /= change[out];
  for (int i = 0; i < size_; ++i) {
    if (i == out || change[i] == 0) continue;
    double* const other = &inverse_[static_cast<std::size_t>(i) * size_];
    for (int row = 0; row < size_; ++row) other[row] -= change[i] * leaving[row];
    basis_[i].amount -= change[i] * least;
  }
  basis_[out] = {variable, least};
  prices_.assign(size_, 0);
  for (int i = 0; i < size_; ++i) {
    if (basis_[i].variable < 0) continue;
    for (int row = 0; row < size_; ++row) prices_[row] += inverse_[static_cast<std::size_t>(i) * size_ + row];
  }
}

std::vector<double> LinearProgram::amounts() const {
  std::vector<double> amounts(variables_);
  for (const Basic& basic : basis_) {
    if (basic.variable >= 0) amounts[basic.variable] = basic.amount;
  }
  return amounts;
}

}  // namespace ringreduce
