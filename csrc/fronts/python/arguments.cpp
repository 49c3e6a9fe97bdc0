#include "fronts/python/arguments.h"

#include <numeric>
#include <string>

#include "fronts/python/schedule_caster.h"
#include "fronts/python/values.h"
#include "schedule/catalogue.h"

namespace nb = nanobind;

namespace ringreduce {
namespace {

std::string elements(std::size_t n) {
  return std::to_string(n) + (n == 1 ? " element" : " elements");
}

// `counts`: the argument that the number follows from, or null.
void check_count(const ArrayView& array, const char* name, std::size_t expected, const char* counts) {
  if (array.count == expected) return;
  throw InvalidArgument(std::string(name) + " has " + elements(array.count) + ", but must have " +
                        elements(expected) + (counts ? std::string(", as ") + counts + " says" : ""));
}

void check_overlap(const ArrayView& input, const ArrayView& output, std::size_t own_offset_in,
                   std::size_t own_offset_out) {
  const auto* in = static_cast<const std::byte*>(input.data);
  const auto* out = static_cast<const std::byte*>(output.data);
  const bool apart = in + input.bytes() <= out || out + output.bytes() <= in;
  const std::size_t element = size_of(input.dtype);
  if (apart || in + own_offset_in * element == out + own_offset_out * element) return;
  throw InvalidArgument("x and out overlap but are not the same memory");
}

void check_places(const ArrayView& input, const ArrayView& output) {
  if (input.device == output.device) return;
  const auto place = [](int device) {
    return device == on_host ? std::string("CPU memory") : "the memory of GPU " + std::to_string(device);
  };
  throw InvalidArgument("x is in " + place(input.device) + ", but out is in " + place(output.device));
}

void check_world(const Extents& extents, const char* name, int world) {
  if (static_cast<int>(extents.count.size()) == world) return;
  throw InvalidArgument(std::string(name) + " must have one number for each of the " + std::to_string(world) +
                        " ranks, not " + std::to_string(extents.count.size()));
}

std::size_t total(const Extents& extents) {
  return extents.offset.back() + extents.count.back();
}

Op op_named(std::string_view name) {
  const auto op = find_named<Op>(name, op_count);
  if (op) return *op;
  std::string known;
  for (const char* known_name : op_names) known += std::string(known_name) + ", ";
  throw InvalidArgument("op must be one of " + known + "not '" + std::string(name) + "'");
}

}  // namespace

void set_op(Call& call, nb::handle op, nb::handle factor) {
  call.op = op_named(text(op, "op"));
  if (factor.is_none()) return;
  if (call.op != Op::sum) {
    throw InvalidArgument(std::string("factor can only be used with op 'sum', not with '") +
                          name_of(call.op) + "'");
  }
  call.factor = real(factor, "factor");
}

Encoding wire_named(nb::handle wire) {
  if (wire.is_none()) return Encoding::none;
  const std::string_view name = text(wire, "wire");
  for (int i = 1; i < encoding_count; ++i) {
    if (name == name_of(static_cast<Encoding>(i))) return static_cast<Encoding>(i);
  }
  throw InvalidArgument("wire must be None, bf16, fp16, int8 or fp8, not '" + std::string(name) + "'");
}

GpuOptions gpu_options(nb::handle max_blocks, nb::handle priority, GpuOptions otherwise) {
  constexpr int soonest = -5;  // of any GPU so far
  constexpr const char* what = "None or an integer";
  if (!max_blocks.is_none()) {
    otherwise.min_blocks = otherwise.max_blocks =
        static_cast<int>(whole(max_blocks, "max_blocks", 0, GpuOptions::most_blocks, what));
    otherwise.copy_engine = otherwise.max_blocks == 0;
  }
  if (!priority.is_none()) {
    otherwise.priority = static_cast<int>(whole(priority, "priority", soonest, 0, what));
  }
  return otherwise;
}

int root_of(const Communicator& comm, nb::handle root) {
  return static_cast<int>(whole(root, "root", 0, comm.size() - 1, "a rank"));
}

Extents extents_of(std::vector<std::size_t> counts) {
  Extents extents{std::vector<std::size_t>(counts.size()), std::move(counts)};
  std::exclusive_scan(extents.count.begin(), extents.count.end(), extents.offset.begin(), std::size_t{0});
  return extents;
}

Call make_call(const Communicator& comm, Collective collective, nb::handle input, nb::handle output, int root,
               const Blocks& uneven, Held& held) {
  Call call;
  call.collective = collective;
  call.root = root;
  const bool two = uneven.output.has_value();
  const char* const sent = !uneven.input ? nullptr : two ? "send_counts" : "counts";
  const char* const received = two ? "recv_counts" : sent;
  const bool is_root = comm.rank() == call.root;
  // A broadcast has one array, on all ranks.
  const bool has_input = has_array(collective, true, is_root) || ends_alike(collective);
  const bool has_output = has_array(collective, false, is_root);
  std::optional<ArrayView> in, out;
  const bool one_array = has_output && output.is(input);
  if (has_input) in = view(input, "x", one_array, held);
  if (has_output) out = one_array && in ? in : view(output, one_array ? "x" : "out", true, held);
  if (!in && !out) return call;
  const ArrayView& any = in ? *in : *out;
  call.dtype = any.dtype;
  call.device = any.device;
  if (in) call.input = in->data;
  if (out) call.output = out->data;
  const bool blocks = has_blocks(call.collective);
  const auto world = static_cast<std::size_t>(blocks ? comm.size() : 1);
  const auto own = static_cast<std::size_t>(comm.rank());
  const bool input_all = contents(collective, true) != Holds::own_block;
  const bool output_all = contents(collective, false) != Holds::own_block;
  std::size_t input_count = 0, output_count = 0, own_in = 0, own_out = 0;
  if (uneven.input) {
    const Extents &input_extents = *uneven.input, &output_extents = two ? *uneven.output : input_extents;
    check_world(input_extents, sent, comm.size());
    check_world(output_extents, received, comm.size());
    call.input_extents = &input_extents;
    call.output_extents = &output_extents;
    if (contents(collective, true) == Holds::exchanged &&
        input_extents.count[own] != output_extents.count[own]) {
      throw InvalidArgument("send_counts and recv_counts disagree on this rank's own block: " +
                            elements(input_extents.count[own]) + " and " +
                            elements(output_extents.count[own]));
    }
    input_count = input_all ? total(input_extents) : input_extents.count[own];
    output_count = output_all ? total(output_extents) : output_extents.count[own];
    own_in = input_extents.offset[own];
    own_out = output_extents.offset[own];
  } else {
    const bool all = in ? input_all : output_all;
    if (all && any.count % world != 0) {
      throw InvalidArgument(std::string(in ? "x" : "out") + " has " + elements(any.count) +
                            ", which is not divisible among " + std::to_string(world) + " ranks");
    }
    call.count = all ? any.count / world : any.count;
    input_count = input_all ? call.count * world : call.count;
    output_count = output_all ? call.count * world : call.count;
    own_in = own_out = blocks ? call.count * static_cast<std::size_t>(comm.rank()) : 0;
  }
  if (in) check_count(*in, "x", input_count, sent);
  if (out) check_count(*out, in && in->data == out->data ? "x" : "out", output_count, received);
  if (in && out) {
    check_places(*in, *out);
    if (in->dtype != out->dtype) {
      throw InvalidArgument(std::string("x has dtype ") + name_of(in->dtype) + ", but out has " +
                            name_of(out->dtype));
    }
    if (in->data == out->data && in->count > 0 && two && uneven.input->count != uneven.output->count) {
      throw InvalidArgument("out may be x only if send_counts and recv_counts are equal");
    }
    check_overlap(*in, *out, input_all && !output_all ? own_in : 0, output_all && !input_all ? own_out : 0);
  }
  return call;
}

}  // namespace ringreduce
