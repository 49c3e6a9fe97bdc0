#include "transport/tcp/tls.h"

#include <dlfcn.h>
#include <signal.h>

#include <algorithm>
#include <cstring>

#include "transport/interface/errors.h"
#include "transport/tcp/openssl.h"

namespace ringreduce {
namespace {

const OpenSsl& openssl() {
  static const OpenSsl loaded;
  return loaded;
}

// The key of a connection.
unsigned key_of_server(ssl_st* ssl, const char*, unsigned char* key, unsigned most) {
  const auto& known = *static_cast<const Digest*>(openssl().SSL_get_ex_data(ssl, 0));
  if (most < known.size()) return 0;
  std::copy(known.begin(), known.end(), key);
  return static_cast<unsigned>(known.size());
}

unsigned key_of_client(ssl_st* ssl, const char*, char* identity, unsigned most_identity, unsigned char* key,
                       unsigned most) {
  constexpr char name[] = "ringreduce";
  if (most_identity < sizeof name) return 0;
  std::memcpy(identity, name, sizeof name);
  return key_of_server(ssl, nullptr, key, most);
}

}  // namespace

// The library stays loaded.
OpenSsl::OpenSsl() {
  void* library = nullptr;
  for (const char* name : {"libssl.so.3", "libssl.so.1.1"}) {
    if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  }
  if (!library) {
    throw Error(std::string("TLS is enabled, but OpenSSL cannot be loaded (") + dlerror() +
                "): install libssl 3 or 1.1.1");
  }
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function) throw Error(std::string("TLS is enabled, but this OpenSSL has no ") + name);
  };
#define RINGREDUCE_FIND(result, name, arguments) find(name, #name);
  RINGREDUCE_OPENSSL(RINGREDUCE_FIND)
#undef RINGREDUCE_FIND
  context = SSL_CTX_new(TLS_method());
  // No ticket, which would stay unread on a connection that sends one way only.
  const bool set = context && SSL_CTX_ctrl(context, ctrl_set_min_version, version_1_3, nullptr) == 1 &&
                   SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1 &&
                   SSL_CTX_set_num_tickets(context, 0) == 1;
  if (!set) throw Error("TLS is enabled, but this OpenSSL does not support TLS 1.3");
  SSL_CTX_set_options(context, enable_ktls | ignore_unexpected_eof | no_renegotiation);
  SSL_CTX_ctrl(context, ctrl_mode, mode_moving_buffer, nullptr);
  SSL_CTX_set_psk_client_callback(context, key_of_client);
  SSL_CTX_set_psk_server_callback(context, key_of_server);
}

namespace {

// OpenSSL's writes to sockets raise SIGPIPE if the other end is gone. Python ignores that signal anyway.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    struct sigaction action;
    sigaction(SIGPIPE, nullptr, &action);
    if (action.sa_handler == SIG_IGN) return;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
    blocked_ = true;
  }
  ~WithoutSigpipe() {
    if (!blocked_) return;
    const int error = errno;
    const timespec now{};
    if (!sigismember(&before_, SIGPIPE)) sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }

 private:
  sigset_t pipe_, before_;
  bool blocked_ = false;
};

}  // namespace

// --- a connection ------------------------------------------------------------------------------------------

void TlsChannel::load() {
  openssl();
}

TlsChannel::TlsChannel(int fd, bool begins, const Digest& key) : key_(key) {
  const OpenSsl& o = openssl();
  ssl_ = o.SSL_new(o.context);
  if (!ssl_ || o.SSL_set_fd(ssl_, fd) != 1 || o.SSL_set_ex_data(ssl_, 0, &key_) != 1) {
    o.SSL_free(ssl_);
    throw Error("OpenSSL has no memory left");
  }
  // An end without the key could only show a certificate, and none is accepted. The other end has none to
  // show.
  if (begins) o.SSL_set_verify(ssl_, verify_peer, nullptr);
  (begins ? o.SSL_set_connect_state : o.SSL_set_accept_state)(ssl_);
}

TlsChannel::~TlsChannel() {
  openssl().SSL_free(ssl_);
}

// Returns -1 and sets errno, or 0 if the other end has hung up.
int TlsChannel::fail(int result) {
  const OpenSsl& o = openssl();
  const int system = errno;
  const int kind = o.SSL_get_error(ssl_, result);
  const unsigned long error = o.ERR_peek_error();
  errno = EAGAIN;
  if (kind == want_read || kind == want_write) return -1;
  const bool hung_up = kind == closed || (kind == by_the_system && error == 0 && system == 0);
  if (hung_up) return 0;
  if (kind == by_the_system && error == 0) {
    errno = system;
    return -1;
  }
  const int reason = error & 0xfff;
  const bool told = reason >= first_alert && reason <= last_alert;
  const char* text = o.ERR_reason_error_string(error);
  why_ = text ? text : "unknown reason";
  errno = failed_ = !open_ ? unusable : told ? damaged_there : damaged_here;
  return -1;
}

// A handshake can succeed without the key.
int TlsChannel::open() {
  if (open_) return 1;
  const OpenSsl& o = openssl();
  const WithoutSigpipe guard;
  o.ERR_clear_error();
  errno = 0;
  const int result = o.SSL_do_handshake(ssl_);
  if (result != 1) {
    if (fail(result) == 0) errno = ECONNRESET;
    return -1;
  }
  if (o.SSL_session_reused(ssl_) != 1) {
    why_ = "the key was not used";
    errno = failed_ = unusable;
    return -1;
  }
  open_ = true;
  return 1;
}

bool TlsChannel::flush() {
  if (failed_ != 0) {
    errno = unusable;
    return false;
  }
  if (open() != 1) return false;
  if (held_ == 0) return true;
  const OpenSsl& o = openssl();
  const WithoutSigpipe guard;
  o.ERR_clear_error();
  errno = 0;
  const int result = o.SSL_write(ssl_, record_.data(), static_cast<int>(held_));
  if (result <= 0) {
    if (fail(result) == 0) errno = EPIPE;
    return false;
  }
  held_ = 0;
  renew_key();
  return true;
}

// AES-GCM is safe for some 2^24 records with one key (RFC 8446, 5.5). OpenSSL cannot renew a key that is in
// the kernel.
void TlsChannel::renew_key() {
  constexpr std::uint64_t records_per_key = 1 << 22;
  if (++records_ % records_per_key != 0) return;
  const OpenSsl& o = openssl();
  if (o.BIO_ctrl(o.SSL_get_wbio(ssl_), ctrl_ktls_send, 0, nullptr) > 0) return;
  o.SSL_key_update(ssl_, not_requested);
}

ssize_t TlsChannel::write(const iovec* pieces, std::size_t count) {
  if (!flush()) return -1;
  ssize_t taken = 0;
  std::size_t piece = 0, offset = 0;
  while (piece < count) {
    while (piece < count && held_ < record_bytes) {
      const std::size_t part = std::min(pieces[piece].iov_len - offset, record_bytes - held_);
      std::memcpy(record_.data() + held_, static_cast<const std::byte*>(pieces[piece].iov_base) + offset,
                  part);
      held_ += part;
      offset += part;
      if (offset < pieces[piece].iov_len) continue;
      ++piece;
      offset = 0;
    }
    taken += static_cast<ssize_t>(held_);
    if (!flush()) break;
  }
  return taken;
}

ssize_t TlsChannel::read(const iovec* pieces, std::size_t count) {
  if (failed_ != 0) {
    errno = failed_;
    return -1;
  }
  if (open() != 1) return errno == ECONNRESET ? 0 : -1;
  const OpenSsl& o = openssl();
  const WithoutSigpipe guard;
  ssize_t got = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t filled = 0; filled < pieces[i].iov_len;) {
      o.ERR_clear_error();
      errno = 0;
      const std::size_t room = std::min<std::size_t>(pieces[i].iov_len - filled, 1 << 30);
      const int result =
          o.SSL_read(ssl_, static_cast<std::byte*>(pieces[i].iov_base) + filled, static_cast<int>(room));
      if (result <= 0) {
        const int end = fail(result);
        return got > 0 ? got : end;
      }
      filled += static_cast<std::size_t>(result);
      got += result;
    }
  }
  return got;
}

std::size_t TlsChannel::unread() const {
  return static_cast<std::size_t>(openssl().SSL_pending(ssl_));
}

Digest tls_key(std::string_view secret, std::string_view use) {
  return hmac_sha256(secret, "TLS 1.3, " + std::string(use));
}

}  // namespace ringreduce
