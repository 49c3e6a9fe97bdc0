// TLS 1.3 between two ends that share a key, with the installed OpenSSL, loaded when needed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "transport/tcp/channel.h"
#include "transport/tcp/secret.h"

struct ssl_st;  // OpenSSL's

namespace ringreduce {

class TlsChannel : public Channel {
 public:
  // Throws Error if there is no usable OpenSSL.
  static void load();

  // One end begins, the other answers. The caller keeps the socket.
  TlsChannel(int fd, bool begins, const Digest& key);
  ~TlsChannel() override;
  TlsChannel(const TlsChannel&) = delete;
  TlsChannel& operator=(const TlsChannel&) = delete;

  // Other calls also move it on if it has not finished.
  int open() override;
  ssize_t write(const iovec* pieces, std::size_t count) override;
  ssize_t read(const iovec* pieces, std::size_t count) override;
  std::size_t holds() const override { return held_; }
  std::size_t unread() const override;
  std::string why() const override { return why_; }

 private:
  static constexpr std::size_t record_bytes = 16 << 10;  // the maximum in TLS

  int fail(int result);
  bool flush();
  void renew_key();

  ssl_st* ssl_ = nullptr;
  Digest key_;
  bool open_ = false;
  int failed_ = 0;  // errno after which TLS cannot continue
  std::string why_;
  std::size_t held_ = 0;  // bytes of the record
  std::uint64_t records_ = 0;
  // OpenSSL wants a record that it could not send to be passed again unchanged, but frames may change.
  std::array<std::byte, record_bytes> record_;
};

// Derived from the proofs' secret, for one use.
Digest tls_key(std::string_view secret, std::string_view use);

}  // namespace ringreduce
