// How a group of ranks learns where each of them listens, and what a forked child does with the sockets.
#include <netinet/in.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include "transport/interface/cores.h"
#include "transport/interface/environment.h"
#include "transport/interface/exchange.h"
#include "transport/interface/thread.h"
#include "transport/tcp/tcp.h"
#include "transport/tcp/tls.h"

namespace ringreduce {
namespace {

constexpr std::size_t longest_problem = 300;

struct Endpoint {
  Build build;
  HostIdentity host;
  Cores cores;
  char secret[32];
  char group[16];
  Guard guard;
  std::uint32_t count;
  Address addresses[most_addresses];
};
static_assert(sizeof(Endpoint) < longest_blob);

bool switched_on(const char* name) {
  return environment(name, {"0", "1"}) == "1";
}

Guard chosen_guard(std::optional<bool> encrypt) {
  if (!TcpTransport::encrypts(encrypt)) {
    return switched_on("RINGREDUCE_TCP_CHECK") ? Guard::checksums : Guard::nothing;
  }
  // The key cannot be derived from what the ranks tell each other to meet: others may have read that.
  if (environment("RINGREDUCE_SECRET").empty()) {
    throw InvalidArgument(
        "encryption needs a secret: set RINGREDUCE_SECRET to the same text on all ranks, and keep it "
        "private");
  }
  TlsChannel::load();
  return Guard::tls;
}

void check_guards(const std::vector<Endpoint>& endpoints) {
  constexpr const char* names[] = {"nothing", "checksums", "TLS"};
  const auto name = [&](const Endpoint& e) { return names[static_cast<int>(std::min(e.guard, Guard::tls))]; };
  for (std::size_t r = 1; r < endpoints.size(); ++r) {
    if (endpoints[r].guard == endpoints[0].guard) continue;
    throw InvalidArgument(
        std::string("all ranks must protect their messages in the same way: it is ") + name(endpoints[0]) +
        " on rank 0, " + name(endpoints[r]) + " on rank " + std::to_string(r) +
        " (RINGREDUCE_TLS=1 and init(encrypt=True) choose TLS, RINGREDUCE_TCP_CHECK=1 chooses checksums)");
  }
}

}  // namespace

// --- a process that forks --------------------------------------------------------------------------------

// A child that kept the sockets open would hide its parent's death from the peers.
struct TcpTransport::Forks {
  static Forks& get() {
    static Forks* forks = new Forks;  // outlives every transport
    return *forks;
  }
  Forks() {
    pthread_atfork(
        [] {
          get().mutex.lock();
          for (TcpTransport* transport : get().transports) transport->mutex_.lock();
        },
        [] { get().release(); },
        [] {
          for (TcpTransport* transport : get().transports) transport->close_in_child();
          get().release();
          get().transports.clear();
        });
  }
  void release() {
    for (TcpTransport* transport : transports) transport->mutex_.unlock();
    mutex.unlock();
  }
  std::mutex mutex;
  std::set<TcpTransport*> transports;
};

void TcpTransport::close_in_child() {
  disowned_ = true;
  settings_.epoll.reset();
  settings_.event.reset();
  settings_.listeners.clear();
  for (const auto& [id, stream] : streams_) stream->close_descriptor();
  abandon(latecomers_);
}

TcpTransport::~TcpTransport() {
  close();
  Forks& forks = Forks::get();
  const std::lock_guard lock(forks.mutex);
  forks.transports.erase(this);
}

// --- joining ---------------------------------------------------------------------------------------------

int TcpTransport::streams_by_environment() {
  const std::string text = environment("RINGREDUCE_TCP_STREAMS");
  if (text.empty() || text == "auto") return 0;
  int streams = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), streams);
  if (error != std::errc() || *end != 0 || streams < 1 || streams > 64) {
    throw InvalidArgument("RINGREDUCE_TCP_STREAMS must be a number from 1 to 64, or auto, not '" + text +
                          "'");
  }
  return streams;
}

bool TcpTransport::encrypts(std::optional<bool> encrypt) {
  return encrypt ? *encrypt : switched_on("RINGREDUCE_TLS");
}

std::vector<TcpTransport::Listener> TcpTransport::listen() {
  std::vector<Listener> listeners;
  int error = 0;
  for (Address& address : own_addresses(environment("RINGREDUCE_IFACE"))) {
    Descriptor socket = listen_at(address);
    if (socket.get() < 0) {
      error = errno;
      continue;
    }
    listeners.push_back({std::move(socket), address});
  }
  if (listeners.empty()) {
    throw Error(std::string("cannot open a socket to listen on: ") +
                (error ? std::strerror(error) : "no network interface of this host is up"));
  }
  return listeners;
}

std::string TcpTransport::way() const {
  std::string text = "listens on ";
  for (const Listener& listener : settings_.listeners) {
    if (&listener != settings_.listeners.data()) text += ", ";
    text += in_words(listener.address) + " (" + interface_of(listener.address) + ")";
  }
  constexpr const char* messages[] = {"are plain", "carry checksums", "are encrypted by TLS"};
  return text + "; messages " + messages[static_cast<int>(settings_.membership.guard)];
}

// A failure of one rank must fail all, so there is a second exchange.
TcpTransport::Settings TcpTransport::meet(int rank, int world, const Exchange& exchange,
                                          std::optional<bool> encrypt) {
  Settings settings;
  settings.encrypt = encrypt;
  Endpoint own{};
  own.build = this_build();
  std::string problem;
  try {
    settings.streams = streams_by_environment();
    own.guard = chosen_guard(encrypt);
    settings.listeners = listen();
    settings.epoll = Descriptor(epoll_create1(EPOLL_CLOEXEC));
    settings.event = Descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (settings.epoll.get() < 0 || settings.event.get() < 0) throw Error(std::strerror(errno));
    own.host = this_host();
    own.cores = usable_cores();
    const std::string random = random_bytes(sizeof own.secret + sizeof own.group);
    std::memcpy(own.secret, random.data(), sizeof own.secret);
    std::memcpy(own.group, random.data() + sizeof own.secret, sizeof own.group);
    for (const Listener& listener : settings.listeners) own.addresses[own.count++] = listener.address;
  } catch (const Error& error) {
    problem = error.what();
  }
  const auto endpoints = exchange_values(exchange, world, own, [&](int peer, const Endpoint& theirs) {
    if (theirs.build == own.build) return;
    throw InvalidArgument("rank " + std::to_string(peer) + " " + mismatch(theirs.build));
  });
  problem.resize(std::min(problem.size(), longest_problem));
  const auto problems = exchange(problem);
  for (int r = 0; r < world; ++r) {
    if (!problems[r].empty()) throw InvalidArgument("rank " + std::to_string(r) + ": " + problems[r]);
  }
  check_guards(endpoints);

  // Rank 0's. With RINGREDUCE_SECRET, the way in which the ranks found each other need not be trusted.
  const Digest secret = hmac_sha256(environment("RINGREDUCE_SECRET"),
                                    std::string_view(endpoints[0].secret, sizeof endpoints[0].secret));
  settings.membership = {rank, world, std::string(endpoints[0].group, sizeof endpoints[0].group),
                         std::string(secret.begin(), secret.end()), endpoints[0].guard};
  settings.oversubscribed = some_host_is_crowded(endpoints);
  settings.distant = std::any_of(endpoints.begin(), endpoints.end(),
                                 [&](const Endpoint& own) { return own.host != endpoints[0].host; });
  const auto here_too = [&](const Endpoint& other) { return other.host == endpoints[rank].host; };
  const auto together = std::count_if(endpoints.begin(), endpoints.end(), here_too);
  const auto here = own_addresses();
  for (const Endpoint& theirs : endpoints) {
    const std::vector<Address> addresses(
        theirs.addresses, theirs.addresses + std::min<std::size_t>(theirs.count, most_addresses));
    settings.addresses.push_back(order_to_try(addresses, here, here_too(theirs)));
  }
  // If all ranks are on this host, they use the loopback interface, and nothing else can connect.
  const bool loops = has_loopback(settings.addresses[rank]);
  std::erase_if(settings.listeners, [&](const Listener& listener) {
    return is_loopback(listener.address) ? together == 1 : together == world && loops;
  });
  return settings;
}

void TcpTransport::start() {
  Forks& forks = Forks::get();
  {
    const std::lock_guard lock(forks.mutex);
    forks.transports.insert(this);
  }
  meet_neighbours();
}

std::unique_ptr<TcpTransport> TcpTransport::create(int rank, int world, const Exchange& exchange,
                                                   std::optional<bool> encrypt) {
  std::unique_ptr<TcpTransport> transport(
      new TcpTransport("tcp", rank, world, meet(rank, world, exchange, encrypt)));
  transport->start();
  return transport;
}

}  // namespace ringreduce
