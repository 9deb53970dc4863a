//! A site with every module that answers alike each time, and a server behind it that answers as
//! its path says.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use weir_testkit::fastcgi::{self, END, STDERR, STDOUT, record};
use weir_testkit::{Dir, listen};

const ECHO: &str = "$request_method|$request_uri|$uri|$args|$host|$http_host|$http_x_mine|$http_cookie|\
     $content_type|$content_length|$remote_user|$http_user_agent|$request_length|$server_protocol|$scheme|\
     $is_args|$request_body|$http2|$status|$request_completion|$limit_rate|$bytes_sent|$upstream_addr|$1|$name|$v|\
     $mapped|$part|$area|$invalid_referer|$secure_link|$realip_remote_addr|$remote_addr|$upstream_status|\
     $upstream_http_x_said|$sent_http_x_echo|$gzip_ratio|$realpath_root|$request_filename|$document_root|$w";

pub const PATHS: &[&str] = &[
    "/",
    "/a/../b?x=1",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/c%20d//e?",
    "/%0d%0aset-cookie:%20a",
    "/group/abc/def",
    "/group/xyz/",
    "/if?v=1",
    "/if",
    "/moved/f?g",
    "/moved/files/text",
    "/away/x?y",
    "/map?v=abc9",
    "/map",
    "/referer",
    "/secure?md5=x&expires=1",
    "/behind",
    "/only-get/",
    "/denied/",
    "/basic/",
    "/asked/files",
    "/asked/denied",
    "/tried/text",
    "/tried/none",
    "/proxy/h?i",
    "/proxy/lua/",
    "/proxy/files/text",
    "/proxy/ssi/page",
    "/proxy/group/abc/x",
    "/mirrored/x",
    "/files/text",
    "/files/none",
    "/files/",
    "/files/text.gz",
    "/listed/",
    "/static/text",
    "/subbed/text",
    "/subbed/page",
    "/around/text",
    "/charset/latin",
    "/flv/text?start=7",
    "/gif",
    "/ssi/page",
    "/ssi/nested",
    "/put/text",
    "/cached/text",
    "/cached/none",
    "/sliced/text",
    "/origin/whole",
    "/origin/chunked",
    "/origin/cut",
    "/origin/extra",
    "/origin/head",
    "/origin/gone",
    "/origin/hints",
    "/origin/coded",
    "/origin/inside",
    "/origin/nowhere",
    "/origin/trailer",
    "/script/echo?s=1",
    "/script/kept",
    "/script/told",
    "/script/cut",
    "/script/more",
    "/script/gone",
    "/script/inside",
    "/caught/none",
    "/caught/whole",
    "/unbuffered/chunked",
    "/unbuffered/cut",
    "/lua/",
    "/lua/capture",
    "/lua/exec",
    "/lua/error",
    "/lua/away",
    "/lua/filters",
    "/lua/access?v=deny",
    "/lua/access?v=set",
];

pub fn conf(html: &Dir, origin: u16, scripts: u16) -> String {
    let html = html.path().display();
    format!(
        "user root; worker_processes 1; events {{ }}
         http {{
             map $arg_v $mapped {{ default none; ~^(?<w>[a-z]+)9$ $w; 1 one; }}
             geo $area {{ default out; 10.0.0.0/8 in; }}
             split_clients $uri $part {{ 50% a; * b; }}
             charset_map iso-8859-1 utf-8 {{ e9 c3a9; fc c3bc; }}
             proxy_cache_path %%DIR%%/cache keys_zone=k:1m;
             upstream self {{ server 127.0.0.1:%%PORT%%; keepalive 4; }}
             upstream origin {{ server 127.0.0.1:{origin}; keepalive 4; }}
             upstream scripts {{ server 127.0.0.1:{scripts}; keepalive 4; }}
             proxy_set_header Connection ''; open_file_cache max=20;
             server {{
                 listen 127.0.0.1:%%PORT%%; http2 on; client_max_body_size 20k; root {html};
                 client_body_buffer_size 4k; error_page 400 404 413 /told; secure_link_secret x;
                 set_real_ip_from 127.0.0.0/8; set_real_ip_from 10.9.0.0/16;
                 location / {{ add_header X-Echo $http_x_mine; return 200 '{ECHO}'; }}
                 location = /status {{ stub_status; access_log off; }}
                 location /told {{ return 200 '{ECHO}'; }}
                 location /files/ {{
                     alias {html}/; gzip on; gzip_min_length 1; gzip_types *; charset utf-8;
                     brotli on; brotli_types *; brotli_min_length 1; zstd on; zstd_types *; index none;
                 }}
                 location /listed/ {{ alias {html}/; autoindex on; }}
                 location /static/ {{ alias {html}/; gzip_static on; gunzip on; expires epoch; etag off; }}
                 location /subbed/ {{
                     alias {html}/; sub_filter_types *; sub_filter_once off; sub_filter text 'T$http_x_mine';
                     sub_filter again ''; ssi on; ssi_types *;
                 }}
                 location /around/ {{
                     alias {html}/; add_before_body /told; add_after_body /ssi/page; addition_types *;
                 }}
                 location /charset/ {{
                     alias {html}/; charset utf-8; source_charset iso-8859-1; charset_types *;
                 }}
                 location /flv/ {{ alias {html}/; flv; }}
                 location = /gif {{ empty_gif; }}
                 location /ssi/ {{ alias {html}/; ssi on; ssi_types *; }}
                 location ~ ^/group/(?<name>[a-z]+)/(.*)$ {{ set $v $2; return 200 '{ECHO}'; }}
                 location /if {{ if ($arg_v) {{ set $v $arg_v; }} return 200 '{ECHO}'; }}
                 location /moved/ {{ rewrite ^/moved/(.*)$ /$1 last; }}
                 location /away/ {{ rewrite ^/away/(.*)$ /$1 redirect; }}
                 location /map {{ return 200 '{ECHO}'; }}
                 location /referer {{
                     valid_referers good.example;
                     if ($invalid_referer) {{ return 403; }}
                     return 200 '{ECHO}';
                 }}
                 location /secure {{
                     secure_link $arg_md5,$arg_expires; secure_link_md5 'y$uri'; return 200 '{ECHO}';
                 }}
                 location /behind {{
                     real_ip_header X-Forwarded-For; real_ip_recursive on; proxy_pass http://self/told;
                 }}
                 location /only-get/ {{ limit_except GET {{ deny all; }} proxy_pass http://self/; }}
                 location /denied/ {{ deny all; error_page 403 =401 /told; }}
                 location /basic/ {{
                     auth_basic who; auth_basic_user_file {html}/users; proxy_pass http://self/;
                 }}
                 location /asked/ {{
                     auth_request /may$uri; auth_request_set $v $upstream_status; proxy_pass http://self/;
                 }}
                 location /may/ {{ internal; proxy_pass http://self/may-/; proxy_pass_request_body off; }}
                 location /may-/asked/denied {{ return 403; }}
                 location /tried/ {{ root {html}/..; try_files $uri /files$uri /files/text @named; }}
                 location @named {{ return 200 '{ECHO}'; }}
                 location /proxy/ {{ proxy_pass http://self/; proxy_set_header X-Mine $v; }}
                 location /mirrored/ {{ mirror /proxy/mirror; proxy_pass http://self/; }}
                 location /put/ {{ proxy_pass http://self/files/; proxy_request_buffering off; }}
                 location /cached/ {{
                     proxy_cache k; proxy_cache_valid any 1h; proxy_pass http://self/files/;
                     proxy_pass_request_headers off;
                 }}
                 location /sliced/ {{
                     slice 64; proxy_cache k; proxy_cache_key $uri$slice_range; proxy_cache_valid 206 1h;
                     proxy_set_header Range $slice_range; proxy_set_header Accept-Encoding '';
                     proxy_pass http://self/static/;
                 }}
                 location /origin/ {{ proxy_pass http://origin; proxy_pass_trailers on; }}
                 location /script/ {{
                     fastcgi_pass scripts; fastcgi_keep_conn on; fastcgi_param WHAT $uri; fastcgi_param ARGS $args if_not_empty;
                     fastcgi_param MINE $http_x_mine; fastcgi_request_buffering off;
                 }}
                 location /caught/ {{
                     proxy_pass http://origin; proxy_intercept_errors on; proxy_redirect / /r/;
                     proxy_hide_header X-Said; add_header X-Heard $upstream_http_x_said always;
                 }}
                 location /unbuffered/ {{ proxy_pass http://origin; proxy_buffering off; }}
                 location /lua/ {{ content_by_lua_block {{
                     ngx.req.read_body()
                     local seen = ngx.ctx.seen
                     ngx.ctx.seen = ngx.var.uri
                     ngx.say(seen, ngx.req.get_method(), ngx.req.get_body_data())
                 }} }}
                 location /lua/capture {{ content_by_lua_block {{
                     local r = ngx.location.capture('/ssi/page', {{ args = 'v=1' }})
                     ngx.header['X-Got'] = r.status
                     ngx.say(r.body, ngx.var.arg_v)
                 }} }}
                 location /lua/exec {{ content_by_lua_block {{ ngx.exec('/told', 'v=1') }} }}
                 location /lua/error {{ content_by_lua_block {{ ngx.ctx.a = 1; error('no') }} }}
                 location /lua/away {{ rewrite_by_lua_block {{ ngx.redirect('/told', 303) }} }}
                 location /lua/filters {{
                     proxy_pass http://self/files/text;
                     header_filter_by_lua_block {{
                         ngx.ctx.n = (ngx.ctx.n or 0) + 1
                         ngx.header['X-N'] = ngx.ctx.n
                         ngx.header.content_length = nil
                     }}
                     body_filter_by_lua_block {{ ngx.arg[1] = string.gsub(ngx.arg[1], 'text', 'TEXT') }}
                 }}
                 location /lua/access {{
                     set $v '';
                     access_by_lua_block {{
                         if ngx.var.arg_v == 'deny' then ngx.exit(403) end
                         ngx.var.v = 'set'; ngx.req.set_header('X-Mine', 'lua')
                     }}
                     proxy_pass http://self/told?v=$v;
                 }}
             }}
         }}"
    )
}

/// Fills the folder of the site.
pub fn write(html: &Dir) {
    let text = "a file with some text in it, some of it again and again\n".repeat(20);
    html.write("text", &text);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    html.write("text.gz", gzip.finish().unwrap());
    html.write("latin", b"caf\xe9 \xfcber text\n");
    html.write("users", "me:{PLAIN}secret\n");
    html.write("page", "<!--# include virtual=\"/files/text\" -->[<!--# echo var=\"v\" -->]");
    let nested = "<!--# set var=\"v\" value=\"$arg_v-$uri\" --><!--# include virtual=\"/ssi/page?v=2\" -->\
                  <!--# if expr=\"$http_x_mine = /^(?<w>.)$/\" --><!--# echo var=\"w\" --><!--# endif -->\
                  <!--# include virtual=\"/origin/cut\" --><!--# echo var=\"v\" -->";
    html.write("nested", nested);
}

/// Starts the server behind: its port. It ends with the tests.
pub fn origin() -> u16 {
    listen(|stream| while answer(&stream).is_some() {})
}

/// Starts the server of scripts behind: its port. It ends with the tests.
pub fn scripts() -> u16 {
    listen(|mut stream| {
        while let Some(asked) = fastcgi::request(&mut stream) {
            let (said, stays) = script(&asked);
            if !fastcgi::say(&mut stream, &said) || !stays || !asked.keep {
                return;
            }
        }
    })
}

/// What a script answers, and whether its connection stays.
fn script(asked: &fastcgi::FastcgiRequest) -> (Vec<u8>, bool) {
    let what = asked.params.get("WHAT").and_then(|uri| uri.rsplit('/').next()).unwrap_or_default();
    let whole = |head: &str, body: &str| fastcgi::answer(&format!("{head}\r\n\r\n{body}"));
    let out = |text: &str| record(STDOUT, text.as_bytes(), 3);
    match what {
        "echo" => {
            let shown =
                ["ARGS", "MINE", "HTTP_X_MINE", "HTTP_COOKIE"].map(|name| asked.params.get(name));
            let body = String::from_utf8_lossy(&asked.body).into_owned();
            (whole("Content-Type: text/plain", &format!("{shown:?} {body}")), true)
        }
        "told" => {
            let told = record(STDERR, b"something to be told", 5);
            (
                [
                    told.clone(),
                    out("Status: 202\r\nX-Said: told\r\n\r\nto"),
                    told,
                    out("ld"),
                    record(END, &[0; 8], 0),
                ]
                .concat(),
                true,
            )
        }
        "cut" => (out("Content-Length: 100\r\n\r\nhalf"), false),
        "more" => ([whole("X-Said: more", "more"), whole("X-Said: too much", "")].concat(), true),
        "gone" => (Vec::new(), false),
        "inside" => (whole("X-Accel-Redirect: /files/text\r\nSet-Cookie: script=1", ""), true),
        _ => (whole("X-Said: kept", "kept"), true),
    }
}

/// Reads a request and answers it; `None` when the connection is to end.
fn answer(stream: &TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).ok().filter(|n| *n > 0)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    std::io::Read::read_exact(&mut reader, &mut vec![0; length]).ok()?;
    let what = first.split([' ', '?']).nth(1)?.rsplit('/').next()?;
    let head = first.starts_with("HEAD");
    let whole = |extra: &str, body: &str| {
        let length = body.len();
        let body = if head { "" } else { body };
        format!(
            "HTTP/1.1 200 OK\r\nX-Said: {what}\r\nContent-Length: {length}\r\n{extra}\r\n{body}"
        )
    };
    let ok = "HTTP/1.1 200 OK\r\n";
    let (text, stays) = match what {
        "chunked" if !head => (
            format!("{ok}Transfer-Encoding: chunked\r\n\r\n5\r\nchunk\r\n2\r\ned\r\n0\r\n\r\n"),
            true,
        ),
        "trailer" if !head => (
            format!(
                "{ok}Transfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n1\r\nt\r\n0\r\nX-T: 1\r\n\r\n"
            ),
            true,
        ),
        "cut" => (format!("{ok}X-Said: cut\r\nContent-Length: 100\r\n\r\nhalf"), false),
        "extra" => (whole("", "extra") + "HTTP/1.1 200 OK\r\n\r\nmore", false),
        "head" => (format!("{ok}X-Half: 1\r\nno colon\0\r\n"), false),
        "gone" => (String::new(), false),
        "hints" => {
            (format!("HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n{}", whole("", "hints")), true)
        }
        "coded" => (whole("Content-Encoding: x-odd\r\nETag: \"e\"\r\n", "coded"), true),
        "inside" => (whole("X-Accel-Redirect: /files/text\r\nSet-Cookie: in=1\r\n", ""), true),
        "nowhere" => (whole("X-Accel-Redirect: @none\r\n", ""), true),
        "none" => {
            let length = if head { "" } else { "none" };
            (format!("HTTP/1.1 404 No\r\nX-Said: none\r\nContent-Length: 4\r\n\r\n{length}"), true)
        }
        _ => (whole("Location: /there\r\nX-Accel-Expires: 0\r\n", "whole"), true),
    };
    (&*stream).write_all(text.as_bytes()).ok()?;
    stays.then_some(())
}
