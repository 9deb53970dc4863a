//! Modules that answer by themselves.

use super::*;

modules! {
    "ngx_http_autoindex_module" {
        "autoindex",            HSL, FLAG,                  ONCE, UNLESS_OFF;
        "autoindex_format",     HSL, one_of(INDEX_FORMATS), ONCE, Warn;
        "autoindex_localtime",  HSL, FLAG,                  ONCE, Warn;
        "autoindex_exact_size", HSL, FLAG,                  ONCE, Warn;
    }
    "ngx_http_dav_module" {
        "dav_methods",          HSL, any_of(DAV_METHODS), MANY, UNLESS_OFF;
        "create_full_put_path", HSL, FLAG,                ONCE, Warn;
        "min_delete_depth",     HSL, NUMBER,              ONCE, Warn;
        "dav_access",           HSL, args(1, 3),          ONCE, Warn;
    }
    "ngx_http_empty_gif_module" {
        "empty_gif", LOCATION, NO_ARGS, MANY, Emerg;
    }
    "ngx_http_flv_module" {
        "flv", LOCATION, NO_ARGS, MANY, Emerg;
    }
    "ngx_http_index_module" {
        "index", HSL, args(1, MORE), MANY, Emerg;
    }
    "ngx_http_mirror_module" {
        "mirror",              HSL, ONE,  MANY, UNLESS_OFF;
        "mirror_request_body", HSL, FLAG, ONCE, Warn;
    }
    "ngx_http_mp4_module" {
        "mp4",                 LOCATION, NO_ARGS, MANY, Emerg;
        "mp4_buffer_size",     HSL,      SIZE,    ONCE, Warn;
        "mp4_max_buffer_size", HSL,      SIZE,    ONCE, Warn;
        "mp4_start_key_frame", HSL,      FLAG,    ONCE, Warn;
    }
    "ngx_http_random_index_module" {
        "random_index", LOCATION, FLAG, ONCE, UNLESS_OFF;
    }
    "ngx_http_stub_status_module" {
        "stub_status", SERVER_LOCATION, args(0, 1), MANY, Emerg;
    }
    "ngx_http_try_files_module" {
        "try_files", SERVER_LOCATION, args(2, MORE), ONCE, Emerg;
    }
    "ngx_http_perl_module" {
        "perl_modules", HTTP,           ONE, MANY, Emerg;
        "perl_require", HTTP,           ONE, MANY, Emerg;
        "perl",         LOCATION_LIMIT, ONE, MANY, Emerg;
        "perl_set",     HTTP,           TWO, MANY, Emerg;
    }
}
