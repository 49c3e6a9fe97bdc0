#include "fronts/python/schedule_caster.h"

#include <nanobind/stl/string.h>

#include <stdexcept>
#include <utility>

namespace nb = nanobind;

namespace ringreduce {
namespace {

template <class T>
T cast_or_name(nb::handle value, const char* what) {
  T out{};
  if (nb::try_cast<T>(value, out)) return out;
  const std::string got = nb::cast<std::string>(nb::repr(value));
  throw nb::type_error(("a schedule's " + std::string(what) + " cannot be " + got).c_str());
}

template <class T>
T attribute(nb::handle object, const char* name) {
  return cast_or_name<T>(object.attr(name), name);
}

// A span is (first, count), or a number for a single chunk.
Span span_from(nb::handle item) {
  if (nb::isinstance<nb::tuple>(item)) {
    const nb::tuple pair = nb::borrow<nb::tuple>(item);
    if (pair.size() != 2) throw std::invalid_argument("a run of chunks must be (first, count)");
    return {cast_or_name<int>(pair[0], "chunk"), cast_or_name<int>(pair[1], "number of chunks")};
  }
  return {cast_or_name<int>(item, "chunk"), 1};
}

nb::tuple span_to(const Span& span) {
  return nb::make_tuple(span.first, span.count);
}

template <class T, class Convert>
std::vector<T> list_from(nb::handle items, Convert convert) {
  std::vector<T> out;
  for (const nb::handle item : items) out.push_back(convert(item));
  return out;
}

template <class T, class Convert>
nb::list list_to(const std::vector<T>& items, Convert convert) {
  nb::list out;
  for (const T& item : items) out.append(convert(item));
  return out;
}

std::vector<Span> chunks_of(nb::handle message) {
  return list_from<Span>(message.attr("chunks"), span_from);
}

Send send_from(nb::handle send) {
  const auto peer_from = [](nb::handle peer) { return cast_or_name<int>(peer, "peer"); };
  return {chunks_of(send), list_from<int>(send.attr("peers"), peer_from)};
}

Recv recv_from(nb::handle recv) {
  return {chunks_of(recv), attribute<int>(recv, "peer"), attribute<bool>(recv, "reduce")};
}

Local local_from(nb::handle local) {
  return {span_from(local.attr("to")), span_from(local.attr("source")), attribute<bool>(local, "reduce")};
}

Round round_from(nb::handle round) {
  return {list_from<Send>(round.attr("sends"), send_from), list_from<Recv>(round.attr("recvs"), recv_from),
          list_from<Local>(round.attr("locals"), local_from)};
}

}  // namespace

Collective collective_named(const std::string& name) {
  for (int i = 0; i < collective_count; ++i) {
    if (name == name_of(static_cast<Collective>(i))) return static_cast<Collective>(i);
  }
  throw std::invalid_argument("no collective is called '" + name + "'");
}

Order order_named(std::string_view name) {
  for (const Order order : {Order::any, Order::kept, Order::at_once}) {
    if (name == name_of(order)) return order;
  }
  throw std::invalid_argument("no order is called '" + std::string(name) + "'");
}

Schedule schedule_from_python(nb::handle schedule) {
  return {.collective = collective_named(attribute<std::string>(schedule, "collective")),
          .world = attribute<int>(schedule, "world"),
          .rank = attribute<int>(schedule, "rank"),
          .root = attribute<int>(schedule, "root"),
          .chunks = attribute<int>(schedule, "chunks"),
          .scratch = attribute<int>(schedule, "scratch"),
          .rounds = list_from<Round>(schedule.attr("rounds"), round_from)};
}

nb::object schedule_to_python(const Schedule& schedule) {
  const nb::module_ types = nb::module_::import_("ringreduce.schedules");
  const nb::object make_send = types.attr("Send"), make_recv = types.attr("Recv"),
                   make_local = types.attr("Local"), make_round = types.attr("Round");
  const auto number = [](int i) { return nb::int_(i); };
  const auto send_to = [&](const Send& send) {
    return make_send(list_to(send.chunks, span_to), list_to(send.peers, number));
  };
  const auto recv_to = [&](const Recv& recv) {
    return make_recv(list_to(recv.chunks, span_to), recv.peer, recv.reduce);
  };
  const auto local_to = [&](const Local& local) {
    return make_local(span_to(local.to), span_to(local.from), local.reduce);
  };
  const auto round_to = [&](const Round& round) {
    return make_round(list_to(round.sends, send_to), list_to(round.recvs, recv_to),
                      list_to(round.locals, local_to));
  };
  return types.attr("Schedule")(name_of(schedule.collective), schedule.world, schedule.rank, schedule.chunks,
                                list_to(schedule.rounds, round_to), schedule.root, schedule.scratch);
}

}  // namespace ringreduce
