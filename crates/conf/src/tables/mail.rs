//! Mail proxying.

use super::*;

modules! {
    "ngx_mail_module" {
        "mail", MAIN, block(0, 0), ONCE, Emerg;
    }
    "ngx_mail_auth_http_module" {
        "auth_http",                  MAIL_BOTH, ONE,  MANY, Emerg;
        "auth_http_timeout",          MAIL_BOTH, MSEC, ONCE, Warn;
        "auth_http_header",           MAIL_BOTH, TWO,  MANY, Emerg;
        "auth_http_pass_client_cert", MAIL_BOTH, FLAG, ONCE, UNLESS_OFF;
    }
    "ngx_mail_core_module" {
        "server",           MAIL,        block(0, 0),   MANY, Emerg;
        "listen",           MAIL_SERVER, args(1, MORE), MANY, Emerg;
        "protocol",         MAIL_SERVER, ONE,           MANY, Emerg;
        "timeout",          MAIL_BOTH,   MSEC,          ONCE, Emerg;
        "server_name",      MAIL_BOTH,   ONE,           ONCE, Emerg;
        "error_log",        MAIL_BOTH,   args(1, MORE), MANY, Warn;
        "resolver",         MAIL_BOTH,   args(1, MORE), ONCE, Emerg;
        "resolver_timeout", MAIL_BOTH,   MSEC,          ONCE, Warn;
        "max_errors",       MAIL_BOTH,   NUMBER,        ONCE, Warn;
    }
    "ngx_mail_imap_module" {
        "imap_client_buffer", MAIL_BOTH, SIZE,              ONCE, Warn;
        "imap_capabilities",  MAIL_BOTH, args(1, MORE),     MANY, Emerg;
        "imap_auth",          MAIL_BOTH, any_of(IMAP_AUTH), MANY, Emerg;
    }
    "ngx_mail_pop3_module" {
        "pop3_capabilities", MAIL_BOTH, args(1, MORE),     MANY, Emerg;
        "pop3_auth",         MAIL_BOTH, any_of(POP3_AUTH), MANY, Emerg;
    }
    "ngx_mail_proxy_module" {
        "proxy",                    MAIL_BOTH, FLAG,                   ONCE, UNLESS_OFF;
        "proxy_buffer",             MAIL_BOTH, SIZE,                   ONCE, Warn;
        "proxy_timeout",            MAIL_BOTH, MSEC,                   ONCE, Warn;
        "proxy_pass_error_message", MAIL_BOTH, FLAG,                   ONCE, UNLESS_OFF;
        "xclient",                  MAIL_BOTH, FLAG,                   ONCE, UNLESS_OFF;
        "proxy_smtp_auth",          MAIL_BOTH, FLAG,                   ONCE, UNLESS_OFF;
        "proxy_protocol",           MAIL_BOTH, one_of(PROXY_PROTOCOL), ONCE, Emerg;
    }
    "ngx_mail_realip_module" {
        "set_real_ip_from", MAIL_BOTH, ONE, MANY, Emerg;
    }
    "ngx_mail_smtp_module" {
        "smtp_client_buffer",  MAIL_BOTH, SIZE,              ONCE, Warn;
        "smtp_greeting_delay", MAIL_BOTH, MSEC,              ONCE, Warn;
        "smtp_capabilities",   MAIL_BOTH, args(1, MORE),     MANY, Emerg;
        "smtp_auth",           MAIL_BOTH, any_of(SMTP_AUTH), MANY, Emerg;
    }
    "ngx_mail_ssl_module" {
        "starttls",                    MAIL_BOTH, ONE,                   MANY, UNLESS_OFF;
        "ssl_certificate",             MAIL_BOTH, ONE,                   MANY, Emerg;
        "ssl_certificate_key",         MAIL_BOTH, ONE,                   MANY, Emerg;
        "ssl_password_file",           MAIL_BOTH, ONE,                   ONCE, Emerg;
        "ssl_certificate_compression", MAIL_BOTH, FLAG,                  ONCE, Warn;
        "ssl_dhparam",                 MAIL_BOTH, ONE,                   ONCE, Warn;
        "ssl_ecdh_curve",              MAIL_BOTH, ONE,                   ONCE, Warn;
        "ssl_protocols",               MAIL_BOTH, any_of(SSL_PROTOCOLS), MANY, Emerg;
        "ssl_ciphers",                 MAIL_BOTH, ONE,                   ONCE, Emerg;
        "ssl_prefer_server_ciphers",   MAIL_BOTH, FLAG,                  ONCE, Warn;
        "ssl_session_cache",           MAIL_BOTH, args(1, 2),            MANY, Warn;
        "ssl_session_tickets",         MAIL_BOTH, FLAG,                  ONCE, Warn;
        "ssl_session_ticket_key",      MAIL_BOTH, ONE,                   MANY, Warn;
        "ssl_session_timeout",         MAIL_BOTH, SEC,                   ONCE, Warn;
        "ssl_verify_client",           MAIL_BOTH, one_of(VERIFY_CLIENT), ONCE, UNLESS_OFF;
        "ssl_verify_depth",            MAIL_BOTH, NUMBER,                ONCE, Emerg;
        "ssl_client_certificate",      MAIL_BOTH, ONE,                   ONCE, Emerg;
        "ssl_trusted_certificate",     MAIL_BOTH, ONE,                   ONCE, Emerg;
        "ssl_crl",                     MAIL_BOTH, ONE,                   ONCE, Emerg;
        "ssl_conf_command",            MAIL_BOTH, TWO,                   MANY, Emerg;
    }
}
