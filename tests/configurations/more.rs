//! Further families: their directives need a word by hand, beside what the tables say of the rest.

use crate::families::{Choice, c};

pub const CACHING: &[Choice] = &[
    c("proxy_pass", "li", &["http://back"]),
    c("proxy_cache", "hsl", &["stored", "off", "$arg_zone", "stored"]),
    c("proxy_cache_valid", "hsl", &["any 1h", "200 302 1h", "404 1h", "1h"]),
    c("proxy_cache_key", "hsl", &["$uri", "$uri$is_args$args", "one"]),
    c("proxy_cache_bypass", "hsl", &["$arg_s", "$http_cookie $arg_i"]),
    c("proxy_no_cache", "hsl", &["$arg_s", "$http_cookie"]),
    c("proxy_cache_methods", "hsl", &["GET", "POST", "GET HEAD POST"]),
    c("proxy_cache_min_uses", "hsl", &["1", "2"]),
    c("proxy_cache_convert_head", "hsl", &["on", "off"]),
    c("proxy_ignore_headers", "hsl", &["Set-Cookie Cache-Control Vary", "Set-Cookie"]),
    c("add_header", "hsli", &["X-Cache $upstream_cache_status always"]),
    c("proxy_force_ranges", "hsl", &["on", "off"]),
    c("proxy_cache_max_range_offset", "hsl", &["0", "2"]),
];

pub const LINKS: &[Choice] = &[
    c("secure_link", "hsl", &["$arg_s", "$arg_s,$arg_i"]),
    c("secure_link_md5", "hsl", &["$uri", "secret"]),
    c("secure_link_secret", "hsl", &["word"]),
    c("add_header", "hsli", &["X-Link \"[$secure_link|$secure_link_expires]\" always"]),
    c("return", "li", &["200 \"$secure_link\""]),
];

pub const DAV: &[Choice] = &[
    c("dav_methods", "hsl", &["PUT", "PUT DELETE MKCOL", "off"]),
    c("create_full_put_path", "hsl", &["on", "off"]),
    c("min_delete_depth", "hsl", &["0", "3"]),
    c("dav_access", "hsl", &["user:rw", "user:rw group:r all:r"]),
    c("client_max_body_size", "hsl", &["3", "1m"]),
    c("error_page", "hsli", &["403 404 405 /e.txt"]),
    c("limit_except", "l", &["GET { deny all; }"]),
];

pub const LIMITS: &[Choice] = &[
    c(
        "limit_req",
        "hsl",
        &["zone=rate", "zone=rate burst=2 nodelay", "zone=other nodelay burst=1"],
    ),
    c("limit_req_status", "hsl", &["429", "403"]),
    c("limit_req_dry_run", "hsl", &["on", "off"]),
    c("limit_conn", "hsl", &["conns 1", "others 1"]),
    c("limit_conn_status", "hsl", &["429", "404"]),
    c("limit_conn_dry_run", "hsl", &["on", "off"]),
    c("add_header", "hsli", &["X-Limit \"$limit_req_status|$limit_conn_status\" always"]),
    c("error_page", "hsli", &["429 503 403 /e.txt"]),
];

pub const BROWSER: &[Choice] = &[
    // In `http`, nginx does not finish its list of them, and compares with memory that holds anything.
    c("modern_browser", "sl", &["msie 5.5", "gecko 1.0", "unlisted"]),
    c("ancient_browser", "hsl", &["agent", "MSIE", "netscape4"]),
    c("modern_browser_value", "hsl", &["new"]),
    c("ancient_browser_value", "hsl", &["old"]),
    c("add_header", "hsli", &["X-B \"$modern_browser|$ancient_browser|$msie\" always"]),
    c("userid", "hsl", &["log", "off"]),
    c("userid_name", "hsl", &["uid", "other"]),
    c("userid_mark", "hsl", &["off", "A", "="]),
    c("add_header", "hsli", &["X-U \"$uid_got|$uid_set\" always"]),
];

pub const FURTHER: &[Choice] = &[
    c("add_before_body", "hsl", &["/e.txt"]),
    c("empty_gif", "l", &[""]),
    c("max_headers", "hs", &["1", "5", "100"]),
    c("slice", "hsl", &["4", "1k", "0"]),
    c("early_hints", "hsl", &["$http_x", "$arg_s"]),
    c("proxy_pass", "li", &["http://back"]),
    c("proxy_set_header", "hsl", &["Range $slice_range"]),
    c("proxy_store", "hsl", &["on", "%%DIR%%/kept$uri", "off"]),
    c("proxy_store_access", "hsl", &["user:rw", "user:rw all:r"]),
    c("source_charset", "hsli", &["koi8-r", "utf-8", "off"]),
    c("charset", "hsli", &["utf-8", "koi8-r"]),
    c(
        "access_log",
        "hsli",
        &["%%DIR%%/logs/seen.log seen if=$arg_s", "%%DIR%%/logs/seen.log seen"],
    ),
    c("http2_max_field_size", "hs", &["16", "4k"]),
    c("http2_max_requests", "hs", &["1", "1000"]),
];
