//! Answers from SCGI servers.

use super::*;

modules! {
    "ngx_http_scgi_module" {
        "scgi_pass",                    LOCATION_IF, ONE,                      ONCE, Emerg;
        "scgi_store",                   HSL,         ONE,                      ONCE, UNLESS_OFF;
        "scgi_store_access",            HSL,         args(1, 3),               ONCE, Warn;
        "scgi_buffering",               HSL,         FLAG,                     ONCE, Warn;
        "scgi_request_buffering",       HSL,         FLAG,                     ONCE, Warn;
        "scgi_ignore_client_abort",     HSL,         FLAG,                     ONCE, Warn;
        "scgi_bind",                    HSL,         args(1, 2),               ONCE, UNLESS_OFF;
        "scgi_socket_keepalive",        HSL,         FLAG,                     ONCE, Warn;
        "scgi_socket_rcvbuf",           HSL,         SIZE,                     ONCE, Warn;
        "scgi_socket_sndbuf",           HSL,         SIZE,                     ONCE, Warn;
        "scgi_connect_timeout",         HSL,         MSEC,                     ONCE, Warn;
        "scgi_send_timeout",            HSL,         MSEC,                     ONCE, Warn;
        "scgi_buffer_size",             HSL,         SIZE,                     ONCE, Warn;
        "scgi_pass_request_headers",    HSL,         FLAG,                     ONCE, UNLESS_ON;
        "scgi_pass_request_body",       HSL,         FLAG,                     ONCE, UNLESS_ON;
        "scgi_intercept_errors",        HSL,         FLAG,                     ONCE, UNLESS_OFF;
        "scgi_read_timeout",            HSL,         MSEC,                     ONCE, Warn;
        "scgi_buffers",                 HSL,         BUFFERS,                  ONCE, Warn;
        "scgi_busy_buffers_size",       HSL,         SIZE,                     ONCE, Warn;
        "scgi_force_ranges",            HSL,         FLAG,                     ONCE, UNLESS_OFF;
        "scgi_limit_rate",              HSL,         RATE,                     ONCE, Warn;
        "scgi_cache",                   HSL,         ONE,                      ONCE, UNLESS_OFF;
        "scgi_cache_key",               HSL,         ONE,                      ONCE, Warn;
        "scgi_cache_path",              HTTP,        args(2, MORE),            MANY, Warn;
        "scgi_cache_bypass",            HSL,         args(1, MORE),            MANY, Warn;
        "scgi_no_cache",                HSL,         args(1, MORE),            MANY, Warn;
        "scgi_cache_valid",             HSL,         args(1, MORE),            MANY, Warn;
        "scgi_cache_min_uses",          HSL,         NUMBER,                   ONCE, Warn;
        "scgi_cache_max_range_offset",  HSL,         OFFSET,                   ONCE, Warn;
        "scgi_cache_use_stale",         HSL,         any_of(FASTCGI_FAILURES), MANY, Warn;
        "scgi_cache_methods",           HSL,         any_of(CACHE_METHODS),    MANY, Warn;
        "scgi_cache_lock",              HSL,         FLAG,                     ONCE, Warn;
        "scgi_cache_lock_timeout",      HSL,         MSEC,                     ONCE, Warn;
        "scgi_cache_lock_age",          HSL,         MSEC,                     ONCE, Warn;
        "scgi_cache_revalidate",        HSL,         FLAG,                     ONCE, Warn;
        "scgi_cache_background_update", HSL,         FLAG,                     ONCE, Warn;
        "scgi_temp_path",               HSL,         args(1, 4),               ONCE, Warn;
        "scgi_max_temp_file_size",      HSL,         SIZE,                     ONCE, Warn;
        "scgi_temp_file_write_size",    HSL,         SIZE,                     ONCE, Warn;
        "scgi_next_upstream",           HSL,         any_of(FASTCGI_FAILURES), MANY, Emerg;
        "scgi_next_upstream_tries",     HSL,         NUMBER,                   ONCE, Warn;
        "scgi_next_upstream_timeout",   HSL,         MSEC,                     ONCE, Warn;
        "scgi_param",                   HSL,         args(2, 3),               MANY, Emerg;
        "scgi_pass_header",             HSL,         ONE,                      MANY, Emerg;
        "scgi_hide_header",             HSL,         ONE,                      MANY, Emerg;
        "scgi_ignore_headers",          HSL,         any_of(IGNORED_HEADERS),  MANY, Emerg;
    }
}
