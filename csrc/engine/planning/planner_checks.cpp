// What Planner refuses: arguments that do not fit together, and algorithms that combine in another order.
#include "engine/planning/planner.h"
#include "transport/interface/errors.h"

namespace ringreduce {

void Planner::check(const Call& call) const {
  if (rooted(call.collective) && (call.root < 0 || call.root >= world_)) {
    throw InvalidArgument("root must be a rank from 0 to " + std::to_string(world_ - 1) + ", not " +
                          std::to_string(call.root));
  }
  if (reduces(call.collective) && !combines_all(call.collective) && call.op == Op::avg) {
    throw InvalidArgument(
        std::string("op 'avg' is not defined for ") + name_of(call.collective) +
        ", because each rank's result combines another number of ranks: divide the sum by it");
  }
  if (call.user_op && call.wire != Encoding::none) {
    throw InvalidArgument("wire cannot be used with op '" + call.user_op->name +
                          "': only the library's own ops combine values as they travel");
  }
  if (reduces(call.collective) && !call.user_op && !supports(call.dtype, call.op)) {
    throw InvalidArgument(std::string("op '") + name_of(call.op) + "' is not defined for dtype " +
                          name_of(call.dtype));
  }
  if (call.factor && !takes_factor(call.dtype)) {
    throw InvalidArgument(std::string("factor is not defined for dtype ") + name_of(call.dtype) +
                          ", only for floating-point and complex numbers");
  }
  if (call.wire == Encoding::none) return;
  if (!takes(call.wire, call.dtype)) {
    const bool narrow_too = takes(call.wire, DType::bfloat16);
    throw InvalidArgument(std::string("wire '") + name_of(call.wire) + "' takes float32" +
                          (narrow_too ? ", float16 and bfloat16" : "") + ", but x is " + name_of(call.dtype));
  }
  if (reproducible_ && reduces(call.collective)) {
    throw InvalidArgument(std::string("wire '") + name_of(call.wire) +
                          "' cannot be used on a reproducible communicator: which of an element's values are "
                          "rounded depends on the element's place");
  }
}

void Planner::check_rank_order(Collective collective, int algorithm, const UserOp* op) const {
  if (!reduces(collective)) return;
  const Order least = reproducible_ ? Order::at_once : op && !op->commutes ? Order::kept : Order::any;
  const Order order =
      algorithm >= first_custom ? custom_[algorithm - first_custom].order : catalogue()[algorithm].order;
  if (order >= least) return;
  const std::string why =
      reproducible_
          ? "on a reproducible communicator, because it does not combine all ranks' values in rank "
            "order at once"
          : "with op '" + op->name +
                "', which does not commute, because it does not combine all ranks' values in rank order";
  throw InvalidArgument("algorithm '" + name_of_algorithm(algorithm) + "' cannot be used " + why +
                        "; these " + name_of(collective) +
                        " algorithms do: " + names_of_algorithms(collective, least));
}

}  // namespace ringreduce
