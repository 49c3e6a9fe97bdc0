// Linear programs with many more variables than constraints: maximises the sum of the variables, which are
// not negative and together use no more of each row than there is. Variables are added as long as the rows'
// prices show that one helps (column generation; the revised simplex method with a dense inverse).
//
// It only adds, multiplies and divides, in a fixed order, so all ranks get the same result.
#pragma once

#include <vector>

namespace ringreduce {

class LinearProgram {
 public:
  explicit LinearProgram(const std::vector<double>& rows);

  // The value of one more unit of each row. A row that would leave a remainder has a price below 0 for a
  // while; call leave_over() on it.
  const std::vector<double>& prices() const { return prices_; }
  // Adds a variable, which should use rows with a total price below 1. `column`: what it uses of each.
  // Returns its number.
  int use(const std::vector<double>& column);
  void leave_over(int row);

  // The best amount of each variable added so far, by number.
  std::vector<double> amounts() const;

 private:
  void pivot(int variable, const std::vector<double>& column);

  struct Basic {
    int variable = -1;  // -1: the slack of a row
    double amount = 0;
  };
  const int size_;
  std::vector<Basic> basis_;
  std::vector<double> inverse_;  // of the basis, by row and column
  std::vector<double> prices_;
  int variables_ = 0;
};

}  // namespace ringreduce
