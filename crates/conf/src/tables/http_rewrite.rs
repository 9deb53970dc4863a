//! Variables, rewriting, logs.

use super::*;

modules! {
    "ngx_http_browser_module" {
        "modern_browser",        HSL, args(1, 2),    MANY, Emerg;
        "ancient_browser",       HSL, args(1, MORE), MANY, Emerg;
        "modern_browser_value",  HSL, ONE,           MANY, Emerg;
        "ancient_browser_value", HSL, ONE,           MANY, Emerg;
    }
    "ngx_http_geo_module" {
        "geo", HTTP, lines(1, 2), MANY, Emerg;
    }
    "ngx_http_geoip_module" {
        "geoip_country",         HTTP, args(1, 2), ONCE, Emerg;
        "geoip_org",             HTTP, args(1, 2), ONCE, Emerg;
        "geoip_city",            HTTP, args(1, 2), ONCE, Emerg;
        "geoip_proxy",           HTTP, ONE,        MANY, Emerg;
        "geoip_proxy_recursive", HTTP, FLAG,       ONCE, UNLESS_OFF;
    }
    "ngx_http_log_module" {
        "log_format",          HTTP,         args(2, MORE), MANY, Warn;
        "access_log",          HSL_IF_LIMIT, args(1, MORE), MANY, Warn;
        "open_log_file_cache", HSL,          args(1, 4),    ONCE, Warn;
    }
    "ngx_http_map_module" {
        "map",                  HTTP, lines(2, 2), MANY, Emerg;
        "map_hash_max_size",    HTTP, NUMBER,      ONCE, Warn;
        "map_hash_bucket_size", HTTP, NUMBER,      ONCE, Warn;
    }
    "ngx_http_rewrite_module" {
        "rewrite",                     REWRITE,         args(2, 3),     MANY, Emerg;
        "return",                      REWRITE,         args(1, 2),     MANY, Emerg;
        "break",                       REWRITE,         NO_ARGS,        MANY, Emerg;
        "if",                          SERVER_LOCATION, block(1, MORE), MANY, Emerg;
        "set",                         REWRITE,         TWO,            MANY, Emerg;
        "rewrite_log",                 HTTP_REWRITE,    FLAG,           ONCE, Warn;
        "uninitialized_variable_warn", HTTP_REWRITE,    FLAG,           ONCE, Warn;
    }
    "ngx_http_split_clients_module" {
        "split_clients", HTTP, lines(2, 2), MANY, Emerg;
    }
}
