//! Answers from uwsgi servers.

use super::*;

modules! {
    "ngx_http_uwsgi_module" {
        "uwsgi_pass",                    LOCATION_IF, ONE,           ONCE, Emerg;
        "uwsgi_modifier1",               HSL,         ONE,           ONCE, Emerg;
        "uwsgi_modifier2",               HSL,         ONE,           ONCE, Emerg;
        "uwsgi_store",                   HSL,         ONE,           ONCE, EmergUnless("off");
        "uwsgi_store_access",            HSL,         args(1, 3),    ONCE, Warn;
        "uwsgi_buffering",               HSL,         FLAG,          ONCE, Warn;
        "uwsgi_request_buffering",       HSL,         FLAG,          ONCE, Warn;
        "uwsgi_ignore_client_abort",     HSL,         FLAG,          ONCE, Warn;
        "uwsgi_bind",                    HSL,         args(1, 2),    ONCE, EmergUnless("off");
        "uwsgi_socket_keepalive",        HSL,         FLAG,          ONCE, Warn;
        "uwsgi_socket_rcvbuf",           HSL,         ONE,           ONCE, Warn;
        "uwsgi_socket_sndbuf",           HSL,         ONE,           ONCE, Warn;
        "uwsgi_connect_timeout",         HSL,         ONE,           ONCE, Warn;
        "uwsgi_send_timeout",            HSL,         ONE,           ONCE, Warn;
        "uwsgi_buffer_size",             HSL,         ONE,           ONCE, Warn;
        "uwsgi_pass_request_headers",    HSL,         FLAG,          ONCE, EmergUnless("on");
        "uwsgi_pass_request_body",       HSL,         FLAG,          ONCE, EmergUnless("on");
        "uwsgi_intercept_errors",        HSL,         FLAG,          ONCE, EmergUnless("off");
        "uwsgi_read_timeout",            HSL,         ONE,           ONCE, Warn;
        "uwsgi_buffers",                 HSL,         TWO,           ONCE, Warn;
        "uwsgi_busy_buffers_size",       HSL,         ONE,           ONCE, Warn;
        "uwsgi_force_ranges",            HSL,         FLAG,          ONCE, EmergUnless("off");
        "uwsgi_limit_rate",              HSL,         ONE,           ONCE, Warn;
        "uwsgi_cache",                   HSL,         ONE,           ONCE, EmergUnless("off");
        "uwsgi_cache_key",               HSL,         ONE,           ONCE, Warn;
        "uwsgi_cache_path",              HTTP,        args(2, MORE), MANY, Warn;
        "uwsgi_cache_bypass",            HSL,         args(1, MORE), MANY, Warn;
        "uwsgi_no_cache",                HSL,         args(1, MORE), MANY, Warn;
        "uwsgi_cache_valid",             HSL,         args(1, MORE), MANY, Warn;
        "uwsgi_cache_min_uses",          HSL,         ONE,           ONCE, Warn;
        "uwsgi_cache_max_range_offset",  HSL,         ONE,           ONCE, Warn;
        "uwsgi_cache_use_stale",         HSL,         args(1, MORE), MANY, Warn;
        "uwsgi_cache_methods",           HSL,         args(1, MORE), MANY, Warn;
        "uwsgi_cache_lock",              HSL,         FLAG,          ONCE, Warn;
        "uwsgi_cache_lock_timeout",      HSL,         ONE,           ONCE, Warn;
        "uwsgi_cache_lock_age",          HSL,         ONE,           ONCE, Warn;
        "uwsgi_cache_revalidate",        HSL,         FLAG,          ONCE, Warn;
        "uwsgi_cache_background_update", HSL,         ONE,           ONCE, Warn;
        "uwsgi_temp_path",               HSL,         args(1, 4),    ONCE, Warn;
        "uwsgi_max_temp_file_size",      HSL,         ONE,           ONCE, Warn;
        "uwsgi_temp_file_write_size",    HSL,         ONE,           ONCE, Warn;
        "uwsgi_next_upstream",           HSL,         args(1, MORE), MANY, Emerg;
        "uwsgi_next_upstream_tries",     HSL,         ONE,           ONCE, Warn;
        "uwsgi_next_upstream_timeout",   HSL,         ONE,           ONCE, Warn;
        "uwsgi_param",                   HSL,         args(2, 3),    MANY, Emerg;
        "uwsgi_string",                  HSL,         ONE,           ONCE, Emerg;
        "uwsgi_pass_header",             HSL,         ONE,           MANY, Emerg;
        "uwsgi_hide_header",             HSL,         ONE,           MANY, Emerg;
        "uwsgi_ignore_headers",          HSL,         args(1, MORE), MANY, Emerg;
        "uwsgi_ssl_session_reuse",       HSL,         FLAG,          ONCE, Warn;
        "uwsgi_ssl_protocols",           HSL,         args(1, MORE), MANY, Emerg;
        "uwsgi_ssl_ciphers",             HSL,         ONE,           ONCE, Emerg;
        "uwsgi_ssl_name",                HSL,         ONE,           ONCE, Emerg;
        "uwsgi_ssl_server_name",         HSL,         FLAG,          ONCE, EmergUnless("off");
        "uwsgi_ssl_verify",              HSL,         FLAG,          ONCE, EmergUnless("off");
        "uwsgi_ssl_verify_depth",        HSL,         ONE,           ONCE, Emerg;
        "uwsgi_ssl_trusted_certificate", HSL,         ONE,           ONCE, Emerg;
        "uwsgi_ssl_crl",                 HSL,         ONE,           ONCE, Emerg;
        "uwsgi_ssl_certificate",         HSL,         ONE,           ONCE, Emerg;
        "uwsgi_ssl_certificate_key",     HSL,         ONE,           ONCE, Emerg;
        "uwsgi_ssl_certificate_cache",   HSL,         args(1, 3),    ONCE, Warn;
        "uwsgi_ssl_password_file",       HSL,         ONE,           ONCE, Emerg;
        "uwsgi_ssl_conf_command",        HSL,         TWO,           MANY, Emerg;
    }
}
