// The owners of a call's arrays, as long as the engine uses them.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "engine/planning/call.h"

namespace ringreduce {

// The holder has Python's lock.
class Held {
 public:
  // `in_background`: the call continues after its caller has returned or was interrupted.
  explicit Held(bool in_background = false) : in_background_(in_background) {}

  bool in_background() const { return in_background_; }
  void add(nanobind::object object) { objects_.push_back(std::move(object)); }
  // Gives it to the engine, which drops it in any thread, without Python's lock.
  Arrays give();

 private:
  const bool in_background_;
  std::vector<nanobind::object> objects_;
};

// Releases what the engine has dropped. The caller has Python's lock.
void let_go();

}  // namespace ringreduce
