//! Directives outside of all blocks, and in `events`.

use super::*;

modules! {
    "ngx_core_module" {
        "daemon",                  MAIN, FLAG,                 ONCE, UNLESS_OFF;
        "master_process",          MAIN, FLAG,                 ONCE, Warn;
        "timer_resolution",        MAIN, MSEC,                 ONCE, Warn;
        "pid",                     MAIN, ONE,                  ONCE, Warn;
        "lock_file",               MAIN, ONE,                  ONCE, Warn;
        "worker_processes",        MAIN, ONE,                  ONCE, Warn;
        "debug_points",            MAIN, one_of(DEBUG_POINTS), ONCE, Warn;
        "user",                    MAIN, args(1, 2),           ONCE, Emerg;
        "worker_priority",         MAIN, ONE,                  ONCE, Warn;
        "worker_cpu_affinity",     MAIN, args(1, MORE),        ONCE, Warn;
        "worker_rlimit_nofile",    MAIN, NUMBER,               ONCE, Warn;
        "worker_rlimit_core",      MAIN, OFFSET,               ONCE, Warn;
        "worker_shutdown_timeout", MAIN, MSEC,                 ONCE, Warn;
        "working_directory",       MAIN, ONE,                  ONCE, Warn;
        "env",                     MAIN, ONE,                  MANY, Warn;
        "load_module",             MAIN, ONE,                  MANY, Warn;
    }
    "ngx_conf_module" {
        "include", ANY, ONE, MANY, Emerg;
    }
    "ngx_errlog_module" {
        "error_log", MAIN, args(1, MORE), MANY, Warn;
    }
    "ngx_regex_module" {
        "pcre_jit", MAIN, FLAG, ONCE, Warn;
    }
    "ngx_thread_pool_module" {
        "thread_pool", MAIN, args(2, 3), MANY, Warn;
    }
    "ngx_devpoll_module" {
        "devpoll_changes", EVENTS, NUMBER, ONCE, Emerg;
        "devpoll_events",  EVENTS, NUMBER, ONCE, Emerg;
    }
    "ngx_epoll_module" {
        "epoll_events",        EVENTS, NUMBER, ONCE, Warn;
        "worker_aio_requests", EVENTS, NUMBER, ONCE, Warn;
    }
    "ngx_eventport_module" {
        "eventport_events", EVENTS, NUMBER, ONCE, Emerg;
    }
    "ngx_iocp_module" {
        "iocp_threads",  EVENTS, NUMBER, ONCE, Emerg;
        "post_acceptex", EVENTS, NUMBER, ONCE, Emerg;
        "acceptex_read", EVENTS, FLAG,   ONCE, Emerg;
    }
    "ngx_kqueue_module" {
        "kqueue_changes", EVENTS, NUMBER, ONCE, Emerg;
        "kqueue_events",  EVENTS, NUMBER, ONCE, Emerg;
    }
    "ngx_events_module" {
        "events", MAIN, block(0, 0), ONCE, Emerg;
    }
    "ngx_event_core_module" {
        "worker_connections", EVENTS, ONE,  ONCE, Warn;
        "use",                EVENTS, ONE,  ONCE, Warn;
        "multi_accept",       EVENTS, FLAG, ONCE, Warn;
        "accept_mutex",       EVENTS, FLAG, ONCE, Warn;
        "accept_mutex_delay", EVENTS, MSEC, ONCE, Warn;
        "debug_connection",   EVENTS, ONE,  MANY, Warn;
    }
    "ngx_openssl_module" {
        "ssl_engine", MAIN, ONE, ONCE, Warn;
    }
    "ngx_openssl_cache_module" {
        "ssl_object_cache_inheritable", MAIN, FLAG, ONCE, Warn;
    }
    "ngx_quic_bpf_module" {
        "quic_bpf", MAIN, FLAG, ONCE, Warn;
    }
    "ngx_google_perftools_module" {
        "google_perftools_profiles", MAIN, ONE, ONCE, Warn;
    }
}
