//! Well-known third-party modules: Lua, echo, geoip2, headers-more, OpenTelemetry, Brotli,
//! Zstandard.

use super::*;

modules! {
    "ngx_stream_lua_module" {
        "lua_load_resty_core",          STREAM,      FLAG,   ONCE, Warn;
        "lua_sa_restart",               STREAM,      FLAG,   ONCE, Warn;
        "lua_regex_cache_max_entries",  STREAM,      ONE,    ONCE, Warn;
        "lua_regex_match_limit",        STREAM,      ONE,    ONCE, Warn;
        "lua_capture_error_log",        STREAM,      ONE,    ONCE, Warn;
        "lua_max_pending_timers",       STREAM,      ONE,    ONCE, Warn;
        "lua_max_running_timers",       STREAM,      ONE,    ONCE, Warn;
        "lua_package_path",             STREAM,      ONE,    ONCE, Emerg;
        "lua_package_cpath",            STREAM,      ONE,    ONCE, Emerg;
        "lua_shared_dict",              STREAM,      TWO,    MANY, Emerg;
        "lua_add_variable",             STREAM,      ONE,    MANY, Emerg;
        "preread_by_lua_no_postpone",   STREAM,      FLAG,   ONCE, Warn;
        "init_by_lua_block",            STREAM,      raw(0), ONCE, Emerg;
        "init_by_lua_file",             STREAM,      ONE,    ONCE, Emerg;
        "init_worker_by_lua_block",     STREAM,      raw(0), ONCE, Emerg;
        "init_worker_by_lua_file",      STREAM,      ONE,    ONCE, Emerg;
        "preread_by_lua_block",         STREAM_BOTH, raw(0), ONCE, Emerg;
        "preread_by_lua_file",          STREAM_BOTH, ONE,    ONCE, Emerg;
        "content_by_lua_block",         STREAM_SERVER, raw(0), ONCE, Emerg;
        "content_by_lua_file",          STREAM_SERVER, ONE,  ONCE, Emerg;
        "log_by_lua_block",             STREAM_BOTH, raw(0), ONCE, Emerg;
        "log_by_lua_file",              STREAM_BOTH, ONE,    ONCE, Emerg;
        "lua_code_cache",               STREAM_BOTH, FLAG,   ONCE, Warn;
        "lua_socket_log_errors",        STREAM_BOTH, FLAG,   ONCE, Warn;
        "lua_socket_connect_timeout",   STREAM_BOTH, ONE,    ONCE, Warn;
        "lua_socket_send_timeout",      STREAM_BOTH, ONE,    ONCE, Warn;
        "lua_socket_read_timeout",      STREAM_BOTH, ONE,    ONCE, Warn;
        "lua_socket_keepalive_timeout", STREAM_BOTH, ONE,    ONCE, Warn;
        "lua_socket_send_lowat",        STREAM_BOTH, ONE,    ONCE, Warn;
        "lua_socket_buffer_size",       STREAM_BOTH, ONE,    ONCE, Warn;
        "lua_socket_pool_size",         STREAM_BOTH, ONE,    ONCE, Warn;
        "lua_check_client_abort",       STREAM_BOTH, FLAG,   ONCE, Warn;
        "lua_ssl_protocols",            STREAM_BOTH, args(1, MORE), MANY, Emerg;
        "lua_ssl_ciphers",              STREAM_BOTH, ONE,    ONCE, Emerg;
        "lua_ssl_verify_depth",         STREAM_BOTH, ONE,    ONCE, Emerg;
        "lua_ssl_trusted_certificate",  STREAM_BOTH, ONE,    ONCE, Emerg;
        "lua_ssl_crl",                  STREAM_BOTH, ONE,    ONCE, Emerg;
        "lua_ssl_certificate",          STREAM_BOTH, ONE,    ONCE, Emerg;
        "lua_ssl_certificate_key",      STREAM_BOTH, ONE,    ONCE, Emerg;
        "lua_ssl_conf_command",         STREAM_BOTH, TWO,    MANY, Emerg;
        "balancer_by_lua_block",        STREAM_UPSTREAM, raw(0), ONCE, Emerg;
        "balancer_by_lua_file",         STREAM_UPSTREAM, ONE, ONCE, Emerg;
        "ssl_certificate_by_lua_block", STREAM_BOTH, raw(0), ONCE, Emerg;
        "ssl_certificate_by_lua_file",  STREAM_BOTH, ONE,    ONCE, Emerg;
        "ssl_client_hello_by_lua_block", STREAM_BOTH, raw(0), ONCE, Emerg;
        "ssl_client_hello_by_lua_file", STREAM_BOTH, ONE,    ONCE, Emerg;
    }

    "ngx_http_lua_module" {
        "lua_load_resty_core",                           HTTP,        FLAG,          ONCE, Warn;
        "lua_sa_restart",                                HTTP,        FLAG,          ONCE, Warn;
        "rewrite_by_lua_no_postpone",                    HTTP,        FLAG,          ONCE, Warn;
        "access_by_lua_no_postpone",                     HTTP,        FLAG,          ONCE, Warn;
        "precontent_by_lua_no_postpone",                 HTTP,        FLAG,          ONCE, Warn;
        "lua_capture_error_log",                         HTTP,        ONE,           ONCE, Warn;
        "lua_malloc_trim",                               HTTP,        ONE,           ONCE, Warn;
        "lua_thread_cache_max_entries",                  HTTP,        ONE,           ONCE, Warn;
        "lua_regex_cache_max_entries",                   HTTP,        ONE,           ONCE, Warn;
        "lua_regex_match_limit",                         HTTP,        ONE,           ONCE, Warn;
        "lua_max_pending_timers",                        HTTP,        ONE,           ONCE, Warn;
        "lua_max_running_timers",                        HTTP,        ONE,           ONCE, Warn;
        "lua_worker_thread_vm_pool_size",                HTTP,        ONE,           ONCE, Warn;
        "lua_package_path",                              HTTP,        ONE,           ONCE, Emerg;
        "lua_package_cpath",                             HTTP,        ONE,           ONCE, Emerg;
        "lua_shared_dict",                               HTTP,        TWO,           MANY, Emerg;
        "init_by_lua",                                   HTTP,        ONE,           ONCE, Emerg;
        "init_by_lua_file",                              HTTP,        ONE,           ONCE, Emerg;
        "init_worker_by_lua",                            HTTP,        ONE,           ONCE, Emerg;
        "init_worker_by_lua_file",                       HTTP,        ONE,           ONCE, Emerg;
        "exit_worker_by_lua_file",                       HTTP,        ONE,           ONCE, Emerg;
        "ssl_session_fetch_by_lua_file",                 HTTP,        ONE,           ONCE, Emerg;
        "ssl_session_store_by_lua_file",                 HTTP,        ONE,           ONCE, Emerg;
        "init_by_lua_block",                             HTTP,        raw(0),        ONCE, Emerg;
        "init_worker_by_lua_block",                      HTTP,        raw(0),        ONCE, Emerg;
        "exit_worker_by_lua_block",                      HTTP,        raw(0),        ONCE, Emerg;
        "ssl_session_fetch_by_lua_block",                HTTP,        raw(0),        ONCE, Emerg;
        "ssl_session_store_by_lua_block",                HTTP,        raw(0),        ONCE, Emerg;
        "ssl_client_hello_by_lua_file",                  HTTP_SERVER, ONE,           ONCE, Emerg;
        "ssl_certificate_by_lua_file",                   HTTP_SERVER, ONE,           ONCE, Emerg;
        "server_rewrite_by_lua_file",                    HTTP_SERVER, ONE,           ONCE, Emerg;
        "ssl_client_hello_by_lua_block",                 HTTP_SERVER, raw(0),        ONCE, Emerg;
        "ssl_certificate_by_lua_block",                  HTTP_SERVER, raw(0),        ONCE, Emerg;
        "server_rewrite_by_lua_block",                   HTTP_SERVER, raw(0),        ONCE, Emerg;
        "set_by_lua",                                    REWRITE,     args(2, MORE), MANY, Emerg;
        "set_by_lua_file",                               REWRITE,     args(2, MORE), MANY, Emerg;
        "set_by_lua_block",                              REWRITE,     raw(1),        MANY, Emerg;
        "content_by_lua",                                LOCATION_IF, ONE,           ONCE, Emerg;
        "content_by_lua_file",                           LOCATION_IF, ONE,           ONCE, Emerg;
        "content_by_lua_block",                          LOCATION_IF, raw(0),        ONCE, Emerg;
        "rewrite_by_lua",                                HSL_IF,      ONE,           ONCE, Emerg;
        "rewrite_by_lua_file",                           HSL_IF,      ONE,           ONCE, Emerg;
        "access_by_lua",                                 HSL_IF,      ONE,           ONCE, Emerg;
        "precontent_by_lua_file",                        HSL_IF,      ONE,           ONCE, Emerg;
        "access_by_lua_file",                            HSL_IF,      ONE,           ONCE, Emerg;
        "header_filter_by_lua",                          HSL_IF,      ONE,           ONCE, Emerg;
        "header_filter_by_lua_file",                     HSL_IF,      ONE,           ONCE, Emerg;
        "body_filter_by_lua",                            HSL_IF,      ONE,           ONCE, Emerg;
        "body_filter_by_lua_file",                       HSL_IF,      ONE,           ONCE, Emerg;
        "log_by_lua",                                    HSL_IF,      ONE,           ONCE, Emerg;
        "log_by_lua_file",                               HSL_IF,      ONE,           ONCE, Emerg;
        "rewrite_by_lua_block",                          HSL_IF,      raw(0),        ONCE, Emerg;
        "precontent_by_lua_block",                       HSL_IF,      raw(0),        ONCE, Emerg;
        "access_by_lua_block",                           HSL_IF,      raw(0),        ONCE, Emerg;
        "header_filter_by_lua_block",                    HSL_IF,      raw(0),        ONCE, Emerg;
        "body_filter_by_lua_block",                      HSL_IF,      raw(0),        ONCE, Emerg;
        "log_by_lua_block",                              HSL_IF,      raw(0),        ONCE, Emerg;
        "proxy_ssl_certificate_by_lua_file",             LOCATION_IF, ONE,           ONCE, Emerg;
        "proxy_ssl_verify_by_lua_file",                  LOCATION_IF, ONE,           ONCE, Emerg;
        "proxy_ssl_certificate_by_lua_block",            LOCATION_IF, raw(0),        ONCE, Emerg;
        "proxy_ssl_verify_by_lua_block",                 LOCATION_IF, raw(0),        ONCE, Emerg;
        "lua_upstream_skip_openssl_default_verify",      LOCATION_IF, FLAG,          ONCE, Emerg;
        "balancer_by_lua_file",                          UPSTREAM,    ONE,           ONCE, Emerg;
        "balancer_keepalive",                            UPSTREAM,    ONE,           ONCE, Emerg;
        "balancer_by_lua_block",                         UPSTREAM,    raw(0),        ONCE, Emerg;
        "lua_code_cache",                                HSL_IF,      FLAG,          ONCE, Warn;
        "lua_need_request_body",                         HSL_IF,      FLAG,          ONCE, Warn;
        "lua_http10_buffering",                          HSL_IF,      FLAG,          ONCE, Warn;
        "lua_check_client_abort",                        HSL_IF,      FLAG,          ONCE, Warn;
        "lua_use_default_type",                          HSL_IF,      FLAG,          ONCE, Warn;
        "lua_socket_log_errors",                         HSL_IF,      FLAG,          ONCE, Warn;
        "lua_transform_underscores_in_response_headers", HSL_IF,      FLAG,          ONCE, Warn;
        "lua_socket_connect_timeout",                    HSL_IF,      ONE,           ONCE, Warn;
        "lua_socket_send_timeout",                       HSL_IF,      ONE,           ONCE, Warn;
        "lua_socket_read_timeout",                       HSL_IF,      ONE,           ONCE, Warn;
        "lua_socket_keepalive_timeout",                  HSL_IF,      ONE,           ONCE, Warn;
        "lua_socket_send_lowat",                         HSL_IF,      ONE,           ONCE, Warn;
        "lua_socket_buffer_size",                        HSL_IF,      ONE,           ONCE, Warn;
        "lua_socket_pool_size",                          HSL_IF,      ONE,           ONCE, Warn;
        "lua_ssl_protocols",                             HSL,         args(1, MORE), MANY, Emerg;
        "lua_ssl_ciphers",                               HSL,         ONE,           ONCE, Emerg;
        "lua_ssl_verify_depth",                          HSL,         ONE,           ONCE, Emerg;
        "lua_ssl_trusted_certificate",                   HSL,         ONE,           ONCE, Emerg;
        "lua_ssl_crl",                                   HSL,         ONE,           ONCE, Emerg;
        "lua_ssl_certificate",                           HSL,         ONE,           ONCE, Emerg;
        "lua_ssl_certificate_key",                       HSL,         ONE,           ONCE, Emerg;
        "lua_ssl_key_log",                               HSL,         ONE,           ONCE, Emerg;
        "lua_ssl_conf_command",                          HSL,         TWO,           MANY, Emerg;
    }
    "ngx_http_acme_module" {
        "acme_issuer",      HTTP,   lines(1, 1),   MANY, Emerg;
        "acme_shared_zone", HTTP,   ONE,           ONCE, Warn;
        "acme_certificate", SERVER, args(1, MORE), ONCE, Emerg;
    }
    "ngx_otel_module" {
        "otel_exporter",      HTTP, lines(0, 0), MANY, Emerg;
        "otel_service_name",  HTTP, ONE,         ONCE, Warn;
        "otel_resource_attr", HTTP, TWO,         MANY, Warn;
        "otel_trace",         HSL,  ONE,         ONCE, Emerg;
        "otel_trace_context", HSL,  one_of(&["ignore", "extract", "inject", "propagate"]), ONCE, Emerg;
        "otel_span_name",     HSL,  ONE,         ONCE, Warn;
        "otel_span_attr",     HSL,  TWO,         MANY, Warn;
    }
    "ngx_http_geoip2_module" {
        "geoip2",                 HTTP, lines(1, 1), MANY, Emerg;
        "geoip2_proxy",           HTTP, ONE,         MANY, Emerg;
        "geoip2_proxy_recursive", HTTP, FLAG,        ONCE, UNLESS_OFF;
    }
    "ngx_stream_geoip2_module" {
        "geoip2", STREAM, lines(1, 1), MANY, Emerg;
    }
    "ngx_http_dav_ext_module" {
        "dav_ext_methods",   HSL,  any_of(DAV_EXT_METHODS), ONCE, UNLESS_OFF;
        "dav_ext_lock_zone", HTTP, args(1, 2),              MANY, Emerg;
        "dav_ext_lock",      HSL,  ONE,                     ONCE, UNLESS_OFF;
    }
    "ngx_http_fancyindex_module" {
        "fancyindex",                   HSL, FLAG,          ONCE, UNLESS_OFF;
        "fancyindex_case_sensitive",    HSL, FLAG,          ONCE, Warn;
        "fancyindex_css_href",          HSL, ONE,           ONCE, Warn;
        "fancyindex_default_sort",      HSL, ONE,           ONCE, Warn;
        "fancyindex_directories_first", HSL, FLAG,          ONCE, Warn;
        "fancyindex_exact_size",        HSL, FLAG,          ONCE, Warn;
        "fancyindex_footer",            HSL, args(1, 2),    ONCE, Warn;
        "fancyindex_header",            HSL, args(1, 2),    ONCE, Warn;
        "fancyindex_hide_parent_dir",   HSL, FLAG,          ONCE, Warn;
        "fancyindex_hide_symlinks",     HSL, FLAG,          ONCE, Warn;
        "fancyindex_ignore",            HSL, args(1, MORE), MANY, Emerg;
        "fancyindex_localtime",         HSL, FLAG,          ONCE, Warn;
        "fancyindex_name_length",       HSL, NUMBER,        ONCE, Warn;
        "fancyindex_show_dotfiles",     HSL, FLAG,          ONCE, Warn;
        "fancyindex_show_path",         HSL, FLAG,          ONCE, Warn;
        "fancyindex_time_format",       HSL, ONE,           ONCE, Warn;
    }
    "ngx_http_echo_module" {
        "echo",                   LOCATION_IF, args(0, MORE), MANY, Emerg;
        "echo_duplicate",         LOCATION_IF, TWO,           MANY, Emerg;
        "echo_flush",             LOCATION_IF, NO_ARGS,       MANY, Emerg;
        "echo_sleep",             LOCATION_IF, ONE,           MANY, Emerg;
        "echo_blocking_sleep",    LOCATION_IF, ONE,           MANY, Emerg;
        "echo_reset_timer",       LOCATION_IF, NO_ARGS,       MANY, Emerg;
        "echo_read_request_body", LOCATION_IF, NO_ARGS,       MANY, Emerg;
        "echo_request_body",      LOCATION_IF, NO_ARGS,       MANY, Emerg;
        "echo_location",          LOCATION_IF, args(1, 2),    MANY, Emerg;
        "echo_location_async",    LOCATION_IF, args(1, 2),    MANY, Emerg;
        "echo_subrequest",        LOCATION_IF, args(2, 6),    MANY, Emerg;
        "echo_subrequest_async",  LOCATION_IF, args(2, 6),    MANY, Emerg;
        "echo_foreach_split",     LOCATION_IF, TWO,           MANY, Emerg;
        "echo_end",               LOCATION_IF, NO_ARGS,       MANY, Emerg;
        "echo_exec",              LOCATION_IF, args(1, 2),    MANY, Emerg;
        "echo_status",            LOCATION_IF, ONE,           ONCE, Emerg;
        "echo_before_body",       LOCATION_IF, args(0, MORE), MANY, Emerg;
        "echo_after_body",        LOCATION_IF, args(0, MORE), MANY, Emerg;
    }
    "ngx_http_headers_more_filter_module" {
        "more_set_headers",         HSL_IF, args(1, MORE), MANY, Emerg;
        "more_clear_headers",       HSL_IF, args(1, MORE), MANY, Emerg;
        "more_set_input_headers",   HSL_IF, args(1, MORE), MANY, Emerg;
        "more_clear_input_headers", HSL_IF, args(1, MORE), MANY, Emerg;
    }
    "ngx_http_brotli_module" {
        "brotli",            HSL_IF, FLAG,          ONCE, UNLESS_OFF;
        "brotli_static",     HSL,    ONE,           ONCE, UNLESS_OFF;
        "brotli_types",      HSL,    args(1, MORE), MANY, Warn;
        "brotli_buffers",    HSL,    TWO,           ONCE, Warn;
        "brotli_comp_level", HSL,    ONE,           ONCE, Warn;
        "brotli_window",     HSL,    ONE,           ONCE, Warn;
        "brotli_min_length", HSL,    ONE,           ONCE, Warn;
    }
    "ngx_http_zstd_module" {
        "zstd",            HSL_IF, FLAG,          ONCE, UNLESS_OFF;
        "zstd_static",     HSL_IF, ONE,           ONCE, UNLESS_OFF;
        "zstd_types",      HSL,    args(1, MORE), MANY, Warn;
        "zstd_buffers",    HSL,    TWO,           ONCE, Warn;
        "zstd_comp_level", HSL,    ONE,           ONCE, Warn;
        "zstd_min_length", HSL,    ONE,           ONCE, Warn;
        "zstd_dict_file",  HTTP,   ONE,           ONCE, Emerg;
    }
}
