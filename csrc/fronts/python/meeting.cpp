// Proofs, TLS and addresses for ranks that meet over a network, the same as the tcp transport uses later.
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fronts/python/bindings.h"
#include "transport/interface/environment.h"
#include "transport/interface/errors.h"
#include "transport/tcp/addresses.h"
#include "transport/tcp/secret.h"
#include "transport/tcp/tls.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

std::string text(const nb::bytes& bytes) {
  return {bytes.c_str(), bytes.size()};
}

std::unique_ptr<TlsChannel> over(int fd, bool begins, const nb::bytes& secret) {
  return std::make_unique<TlsChannel>(fd, begins, tls_key(text(secret), "meeting"));
}

// False if nothing can be done at the moment.
bool done(const TlsChannel& channel, ssize_t result) {
  if (result >= 0) return true;
  if (errno == EAGAIN || errno == EINTR) return false;
  const std::string why = channel.why();
  PyErr_SetString(PyExc_ConnectionError, why.empty() ? std::strerror(errno) : ("TLS: " + why).c_str());
  throw nb::python_error();
}

nb::object read(TlsChannel& channel, std::size_t count) {
  std::string bytes(count, '\0');
  const iovec piece{bytes.data(), count};
  const ssize_t got = channel.read(&piece, 1);
  if (!done(channel, got)) return nb::none();
  return nb::bytes(bytes.data(), static_cast<std::size_t>(got));
}

// Returns None also while part of the last write is still unsent.
nb::object write(TlsChannel& channel, const nb::bytes& data) {
  const iovec piece{const_cast<char*>(data.c_str()), data.size()};
  const ssize_t taken = channel.write(&piece, 1);
  if (!done(channel, taken)) return nb::none();
  return nb::int_(taken);
}

nb::bytes proof_of(const Proof& proof, const std::string& end) {
  const Digest digest = proof.of(end);
  return nb::bytes(digest.data(), digest.size());
}

bool proof_holds(const Proof& proof, const std::string& end, const nb::bytes& claimed) {
  Digest digest{};
  if (claimed.size() != digest.size()) return false;
  std::memcpy(digest.data(), claimed.data(), digest.size());
  return proof.holds(end, digest);
}

std::vector<std::string> places_here(std::uint16_t port) {
  std::vector<std::string> places;
  for (Address address : own_addresses(environment("RINGREDUCE_IFACE"))) {
    address.port = port;
    if (!address.interface) places.push_back(in_words(address));
  }
  return places;
}

}  // namespace

void bind_meeting(nb::module_& m) {
  nb::class_<TlsChannel>(m, "Tls", "One end of a TLS connection.")
      .def_prop_ro("holds", &TlsChannel::holds, nb::lock_self(), "Bytes that were written but not sent yet.")
      .def("read", read, "count"_a, nb::lock_self())
      .def("write", write, "data"_a, nb::lock_self());
  nb::class_<Proof>(m, "Proof", "What each end of a connection shows the other: that it knows the secret.")
      .def(
          "__init__",
          [](Proof* self, const nb::bytes& secret, const nb::bytes& said) {
            new (self) Proof(text(secret), text(said));
          },
          "secret"_a, "said"_a)
      .def("of", proof_of, "end"_a)
      .def("holds", proof_holds, "end"_a, "claimed"_a);
  m.def("tls_over", over, "fd"_a, "begins"_a, "secret"_a,
        "Returns a TLS end over a connected non-blocking socket, with a key derived from the secret.");
  m.def("places_here", places_here, "port"_a,
        "Returns each address at which others may reach this host, with the port, the likeliest first.");
}

}  // namespace ringreduce
