// TLS 1.3 between two ends that have the same key, by the OpenSSL that is there when it is wanted.
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
  // Throws Error where there is no OpenSSL that serves.
  static void load();

  // One end begins, the other answers; the socket stays the caller's.
  TlsChannel(int fd, bool begins, const Digest& key);
  ~TlsChannel() override;
  TlsChannel(const TlsChannel&) = delete;
  TlsChannel& operator=(const TlsChannel&) = delete;

  // Others move it on, too, where it has not come to its end.
  int open() override;
  ssize_t write(const iovec* pieces, std::size_t count) override;
  ssize_t read(const iovec* pieces, std::size_t count) override;
  std::size_t holds() const override { return held_; }
  std::size_t unread() const override;
  std::string why() const override { return why_; }

 private:
  static constexpr std::size_t record_bytes = 16 << 10;  // the most that TLS has

  int fail(int result);
  bool flush();
  void renew_key();

  ssl_st* ssl_ = nullptr;
  Digest key_;
  const bool begins_;
  bool open_ = false;
  int failed_ = 0;  // errno, of what TLS itself does not go on after
  std::string why_;
  std::size_t held_ = 0;  // bytes of the record
  std::uint64_t records_ = 0;
  // OpenSSL wants a record that it could not send yet to be given again as it was, and frames may change.
  std::array<std::byte, record_bytes> record_;
};

// Of the proofs' secret, for one use.
Digest tls_key(std::string_view secret, std::string_view use);

}  // namespace ringreduce
