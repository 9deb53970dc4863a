//! Answers from gRPC and memcached servers, tunnels.

use super::*;

modules! {
    "ngx_http_grpc_module" {
        "grpc_pass",                    LOCATION_IF, ONE,           ONCE, Emerg;
        "grpc_bind",                    HSL,         args(1, 2),    ONCE, EmergUnless("off");
        "grpc_socket_keepalive",        HSL,         FLAG,          ONCE, Warn;
        "grpc_socket_rcvbuf",           HSL,         ONE,           ONCE, Warn;
        "grpc_socket_sndbuf",           HSL,         ONE,           ONCE, Warn;
        "grpc_connect_timeout",         HSL,         ONE,           ONCE, Warn;
        "grpc_send_timeout",            HSL,         ONE,           ONCE, Warn;
        "grpc_intercept_errors",        HSL,         FLAG,          ONCE, EmergUnless("off");
        "grpc_buffer_size",             HSL,         ONE,           ONCE, Warn;
        "grpc_read_timeout",            HSL,         ONE,           ONCE, Warn;
        "grpc_next_upstream",           HSL,         args(1, MORE), MANY, Emerg;
        "grpc_next_upstream_tries",     HSL,         ONE,           ONCE, Warn;
        "grpc_next_upstream_timeout",   HSL,         ONE,           ONCE, Warn;
        "grpc_set_header",              HSL,         TWO,           MANY, Emerg;
        "grpc_pass_header",             HSL,         ONE,           MANY, Emerg;
        "grpc_hide_header",             HSL,         ONE,           MANY, Emerg;
        "grpc_ignore_headers",          HSL,         args(1, MORE), MANY, Emerg;
        "grpc_ssl_session_reuse",       HSL,         FLAG,          ONCE, Warn;
        "grpc_ssl_protocols",           HSL,         args(1, MORE), MANY, Emerg;
        "grpc_ssl_ciphers",             HSL,         ONE,           ONCE, Emerg;
        "grpc_ssl_name",                HSL,         ONE,           ONCE, Emerg;
        "grpc_ssl_server_name",         HSL,         FLAG,          ONCE, EmergUnless("off");
        "grpc_ssl_verify",              HSL,         FLAG,          ONCE, EmergUnless("off");
        "grpc_ssl_verify_depth",        HSL,         ONE,           ONCE, Emerg;
        "grpc_ssl_trusted_certificate", HSL,         ONE,           ONCE, Emerg;
        "grpc_ssl_crl",                 HSL,         ONE,           ONCE, Emerg;
        "grpc_ssl_certificate",         HSL,         ONE,           ONCE, Emerg;
        "grpc_ssl_certificate_key",     HSL,         ONE,           ONCE, Emerg;
        "grpc_ssl_certificate_cache",   HSL,         args(1, 3),    ONCE, Warn;
        "grpc_ssl_password_file",       HSL,         ONE,           ONCE, Emerg;
        "grpc_ssl_conf_command",        HSL,         TWO,           MANY, Emerg;
    }
    "ngx_http_memcached_module" {
        "memcached_pass",                  LOCATION_IF, ONE,           ONCE, Emerg;
        "memcached_bind",                  HSL,         args(1, 2),    ONCE, EmergUnless("off");
        "memcached_socket_keepalive",      HSL,         FLAG,          ONCE, Warn;
        "memcached_connect_timeout",       HSL,         ONE,           ONCE, Warn;
        "memcached_send_timeout",          HSL,         ONE,           ONCE, Warn;
        "memcached_buffer_size",           HSL,         ONE,           ONCE, Warn;
        "memcached_read_timeout",          HSL,         ONE,           ONCE, Warn;
        "memcached_next_upstream",         HSL,         args(1, MORE), MANY, Emerg;
        "memcached_next_upstream_tries",   HSL,         ONE,           ONCE, Warn;
        "memcached_next_upstream_timeout", HSL,         ONE,           ONCE, Warn;
        "memcached_gzip_flag",             HSL,         ONE,           ONCE, Emerg;
    }
    "ngx_http_tunnel_module" {
        "tunnel_pass",                  SERVER_LOCATION_IF, args(0, 1),    ONCE, Emerg;
        "tunnel_bind",                  HSL,                args(1, 2),    ONCE, EmergUnless("off");
        "tunnel_socket_keepalive",      HSL,                FLAG,          ONCE, Warn;
        "tunnel_socket_rcvbuf",         HSL,                ONE,           ONCE, Warn;
        "tunnel_socket_sndbuf",         HSL,                ONE,           ONCE, Warn;
        "tunnel_connect_timeout",       HSL,                ONE,           ONCE, Warn;
        "tunnel_send_timeout",          HSL,                ONE,           ONCE, Warn;
        "tunnel_send_lowat",            HSL,                ONE,           ONCE, Warn;
        "tunnel_buffer_size",           HSL,                ONE,           ONCE, Warn;
        "tunnel_read_timeout",          HSL,                ONE,           ONCE, Warn;
        "tunnel_next_upstream",         HSL,                args(1, MORE), MANY, Emerg;
        "tunnel_next_upstream_tries",   HSL,                ONE,           ONCE, Warn;
        "tunnel_next_upstream_timeout", HSL,                ONE,           ONCE, Warn;
    }
}
