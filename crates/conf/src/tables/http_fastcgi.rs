//! Answers from FastCGI servers.

use super::*;

modules! {
    "ngx_http_fastcgi_module" {
        "fastcgi_pass",                    LOCATION_IF, ONE,                      ONCE, Emerg;
        "fastcgi_index",                   HSL,         ONE,                      ONCE, Emerg;
        "fastcgi_split_path_info",         HSL,         ONE,                      MANY, Emerg;
        "fastcgi_store",                   HSL,         ONE,                      ONCE, UNLESS_OFF;
        "fastcgi_store_access",            HSL,         args(1, 3),               ONCE, Warn;
        "fastcgi_buffering",               HSL,         FLAG,                     ONCE, Warn;
        "fastcgi_request_buffering",       HSL,         FLAG,                     ONCE, Warn;
        "fastcgi_ignore_client_abort",     HSL,         FLAG,                     ONCE, Warn;
        "fastcgi_bind",                    HSL,         args(1, 2),               ONCE, UNLESS_OFF;
        "fastcgi_socket_keepalive",        HSL,         FLAG,                     ONCE, Warn;
        "fastcgi_socket_rcvbuf",           HSL,         SIZE,                     ONCE, Warn;
        "fastcgi_socket_sndbuf",           HSL,         SIZE,                     ONCE, Warn;
        "fastcgi_connect_timeout",         HSL,         MSEC,                     ONCE, Warn;
        "fastcgi_send_timeout",            HSL,         MSEC,                     ONCE, Warn;
        "fastcgi_send_lowat",              HSL,         SIZE,                     ONCE, Warn;
        "fastcgi_buffer_size",             HSL,         SIZE,                     ONCE, Warn;
        "fastcgi_pass_request_headers",    HSL,         FLAG,                     ONCE, UNLESS_ON;
        "fastcgi_pass_request_body",       HSL,         FLAG,                     ONCE, UNLESS_ON;
        "fastcgi_intercept_errors",        HSL,         FLAG,                     ONCE, UNLESS_OFF;
        "fastcgi_read_timeout",            HSL,         MSEC,                     ONCE, Warn;
        "fastcgi_buffers",                 HSL,         BUFFERS,                  ONCE, Warn;
        "fastcgi_busy_buffers_size",       HSL,         SIZE,                     ONCE, Warn;
        "fastcgi_force_ranges",            HSL,         FLAG,                     ONCE, UNLESS_OFF;
        "fastcgi_limit_rate",              HSL,         RATE,                     ONCE, Warn;
        "fastcgi_cache",                   HSL,         ONE,                      ONCE, UNLESS_OFF;
        "fastcgi_cache_key",               HSL,         ONE,                      ONCE, Warn;
        "fastcgi_cache_path",              HTTP,        args(2, MORE),            MANY, Warn;
        "fastcgi_cache_bypass",            HSL,         args(1, MORE),            MANY, Warn;
        "fastcgi_no_cache",                HSL,         args(1, MORE),            MANY, Warn;
        "fastcgi_cache_valid",             HSL,         args(1, MORE),            MANY, Warn;
        "fastcgi_cache_min_uses",          HSL,         NUMBER,                   ONCE, Warn;
        "fastcgi_cache_max_range_offset",  HSL,         OFFSET,                   ONCE, Warn;
        "fastcgi_cache_use_stale",         HSL,         any_of(FASTCGI_FAILURES), MANY, Warn;
        "fastcgi_cache_methods",           HSL,         any_of(CACHE_METHODS),    MANY, Warn;
        "fastcgi_cache_lock",              HSL,         FLAG,                     ONCE, Warn;
        "fastcgi_cache_lock_timeout",      HSL,         MSEC,                     ONCE, Warn;
        "fastcgi_cache_lock_age",          HSL,         MSEC,                     ONCE, Warn;
        "fastcgi_cache_revalidate",        HSL,         FLAG,                     ONCE, Warn;
        "fastcgi_cache_background_update", HSL,         FLAG,                     ONCE, Warn;
        "fastcgi_temp_path",               HSL,         args(1, 4),               ONCE, Warn;
        "fastcgi_max_temp_file_size",      HSL,         SIZE,                     ONCE, Warn;
        "fastcgi_temp_file_write_size",    HSL,         SIZE,                     ONCE, Warn;
        "fastcgi_next_upstream",           HSL,         any_of(FASTCGI_FAILURES), MANY, Emerg;
        "fastcgi_next_upstream_tries",     HSL,         NUMBER,                   ONCE, Warn;
        "fastcgi_next_upstream_timeout",   HSL,         MSEC,                     ONCE, Warn;
        "fastcgi_param",                   HSL,         args(2, 3),               MANY, Emerg;
        "fastcgi_pass_header",             HSL,         ONE,                      MANY, Emerg;
        "fastcgi_hide_header",             HSL,         ONE,                      MANY, Emerg;
        "fastcgi_ignore_headers",          HSL,         any_of(IGNORED_HEADERS),  MANY, Emerg;
        "fastcgi_catch_stderr",            HSL,         ONE,                      MANY, Emerg;
        "fastcgi_keep_conn",               HSL,         FLAG,                     ONCE, Warn;
    }
}
