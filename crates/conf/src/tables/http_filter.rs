//! Modules that change an answer on its way out.

use super::*;

modules! {
    "ngx_http_addition_filter_module" {
        "add_before_body", HSL, ONE,           ONCE, Emerg;
        "add_after_body",  HSL, ONE,           ONCE, Emerg;
        "addition_types",  HSL, args(1, MORE), MANY, Warn;
    }
    "ngx_http_charset_filter_module" {
        "charset",          HSL_IF, ONE,           ONCE, UNLESS_OFF;
        "source_charset",   HSL_IF, ONE,           ONCE, Emerg;
        "override_charset", HSL_IF, FLAG,          ONCE, UNLESS_OFF;
        "charset_types",    HSL,    args(1, MORE), MANY, Warn;
        "charset_map",      HTTP,   lines(2, 2),   MANY, Emerg;
    }
    "ngx_http_gunzip_filter_module" {
        "gunzip",         HSL, FLAG,    ONCE, UNLESS_OFF;
        "gunzip_buffers", HSL, BUFFERS, ONCE, Warn;
    }
    "ngx_http_gzip_filter_module" {
        "gzip",              HSL_IF, FLAG,          ONCE, UNLESS_OFF;
        "gzip_buffers",      HSL,    BUFFERS,       ONCE, Warn;
        "gzip_types",        HSL,    args(1, MORE), MANY, Warn;
        "gzip_comp_level",   HSL,    within(1, 9),  ONCE, Warn;
        "gzip_window",       HSL,    SIZE,          ONCE, Warn;
        "gzip_hash",         HSL,    SIZE,          ONCE, Warn;
        "postpone_gzipping", HSL,    SIZE,          ONCE, Warn;
        "gzip_no_buffer",    HSL,    FLAG,          ONCE, Warn;
        "gzip_min_length",   HSL,    SIZE,          ONCE, Warn;
    }
    "ngx_http_gzip_static_module" {
        "gzip_static", HSL, one_of(OFF_ON_ALWAYS), ONCE, UNLESS_OFF;
    }
    "ngx_http_headers_filter_module" {
        "expires",             HSL_IF, args(1, 2),      ONCE, UNLESS_OFF;
        "add_header",          HSL_IF, args(2, 3),      MANY, Emerg;
        "add_trailer",         HSL_IF, args(2, 3),      MANY, Emerg;
        "add_header_inherit",  HSL_IF, one_of(INHERIT), ONCE, UNLESS_ON;
        "add_trailer_inherit", HSL_IF, one_of(INHERIT), ONCE, UNLESS_ON;
    }
    "ngx_http_image_filter_module" {
        "image_filter",              LOCATION, args(1, 3), MANY, Emerg;
        "image_filter_jpeg_quality", HSL,      ONE,        MANY, Warn;
        "image_filter_webp_quality", HSL,      ONE,        MANY, Warn;
        "image_filter_sharpen",      HSL,      ONE,        MANY, Warn;
        "image_filter_transparency", HSL,      FLAG,       ONCE, Warn;
        "image_filter_interlace",    HSL,      FLAG,       ONCE, Warn;
        "image_filter_buffer",       HSL,      SIZE,       ONCE, Warn;
    }
    "ngx_http_slice_filter_module" {
        "slice", HSL, SIZE, ONCE, Warn;
    }
    "ngx_http_ssi_filter_module" {
        "ssi",                         HSL_IF, FLAG,          ONCE, UNLESS_OFF;
        "ssi_silent_errors",           HSL,    FLAG,          ONCE, Warn;
        "ssi_ignore_recycled_buffers", HSL,    FLAG,          ONCE, Warn;
        "ssi_min_file_chunk",          HSL,    SIZE,          ONCE, Warn;
        "ssi_value_length",            HSL,    SIZE,          ONCE, Warn;
        "ssi_types",                   HSL,    args(1, MORE), MANY, Warn;
        "ssi_last_modified",           HSL,    FLAG,          ONCE, Warn;
    }
    "ngx_http_sub_filter_module" {
        "sub_filter",               HSL, TWO,           MANY, Emerg;
        "sub_filter_types",         HSL, args(1, MORE), MANY, Warn;
        "sub_filter_once",          HSL, FLAG,          ONCE, Warn;
        "sub_filter_last_modified", HSL, FLAG,          ONCE, Warn;
    }
    "ngx_http_userid_filter_module" {
        "userid",         HSL, one_of(USERID),         ONCE, UNLESS_OFF;
        "userid_service", HSL, NUMBER,                 ONCE, Warn;
        "userid_name",    HSL, ONE,                    ONCE, Warn;
        "userid_domain",  HSL, ONE,                    ONCE, Warn;
        "userid_path",    HSL, ONE,                    ONCE, Warn;
        "userid_expires", HSL, ONE,                    ONCE, Warn;
        "userid_flags",   HSL, up_to(3, COOKIE_FLAGS), MANY, Warn;
        "userid_p3p",     HSL, ONE,                    ONCE, Warn;
        "userid_mark",    HSL, ONE,                    ONCE, Warn;
    }
    "ngx_http_xslt_filter_module" {
        "xml_entities",          HSL,      ONE,           ONCE, Emerg;
        "xml_external_entities", HSL,      FLAG,          ONCE, Warn;
        "xslt_stylesheet",       LOCATION, args(1, MORE), MANY, Emerg;
        "xslt_param",            HSL,      TWO,           MANY, Emerg;
        "xslt_string_param",     HSL,      TWO,           MANY, Emerg;
        "xslt_types",            HSL,      args(1, MORE), MANY, Warn;
        "xslt_last_modified",    HSL,      FLAG,          ONCE, Warn;
    }
}
