//! Answers from gRPC and memcached servers, tunnels.

use super::*;

modules! {
    "ngx_http_grpc_module" {
        "grpc_pass",                    LOCATION_IF, ONE,                     ONCE, Emerg;
        "grpc_bind",                    HSL,         args(1, 2),              ONCE, UNLESS_OFF;
        "grpc_socket_keepalive",        HSL,         FLAG,                    ONCE, Warn;
        "grpc_socket_rcvbuf",           HSL,         SIZE,                    ONCE, Warn;
        "grpc_socket_sndbuf",           HSL,         SIZE,                    ONCE, Warn;
        "grpc_connect_timeout",         HSL,         MSEC,                    ONCE, Warn;
        "grpc_send_timeout",            HSL,         MSEC,                    ONCE, Warn;
        "grpc_intercept_errors",        HSL,         FLAG,                    ONCE, UNLESS_OFF;
        "grpc_buffer_size",             HSL,         SIZE,                    ONCE, Warn;
        "grpc_read_timeout",            HSL,         MSEC,                    ONCE, Warn;
        "grpc_next_upstream",           HSL,         any_of(GRPC_FAILURES),   MANY, Emerg;
        "grpc_next_upstream_tries",     HSL,         NUMBER,                  ONCE, Warn;
        "grpc_next_upstream_timeout",   HSL,         MSEC,                    ONCE, Warn;
        "grpc_set_header",              HSL,         TWO,                     MANY, Emerg;
        "grpc_pass_header",             HSL,         ONE,                     MANY, Emerg;
        "grpc_hide_header",             HSL,         ONE,                     MANY, Emerg;
        "grpc_ignore_headers",          HSL,         any_of(IGNORED_HEADERS), MANY, Emerg;
        "grpc_ssl_session_reuse",       HSL,         FLAG,                    ONCE, Warn;
        "grpc_ssl_protocols",           HSL,         any_of(SSL_PROTOCOLS),   MANY, Emerg;
        "grpc_ssl_ciphers",             HSL,         ONE,                     ONCE, Emerg;
        "grpc_ssl_name",                HSL,         ONE,                     ONCE, Emerg;
        "grpc_ssl_server_name",         HSL,         FLAG,                    ONCE, UNLESS_OFF;
        "grpc_ssl_verify",              HSL,         FLAG,                    ONCE, UNLESS_OFF;
        "grpc_ssl_verify_depth",        HSL,         NUMBER,                  ONCE, Emerg;
        "grpc_ssl_trusted_certificate", HSL,         ONE,                     ONCE, Emerg;
        "grpc_ssl_crl",                 HSL,         ONE,                     ONCE, Emerg;
        "grpc_ssl_certificate",         HSL,         ONE,                     ONCE, Emerg;
        "grpc_ssl_certificate_key",     HSL,         ONE,                     ONCE, Emerg;
        "grpc_ssl_certificate_cache",   HSL,         args(1, 3),              ONCE, Warn;
        "grpc_ssl_password_file",       HSL,         ONE,                     ONCE, Emerg;
        "grpc_ssl_conf_command",        HSL,         TWO,                     MANY, Emerg;
    }
    "ngx_http_memcached_module" {
        "memcached_pass",                  LOCATION_IF, ONE,        ONCE, Emerg;
        "memcached_bind",                  HSL,         args(1, 2), ONCE, UNLESS_OFF;
        "memcached_socket_keepalive",      HSL,         FLAG,       ONCE, Warn;
        "memcached_connect_timeout",       HSL,         MSEC,       ONCE, Warn;
        "memcached_send_timeout",          HSL,         MSEC,       ONCE, Warn;
        "memcached_buffer_size",           HSL,         SIZE,       ONCE, Warn;
        "memcached_read_timeout",          HSL,         MSEC,       ONCE, Warn;
        "memcached_next_upstream",         HSL,         any_of(MEMCACHED_FAILURES), MANY, Emerg;
        "memcached_next_upstream_tries",   HSL,         NUMBER,     ONCE, Warn;
        "memcached_next_upstream_timeout", HSL,         MSEC,       ONCE, Warn;
        "memcached_gzip_flag",             HSL,         NUMBER,     ONCE, Emerg;
    }
    "ngx_http_tunnel_module" {
        "tunnel_pass",                  SERVER_LOCATION_IF, args(0, 1), ONCE, Emerg;
        "tunnel_bind",                  HSL,                args(1, 2), ONCE, UNLESS_OFF;
        "tunnel_socket_keepalive",      HSL,                FLAG,       ONCE, Warn;
        "tunnel_socket_rcvbuf",         HSL,                SIZE,       ONCE, Warn;
        "tunnel_socket_sndbuf",         HSL,                SIZE,       ONCE, Warn;
        "tunnel_connect_timeout",       HSL,                MSEC,       ONCE, Warn;
        "tunnel_send_timeout",          HSL,                MSEC,       ONCE, Warn;
        "tunnel_send_lowat",            HSL,                SIZE,       ONCE, Warn;
        "tunnel_buffer_size",           HSL,                SIZE,       ONCE, Warn;
        "tunnel_read_timeout",          HSL,                MSEC,       ONCE, Warn;
        "tunnel_next_upstream",         HSL,                any_of(TUNNEL_FAILURES), MANY, Emerg;
        "tunnel_next_upstream_tries",   HSL,                NUMBER,     ONCE, Warn;
        "tunnel_next_upstream_timeout", HSL,                MSEC,       ONCE, Warn;
    }
}
