//! The parts of generated configurations: directives with values, by the module that merges them.

/// Where a directive may stand, one letter each: `h`ttp, `s`erver, `l`ocation, `S`: `if` in server,
/// `i`: `if` in location, `e`: `limit_except`.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    pub directive: &'static str,
    pub contexts: &'static str,
    pub values: &'static [&'static str],
}

pub const fn c(
    directive: &'static str,
    contexts: &'static str,
    values: &'static [&'static str],
) -> Choice {
    Choice { directive, contexts, values }
}

const ON_OFF: &[&str] = &["on", "off"];

/// Directives that are drawn together, since one module merges them or since they meet in one answer.
pub const FAMILIES: &[&[Choice]] = &[
    HEADERS, ERRORS, FILES, NAMES, FILTERS, PAGES, ACCESS, REWRITE, ANSWERS, CONNECTION, PASSING,
    ADDRESS,
];

/// How many of them, at the end, an older nginx answers otherwise.
pub const NEWER: usize = 2;

const HEADERS: &[Choice] = &[
    c(
        "add_header",
        "hsli",
        &[
            "X-A one",
            "X-B $uri always",
            "X-C \"\"",
            "Cache-Control private",
            "X-D $status",
            "Last-Modified \"\"",
            "Content-Language de always",
        ],
    ),
    c("add_header_inherit", "hsli", &["on", "off", "merge"]),
    c("expires", "hsli", &["1h", "-1", "off", "epoch", "max", "$expires_by_type"]),
    c("add_trailer", "hsli", &["X-T end", "X-T $status always"]),
    c("add_trailer_inherit", "hsli", &["on", "off", "merge"]),
    c("return", "li", &["403", "200 text", "404"]),
];

const ERRORS: &[Choice] = &[
    c(
        "error_page",
        "hsli",
        &[
            "404 /e.txt",
            "403 404 =200 /p/b.txt",
            "404 = /p/none",
            "404 @named",
            "405 =204 /e.txt",
            "404 http://x.example/$uri",
            "403 /p/n/a.html",
            "404 =301 /there",
            "500 502 504 /r/b.txt",
            "402 = @named",
        ],
    ),
    c("recursive_error_pages", "hsl", ON_OFF),
    c("return", "sSli", &["403", "404", "402", "418 teapot", "500", "307 /p/$arg_s"]),
    c("log_not_found", "hsl", ON_OFF),
    c("internal", "l", &[""]),
    c(
        "try_files",
        "sl",
        &[
            "$uri =404",
            "$uri $uri/ /p/b.txt",
            "/none $uri @named",
            "$uri.html $uri/index.html =403",
            "/none/ $uri/ /e.txt?a=b",
        ],
    ),
    c("default_type", "hsl", &["text/plain", "application/x", "\"\""]),
];

const FILES: &[Choice] = &[
    c("root", "hsli", &["%%DIR%%/html", "%%DIR%%/other", "%%DIR%%/html/p", "html"]),
    c("alias", "l", &["%%DIR%%/html/p/", "%%DIR%%/other/", "%%DIR%%/html/e.txt"]),
    c("index", "hsl", &["index.html", "b.txt a.html", "none /e.txt", "$arg_s.html a.html"]),
    c("autoindex", "hsl", ON_OFF),
    c("autoindex_format", "hsl", &["html", "json", "xml"]),
    c("autoindex_exact_size", "hsl", ON_OFF),
    c("autoindex_localtime", "hsl", ON_OFF),
    c("try_files", "sl", &["$uri $uri/ =404", "/b.txt /a.html =404", "$uri/ /p/b.txt"]),
    c("disable_symlinks", "hsl", &["off", "on", "if_not_owner", "on from=$document_root"]),
    c("open_file_cache", "hsl", &["max=10", "off"]),
    c("open_file_cache_errors", "hsl", ON_OFF),
    c("sendfile", "hsli", ON_OFF),
    c("output_buffers", "hsl", &["1 10", "2 32k"]),
    c("directio", "hsl", &["off", "4k"]),
];

const NAMES: &[Choice] = &[
    c("types", "hsl", &["{ text/html html; }", "{ text/x txt; image/y html; }", "{ }"]),
    c("default_type", "hsl", &["text/plain", "application/x"]),
    c("charset", "hsli", &["utf-8", "koi8-r", "off"]),
    c("override_charset", "hsli", ON_OFF),
    c("charset_types", "hsl", &["text/x application/x", "*"]),
    c("etag", "hsl", ON_OFF),
    c("if_modified_since", "hsl", &["off", "exact", "before"]),
    c("max_ranges", "hsl", &["0", "1", "2"]),
    c("absolute_redirect", "hsl", ON_OFF),
    c("server_name_in_redirect", "hsl", ON_OFF),
    c("port_in_redirect", "hsl", ON_OFF),
    c("merge_slashes", "hs", ON_OFF),
    c("chunked_transfer_encoding", "hsl", ON_OFF),
    c("gzip_static", "hsl", &["on", "off", "always"]),
];

const FILTERS: &[Choice] = &[
    c("gzip", "hsli", ON_OFF),
    c("gzip_types", "hsl", &["text/plain", "*", "application/json"]),
    c("gzip_min_length", "hsl", &["0", "10", "1000"]),
    c("gzip_vary", "hsl", ON_OFF),
    c("gzip_proxied", "hsl", &["off", "any", "auth", "no_etag expired"]),
    c("gzip_http_version", "hsl", &["1.0", "1.1"]),
    c("gzip_disable", "hsl", &["agent", "msie6"]),
    c("gzip_static", "hsl", &["on", "off", "always"]),
    c("gunzip", "hsl", ON_OFF),
    c("sub_filter", "hsl", &["a b", "body $uri", "'</p>' '!</p>'"]),
    c("sub_filter_once", "hsl", ON_OFF),
    c("sub_filter_types", "hsl", &["text/plain", "*"]),
    c("sub_filter_last_modified", "hsl", ON_OFF),
    c("etag", "hsl", ON_OFF),
];

const PAGES: &[Choice] = &[
    c("add_before_body", "hsl", &["/e.txt", "/p/a.html", "\"\""]),
    c("add_after_body", "hsl", &["/e.txt", "/r/b.txt"]),
    c("addition_types", "hsl", &["text/plain", "*"]),
    c("ssi", "hsli", ON_OFF),
    c("ssi_types", "hsl", &["text/plain", "*"]),
    c("ssi_silent_errors", "hsl", ON_OFF),
    c("ssi_last_modified", "hsl", ON_OFF),
    c("ssi_value_length", "hsl", &["3", "256"]),
    c("sub_filter", "hsl", &["a b"]),
    c("charset", "hsli", &["utf-8", "off"]),
    c("error_page", "hsli", &["404 /p/ssi.html"]),
];

const ACCESS: &[Choice] = &[
    c("allow", "hsle", &["127.0.0.1", "10.0.0.0/8", "all"]),
    c("deny", "hsle", &["127.0.0.1", "10.0.0.1", "all"]),
    c("satisfy", "hsl", &["any", "all"]),
    c("auth_basic", "hsle", &["realm", "off", "\"$uri\""]),
    c("auth_basic_user_file", "hsle", &["%%DIR%%/users", "%%DIR%%/none"]),
    c("auth_request", "hsl", &["/yes", "/no", "/forbid", "off", "/yes?$args"]),
    c("auth_request_set", "hsl", &["$answered $upstream_status", "$answered $sent_http_x_auth"]),
    c("add_header", "hsli", &["X-Auth $answered always"]),
    c("error_page", "hsli", &["401 403 /e.txt", "401 =200 /e.txt", "403 @named"]),
    c("valid_referers", "sl", &["none", "blocked s1.example", "server_names", "~x\\.ex"]),
    c("if ($invalid_referer)", "l", &["{ return 410; }"]),
    c("auth_delay", "hsl", &["0"]),
    c("return", "li", &["200 in", "403"]),
];

const REWRITE: &[Choice] = &[
    c("set", "sSli", &["$v $uri", "$v \"$v+\"", "$w $args", "$args x=y"]),
    c(
        "rewrite",
        "sSli",
        &[
            "^/p/(.*)$ /r/$1",
            "^/r/(.*)$ /p/$1 last",
            "^/i/(.*)$ /p/$1 break",
            "^/l/(.+)$ /e.txt?q=$1",
            "\\.txt$ /moved permanent",
            "^(.*)/none$ $1/b.txt? redirect",
            "^/p/n/(?<part>.*)$ /i/$part last",
        ],
    ),
    c("break", "sSli", &[""]),
    c("return", "sSli", &["200 \"$uri|$args|$v|$w|$request_uri\"", "302 /x$uri", "204"]),
    c("if ($v)", "sl", &["{ set $w seen; }", "{ add_header X-V $v; }", "{ break; }"]),
    c("if ($uri ~ ^/(.)/(.*))", "sl", &["{ set $v \"$1-$2\"; }", "{ return 200 \"$1 $2\"; }"]),
    c("if (-f $request_filename)", "sl", &["{ set $v file; }"]),
    c("if (!-e $request_filename)", "sl", &["{ return 200 \"none: $request_filename\"; }"]),
    c("if ($request_method = POST)", "sl", &["{ return 405; }", "{ set $v post; }"]),
    c("add_header", "hsli", &["X-V \"$v|$w|$uri|$document_root\" always"]),
    c("uninitialized_variable_warn", "hsli", ON_OFF),
];

const PASSING: &[Choice] = &[
    c("proxy_pass", "lie", &["http://%%BACK%%", "http://back", "http://$back", "http://back$uri"]),
    c("proxy_pass", "l", &["http://%%BACK%%/up/", "http://back/up", "http://back/%20x?y=z"]),
    c(
        "proxy_set_header",
        "hsl",
        &["X-S $uri", "Host $host", "Connection \"\"", "X-E \"\"", "Accept-Encoding gzip"],
    ),
    c("proxy_hide_header", "hsl", &["X-Up", "Set-Cookie"]),
    c("proxy_pass_header", "hsl", &["X-Accel-Buffering", "Set-Cookie", "Server"]),
    c("proxy_method", "hsl", &["PUT", "$arg_m", "GET"]),
    c(
        "proxy_redirect",
        "hsl",
        &[
            "off",
            "default",
            "http://%%BACK%%/ /down/",
            "~^http://[^/]+(/.*)$ https://x$1",
            "/ /front/",
        ],
    ),
    c("proxy_cookie_path", "hsl", &["/up/ /", "off", "~^/(.*)$ /x/$1"]),
    c("proxy_cookie_domain", "hsl", &["up.example $host", "off"]),
    c("proxy_cookie_flags", "hsl", &["a secure httponly", "~. nosamesite", "off"]),
    c("proxy_intercept_errors", "hsl", ON_OFF),
    c("error_page", "hsli", &["404 /e.txt", "301 302 =200 /e.txt", "500 @named"]),
    c("proxy_ignore_headers", "hsl", &["X-Accel-Redirect", "Set-Cookie X-Accel-Charset"]),
    c("proxy_http_version", "hsl", &["1.0", "1.1"]),
    c("proxy_set_body", "hsl", &["body=$uri", "\"\""]),
    c("proxy_pass_request_headers", "hsl", ON_OFF),
    c("proxy_pass_request_body", "hsl", ON_OFF),
    c("proxy_buffering", "hsl", ON_OFF),
    c("proxy_request_buffering", "hsl", ON_OFF),
    c("proxy_force_ranges", "hsl", ON_OFF),
    c("client_max_body_size", "hsl", &["3", "0", "1m"]),
    c("charset", "hsli", &["utf-8"]),
];

const ANSWERS: &[Choice] = &[
    c(
        "return",
        "sSli",
        &[
            "200 \"$uri $document_root $request_filename\"",
            "301 https://$host$request_uri",
            "302 p/$arg_s",
            "200",
            "444",
            "303 \"\"",
            "200 $content_type$content_length",
            "https://z.example/",
        ],
    ),
    c("default_type", "hsl", &["text/plain", "\"x/$arg_s\""]),
    c("add_header", "hsli", &["X-A \"$sent_http_content_type\"", "Location /x always"]),
    c("absolute_redirect", "hsl", ON_OFF),
    c("error_page", "hsli", &["301 302 /e.txt", "404 /none"]),
    c("limit_except", "l", &["GET { deny all; }", "POST { auth_basic x; }", "GET POST { }"]),
    c("client_max_body_size", "hsl", &["3", "0"]),
    c("charset", "hsli", &["utf-8", "off"]),
    c("types", "hsl", &["{ }"]),
];

const CONNECTION: &[Choice] = &[
    c("keepalive_timeout", "hsl", &["0", "5s 7s", "10s", "5s 0"]),
    c("keepalive_requests", "hsl", &["1", "1000"]),
    c("underscores_in_headers", "hs", ON_OFF),
    c("ignore_invalid_headers", "hs", ON_OFF),
    c("client_body_in_file_only", "hsl", &["on", "off", "clean"]),
    c("client_body_in_single_buffer", "hsl", ON_OFF),
    c("client_body_buffer_size", "hsl", &["1", "8k"]),
    c("client_max_body_size", "hsl", &["3", "0", "1m"]),
    c("large_client_header_buffers", "hs", &["2 1k", "4 8k"]),
    c("client_header_buffer_size", "hs", &["1k", "200"]),
    c("keepalive_disable", "hsl", &["none", "safari", "msie6"]),
    c("msie_padding", "hsl", ON_OFF),
    c("msie_refresh", "hsl", ON_OFF),
    c("reset_timedout_connection", "hsl", ON_OFF),
    c("lingering_close", "hsl", &["on", "off", "always"]),
    c("return", "li", &["200 \"$http_x_under|$http_x|$request_length\"", "403", "302 /x"]),
    c("error_page", "hsli", &["413 /e.txt", "400 414 =200 /e.txt"]),
];

const ADDRESS: &[Choice] = &[
    c("set_real_ip_from", "hsl", &["127.0.0.0/8", "10.0.0.0/8", "1.2.3.4", "unix:"]),
    c("real_ip_header", "hsl", &["X-Forwarded-For", "X-Real-IP", "X"]),
    c("real_ip_recursive", "hsl", ON_OFF),
    c("allow", "hsle", &["1.2.3.4", "127.0.0.1"]),
    c("deny", "hsle", &["all", "10.1.1.1"]),
    c("return", "li", &["200 \"$remote_addr $realip_remote_addr $binary_remote_addr\""]),
    c("add_header", "hsli", &["X-A \"$remote_addr|$geo|$mapped|$split\" always"]),
    c("proxy_pass", "li", &["http://back"]),
    c("proxy_set_header", "hsl", &["X-F $proxy_add_x_forwarded_for"]),
];
