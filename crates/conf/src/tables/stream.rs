//! TCP and UDP.

use super::*;

modules! {
    "ngx_stream_module" {
        "stream", MAIN, block(0, 0), ONCE, Emerg;
    }
    "ngx_stream_access_module" {
        "allow", STREAM_BOTH, ONE, MANY, Emerg;
        "deny",  STREAM_BOTH, ONE, MANY, Emerg;
    }
    "ngx_stream_core_module" {
        "variables_hash_max_size",       STREAM,        NUMBER,        ONCE, Warn;
        "variables_hash_bucket_size",    STREAM,        NUMBER,        ONCE, Warn;
        "server_names_hash_max_size",    STREAM,        NUMBER,        ONCE, Warn;
        "server_names_hash_bucket_size", STREAM,        NUMBER,        ONCE, Warn;
        "server",                        STREAM,        block(0, 0),   MANY, Emerg;
        "listen",                        STREAM_SERVER, args(1, MORE), MANY, Emerg;
        "server_name",                   STREAM_SERVER, args(1, MORE), MANY, Emerg;
        "error_log",                     STREAM_BOTH,   args(1, MORE), MANY, Warn;
        "resolver",                      STREAM_BOTH,   args(1, MORE), ONCE, Emerg;
        "resolver_timeout",              STREAM_BOTH,   MSEC,          ONCE, Warn;
        "proxy_protocol_timeout",        STREAM_BOTH,   MSEC,          ONCE, Warn;
        "tcp_nodelay",                   STREAM_BOTH,   FLAG,          ONCE, Warn;
        "preread_buffer_size",           STREAM_BOTH,   SIZE,          ONCE, Warn;
        "preread_timeout",               STREAM_BOTH,   MSEC,          ONCE, Warn;
    }
    "ngx_stream_geo_module" {
        "geo", STREAM, lines(1, 2), MANY, Emerg;
    }
    "ngx_stream_geoip_module" {
        "geoip_country", STREAM, args(1, 2), ONCE, Emerg;
        "geoip_org",     STREAM, args(1, 2), ONCE, Emerg;
        "geoip_city",    STREAM, args(1, 2), ONCE, Emerg;
    }
    "ngx_stream_limit_conn_module" {
        "limit_conn_zone",      STREAM,      TWO,                MANY, Emerg;
        "limit_conn",           STREAM_BOTH, TWO,                MANY, Emerg;
        "limit_conn_log_level", STREAM_BOTH, one_of(LOG_LEVELS), ONCE, Warn;
        "limit_conn_dry_run",   STREAM_BOTH, FLAG,               ONCE, UNLESS_OFF;
    }
    "ngx_stream_log_module" {
        "log_format",          STREAM,      args(2, MORE), MANY, Warn;
        "access_log",          STREAM_BOTH, args(1, MORE), MANY, Warn;
        "open_log_file_cache", STREAM_BOTH, args(1, 4),    ONCE, Warn;
    }
    "ngx_stream_map_module" {
        "map",                  STREAM, lines(2, 2), MANY, Emerg;
        "map_hash_max_size",    STREAM, NUMBER,      ONCE, Warn;
        "map_hash_bucket_size", STREAM, NUMBER,      ONCE, Warn;
    }
    "ngx_stream_pass_module" {
        "pass", STREAM_SERVER, ONE, ONCE, Emerg;
    }
    "ngx_stream_proxy_module" {
        "proxy_pass",                    STREAM_SERVER, ONE,                    ONCE, Emerg;
        "proxy_bind",                    STREAM_BOTH,   args(1, 2),             ONCE, UNLESS_OFF;
        "proxy_socket_keepalive",        STREAM_BOTH,   FLAG,                   ONCE, Warn;
        "proxy_socket_rcvbuf",           STREAM_BOTH,   SIZE,                   ONCE, Warn;
        "proxy_socket_sndbuf",           STREAM_BOTH,   SIZE,                   ONCE, Warn;
        "proxy_connect_timeout",         STREAM_BOTH,   MSEC,                   ONCE, Warn;
        "proxy_timeout",                 STREAM_BOTH,   MSEC,                   ONCE, Warn;
        "proxy_buffer_size",             STREAM_BOTH,   SIZE,                   ONCE, Warn;
        "proxy_downstream_buffer",       STREAM_BOTH,   SIZE,                   ONCE, Warn;
        "proxy_upstream_buffer",         STREAM_BOTH,   SIZE,                   ONCE, Warn;
        "proxy_upload_rate",             STREAM_BOTH,   RATE,                   ONCE, Warn;
        "proxy_download_rate",           STREAM_BOTH,   RATE,                   ONCE, Warn;
        "proxy_requests",                STREAM_BOTH,   NUMBER,                 ONCE, Emerg;
        "proxy_responses",               STREAM_BOTH,   NUMBER,                 ONCE, Emerg;
        "proxy_next_upstream",           STREAM_BOTH,   FLAG,                   ONCE, UNLESS_OFF;
        "proxy_next_upstream_tries",     STREAM_BOTH,   NUMBER,                 ONCE, Warn;
        "proxy_next_upstream_timeout",   STREAM_BOTH,   MSEC,                   ONCE, Warn;
        "proxy_protocol",                STREAM_BOTH,   one_of(PROXY_PROTOCOL), ONCE, Emerg;
        "proxy_half_close",              STREAM_BOTH,   FLAG,                   ONCE, UNLESS_OFF;
        "proxy_ssl",                     STREAM_BOTH,   FLAG,                   ONCE, UNLESS_OFF;
        "proxy_ssl_session_reuse",       STREAM_BOTH,   FLAG,                   ONCE, Warn;
        "proxy_ssl_protocols",           STREAM_BOTH,   any_of(SSL_PROTOCOLS),  MANY, Emerg;
        "proxy_ssl_ciphers",             STREAM_BOTH,   ONE,                    ONCE, Emerg;
        "proxy_ssl_name",                STREAM_BOTH,   ONE,                    ONCE, Emerg;
        "proxy_ssl_server_name",         STREAM_BOTH,   FLAG,                   ONCE, UNLESS_OFF;
        "proxy_ssl_alpn",                STREAM_BOTH,   args(1, MORE),          ONCE, Emerg;
        "proxy_ssl_verify",              STREAM_BOTH,   FLAG,                   ONCE, UNLESS_OFF;
        "proxy_ssl_verify_depth",        STREAM_BOTH,   NUMBER,                 ONCE, Emerg;
        "proxy_ssl_trusted_certificate", STREAM_BOTH,   ONE,                    ONCE, Emerg;
        "proxy_ssl_crl",                 STREAM_BOTH,   ONE,                    ONCE, Emerg;
        "proxy_ssl_certificate",         STREAM_BOTH,   ONE,                    ONCE, Emerg;
        "proxy_ssl_certificate_key",     STREAM_BOTH,   ONE,                    ONCE, Emerg;
        "proxy_ssl_certificate_cache",   STREAM_BOTH,   args(1, 3),             ONCE, Warn;
        "proxy_ssl_password_file",       STREAM_BOTH,   ONE,                    ONCE, Emerg;
        "proxy_ssl_conf_command",        STREAM_BOTH,   TWO,                    MANY, Emerg;
    }
    "ngx_stream_realip_module" {
        "set_real_ip_from", STREAM_BOTH, ONE, MANY, Emerg;
    }
    "ngx_stream_return_module" {
        "return", STREAM_SERVER, ONE, ONCE, Emerg;
    }
    "ngx_stream_set_module" {
        "set", STREAM_SERVER, TWO, MANY, Emerg;
    }
    "ngx_stream_split_clients_module" {
        "split_clients", STREAM, lines(2, 2), MANY, Emerg;
    }
    "ngx_stream_ssl_module" {
        "ssl_handshake_timeout",       STREAM_BOTH, MSEC,                  ONCE, Warn;
        "ssl_certificate",             STREAM_BOTH, ONE,                   MANY, Emerg;
        "ssl_certificate_key",         STREAM_BOTH, ONE,                   MANY, Emerg;
        "ssl_certificate_cache",       STREAM_BOTH, args(1, 3),            ONCE, Warn;
        "ssl_ech_file",                STREAM_BOTH, ONE,                   MANY, Emerg;
        "ssl_password_file",           STREAM_BOTH, ONE,                   ONCE, Emerg;
        "ssl_certificate_compression", STREAM_BOTH, FLAG,                  ONCE, Warn;
        "ssl_dhparam",                 STREAM_BOTH, ONE,                   ONCE, Warn;
        "ssl_ecdh_curve",              STREAM_BOTH, ONE,                   ONCE, Warn;
        "ssl_protocols",               STREAM_BOTH, any_of(SSL_PROTOCOLS), MANY, Emerg;
        "ssl_ciphers",                 STREAM_BOTH, ONE,                   ONCE, Emerg;
        "ssl_verify_client",           STREAM_BOTH, one_of(VERIFY_CLIENT), ONCE, UNLESS_OFF;
        "ssl_verify_depth",            STREAM_BOTH, NUMBER,                ONCE, Emerg;
        "ssl_client_certificate",      STREAM_BOTH, ONE,                   ONCE, Emerg;
        "ssl_trusted_certificate",     STREAM_BOTH, ONE,                   ONCE, Emerg;
        "ssl_prefer_server_ciphers",   STREAM_BOTH, FLAG,                  ONCE, Warn;
        "ssl_session_cache",           STREAM_BOTH, args(1, 2),            MANY, Warn;
        "ssl_session_tickets",         STREAM_BOTH, FLAG,                  ONCE, Warn;
        "ssl_session_ticket_key",      STREAM_BOTH, ONE,                   MANY, Warn;
        "ssl_session_timeout",         STREAM_BOTH, SEC,                   ONCE, Warn;
        "ssl_crl",                     STREAM_BOTH, ONE,                   ONCE, Emerg;
        "ssl_ocsp",                    STREAM_BOTH, one_of(OCSP),          ONCE, UNLESS_OFF;
        "ssl_ocsp_responder",          STREAM_BOTH, ONE,                   ONCE, Emerg;
        "ssl_ocsp_cache",              STREAM_BOTH, ONE,                   ONCE, Emerg;
        "ssl_stapling",                STREAM_BOTH, FLAG,                  ONCE, Warn;
        "ssl_stapling_file",           STREAM_BOTH, ONE,                   ONCE, Warn;
        "ssl_stapling_responder",      STREAM_BOTH, ONE,                   ONCE, Warn;
        "ssl_stapling_verify",         STREAM_BOTH, FLAG,                  ONCE, Warn;
        "ssl_conf_command",            STREAM_BOTH, TWO,                   MANY, Emerg;
        "ssl_reject_handshake",        STREAM_BOTH, FLAG,                  ONCE, UNLESS_OFF;
        "ssl_alpn",                    STREAM_BOTH, args(1, MORE),         ONCE, Emerg;
    }
    "ngx_stream_ssl_preread_module" {
        "ssl_preread", STREAM_BOTH, FLAG, ONCE, UNLESS_OFF;
    }
    "ngx_stream_upstream_module" {
        "upstream",         STREAM,          block(1, 1),   MANY, Emerg;
        "server",           STREAM_UPSTREAM, args(1, MORE), MANY, Emerg;
        "resolver",         STREAM_UPSTREAM, args(1, MORE), ONCE, Emerg;
        "resolver_timeout", STREAM_UPSTREAM, MSEC,          ONCE, Warn;
    }
    "ngx_stream_upstream_hash_module" {
        "hash", STREAM_UPSTREAM, args(1, 2), MANY, Emerg;
    }
    "ngx_stream_upstream_least_conn_module" {
        "least_conn", STREAM_UPSTREAM, NO_ARGS, MANY, Warn;
    }
    "ngx_stream_upstream_least_time_module" {
        "least_time", STREAM_UPSTREAM, args(1, 2), ONCE, Warn;
    }
    "ngx_stream_upstream_random_module" {
        "random", STREAM_UPSTREAM, args(0, 2), MANY, Warn;
    }
    "ngx_stream_upstream_zone_module" {
        "zone", STREAM_UPSTREAM, args(1, 2), MANY, Warn;
    }
}
