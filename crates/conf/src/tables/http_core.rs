//! The core of `http`: servers, locations, connections, files.

use super::*;

modules! {
    "ngx_http_module" {
        "http", MAIN, block(0, 0), ONCE, Emerg;
    }
    "ngx_http_copy_filter_module" {
        "output_buffers", HSL, BUFFERS, ONCE, Warn;
    }
    "ngx_http_core_module" {
        "variables_hash_max_size",       HTTP,            NUMBER,                ONCE, Warn;
        "variables_hash_bucket_size",    HTTP,            NUMBER,                ONCE, Warn;
        "server_names_hash_max_size",    HTTP,            NUMBER,                ONCE, Warn;
        "server_names_hash_bucket_size", HTTP,            NUMBER,                ONCE, Warn;
        "server",                        HTTP,            block(0, 0),           MANY, Emerg;
        "connection_pool_size",          HTTP_SERVER,     SIZE,                  ONCE, Warn;
        "request_pool_size",             HTTP_SERVER,     SIZE,                  ONCE, Warn;
        "client_header_timeout",         HTTP_SERVER,     MSEC,                  ONCE, Warn;
        "client_header_buffer_size",     HTTP_SERVER,     SIZE,                  ONCE, Warn;
        "large_client_header_buffers",   HTTP_SERVER,     BUFFERS,               ONCE, Warn;
        "max_headers",                   HTTP_SERVER,     NUMBER,                ONCE, Emerg;
        "ignore_invalid_headers",        HTTP_SERVER,     FLAG,                  ONCE, UNLESS_ON;
        "merge_slashes",                 HTTP_SERVER,     FLAG,                  ONCE, UNLESS_ON;
        "underscores_in_headers",        HTTP_SERVER,     FLAG,                  ONCE, UNLESS_OFF;
        "location",                      SERVER_LOCATION, block(1, 2),           MANY, Emerg;
        "listen",                        SERVER,          args(1, MORE),         MANY, Emerg;
        "server_name",                   SERVER,          args(1, MORE),         MANY, Emerg;
        "types_hash_max_size",           HSL,             NUMBER,                ONCE, Warn;
        "types_hash_bucket_size",        HSL,             NUMBER,                ONCE, Warn;
        "types",                         HSL,             lines(0, 0),           MANY, Emerg;
        "default_type",                  HSL,             ONE,                   ONCE, Emerg;
        "root",                          HSL_IF,          ONE,                   ONCE, Emerg;
        "alias",                         LOCATION,        ONE,                   ONCE, Emerg;
        "limit_except",                  LOCATION,        block(1, MORE),        MANY, Emerg;
        "client_max_body_size",          HSL,             OFFSET,                ONCE, Emerg;
        "client_body_buffer_size",       HSL,             SIZE,                  ONCE, Warn;
        "client_body_timeout",           HSL,             MSEC,                  ONCE, Warn;
        "client_body_temp_path",         HSL,             args(1, 4),            ONCE, Warn;
        "client_body_in_file_only",      HSL,             one_of(IN_FILE),       ONCE, UNLESS_OFF;
        "client_body_in_single_buffer",  HSL,             FLAG,                  ONCE, Warn;
        "client_body_early_read",        HTTP_SERVER,     args(1, MORE),         MANY, Warn;
        "sendfile",                      HSL_IF,          FLAG,                  ONCE, Warn;
        "sendfile_max_chunk",            HSL,             SIZE,                  ONCE, Warn;
        "subrequest_output_buffer_size", HSL,             SIZE,                  ONCE, Warn;
        "aio",                           HSL,             ONE,                   ONCE, Warn;
        "aio_write",                     HSL,             FLAG,                  ONCE, Warn;
        "read_ahead",                    HSL,             SIZE,                  ONCE, Warn;
        "directio",                      HSL,             ONE,                   ONCE, Warn;
        "directio_alignment",            HSL,             OFFSET,                ONCE, Warn;
        "tcp_nopush",                    HSL,             FLAG,                  ONCE, Warn;
        "tcp_nodelay",                   HSL,             FLAG,                  ONCE, Warn;
        "send_timeout",                  HSL,             MSEC,                  ONCE, Warn;
        "send_lowat",                    HSL,             SIZE,                  ONCE, Warn;
        "postpone_output",               HSL,             SIZE,                  ONCE, Warn;
        "limit_rate",                    HSL_IF,          RATE,                  ONCE, Warn;
        "limit_rate_after",              HSL_IF,          RATE,                  ONCE, Warn;
        "keepalive_time",                HSL,             MSEC,                  ONCE, Warn;
        "keepalive_timeout",             HSL,             args(1, 2),            ONCE, Warn;
        "keepalive_min_timeout",         HSL,             MSEC,                  ONCE, Warn;
        "keepalive_requests",            HSL,             NUMBER,                ONCE, Warn;
        "keepalive_disable",             HSL,             up_to(2, BROWSERS),    MANY, Warn;
        "satisfy",                       HSL,             one_of(ALL_ANY),       ONCE, UNLESS_ALL;
        "auth_delay",                    HSL,             MSEC,                  ONCE, Emerg;
        "internal",                      LOCATION,        NO_ARGS,               ONCE, Emerg;
        "lingering_close",               HSL,             one_of(OFF_ON_ALWAYS), ONCE, Warn;
        "lingering_time",                HSL,             MSEC,                  ONCE, Warn;
        "lingering_timeout",             HSL,             MSEC,                  ONCE, Warn;
        "reset_timedout_connection",     HSL,             FLAG,                  ONCE, Warn;
        "absolute_redirect",             HSL,             FLAG,                  ONCE, UNLESS_ON;
        "server_name_in_redirect",       HSL,             FLAG,                  ONCE, UNLESS_OFF;
        "port_in_redirect",              HSL,             FLAG,                  ONCE, UNLESS_ON;
        "msie_padding",                  HSL,             FLAG,                  ONCE, Warn;
        "msie_refresh",                  HSL,             FLAG,                  ONCE, Warn;
        "log_not_found",                 HSL,             FLAG,                  ONCE, Warn;
        "log_subrequest",                HSL,             FLAG,                  ONCE, Warn;
        "recursive_error_pages",         HSL,             FLAG,                  ONCE, UNLESS_OFF;
        "server_tokens",                 HSL,             one_of(SERVER_TOKENS), ONCE, Emerg;
        "if_modified_since",             HSL,             one_of(IF_MODIFIED),   ONCE, Emerg;
        "max_ranges",                    HSL,             NUMBER,                ONCE, Emerg;
        "chunked_transfer_encoding",     HSL,             FLAG,                  ONCE, UNLESS_ON;
        "etag",                          HSL,             FLAG,                  ONCE, UNLESS_ON;
        "early_hints",                   HSL,             args(1, MORE),         MANY, Emerg;
        "error_page",                    HSL_IF,          args(2, MORE),         MANY, Emerg;
        "post_action",                   HSL_IF,          ONE,                   ONCE, Emerg;
        "error_log",                     HSL,             args(1, MORE),         MANY, Warn;
        "open_file_cache",               HSL,             args(1, 2),            ONCE, Warn;
        "open_file_cache_valid",         HSL,             SEC,                   ONCE, Warn;
        "open_file_cache_min_uses",      HSL,             NUMBER,                ONCE, Warn;
        "open_file_cache_errors",        HSL,             FLAG,                  ONCE, Warn;
        "open_file_cache_events",        HSL,             FLAG,                  ONCE, Warn;
        "resolver",                      HSL,             args(1, MORE),         ONCE, Emerg;
        "resolver_timeout",              HSL,             MSEC,                  ONCE, Warn;
        "gzip_vary",                     HSL,             FLAG,                  ONCE, Warn;
        "gzip_http_version",             HSL,             one_of(GZIP_VERSIONS), ONCE, Warn;
        "gzip_proxied",                  HSL,             any_of(GZIP_PROXIED),  MANY, Warn;
        "gzip_disable",                  HSL,             args(1, MORE),         MANY, Warn;
        "disable_symlinks",              HSL,             args(1, 2),            ONCE, UNLESS_OFF;
    }
}
