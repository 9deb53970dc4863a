//! Groups of upstream servers and how one is chosen.

use super::*;

modules! {
    "ngx_http_upstream_hash_module" {
        "hash", UPSTREAM, args(1, 2), MANY, Emerg;
    }
    "ngx_http_upstream_ip_hash_module" {
        "ip_hash", UPSTREAM, NO_ARGS, MANY, Emerg;
    }
    "ngx_http_upstream_keepalive_module" {
        "keepalive",          UPSTREAM, args(1, 2), ONCE, Warn;
        "keepalive_time",     UPSTREAM, MSEC,       ONCE, Warn;
        "keepalive_timeout",  UPSTREAM, MSEC,       ONCE, Warn;
        "keepalive_requests", UPSTREAM, NUMBER,     ONCE, Warn;
    }
    "ngx_http_upstream_least_conn_module" {
        "least_conn", UPSTREAM, NO_ARGS, MANY, Warn;
    }
    "ngx_http_upstream_least_time_module" {
        "least_time", UPSTREAM, args(1, 2), ONCE, Warn;
    }
    "ngx_http_upstream_random_module" {
        "random", UPSTREAM, args(0, 2), MANY, Warn;
    }
    "ngx_http_upstream_sticky_module" {
        "sticky", UPSTREAM, args(2, MORE), ONCE, Emerg;
    }
    "ngx_http_upstream_zone_module" {
        "zone", UPSTREAM, args(1, 2), MANY, Warn;
    }
    "ngx_http_upstream_module" {
        "upstream",         HTTP,     block(1, 1),   MANY, Emerg;
        "server",           UPSTREAM, args(1, MORE), MANY, Emerg;
        "resolver",         UPSTREAM, args(1, MORE), ONCE, Emerg;
        "resolver_timeout", UPSTREAM, MSEC,          ONCE, Warn;
    }
}
