#include "engine/planning/planner.h"

#include <sstream>

#include "engine/planning/description.h"
#include "transport/interface/environment.h"
#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

// Up to this world, planning for a wire format runs all ranks' schedules symbolically, which takes up to 0.3
// s.
constexpr int largest_known_world = 128;

int index_of(const Entry& entry) {
  return static_cast<int>(&entry - catalogue().data());
}

// Reads "ring", for every collective that has one, or "all_reduce=ring,broadcast=chain".
std::map<Collective, int> read_forced(const std::string& text) {
  std::map<Collective, int> forced;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) {
    const std::size_t equals = item.find('=');
    const std::string name = equals == std::string::npos ? item : item.substr(equals + 1);
    bool found = name == "auto";
    for (const Entry& entry : catalogue()) {
      if (entry.name != name) continue;
      if (equals != std::string::npos && item.substr(0, equals) != name_of(entry.collective)) continue;
      forced[entry.collective] = index_of(entry);
      found = true;
    }
    if (!found) throw InvalidArgument("RINGREDUCE_ALGORITHM: there is no algorithm '" + item + "'");
  }
  return forced;
}

// The core of each rank, or nothing if they do not share any. Launchers bind ranks to the cores in turn, and
// a scheduler is likely to start them so. The rule does not look where ranks are: on one machine, a program's
// sums must have the same bits in every run.
std::vector<int> by_core(int world, int shared_cores) {
  std::vector<int> groups;
  for (int rank = 0; shared_cores > 0 && rank < world; ++rank) groups.push_back(rank % shared_cores);
  return groups;
}

}  // namespace

bool reproducible_by_environment() {
  return environment("RINGREDUCE_REPRODUCIBLE", {"1", "0"}) == "1";
}

Planner::Planner(int rank, int world, const Target& cpu, bool reproducible, std::vector<int> hosts,
                 std::shared_ptr<const Tuned> tuned)
    : rank_(rank),
      world_(world),
      cpu_(cpu),
      reproducible_(reproducible),
      hosts_(std::move(hosts)),
      cores_(hosts_.empty() ? by_core(world, cpu.shared_cores) : std::vector<int>()),
      tuned_(std::move(tuned)),
      forced_(read_forced(environment("RINGREDUCE_ALGORITHM"))) {
  for (const auto& [collective, algorithm] : forced_) check_rank_order(collective, algorithm);
}

const Plan& Planner::plan(const Call& call, const Target& target) {
  const PlanKey key(call, target);
  const bool blind = call.input_extents && is_blind(call);
  if (call.input_extents && !blind) [[unlikely]]
    return plan_uneven(call, key, target);
  Plan* const known = plans_.find(key);
  Plan& plan = known ? *known : plans_.add(key, make(call, target));
  if (blind) [[unlikely]]
    fit(call, plan);
  return plan;
}

// No rank knows the longest block of all ranks, so slices have a fixed length, and only their number differs.
// Programs often repeat a call with the same short blocks, whose layout is kept.
void Planner::fit(const Call& call, Plan& plan) const {
  Geometry& geometry = plan.geometry;
  geometry.input = call.input_extents;
  geometry.output = call.output_extents;
  if (plan.fitted[0] == *call.input_extents && plan.fitted[1] == *call.output_extents) return;
  plan.fitted[0] = {};  // until all of this is done
  plan.prepared = {};
  measure_arrays(call, plan);
  const Shape shape = shape_of(call, world_);
  geometry.slices = std::max<std::size_t>((shape.longest + geometry.slice - 1) / geometry.slice, 1);
  geometry.count = shape.longest;
  if (geometry.slices == 1) plan.last_slice.resolve(*plan.program, geometry, 0);
  set_count(plan.record, shape.total);
  plan.fitted[0] = *call.input_extents;
  plan.fitted[1] = *call.output_extents;
}

const Plan& Planner::plan_uneven(const Call& call, const PlanKey& key, const Target& target) {
  auto& [known, input, output, plan] = uneven_;
  if (known == key && input == *call.input_extents && output == *call.output_extents) return plan;
  known.reset();
  input = *call.input_extents;
  output = *call.output_extents;
  Call kept = call;
  kept.input_extents = &input;
  kept.output_extents = &output;
  plan = make(kept, target);
  known = key;
  return plan;
}

void Planner::know(std::vector<int> order, const Links& links) {
  order_ = std::move(order);
  pace_ = pace(links);
  latency_ = typical_latency(links);
  rate_ = typical_rate(links);
  forget();
}

// Drops the plans made with less knowledge.
void Planner::forget() {
  plans_.clear();
  uneven_ = {};
  programs_.clear();
  ways_.clear();
}

// A message that its peers read in place keeps the sender waiting for them. Where ranks share cores, each
// wait is a switch, and up to so many bytes of the buffer, copies take less time: of 64 KiB on 4 ranks a
// half. In an all-reduce and a reduce-scatter, a rank needs its readers' results anyway. A reduce's messages
// are copied on any cores: two near ranks take as long either way, and four ranks take less time.
constexpr std::size_t copied_to = 128 << 10, copied_to_root = 512 << 10;
// A broadcast's root writes its next values to lines that its peers have read. Copies take as long as the
// call and those writes together for two near cores, and less for far cores or more ranks.
constexpr std::size_t broadcasts_copied_to = 4 << 20;

bool copies_messages(const Call& call, std::size_t bytes, const Target& target) {
  const Collective collective = call.collective;
  const bool in_memory = target.tuning == Tuning::memory;
  if (collective == Collective::broadcast && in_memory) return bytes <= broadcasts_copied_to;
  if (collective == Collective::reduce && in_memory) return bytes <= copied_to_root;
  if (!target.oversubscribed || (combines_all(collective) && !rooted(collective))) return false;
  return bytes <= (collective == Collective::gather ? copied_to_root : copied_to);
}

// Lines that another core has read are slow to write: up to 30 ns each, where the next call's input may have
// to be written by ordinary stores. From so many bytes of the buffer on, peers therefore read a rank's own
// block in the output, which this call writes, and writes past the cache if that is faster. Shorter blocks
// take longer that way, and as long together with writing the input.
constexpr std::size_t kept_first_from = 2 * MiB;

namespace {

// The bytes of a round's messages if blocks walk slices side by side: the same number of slices for each
// block, as long as their messages fit, and not too short. `bytes`: of the buffer, or of the longest block.
std::size_t slice_for_blocks(const Call& call, const Program& program, std::size_t bytes,
                             const Target& target) {
  constexpr std::size_t shortest = 4 * KiB, longest_blind = 32 * KiB;  // blind: how many is not known
  const auto divide_up = [](std::size_t a, std::size_t b) { return (a + b - 1) / b; };
  const auto in_whole = [](std::size_t a) { return std::max(a / KiB, std::size_t{1}) * KiB; };
  const Schedule& schedule = program.schedule;
  const auto sent = static_cast<std::size_t>(std::max(program.heaviest_round, 1));
  std::size_t longest = in_whole(target.capacity / 2 / sent);
  // There a rank keeps what it receives until it can continue, in memory of each block.
  if (!ends_alike(call.collective)) {
    const auto kept = static_cast<std::size_t>(std::max(schedule.chunks + schedule.scratch, 1));
    longest = std::min(longest, in_whole(target.capacity / kept));
  }
  if (is_blind(call)) return std::min(longest, longest_blind) * sent;
  const std::size_t chunks = has_blocks(call.collective) ? 1 : std::max(schedule.chunks, 1);
  const std::size_t each = divide_up(divide_up(bytes, chunks), target.blocks);
  const std::size_t slices = std::max(divide_up(each, longest), std::size_t{1});  // of a block
  return std::max(divide_up(divide_up(each, slices), KiB) * KiB, std::min(shortest, longest)) * sent;
}

}  // namespace

void Planner::measure_arrays(const Call& call, Plan& plan) const {
  plan.input = {bytes_of_input(call, world_, rank_), before_input(call, rank_)};
  plan.output = {bytes_of_output(call, world_, rank_), before_output(call, rank_)};
}

Plan Planner::make(const Call& call, const Target& target) {
  check(call);
  Plan plan;
  measure_arrays(call, plan);
  if (target.own_way) {
    if (reproducible_ && reduces(call.collective)) {
      throw InvalidArgument(
          std::string("algorithm '") + target.own_way +
          "' cannot be used on a reproducible communicator: it may not combine in rank order");
    }
    describe(call, shape_of(call, world_), reproducible_, target.own_way, plan);
    return plan;
  }
  if (call.algorithm == by_nccl) throw InvalidArgument("algorithm 'nccl' takes arrays in GPU memory only");
  // The dtype that is computed with: quantised messages are decoded to float32, whatever the arrays hold.
  const DType dtype = call.wire == Encoding::none ? call.dtype : DType::float32;
  const std::size_t element = call.user_op ? element_of(call) : size_of(dtype);
  const Shape shape = shape_of(call, world_);
  const std::size_t count = shape.longest;
  const std::size_t slice_bytes = pick(call, shape.total * element, target, plan);
  const bool keeps_first = call.wire == Encoding::none && target.tuning == Tuning::memory &&
                           !target.oversubscribed && shape.total * element >= kept_first_from;
  plan.program = &program(call, plan.algorithm, target.uses_links(), plan.forest, keeps_first);
  check_rank_order(call.collective, plan.algorithm, call.user_op);
  plan.blind = is_blind(call);
  const bool for_blocks = target.blocks > 0 && call.slice_bytes == 0;
  plan.geometry =
      make_geometry(*plan.program, element, plan.blind ? ~std::size_t{0} >> 8 : count,
                    for_blocks ? slice_for_blocks(call, *plan.program, count * element, target) : slice_bytes,
                    target.capacity, call.wire);
  if (dtype != call.dtype) plan.geometry.narrow = cast_to(call.dtype);
  plan.geometry.count = count;
  plan.geometry.input = call.input_extents;
  plan.geometry.output = call.output_extents;
  plan.uneven = call.input_extents != nullptr;
  if (!plan.uneven && plan.geometry.slices > 1) plan.full.resolve(*plan.program, plan.geometry, 0);
  if (!plan.blind) plan.last_slice.resolve(*plan.program, plan.geometry, plan.geometry.slices - 1);
  plan.copies = copies_messages(call, shape.total * element, target);
  plan.wire = call.wire;
  plan.dtype = call.dtype;
  if (reduces(call.collective) && !call.user_op) plan_reduction(call, dtype, plan);
  describe(call, shape, reproducible_, name_of_algorithm(plan.algorithm), plan);
  return plan;
}

void Planner::plan_reduction(const Call& call, DType dtype, Plan& plan) const {
  const bool averages = call.op == Op::avg;
  if (call.factor && plan.program->combines_locally) {
    throw InvalidArgument("factor cannot be used with algorithm '" + name_of_algorithm(plan.algorithm) +
                          "', because it combines values within a rank");
  }
  plan.combine = combine_for(dtype, averages ? Op::sum : call.op);
  plan.last = averages ? combine_for(dtype, Op::avg) : plan.combine;
  plan.divide = averages ? 1.0 / world_ : 1;
  plan.scale = call.factor ? combine_for(dtype, scaling) : nullptr;
}

Situation Planner::situation(Collective collective, std::size_t bytes, Encoding wire,
                             const Target& target) const {
  Situation here{collective, world_,        target.oversubscribed, target.tuning,
                 bytes,      reproducible_, wire != Encoding::none};
  if (target.uses_links()) {
    here.pace = pace_;
    here.latency = latency_;
    here.rate = rate_;
    here.longest_eager = target.longest_eager;
  }
  return here;
}

// Picks the algorithm and its lanes; returns the bytes of a slice.
std::size_t Planner::pick(const Call& call, std::size_t bytes, const Target& target, Plan& plan) {
  Situation here = situation(call.collective, bytes, call.wire, target);
  here.commutes = !call.user_op || call.user_op->commutes;
  // The number of bytes differs between ranks, and slices must not.
  if (is_blind(call)) here.bytes = ~std::size_t{0};
  Choice choice = choose(here);
  plan.algorithm = call.algorithm == automatic ? index_of(*choice.entry) : call.algorithm;
  plan.forest = -1;
  plan.variant = 0;
  if (plan.algorithm < first_custom && name_of_algorithm(plan.algorithm) == "synthesised") {
    check_rank_order(call.collective, plan.algorithm, call.user_op);
    choice = synthesised_choice(here, target, plan);
    plan.algorithm = index_of(*choice.entry);
  }
  // Trees and Bruck's algorithm forward blocks through ranks that do not know their lengths, and pairs need
  // equal numbers of slices.
  if (is_blind(call)) plan.algorithm = index_of(*find_algorithm(call.collective, "direct"));
  plan.lanes = call.lanes > 0 ? call.lanes : choice.lanes;
  return call.slice_bytes > 0 ? call.slice_bytes : choice.slice_bytes;
}

// A forced algorithm keeps the slices and lanes of the usual choice.
Choice Planner::choose(const Situation& situation) const {
  Choice choice = usual_choice(situation);
  if (const auto forced = forced_.find(situation.collective); forced != forced_.end()) {
    choice.entry = &catalogue()[forced->second];
    choice.row = nullptr;
  }
  return choice;
}

std::pair<Choice, std::string> Planner::explain(Collective collective, std::size_t bytes, Encoding wire,
                                                bool commutes) const {
  Situation here = situation(collective, bytes, wire, cpu_);
  here.commutes = commutes;
  const Choice choice = choose(here);
  return {choice, choice.row ? reason_for(choice, here, tuned_.get()) : "set by RINGREDUCE_ALGORITHM"};
}

std::string Planner::tables_in_words() const {
  if (!tuned_) return "algorithms are chosen from the shipped tables";
  if (tuned_->rows.empty()) return "algorithms are chosen from the shipped tables" + tuned_->note;
  return "algorithms are chosen from " + tuned_->file + ", then from the shipped tables";
}

std::string Planner::name_of_algorithm(int algorithm) const {
  if (algorithm >= first_custom) return custom_[algorithm - first_custom].name;
  return std::string(catalogue()[algorithm].name);
}

const Program& Planner::program(const Call& call, int algorithm, bool uses_links, int forest,
                                bool keeps_first) {
  const bool coded = call.wire != Encoding::none;
  auto& program = programs_[{static_cast<int>(call.collective), algorithm, call.root, coded, uses_links,
                             forest, keeps_first}];
  if (program) return *program;
  const bool is_custom = algorithm >= first_custom;
  if (is_custom && algorithm - first_custom >= static_cast<int>(custom_.size()))
    throw InvalidArgument("unknown algorithm");
  const Collective serves =
      is_custom ? custom_[algorithm - first_custom].schedule.collective : catalogue()[algorithm].collective;
  if (serves != call.collective) {
    throw InvalidArgument("algorithm '" + name_of_algorithm(algorithm) + "' is for " + name_of(serves) +
                          ", not for " + name_of(call.collective));
  }
  program = std::make_unique<Program>(
      is_custom ? lower_custom(call, custom_[algorithm - first_custom], keeps_first)
                : lower_entry(call, catalogue()[algorithm], uses_links, forest, keeps_first));
  return *program;
}

Program Planner::lower_custom(const Call& call, const Custom& custom, bool keeps_first) {
  if (rooted(call.collective) && custom.schedule.root != call.root) {
    throw InvalidArgument("root must be " + std::to_string(custom.schedule.root) +
                          ", the root of algorithm '" + custom.name + "', not " + std::to_string(call.root));
  }
  if (call.wire != Encoding::none) return lower_coded(custom.schedule, custom.heaviest_round, nullptr);
  return lower(custom.schedule, custom.heaviest_round, false, keeps_first);
}

Program Planner::lower_entry(const Call& call, const Entry& entry, bool uses_links, int forest,
                             bool keeps_first) const {
  const bool coded = call.wire != Encoding::none;
  Place place = forest < 0 ? Place() : synthesis_->place(rank_, forest);
  place.world = world_;
  place.root = call.root;
  place.cores = cores_;
  if (uses_links) {
    place.groups = hosts_;
    place.order = order_;
  }
  int heaviest = 0;
  bool to_everyone = true;
  // Only in an all-reduce do several ranks end with results of combinations.
  const bool look = coded && call.collective == Collective::all_reduce && world_ <= largest_known_world;
  std::vector<Schedule> all;
  for (place.rank = 0; place.rank < world_; ++place.rank) {
    Schedule schedule = entry.build(place);
    heaviest = std::max(heaviest, heaviest_round(schedule));
    to_everyone = to_everyone && sends_to_everyone(schedule);
    if (look) all.push_back(std::move(schedule));
  }
  place.rank = rank_;
  if (!coded) {
    Program program = lower(entry.build(place), heaviest, true, keeps_first);
    program.to_everyone = to_everyone;
    return program;
  }
  const PassedOn known = look ? passed_on(all, rank_) : PassedOn();
  return lower_coded(entry.build(place), heaviest, look ? &known : nullptr);
}

const Planner::Custom* Planner::custom(int algorithm) const {
  return algorithm >= first_custom ? &custom_.at(static_cast<std::size_t>(algorithm - first_custom))
                                   : nullptr;
}

int Planner::add(const std::string& name, Schedule schedule, int heaviest_round, Order order) {
  if (schedule.world != world_ || schedule.rank != rank_) {
    throw InvalidArgument("algorithm '" + name + "' returned a schedule for rank " +
                          std::to_string(schedule.rank) + " of " + std::to_string(schedule.world) +
                          ", not for rank " + std::to_string(rank_) + " of " + std::to_string(world_));
  }
  custom_.push_back({name, std::move(schedule), heaviest_round, order});
  return first_custom + static_cast<int>(custom_.size()) - 1;
}

}  // namespace ringreduce
