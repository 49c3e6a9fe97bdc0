#include "engine/planning/planner.h"

#include <cstdlib>
#include <cstring>
#include <sstream>

#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

constexpr int first_custom = 1 << 16;  // handles from here on are custom schedules
// Up to here all ranks' schedules are run symbolically for a wire format, which takes up to 0.3 s.
constexpr int largest_known_world = 128;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdull;
}

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

bool rooted(Collective collective) {
  return collective == Collective::broadcast || collective == Collective::reduce ||
         collective == Collective::gather || collective == Collective::scatter;
}

// "ring" for every collective that has one, or "all_reduce=ring,broadcast=chain".
std::map<Collective, int> read_forced(const char* text) {
  std::map<Collective, int> forced;
  std::istringstream stream(text ? text : "");
  for (std::string item; std::getline(stream, item, ',');) {
    const std::size_t equals = item.find('=');
    const std::string name = equals == std::string::npos ? item : item.substr(equals + 1);
    bool found = name == "auto";
    for (const Entry& entry : catalogue()) {
      if (entry.name != name) continue;
      if (equals != std::string::npos && item.substr(0, equals) != name_of(entry.collective)) continue;
      forced[entry.collective] = static_cast<int>(&entry - catalogue().data());
      found = true;
    }
    if (!found) throw InvalidArgument("RINGREDUCE_ALGORITHM: no algorithm is called '" + item + "'");
  }
  return forced;
}

}  // namespace

bool reproducible_by_environment() {
  const char* set = std::getenv("RINGREDUCE_REPRODUCIBLE");
  const std::string_view value = set ? set : "";
  if (value != "" && value != "0" && value != "1") {
    throw InvalidArgument("RINGREDUCE_REPRODUCIBLE must be 1 or 0, not '" + std::string(value) + "'");
  }
  return value == "1";
}

Planner::Planner(int rank, int world, const Target& cpu, bool reproducible, std::vector<int> hosts)
    : rank_(rank),
      world_(world),
      cpu_(cpu),
      reproducible_(reproducible),
      hosts_(std::move(hosts)),
      forced_(read_forced(std::getenv("RINGREDUCE_ALGORITHM"))) {
  for (const auto& [collective, algorithm] : forced_) check_rank_order(collective, algorithm);
}

const Plan& Planner::plan(const Call& call, const Target& target) {
  if (call.input_extents) {
    check(call);
    make(call, target, uneven_);
    return uneven_;
  }
  const Key key{&target,    call.collective,  call.dtype, call.op,    call.root, call.algorithm,
                call.count, call.slice_bytes, call.split, call.lanes, call.wire};
  const std::size_t place =
      (call.count * 31 + static_cast<std::size_t>(target.tuning) * 11 +
       static_cast<std::size_t>(call.collective) * 7 + static_cast<std::size_t>(call.dtype) * 5 +
       static_cast<std::size_t>(call.algorithm)) %
      cache_.size();
  Slot& slot = cache_[place];
  if (slot.used && slot.key == key) [[likely]]
    return slot.plan;
  check(call);
  slot.used = false;
  make(call, target, slot.plan);
  slot.key = key;
  slot.used = true;
  return slot.plan;
}

void Planner::know(std::vector<int> order, double pace) {
  order_ = std::move(order);
  pace_ = pace;
  for (Slot& slot : cache_) slot.used = false;
  programs_.clear();
}

void Planner::check(const Call& call) const {
  if (rooted(call.collective) && (call.root < 0 || call.root >= world_)) {
    throw InvalidArgument("root must be a rank from 0 to " + std::to_string(world_ - 1) + ", not " +
                          std::to_string(call.root));
  }
  if (reduces(call.collective) && !supports(call.dtype, call.op)) {
    throw InvalidArgument(std::string("op '") + name_of(call.op) + "' is not defined for dtype " +
                          name_of(call.dtype));
  }
  if (call.wire == Encoding::none) return;
  if (!takes(call.wire, call.dtype)) {
    const bool narrow_too = takes(call.wire, DType::bfloat16);
    throw InvalidArgument(std::string("wire '") + name_of(call.wire) + "' takes float32" +
                          (narrow_too ? ", float16 and bfloat16" : "") + ", and x is " + name_of(call.dtype));
  }
  if (reproducible_ && reduces(call.collective)) {
    throw InvalidArgument(std::string("wire '") + name_of(call.wire) +
                          "' cannot be used here: which of an element's values are rounded depends on its "
                          "place, and this communicator is reproducible");
  }
}

void Planner::check_rank_order(Collective collective, int algorithm) const {
  if (!reproducible_ || !reduces(collective)) return;
  const bool kept = algorithm >= first_custom ? custom_[algorithm - first_custom].in_rank_order
                                              : catalogue()[algorithm].keeps_rank_order;
  if (kept) return;
  throw InvalidArgument(
      "algorithm '" + name_of_algorithm(algorithm) +
      "' does not combine all ranks' values in rank order at once, and this communicator is "
      "reproducible; for " +
      name_of(collective) + " these do: " + names_of_algorithms(collective, true));
}

// Of its blocks: what the ranks must agree on.
Planner::Shape Planner::shape_of(const Call& call) const {
  const bool whole = slices_whole_buffer(call.collective);
  if (!call.input_extents) return {call.count, whole ? call.count : call.count * world_, call.count};
  Shape shape;
  for (const Extents* extents : {call.input_extents, call.output_extents}) {
    for (std::size_t n : extents->count) shape.longest = std::max(shape.longest, n);
  }
  shape.total = shape.longest * world_;
  // Only the two ends of a message know its length in an uneven all-to-all.
  const bool known = call.collective != Collective::all_to_all;
  for (std::size_t n : call.input_extents->count) shape.hash = mix(shape.hash, known ? n : 0);
  return shape;
}

void Planner::make(const Call& call, const Target& target, Plan& plan) {
  if (target.own_way) {
    if (reproducible_ && reduces(call.collective) && !target.own_way_keeps_rank_order) {
      throw InvalidArgument(std::string("algorithm '") + target.own_way +
                            "' need not combine in rank order, and this communicator is reproducible");
    }
    plan.geometry = Geometry();
    return describe(call, shape_of(call), target.own_way, plan);
  }
  if (call.algorithm == by_nccl) throw InvalidArgument("algorithm 'nccl' is for arrays in a GPU's memory");
  // What is worked on: quantised messages are decoded to float32, whatever the arrays hold.
  const DType dtype = call.wire == Encoding::none ? call.dtype : DType::float32;
  const std::size_t element = size_of(dtype);
  const Shape shape = shape_of(call);
  const std::size_t count = shape.longest;
  const auto [algorithm, slice_bytes, lanes] = pick(call, shape.total * element, target);
  plan.algorithm = algorithm;
  plan.lanes = lanes;
  // Of an uneven all-to-all no rank knows the longest block of all, so slices have a fixed length.
  const bool blind = call.input_extents && call.collective == Collective::all_to_all;
  plan.program = &program(call, algorithm, target.uses_links());
  check_rank_order(call.collective, algorithm);
  plan.geometry = make_geometry(*plan.program, element, blind ? ~std::size_t{0} >> 8 : count, slice_bytes,
                                target.capacity, call.wire);
  if (blind) {
    plan.geometry.slices = std::max<std::size_t>((count + plan.geometry.slice - 1) / plan.geometry.slice, 1);
  }
  if (dtype != call.dtype) plan.geometry.narrow = cast_to(call.dtype);
  plan.geometry.count = count;
  plan.geometry.input = call.input_extents;
  plan.geometry.output = call.output_extents;
  plan.uneven = call.input_extents != nullptr;
  if (!plan.uneven) {
    if (plan.geometry.slices > 1) plan.full.resolve(*plan.program, plan.geometry, 0);
    plan.last_slice.resolve(*plan.program, plan.geometry, plan.geometry.slices - 1);
  }
  plan.wire = call.wire;
  plan.combine = plan.last = plan.scale = nullptr;
  plan.divide = 1;
  if (reduces(call.collective)) {
    const bool scales = call.op == Op::premul_sum;
    plan.combine = combine_for(dtype, call.op == Op::avg || scales ? Op::sum : call.op);
    plan.last = call.op == Op::avg ? combine_for(dtype, Op::avg) : plan.combine;
    plan.divide = call.op == Op::avg ? 1.0 / world_ : 1;
    if (scales && plan.program->combines_locally) {
      throw InvalidArgument("factor cannot be used with algorithm '" + name_of_algorithm(algorithm) +
                            "', which combines within a rank");
    }
    plan.scale = scales ? combine_for(dtype, Op::premul_sum) : nullptr;
  }
  describe(call, shape, name_of_algorithm(algorithm), plan);
}

// For the record, and for what the ranks must have in common.
void Planner::describe(const Call& call, const Shape& shape, const std::string& name, Plan& plan) const {
  Description made;
  made.count = call.input_extents ? shape.total : call.count;
  made.split = call.split;
  made.root = rooted(call.collective) ? call.root : -1;
  made.collective = call.collective;
  made.dtype = call.dtype;
  made.op = call.op;
  made.reproducible = reproducible_;
  made.wire = call.wire;
  std::memcpy(made.algorithm, name.data(), std::min(name.size(), sizeof made.algorithm));
  plan.record = Record();
  ::ringreduce::describe(plan.record, made);
  std::uint64_t contract = hash_of(name);
  for (std::uint64_t value :
       {static_cast<std::uint64_t>(call.collective), static_cast<std::uint64_t>(call.dtype),
        static_cast<std::uint64_t>(reduces(call.collective) ? call.op : Op{}),
        static_cast<std::uint64_t>(made.root), shape.hash, static_cast<std::uint64_t>(plan.geometry.slice),
        std::uint64_t{reproducible_}, static_cast<std::uint64_t>(call.wire), call.split}) {
    contract = mix(contract, value);
  }
  plan.contract = contract;
}

Situation Planner::situation(Collective collective, std::size_t bytes, Encoding wire,
                             const Target& target) const {
  return {collective, world_,        target.oversubscribed,  target.tuning,
          bytes,      reproducible_, wire != Encoding::none, target.uses_links() ? pace_ : 1};
}

Planner::Picked Planner::pick(const Call& call, std::size_t bytes, const Target& target) const {
  Situation here = situation(call.collective, bytes, call.wire, target);
  Choice choice;
  int algorithm = call.algorithm;
  if (call.input_extents && call.collective == Collective::all_to_all) {
    // Bruck's forwards blocks through ranks that do not know their lengths, pairs need equal numbers of
    // slices.
    here.bytes = ~std::size_t{0};  // how many there are differs from rank to rank, and slices must not
    choice = choose_slices(here, find_algorithm(call.collective, "direct"), "");
    algorithm = automatic;
  } else {
    choice = choose(here);
  }
  if (algorithm == automatic) algorithm = static_cast<int>(choice.entry - catalogue().data());
  if (call.slice_bytes > 0) choice.slice_bytes = call.slice_bytes;
  if (call.lanes > 0) choice.lanes = call.lanes;
  return {algorithm, choice.slice_bytes, choice.lanes};
}

Choice Planner::choose(const Situation& situation) const {
  const auto forced = forced_.find(situation.collective);
  if (forced == forced_.end()) return ::ringreduce::choose(situation);
  return choose_slices(situation, &catalogue()[forced->second], "RINGREDUCE_ALGORITHM says so");
}

std::string Planner::name_of_algorithm(int algorithm) const {
  if (algorithm >= first_custom) return custom_[algorithm - first_custom].name;
  return std::string(catalogue()[algorithm].name);
}

const Program& Planner::program(const Call& call, int algorithm, bool uses_links) {
  const bool coded = call.wire != Encoding::none;
  auto& program = programs_[{static_cast<int>(call.collective), algorithm, call.root, coded, uses_links}];
  if (!program) {
    program = std::make_unique<Program>(algorithm >= first_custom ? lower_custom(call, algorithm)
                                                                  : lower_entry(call, algorithm, uses_links));
  }
  return *program;
}

Program Planner::lower_custom(const Call& call, int algorithm) const {
  if (algorithm - first_custom >= static_cast<int>(custom_.size()))
    throw InvalidArgument("unknown algorithm");
  const Custom& custom = custom_[algorithm - first_custom];
  if (custom.schedule.collective != call.collective) {
    throw InvalidArgument("algorithm '" + custom.name + "' is for " + name_of(custom.schedule.collective) +
                          ", not for " + name_of(call.collective));
  }
  if (rooted(call.collective) && custom.schedule.root != call.root) {
    throw InvalidArgument("root must be " + std::to_string(custom.schedule.root) + ", which algorithm '" +
                          custom.name + "' is for, not " + std::to_string(call.root));
  }
  if (call.wire != Encoding::none) return lower_coded(custom.schedule, custom.heaviest_round, nullptr);
  return lower(custom.schedule, custom.heaviest_round);
}

Program Planner::lower_entry(const Call& call, int algorithm, bool uses_links) const {
  const Entry& entry = catalogue()[algorithm];
  if (entry.collective != call.collective) {
    throw InvalidArgument("algorithm '" + std::string(entry.name) + "' is for " + name_of(entry.collective) +
                          ", not for " + name_of(call.collective));
  }
  const bool coded = call.wire != Encoding::none;
  Place place;
  place.world = world_;
  place.root = call.root;
  if (uses_links) {
    place.groups = hosts_;
    place.order = order_;
  }
  int heaviest = 0;
  // Only an all-reduce has combinations whose results several ranks end with.
  const bool look = coded && call.collective == Collective::all_reduce && world_ <= largest_known_world;
  std::vector<Schedule> all;
  for (place.rank = 0; place.rank < world_; ++place.rank) {
    Schedule schedule = entry.build(place);
    heaviest = std::max(heaviest, heaviest_round(schedule));
    if (look) all.push_back(std::move(schedule));
  }
  place.rank = rank_;
  if (!coded) return lower(entry.build(place), heaviest, true);
  const PassedOn known = look ? passed_on(all, rank_) : PassedOn();
  return lower_coded(entry.build(place), heaviest, look ? &known : nullptr);
}

int Planner::add(const std::string& name, Schedule schedule, int heaviest_round, bool in_rank_order) {
  if (schedule.world != world_ || schedule.rank != rank_) {
    throw InvalidArgument("algorithm '" + name + "' made a schedule for rank " +
                          std::to_string(schedule.rank) + " of " + std::to_string(schedule.world) +
                          ", not for rank " + std::to_string(rank_) + " of " + std::to_string(world_));
  }
  custom_.push_back({name, std::move(schedule), heaviest_round, in_rank_order});
  return first_custom + static_cast<int>(custom_.size()) - 1;
}

}  // namespace ringreduce
