//! Which clients get in, and how many at once.

use super::*;

modules! {
    "ngx_http_access_module" {
        "allow", HSL_LIMIT, ONE, MANY, Emerg;
        "deny",  HSL_LIMIT, ONE, MANY, Emerg;
    }
    "ngx_http_auth_basic_module" {
        "auth_basic",           HSL_LIMIT, ONE, ONCE, UNLESS_OFF;
        "auth_basic_user_file", HSL_LIMIT, ONE, ONCE, Emerg;
    }
    "ngx_http_auth_request_module" {
        "auth_request",     HSL, ONE, ONCE, UNLESS_OFF;
        "auth_request_set", HSL, TWO, MANY, Emerg;
    }
    "ngx_http_degradation_module" {
        "degradation", HTTP, ONE,             MANY, Warn;
        "degrade",     HSL,  one_of(DEGRADE), ONCE, Warn;
    }
    "ngx_http_limit_conn_module" {
        "limit_conn_zone",      HTTP, TWO,                MANY, Emerg;
        "limit_conn",           HSL,  TWO,                MANY, Emerg;
        "limit_conn_log_level", HSL,  one_of(LOG_LEVELS), ONCE, Warn;
        "limit_conn_status",    HSL,  within(400, 599),   ONCE, Warn;
        "limit_conn_dry_run",   HSL,  FLAG,               ONCE, UNLESS_OFF;
    }
    "ngx_http_limit_req_module" {
        "limit_req_zone",      HTTP, args(3, 3),         MANY, Emerg;
        "limit_req",           HSL,  args(1, 3),         MANY, Emerg;
        "limit_req_log_level", HSL,  one_of(LOG_LEVELS), ONCE, Warn;
        "limit_req_status",    HSL,  within(400, 599),   ONCE, Warn;
        "limit_req_dry_run",   HSL,  FLAG,               ONCE, UNLESS_OFF;
    }
    "ngx_http_realip_module" {
        "set_real_ip_from",  HSL, ONE,  MANY, Emerg;
        "real_ip_header",    HSL, ONE,  ONCE, Emerg;
        "real_ip_recursive", HSL, FLAG, ONCE, UNLESS_OFF;
    }
    "ngx_http_referer_module" {
        "valid_referers",           SERVER_LOCATION, args(1, MORE), MANY, Emerg;
        "referer_hash_max_size",    SERVER_LOCATION, NUMBER,        ONCE, Warn;
        "referer_hash_bucket_size", SERVER_LOCATION, NUMBER,        ONCE, Warn;
    }
    "ngx_http_secure_link_module" {
        "secure_link",        HSL, ONE, ONCE, Emerg;
        "secure_link_md5",    HSL, ONE, ONCE, Emerg;
        "secure_link_secret", HSL, ONE, ONCE, Emerg;
    }
}
