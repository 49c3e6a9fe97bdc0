// Linear programs with many more variables than constraints: maximise the sum of the variables, which are not
// negative and take no more of each row than there is. Variables are added while there are any that help, as
// the rows' prices show (column generation; the revised simplex method with a dense inverse).
//
// It adds, multiplies and divides only, in one order, so that all ranks come to the same result.
#pragma once

#include <vector>

namespace ringreduce {

class LinearProgram {
 public:
  explicit LinearProgram(const std::vector<double>& rows);

  // What one more unit of each row would be worth. A row of which more would be left over has a price below 0
  // for a while: leave_over() it then.
  const std::vector<double>& prices() const { return prices_; }
  // Lets a variable be used, which should take rows of a price below 1 altogether. `column`: what it takes of
  // each. Returns its number.
  int use(const std::vector<double>& column);
  void leave_over(int row);

  // How much of each variable is best, of those that were added so far, by number.
  std::vector<double> amounts() const;

 private:
  void pivot(int variable, const std::vector<double>& column);

  struct Basic {
    int variable = -1;  // -1: what is left over of a row
    double amount = 0;
  };
  const int size_;
  std::vector<Basic> basis_;
  std::vector<double> inverse_;  // of the basis, by row and column
  std::vector<double> prices_;
  int variables_ = 0;
};

}  // namespace ringreduce
