//! TLS, HTTP/2, HTTP/3. Settings of TLS only warn. What would serve without TLS, `listen ... ssl`
//! and `proxy_pass https://`, is refused at its own line.

use super::*;

modules! {
    "ngx_http_ssl_module" {
        "ssl_certificate",             HTTP_SERVER, ONE,                   MANY, Warn;
        "ssl_certificate_key",         HTTP_SERVER, ONE,                   MANY, Warn;
        "ssl_certificate_cache",       HTTP_SERVER, args(1, 3),            ONCE, Warn;
        "ssl_ech_file",                HTTP_SERVER, ONE,                   MANY, Warn;
        "ssl_password_file",           HTTP_SERVER, ONE,                   ONCE, Warn;
        "ssl_certificate_compression", HTTP_SERVER, FLAG,                  ONCE, Warn;
        "ssl_dhparam",                 HTTP_SERVER, ONE,                   ONCE, Warn;
        "ssl_ecdh_curve",              HTTP_SERVER, ONE,                   ONCE, Warn;
        "ssl_protocols",               HTTP_SERVER, any_of(SSL_PROTOCOLS), MANY, Warn;
        "ssl_ciphers",                 HTTP_SERVER, ONE,                   ONCE, Warn;
        "ssl_buffer_size",             HTTP_SERVER, SIZE,                  ONCE, Warn;
        "ssl_verify_client",           HTTP_SERVER, one_of(VERIFY_CLIENT), ONCE, UNLESS_OFF;
        "ssl_verify_depth",            HTTP_SERVER, NUMBER,                ONCE, Warn;
        "ssl_client_certificate",      HTTP_SERVER, ONE,                   ONCE, Warn;
        "ssl_trusted_certificate",     HTTP_SERVER, ONE,                   ONCE, Warn;
        "ssl_prefer_server_ciphers",   HTTP_SERVER, FLAG,                  ONCE, Warn;
        "ssl_session_cache",           HTTP_SERVER, args(1, 2),            MANY, Warn;
        "ssl_session_tickets",         HTTP_SERVER, FLAG,                  ONCE, Warn;
        "ssl_session_ticket_key",      HTTP_SERVER, ONE,                   MANY, Warn;
        "ssl_session_timeout",         HTTP_SERVER, SEC,                   ONCE, Warn;
        "ssl_crl",                     HTTP_SERVER, ONE,                   ONCE, Warn;
        "ssl_ocsp",                    HTTP_SERVER, one_of(OCSP),          ONCE, UNLESS_OFF;
        "ssl_ocsp_responder",          HTTP_SERVER, ONE,                   ONCE, Warn;
        "ssl_ocsp_cache",              HTTP_SERVER, ONE,                   ONCE, Warn;
        "ssl_stapling",                HTTP_SERVER, FLAG,                  ONCE, Warn;
        "ssl_stapling_file",           HTTP_SERVER, ONE,                   ONCE, Warn;
        "ssl_stapling_responder",      HTTP_SERVER, ONE,                   ONCE, Warn;
        "ssl_stapling_verify",         HTTP_SERVER, FLAG,                  ONCE, Warn;
        "ssl_early_data",              HTTP_SERVER, FLAG,                  ONCE, Warn;
        "ssl_conf_command",            HTTP_SERVER, TWO,                   MANY, Emerg;
        "ssl_reject_handshake",        HTTP_SERVER, FLAG,                  ONCE, UNLESS_OFF;
    }
    "ngx_http_v2_module" {
        "http2",                        HTTP_SERVER, FLAG,   ONCE, Warn;
        "http2_recv_buffer_size",       HTTP,        SIZE,   ONCE, Warn;
        "http2_pool_size",              HTTP_SERVER, SIZE,   ONCE, Warn;
        "http2_max_concurrent_streams", HTTP_SERVER, NUMBER, ONCE, Warn;
        "http2_max_concurrent_pushes",  HTTP_SERVER, ONE,    MANY, Warn;
        "http2_max_requests",           HTTP_SERVER, ONE,    MANY, Warn;
        "http2_max_field_size",         HTTP_SERVER, ONE,    MANY, Warn;
        "http2_max_header_size",        HTTP_SERVER, ONE,    MANY, Warn;
        "http2_body_preread_size",      HTTP_SERVER, SIZE,   ONCE, Warn;
        "http2_streams_index_size",     HTTP_SERVER, NUMBER, ONCE, Warn;
        "http2_recv_timeout",           HTTP_SERVER, ONE,    MANY, Warn;
        "http2_idle_timeout",           HTTP_SERVER, ONE,    MANY, Warn;
        "http2_chunk_size",             HSL,         SIZE,   ONCE, Warn;
        "http2_push_preload",           HSL,         ONE,    MANY, Warn;
        "http2_push",                   HSL,         ONE,    MANY, Warn;
    }
    "ngx_http_v3_module" {
        "http3",                           HTTP_SERVER, FLAG,   ONCE, Warn;
        "http3_hq",                        HTTP_SERVER, FLAG,   ONCE, Warn;
        "http3_max_concurrent_streams",    HTTP_SERVER, NUMBER, ONCE, Warn;
        "http3_stream_buffer_size",        HTTP_SERVER, SIZE,   ONCE, Warn;
        "quic_retry",                      HTTP_SERVER, FLAG,   ONCE, Warn;
        "quic_gso",                        HTTP_SERVER, FLAG,   ONCE, Warn;
        "quic_host_key",                   HTTP_SERVER, ONE,    ONCE, Warn;
        "quic_active_connection_id_limit", HTTP_SERVER, NUMBER, ONCE, Warn;
    }
}
