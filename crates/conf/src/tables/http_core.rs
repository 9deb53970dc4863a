//! The frame of `http`: servers, locations, connections, files.

use super::*;

modules! {
    "ngx_http_module" {
        "http", MAIN, block(0, 0), ONCE, Emerg;
    }
    "ngx_http_copy_filter_module" {
        "output_buffers", HSL, TWO, ONCE, Warn;
    }
    "ngx_http_core_module" {
        "variables_hash_max_size",       HTTP,            ONE,            ONCE, Warn;
        "variables_hash_bucket_size",    HTTP,            ONE,            ONCE, Warn;
        "server_names_hash_max_size",    HTTP,            ONE,            ONCE, Warn;
        "server_names_hash_bucket_size", HTTP,            ONE,            ONCE, Warn;
        "server",                        HTTP,            block(0, 0),    MANY, Emerg;
        "connection_pool_size",          HTTP_SERVER,     ONE,            ONCE, Warn;
        "request_pool_size",             HTTP_SERVER,     ONE,            ONCE, Warn;
        "client_header_timeout",         HTTP_SERVER,     ONE,            ONCE, Warn;
        "client_header_buffer_size",     HTTP_SERVER,     ONE,            ONCE, Warn;
        "large_client_header_buffers",   HTTP_SERVER,     TWO,            ONCE, Warn;
        "max_headers",                   HTTP_SERVER,     ONE,            ONCE, Emerg;
        "ignore_invalid_headers",        HTTP_SERVER,     FLAG,           ONCE, EmergUnless("on");
        "merge_slashes",                 HTTP_SERVER,     FLAG,           ONCE, EmergUnless("on");
        "underscores_in_headers",        HTTP_SERVER,     FLAG,           ONCE, EmergUnless("off");
        "location",                      SERVER_LOCATION, block(1, 2),    MANY, Emerg;
        "listen",                        SERVER,          args(1, MORE),  MANY, Emerg;
        "server_name",                   SERVER,          args(1, MORE),  MANY, Emerg;
        "types_hash_max_size",           HSL,             ONE,            ONCE, Warn;
        "types_hash_bucket_size",        HSL,             ONE,            ONCE, Warn;
        "types",                         HSL,             lines(0, 0),    MANY, Emerg;
        "default_type",                  HSL,             ONE,            ONCE, Emerg;
        "root",                          HSL_IF,          ONE,            MANY, Emerg;
        "alias",                         LOCATION,        ONE,            MANY, Emerg;
        "limit_except",                  LOCATION,        block(1, MORE), MANY, Emerg;
        "client_max_body_size",          HSL,             ONE,            ONCE, Emerg;
        "client_body_buffer_size",       HSL,             ONE,            ONCE, Warn;
        "client_body_timeout",           HSL,             ONE,            ONCE, Warn;
        "client_body_temp_path",         HSL,             args(1, 4),     ONCE, Warn;
        "client_body_in_file_only",      HSL,             ONE,            ONCE, EmergUnless("off");
        "client_body_in_single_buffer",  HSL,             FLAG,           ONCE, Warn;
        "client_body_early_read",        HTTP_SERVER,     args(1, MORE),  MANY, Warn;
        "sendfile",                      HSL_IF,          FLAG,           ONCE, Warn;
        "sendfile_max_chunk",            HSL,             ONE,            ONCE, Warn;
        "subrequest_output_buffer_size", HSL,             ONE,            ONCE, Warn;
        "aio",                           HSL,             ONE,            ONCE, Warn;
        "aio_write",                     HSL,             FLAG,           ONCE, Warn;
        "read_ahead",                    HSL,             ONE,            ONCE, Warn;
        "directio",                      HSL,             ONE,            ONCE, Warn;
        "directio_alignment",            HSL,             ONE,            ONCE, Warn;
        "tcp_nopush",                    HSL,             FLAG,           ONCE, Warn;
        "tcp_nodelay",                   HSL,             FLAG,           ONCE, Warn;
        "send_timeout",                  HSL,             ONE,            ONCE, Warn;
        "send_lowat",                    HSL,             ONE,            ONCE, Warn;
        "postpone_output",               HSL,             ONE,            ONCE, Warn;
        "limit_rate",                    HSL_IF,          ONE,            ONCE, Warn;
        "limit_rate_after",              HSL_IF,          ONE,            ONCE, Warn;
        "keepalive_time",                HSL,             ONE,            ONCE, Warn;
        "keepalive_timeout",             HSL,             args(1, 2),     ONCE, Warn;
        "keepalive_min_timeout",         HSL,             ONE,            ONCE, Warn;
        "keepalive_requests",            HSL,             ONE,            ONCE, Warn;
        "keepalive_disable",             HSL,             args(1, 2),     MANY, Warn;
        "satisfy",                       HSL,             ONE,            ONCE, EmergUnless("all");
        "auth_delay",                    HSL,             ONE,            ONCE, Emerg;
        "internal",                      LOCATION,        NO_ARGS,        ONCE, Emerg;
        "lingering_close",               HSL,             ONE,            ONCE, Warn;
        "lingering_time",                HSL,             ONE,            ONCE, Warn;
        "lingering_timeout",             HSL,             ONE,            ONCE, Warn;
        "reset_timedout_connection",     HSL,             FLAG,           ONCE, Warn;
        "absolute_redirect",             HSL,             FLAG,           ONCE, EmergUnless("on");
        "server_name_in_redirect",       HSL,             FLAG,           ONCE, EmergUnless("off");
        "port_in_redirect",              HSL,             FLAG,           ONCE, EmergUnless("on");
        "msie_padding",                  HSL,             FLAG,           ONCE, Warn;
        "msie_refresh",                  HSL,             FLAG,           ONCE, Warn;
        "log_not_found",                 HSL,             FLAG,           ONCE, Warn;
        "log_subrequest",                HSL,             FLAG,           ONCE, Warn;
        "recursive_error_pages",         HSL,             FLAG,           ONCE, EmergUnless("off");
        "server_tokens",                 HSL,             ONE,            ONCE, Emerg;
        "if_modified_since",             HSL,             ONE,            ONCE, Emerg;
        "max_ranges",                    HSL,             ONE,            ONCE, Emerg;
        "chunked_transfer_encoding",     HSL,             FLAG,           ONCE, EmergUnless("on");
        "etag",                          HSL,             FLAG,           ONCE, EmergUnless("on");
        "early_hints",                   HSL,             args(1, MORE),  MANY, Emerg;
        "error_page",                    HSL_IF,          args(2, MORE),  MANY, Emerg;
        "post_action",                   HSL_IF,          ONE,            ONCE, Emerg;
        "error_log",                     HSL,             args(1, MORE),  MANY, Warn;
        "open_file_cache",               HSL,             args(1, 2),     ONCE, Warn;
        "open_file_cache_valid",         HSL,             ONE,            ONCE, Warn;
        "open_file_cache_min_uses",      HSL,             ONE,            ONCE, Warn;
        "open_file_cache_errors",        HSL,             FLAG,           ONCE, Warn;
        "open_file_cache_events",        HSL,             FLAG,           ONCE, Warn;
        "resolver",                      HSL,             args(1, MORE),  ONCE, Emerg;
        "resolver_timeout",              HSL,             ONE,            ONCE, Warn;
        "gzip_vary",                     HSL,             FLAG,           ONCE, Warn;
        "gzip_http_version",             HSL,             ONE,            ONCE, Warn;
        "gzip_proxied",                  HSL,             args(1, MORE),  MANY, Warn;
        "gzip_disable",                  HSL,             args(1, MORE),  MANY, Warn;
        "disable_symlinks",              HSL,             args(1, 2),     ONCE, EmergUnless("off");
    }
}
