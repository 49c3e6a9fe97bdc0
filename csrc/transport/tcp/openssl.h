// The parts of OpenSSL that are used.
#pragma once

#include <cstddef>
#include <cstdint>

struct ssl_st;
struct ssl_ctx_st;
struct bio_st;

namespace ringreduce {

// From its headers, which need not be installed; unchanged since 1.1.1.
constexpr int version_1_3 = 0x0304;
constexpr int ctrl_set_min_version = 123, ctrl_mode = 33, ctrl_ktls_send = 73;
constexpr long mode_moving_buffer = 2;
constexpr std::uint64_t enable_ktls = 1 << 3, ignore_unexpected_eof = 1 << 7, no_renegotiation = 1 << 30;
constexpr int verify_peer = 1;
constexpr int want_read = 2, want_write = 3, by_the_system = 5, closed = 6;
constexpr int first_alert = 1000, last_alert = 1255;  // reasons that are alerts from the other end
constexpr int not_requested = 0;

using ClientKey = unsigned (*)(ssl_st*, const char* hint, char* identity, unsigned most_identity,
                               unsigned char* key, unsigned most_key);
using ServerKey = unsigned (*)(ssl_st*, const char* identity, unsigned char* key, unsigned most_key);

// F(result, name, arguments)
// clang-format off
#define RINGREDUCE_OPENSSL(F) \
  F(const void*, TLS_method, ()) \
  F(ssl_ctx_st*, SSL_CTX_new, (const void*)) \
  F(long, SSL_CTX_ctrl, (ssl_ctx_st*, int, long, void*)) \
  F(std::uint64_t, SSL_CTX_set_options, (ssl_ctx_st*, std::uint64_t)) \
  F(int, SSL_CTX_set_ciphersuites, (ssl_ctx_st*, const char*)) \
  F(int, SSL_CTX_set_num_tickets, (ssl_ctx_st*, std::size_t)) \
  F(void, SSL_CTX_set_psk_client_callback, (ssl_ctx_st*, ClientKey)) \
  F(void, SSL_CTX_set_psk_server_callback, (ssl_ctx_st*, ServerKey)) \
  F(ssl_st*, SSL_new, (ssl_ctx_st*)) \
  F(void, SSL_free, (ssl_st*)) \
  F(int, SSL_set_fd, (ssl_st*, int)) \
  F(int, SSL_set_ex_data, (ssl_st*, int, void*)) \
  F(void*, SSL_get_ex_data, (const ssl_st*, int)) \
  F(void, SSL_set_verify, (ssl_st*, int, void*)) \
  F(void, SSL_set_connect_state, (ssl_st*)) \
  F(void, SSL_set_accept_state, (ssl_st*)) \
  F(int, SSL_do_handshake, (ssl_st*)) \
  F(int, SSL_session_reused, (const ssl_st*)) \
  F(int, SSL_read, (ssl_st*, void*, int)) \
  F(int, SSL_write, (ssl_st*, const void*, int)) \
  F(int, SSL_pending, (const ssl_st*)) \
  F(int, SSL_get_error, (const ssl_st*, int)) \
  F(int, SSL_key_update, (ssl_st*, int)) \
  F(bio_st*, SSL_get_wbio, (const ssl_st*)) \
  F(long, BIO_ctrl, (bio_st*, int, long, void*)) \
  F(unsigned long, ERR_peek_error, ()) \
  F(void, ERR_clear_error, ()) \
  F(const char*, ERR_reason_error_string, (unsigned long))
// clang-format on

struct OpenSsl {
#define RINGREDUCE_DECLARE(result, name, arguments) result(*name) arguments;
  RINGREDUCE_OPENSSL(RINGREDUCE_DECLARE)
#undef RINGREDUCE_DECLARE
  ssl_ctx_st* context = nullptr;

  // Loads it; throws Error if it is missing or unusable.
  OpenSsl();
};

}  // namespace ringreduce
