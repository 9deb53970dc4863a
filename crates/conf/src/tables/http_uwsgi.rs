//! Answers from uwsgi servers.

use super::*;

modules! {
    "ngx_http_uwsgi_module" {
        "uwsgi_pass",                    LOCATION_IF, ONE,                      ONCE, Emerg;
        "uwsgi_modifier1",               HSL,         within(0, 255),           ONCE, Emerg;
        "uwsgi_modifier2",               HSL,         within(0, 255),           ONCE, Emerg;
        "uwsgi_store",                   HSL,         ONE,                      ONCE, UNLESS_OFF;
        "uwsgi_store_access",            HSL,         args(1, 3),               ONCE, Warn;
        "uwsgi_buffering",               HSL,         FLAG,                     ONCE, Warn;
        "uwsgi_request_buffering",       HSL,         FLAG,                     ONCE, Warn;
        "uwsgi_ignore_client_abort",     HSL,         FLAG,                     ONCE, Warn;
        "uwsgi_bind",                    HSL,         args(1, 2),               ONCE, UNLESS_OFF;
        "uwsgi_socket_keepalive",        HSL,         FLAG,                     ONCE, Warn;
        "uwsgi_socket_rcvbuf",           HSL,         SIZE,                     ONCE, Warn;
        "uwsgi_socket_sndbuf",           HSL,         SIZE,                     ONCE, Warn;
        "uwsgi_connect_timeout",         HSL,         MSEC,                     ONCE, Warn;
        "uwsgi_send_timeout",            HSL,         MSEC,                     ONCE, Warn;
        "uwsgi_buffer_size",             HSL,         SIZE,                     ONCE, Warn;
        "uwsgi_pass_request_headers",    HSL,         FLAG,                     ONCE, UNLESS_ON;
        "uwsgi_pass_request_body",       HSL,         FLAG,                     ONCE, UNLESS_ON;
        "uwsgi_intercept_errors",        HSL,         FLAG,                     ONCE, UNLESS_OFF;
        "uwsgi_read_timeout",            HSL,         MSEC,                     ONCE, Warn;
        "uwsgi_buffers",                 HSL,         BUFFERS,                  ONCE, Warn;
        "uwsgi_busy_buffers_size",       HSL,         SIZE,                     ONCE, Warn;
        "uwsgi_force_ranges",            HSL,         FLAG,                     ONCE, UNLESS_OFF;
        "uwsgi_limit_rate",              HSL,         RATE,                     ONCE, Warn;
        "uwsgi_cache",                   HSL,         ONE,                      ONCE, UNLESS_OFF;
        "uwsgi_cache_key",               HSL,         ONE,                      ONCE, Warn;
        "uwsgi_cache_path",              HTTP,        args(2, MORE),            MANY, Warn;
        "uwsgi_cache_bypass",            HSL,         args(1, MORE),            MANY, Warn;
        "uwsgi_no_cache",                HSL,         args(1, MORE),            MANY, Warn;
        "uwsgi_cache_valid",             HSL,         args(1, MORE),            MANY, Warn;
        "uwsgi_cache_min_uses",          HSL,         NUMBER,                   ONCE, Warn;
        "uwsgi_cache_max_range_offset",  HSL,         OFFSET,                   ONCE, Warn;
        "uwsgi_cache_use_stale",         HSL,         any_of(FASTCGI_FAILURES), MANY, Warn;
        "uwsgi_cache_methods",           HSL,         any_of(CACHE_METHODS),    MANY, Warn;
        "uwsgi_cache_lock",              HSL,         FLAG,                     ONCE, Warn;
        "uwsgi_cache_lock_timeout",      HSL,         MSEC,                     ONCE, Warn;
        "uwsgi_cache_lock_age",          HSL,         MSEC,                     ONCE, Warn;
        "uwsgi_cache_revalidate",        HSL,         FLAG,                     ONCE, Warn;
        "uwsgi_cache_background_update", HSL,         FLAG,                     ONCE, Warn;
        "uwsgi_temp_path",               HSL,         args(1, 4),               ONCE, Warn;
        "uwsgi_max_temp_file_size",      HSL,         SIZE,                     ONCE, Warn;
        "uwsgi_temp_file_write_size",    HSL,         SIZE,                     ONCE, Warn;
        "uwsgi_next_upstream",           HSL,         any_of(FASTCGI_FAILURES), MANY, Emerg;
        "uwsgi_next_upstream_tries",     HSL,         NUMBER,                   ONCE, Warn;
        "uwsgi_next_upstream_timeout",   HSL,         MSEC,                     ONCE, Warn;
        "uwsgi_param",                   HSL,         args(2, 3),               MANY, Emerg;
        "uwsgi_string",                  HSL,         ONE,                      ONCE, Emerg;
        "uwsgi_pass_header",             HSL,         ONE,                      MANY, Emerg;
        "uwsgi_hide_header",             HSL,         ONE,                      MANY, Emerg;
        "uwsgi_ignore_headers",          HSL,         any_of(IGNORED_HEADERS),  MANY, Emerg;
        "uwsgi_ssl_session_reuse",       HSL,         FLAG,                     ONCE, Warn;
        "uwsgi_ssl_protocols",           HSL,         any_of(SSL_PROTOCOLS),    MANY, Emerg;
        "uwsgi_ssl_ciphers",             HSL,         ONE,                      ONCE, Emerg;
        "uwsgi_ssl_name",                HSL,         ONE,                      ONCE, Emerg;
        "uwsgi_ssl_server_name",         HSL,         FLAG,                     ONCE, UNLESS_OFF;
        "uwsgi_ssl_verify",              HSL,         FLAG,                     ONCE, UNLESS_OFF;
        "uwsgi_ssl_verify_depth",        HSL,         NUMBER,                   ONCE, Emerg;
        "uwsgi_ssl_trusted_certificate", HSL,         ONE,                      ONCE, Emerg;
        "uwsgi_ssl_crl",                 HSL,         ONE,                      ONCE, Emerg;
        "uwsgi_ssl_certificate",         HSL,         ONE,                      ONCE, Emerg;
        "uwsgi_ssl_certificate_key",     HSL,         ONE,                      ONCE, Emerg;
        "uwsgi_ssl_certificate_cache",   HSL,         args(1, 3),               ONCE, Warn;
        "uwsgi_ssl_password_file",       HSL,         ONE,                      ONCE, Emerg;
        "uwsgi_ssl_conf_command",        HSL,         TWO,                      MANY, Emerg;
    }
}
