//! weir's own directives.

use super::*;

modules! {
    "weir" {
        "worker_threads", MAIN,   ONE,           ONCE, Warn;
        "accept_balance", EVENTS, args(1, MORE), ONCE, Warn;
        "request_balance", EVENTS, FLAG,         ONCE, Warn;
        "blocked_threshold", HSL, MSEC,          ONCE, Warn;
        "proxy_answer_timeout", HSL, MSEC, ONCE, Warn;
        "proxy_next_upstream_delay", HSL, MSEC, ONCE, Warn;
        "proxy_cache_purge", HSL, args(1, MORE), MANY, Warn;
        "proxy_cache_memory", HSL, SIZE, ONCE, Warn;
        "proxy_cache_rules", HSL, ONE, ONCE, Warn;
        "proxy_cache_control_field", HSL, ONE, ONCE, Warn;
        "proxy_cache_status_field", HSL, ONE, ONCE, Warn;
        "fastcgi_cache_purge", HSL, args(1, MORE), MANY, Warn;
        "fastcgi_cache_memory", HSL, SIZE, ONCE, Warn;
        "fastcgi_cache_rules", HSL, ONE, ONCE, Warn;
        "fastcgi_cache_control_field", HSL, ONE, ONCE, Warn;
        "fastcgi_cache_status_field", HSL, ONE, ONCE, Warn;
        "uwsgi_cache_purge", HSL, args(1, MORE), MANY, Warn;
        "uwsgi_cache_memory", HSL, SIZE, ONCE, Warn;
        "uwsgi_cache_rules", HSL, ONE, ONCE, Warn;
        "uwsgi_cache_control_field", HSL, ONE, ONCE, Warn;
        "uwsgi_cache_status_field", HSL, ONE, ONCE, Warn;
        "scgi_cache_purge", HSL, args(1, MORE), MANY, Warn;
        "scgi_cache_memory", HSL, SIZE, ONCE, Warn;
        "scgi_cache_rules", HSL, ONE, ONCE, Warn;
        "scgi_cache_control_field", HSL, ONE, ONCE, Warn;
        "scgi_cache_status_field", HSL, ONE, ONCE, Warn;
        "proxy_ssl_verify_names", HSL, args(1, MORE), ONCE, Warn;
        "grpc_ssl_verify_names", HSL, args(1, MORE), ONCE, Warn;
        "uwsgi_ssl_verify_names", HSL, args(1, MORE), ONCE, Warn;
        "proxy_ssl_verify_names", STREAM_BOTH, args(1, MORE), ONCE, Warn;
        "lua_max_run_time", HSL, MSEC,           ONCE, Emerg;
        "route",          LOCATION, args(1, MORE), MANY, Emerg;
        "work",           HSL,    args(1, 2),         ONCE, Emerg;
        "http3_alt_svc", HTTP_SERVER, FLAG, ONCE, Warn;
        "quic_congestion", HTTP_SERVER, ONE, ONCE, Warn;
        "queue",          UPSTREAM, args(1, 2),  ONCE, Emerg;
        "servers_file",   UPSTREAM, ONE,         ONCE, Emerg;
        "health_check",   LOCATION, args(0, MORE), MANY, Emerg;
        "match",          HTTP,     lines(1, 1), MANY, Emerg;
        "blocked_threshold", STREAM_BOTH, MSEC,  ONCE, Warn;
        "lua_max_run_time", STREAM_BOTH, MSEC,   ONCE, Emerg;
        "status_zone",    STREAM_SERVER, ONE,    ONCE, Warn;
        "health_check",   STREAM_SERVER, args(0, MORE), MANY, Emerg;
        "health_check_timeout", STREAM_BOTH, MSEC, ONCE, Warn;
        "match",          STREAM,   lines(1, 1), MANY, Emerg;
        "servers_file",   STREAM_UPSTREAM, ONE,  ONCE, Emerg;
        "status_zone",    SERVER_LOCATION, args(1, 2),  MANY, Warn;
        "weir_status", SERVER_LOCATION, args(0, 1), ONCE, Emerg;
        "weir_dashboard", SERVER_LOCATION, args(0, 1), ONCE, Emerg;
        "weir_api", LOCATION, args(0, 2), ONCE, Emerg;
    }
}
