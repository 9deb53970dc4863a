//! The configurations that both servers run, and the files that they serve.

use weir_testkit::Dir;

/// Name and text.
pub const ALL: &[(&str, &str)] =
    &[("static", STATIC), ("rewrite", REWRITE), ("errors", ERRORS), ("bodies", BODIES)];

const STATIC: &str = r#"
    events { }
    http {
        access_log off; server_tokens off; keepalive_timeout 250ms;
        types { text/html html; text/plain txt; application/json json; }
        default_type application/octet-stream;
        server {
            listen 127.0.0.1:%%PORT%%; server_name localhost; root %%DIR%%/html; index index.html;
            location /dir/ { }
            location = /exact.txt { }
            location /alias/ { alias %%DIR%%/html/dir/; }
            location ~ \.json$ { add_header X-Json yes; expires 1h; }
            location /try/ { try_files $uri $uri/ /index.html; }
            location /no-etag/ { alias %%DIR%%/html/; etag off; max_ranges 0; }
            location /before/ { alias %%DIR%%/html/; if_modified_since before; }
        }
        server { listen 127.0.0.1:%%PORT%%; server_name other.example *.wild.example; return 200 "other $host"; }
    }
"#;

const REWRITE: &str = r#"
    events { }
    http {
        access_log off; server_tokens off; keepalive_timeout 250ms; default_type text/plain;
        server {
            listen 127.0.0.1:%%PORT%%; server_name localhost;
            rewrite ^/old/(.*)$ /new/$1;
            rewrite ^/moved/(.*)$ /to/$1?a=b permanent;
            location / { return 200 "$uri|$args|$request_uri|$arg_a|$http_x|$host|$request_method"; }
            location /new/ { rewrite ^/new/(.+)\.php$ /php?f=$1&$args last; return 200 "new $uri"; }
            location /php { return 200 "php $args"; }
            location /if { if ($arg_a = "1") { return 201 "one"; } if ($http_x ~* "^Y(.)") { return 202 "$1"; } return 204; }
            location /set { set $v "$arg_a-$arg_b"; return 200 "$v"; }
            location ~ ^/re/(?<name>[a-z]+)/(\d+)$ { return 200 "$name $2"; }
            location /loop { rewrite ^ /loop last; }
            location /away { return 302 /there?x=$arg_a; }
            location /abs { return 301 http://example.org$request_uri; }
        }
    }
"#;

const ERRORS: &str = r#"
    events { }
    http {
        access_log off; server_tokens off; keepalive_timeout 250ms; default_type text/plain;
        server {
            listen 127.0.0.1:%%PORT%%; server_name localhost; root %%DIR%%/html;
            error_page 404 /404.html; error_page 403 =200 /index.html; error_page 410 = @gone;
            location /404.html { internal; }
            location /gone { return 410; }
            location @gone { return 200 "was $uri"; }
            location /deny { deny all; }
            location /teapot { return 418 "short"; }
            location /status/400 { return 400; } location /status/500 { return 500; }
            location /status/503 { return 503; } location /status/301 { return 301 /x; }
            location /internal { internal; }
            location /away { error_page 404 =301 http://example.org/; }
            location /headers { add_header A b; add_header C d always; return 403; }
        }
    }
"#;

const BODIES: &str = r#"
    events { }
    http {
        access_log off; server_tokens off; keepalive_timeout 250ms; default_type text/plain; client_max_body_size 300;
        upstream back { server 127.0.0.1:%%PORT1%%; keepalive 4; }
        # Of a chunked body that is thrown away nginx's length is negative when another request came with it.
        map $http_transfer_encoding $counted { default $request_length; chunked -; }
        server {
            listen 127.0.0.1:%%PORT%%; server_name localhost; root %%DIR%%/html;
            location / { return 200 "$counted|$content_length|$content_type"; }
            # Said, since older releases of nginx have other defaults.
            proxy_http_version 1.1; proxy_set_header Connection "";
            location /pass { proxy_pass http://back; proxy_set_header X-Extra "$host"; proxy_set_header Connection ""; }
            location /pass/uri/ { proxy_pass http://back/mapped/; }
            location /unbuffered { proxy_pass http://back; proxy_request_buffering off; proxy_buffering off; }
        }
        server {
            listen 127.0.0.1:%%PORT1%%;
            location / { return 200 "$request_method $request_uri $http_host $http_x_extra $http_connection $content_length $http_x"; }
            # Without a length: of a chunked body that has come whole nginx knows it even when it does not buffer.
            location /unbuffered { return 200 "$request_method $request_uri $http_host $http_connection $http_x"; }
            location /pass/404 { return 404; }
            location /pass/redirect { return 302 http://back/pass/there; }
        }
    }
"#;

/// The files below `html`, with one time of change, since both servers show it.
pub fn files(dir: Dir) -> Dir {
    let long: String = (0..2000).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
    for (name, text) in [
        ("html/index.html", "<p>index</p>"),
        ("html/404.html", "nothing here"),
        ("html/exact.txt", "exact"),
        ("html/empty.txt", ""),
        ("html/long.txt", &long),
        ("html/data.json", "{\"a\":1}"),
        ("html/dir/index.html", "dir"),
        ("html/dir/file.txt", "file in dir"),
        ("html/noindex/x.txt", "x"),
        ("html/try/there.txt", "there"),
        ("html/sp ace.txt", "space"),
        ("html/.hidden", "hidden"),
    ] {
        let path = dir.write(name, text);
        let file = std::fs::File::options().write(true).open(path).expect("a file of the test");
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000);
        file.set_modified(time).expect("a time of change");
    }
    dir
}
