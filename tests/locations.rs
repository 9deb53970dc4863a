//! Which location a path selects, and which one a request goes to from there.

use weir_testkit::{Dir, Server};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn serve(inside: &str) -> Server {
    let dir = Dir::new();
    std::fs::create_dir_all(dir.file("html/sub")).unwrap();
    dir.write("html/page.html", "page");
    dir.write("html/sub/file", "file");
    dir.write("html/404.html", "not here");
    let conf = format!(
        "events {{ }} http {{ server {{ listen 127.0.0.1:%%PORT%%; root %%DIR%%/html; {inside} }} }}"
    );
    Server::start_in(dir, WEIR, &conf)
}

fn told(server: &Server, path: &str) -> (u16, String) {
    let response = server.get(path);
    (response.status, response.body())
}

#[test]
fn the_longest_prefix_unless_a_pattern_matches() {
    let server = serve(
        "location / { return 200 root; }
         location = / { return 200 exact; }
         location /a { return 200 a; }
         location /a/b { return 200 ab; }
         location ^~ /static/ { return 200 static; }
         location ~ \\.php$ { return 200 php; }
         location ~* \\.JPG$ { return 200 jpg; }
         location ~ ^/named/(?<what>[^/]+) { return 200 $what-$1; }",
    );
    for (path, body) in [
        ("/", "exact"),
        ("/x", "root"),
        ("/a", "a"),
        ("/abc", "a"),
        ("/a/b/c", "ab"),
        ("/a/b.php", "php"),
        ("/x.jpg", "jpg"),
        ("/static/x.php", "static"),
        ("/named/it/x", "it-it"),
        ("/a/./b/../b/c", "ab"),
        ("/%61/b", "ab"),
        ("//a//b", "ab"),
    ] {
        assert_eq!(server.get(path).body(), body, "{path}");
    }
}

#[test]
fn a_modifier_may_be_glued_to_its_name() {
    let server = serve(
        "location ^~/i/ { alias %%DIR%%/html/sub/; }
         location =/one { alias %%DIR%%/html/sub/file; }
         location ^~/p/ { proxy_pass http://127.0.0.1:%%PORT%%/told/; }
         location /told/ { return 200 $uri; }
         location ^~/n { location =/n/a { return 200 na; } location ^~/n/b { return 200 nb; } }
         location ~*\\.X$ { return 200 x; }",
    );
    for (path, body) in [
        ("/i/file", "file"),
        ("/one", "file"),
        ("/p/q", "/told/q"),
        ("/n/a", "na"),
        ("/n/bc", "nb"),
        ("/z.x", "x"),
    ] {
        assert_eq!(told(&server, path), (200, body.to_owned()), "{path}");
    }
    assert_eq!(told(&server, "/n.x").0, 404);
}

#[test]
fn locations_inside_locations() {
    let server = serve(
        "location /a/ {
             return 200 a;
             location /a/b/ { return 200 ab; location ~ \\.x$ { return 200 abx; } }
             location = /a/c { return 200 ac; }
         }
         location ~ \\.x$ { return 200 x; }",
    );
    for (path, body) in
        [("/a/z", "a"), ("/a/b/z", "ab"), ("/a/b/z.x", "abx"), ("/a/c", "ac"), ("/a/z.x", "x")]
    {
        assert_eq!(server.get(path).body(), body, "{path}");
    }
}

#[test]
fn files_are_tried_in_order() {
    let server = serve(
        "location /t/ { alias %%DIR%%/html/; try_files $uri $uri/ =404; }
         location / { try_files $uri /sub$uri @last; }
         location /status { return 201 $status; }
         location /code { try_files /none =418; }
         location /dir { try_files /sub/ /none; return 200 $uri; }
         location /args { try_files /none /told?a=b&$args; }
         location = /told { return 200 $args; }
         location @last { return 200 last-$uri; }",
    );
    assert_eq!(server.get("/page.html").body(), "page");
    assert_eq!(server.get("/file").body(), "file");
    assert_eq!(server.get("/none").body(), "last-/none");
    assert_eq!(server.get("/t/sub/file").body(), "file");
    assert_eq!(server.get("/t/none").status, 404);
    assert_eq!(server.get("/code").status, 418);
    assert_eq!(server.get("/status").body(), "201");
    assert_eq!(server.get("/args?c=d").body(), "a=b&c=d");
}

#[test]
fn error_pages() {
    let server = serve(
        "error_page 404 /404.html;
         error_page 403 = /answer;
         error_page 410 =200 /answer;
         error_page 402 @named;
         error_page 406 http://elsewhere.example/;
         error_page 407 =301 http://elsewhere.example/;
         location / { }
         location = /answer { return 204; }
         location /gone { return 410; }
         location /forbidden { return 403; }
         location /pay { return 402; }
         location /far { return 406; }
         location /farther { return 407; }
         location /inside { internal; }
         location /loop { error_page 404 /loop/x; recursive_error_pages on; }
         location @named { return 200 named; }",
    );
    assert_eq!(told(&server, "/none"), (404, "not here".to_owned()));
    assert_eq!(told(&server, "/forbidden"), (204, String::new()));
    assert_eq!(server.get("/gone").status, 200);
    assert_eq!(told(&server, "/pay"), (402, "named".to_owned()));
    assert_eq!(server.get("/far").status, 302);
    assert_eq!(server.get("/far").header("Location"), Some("http://elsewhere.example/"));
    assert_eq!(server.get("/farther").status, 301);
    assert_eq!(told(&server, "/inside"), (404, "not here".to_owned()));
    assert_eq!(server.get("/loop/y").status, 500);
    server.wait_log("rewrite or internal redirection cycle while internally redirecting to", 1);
    assert_eq!(server.ask("POST /none", "", "").status, 404);
}

#[test]
fn what_is_internal_stays_so_in_the_locations_inside() {
    let server = serve(
        "location /in/ { internal; location /in/prefix/ { } location ~ html$ { } }
         location /way { rewrite ^ /in/prefix/there; } location = /in/prefix/there { return 200 in; }",
    );
    assert_eq!(server.get("/way").body(), "in");
    for path in ["/in/x", "/in/prefix/x", "/in/x.html"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
}

#[test]
fn the_page_for_a_body_that_is_too_large_may_be_anywhere() {
    let server = serve(
        "client_max_body_size 3; error_page 413 /404.html;
         location /keep { error_page 413 /size; }
         location /size { return 200 $content_length-$status; }",
    );
    let sent = server.ask("POST /page.html", "Content-Length: 4\r\nConnection: close\r\n", "body");
    assert_eq!((sent.status, sent.body()), (413, "not here".to_owned()));
    assert_eq!(sent.header("Connection"), Some("close"));
    let sent = server.ask("POST /keep", "Content-Length: 4\r\nConnection: close\r\n", "body");
    assert_eq!((sent.status, sent.body()), (413, "4-413".to_owned()));
}

#[test]
fn what_clients_are_told_of_keepalive_is_inherited_by_itself() {
    let server = serve(
        "keepalive_timeout 5s 7s;
         location / { keepalive_timeout 10s; }
         location /none { keepalive_timeout 10s 0; return 200; }",
    );
    let told = |path: &str| {
        let answer = server.connect().get(path);
        answer.header("Keep-Alive").map(str::to_owned)
    };
    assert_eq!(told("/page.html").as_deref(), Some("timeout=7"));
    assert_eq!(told("/none"), None);
}

#[test]
fn methods_may_have_settings_of_their_own() {
    let server = serve("location / { limit_except GET { deny all; } }");
    assert_eq!(server.ask("GET /page.html", "", "").status, 200);
    let mut client = server.connect();
    client.send("HEAD /page.html HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(client.rest().starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(server.ask("DELETE /page.html", "", "").status, 403);
}

#[test]
fn a_block_keeps_the_handler_that_nginx_keeps_in_it() {
    let server = serve(
        "location /told { return 200 passed; }
         location /page.html { empty_gif; if ($arg_a) { add_header A b; } limit_except HEAD POST { allow all; } }
         location /sub/file { proxy_pass http://127.0.0.1:%%PORT%%/told; if ($arg_a) { add_header A b; }
             limit_except POST { allow all; } location /sub/file/in { } }
         location /404.html { weir_status json; deny all; limit_except POST { allow all; } }",
    );
    let told = |line: &str| server.ask(line, "", "").body();
    // A picture is no handler of limited methods, a proxy is.
    assert_eq!(
        (told("GET /page.html"), told("GET /page.html?a=1")),
        ("page".into(), "page".into())
    );
    assert_eq!(server.ask("POST /page.html?a=1", "", "").status, 405);
    for line in ["GET /sub/file", "GET /sub/file?a=1", "POST /sub/file", "POST /sub/file?a=1"] {
        assert_eq!(told(line), "passed", "{line}");
    }
    assert_eq!(server.get("/sub/file/in").status, 404);
    assert!(told("GET /404.html").starts_with('{'));
}

#[test]
fn redirects_name_what_they_are_told_to() {
    let host =
        |server: &Server| server.ask("GET /sub", "", "").header("Location").unwrap().to_owned();
    let server = serve("server_name first.example second.example;");
    assert_eq!(host(&server), format!("http://localhost:{}/sub/", server.port()));
    let server = serve("server_name first.example; server_name_in_redirect on;");
    assert_eq!(host(&server), format!("http://first.example:{}/sub/", server.port()));
    let server = serve("port_in_redirect off;");
    assert_eq!(host(&server), "http://localhost/sub/");
    let server = serve("absolute_redirect off;");
    assert_eq!(host(&server), "/sub/");
}

#[test]
fn names_select_the_server() {
    let server = Server::start(
        WEIR,
        "events { } http {
            server { listen 127.0.0.1:%%PORT%%; server_name one.example; return 200 one; }
            server { listen 127.0.0.1:%%PORT%%; server_name *.example; return 200 any; }
            server { listen 127.0.0.1:%%PORT%%; server_name mail.*; return 200 mail; }
            server { listen 127.0.0.1:%%PORT%%; server_name ~^(?<who>.+)\\.test$; return 200 $who; }
            server { listen 127.0.0.1:%%PORT%%; server_name ~^(?<who>M.+)\\.org$; return 200 $server_name; }
            server { listen 127.0.0.1:%%PORT%%; server_name $HostName; return 200 own; }
            server { listen 127.0.0.1:%%PORT%%; server_name .dot.org; return 200 $server_name; }
            server { listen 127.0.0.1:%%PORT%%; server_name ''; return 200 nobody; }
        }",
    );
    let ask = |host: &str| {
        let mut client = server.connect();
        client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        client.response().body()
    };
    assert_eq!(ask("one.example"), "one");
    assert_eq!(ask("ONE.example:80"), "one");
    assert_eq!(ask("two.example"), "any");
    assert_eq!(ask("mail.else.where"), "mail");
    assert_eq!(ask("me.test"), "me");
    assert_eq!(ask("unknown"), "one");
    assert_eq!(ask("me.org"), "~^(?<who>M.+)\\.org$");
    assert_eq!(ask("any.dot.org"), "dot.org");
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert_eq!(ask(&own), "own");
    let mut client = server.connect();
    client.send("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(client.response().body(), "nobody");
}

#[test]
fn a_route_asks_for_several_things_at_once() {
    let server = serve(
        "location / {
             route method=POST header=X-Version:2 @a;
             route header~x-version:^3 arg=beta:yes @b;
             route uri^/dir arg~n:^[0-9]+$ @c;
             route uri=/one @d;
             route uri~\\.x$ @e;
             location /inner { return 200 inner; }
             return 200 none;
         }
         location @a { return 200 a:$request_uri; }
         location @b { return 200 b; }
         location @c { return 200 c; }
         location @d { return 200 d; }
         location @e { return 200 e; }",
    );
    let ask = |line: &str, headers: &str| server.ask(line, headers, "").body();
    for (line, headers, body) in [
        ("POST /p?q", "X-Version: 2\r\nContent-Length: 0\r\n", "a:/p?q"),
        ("GET /p?q", "X-Version: 2\r\n", "none"),
        ("POST /p?q", "X-Version: 22\r\nContent-Length: 0\r\n", "none"),
        ("GET /?beta=yes", "X-Version: 31\r\n", "b"),
        ("GET /?beta=no", "X-Version: 31\r\n", "none"),
        ("GET /dir?n=12", "", "c"),
        ("GET /dir/x?a=1&n=12", "", "c"),
        ("GET /dirx?n=12", "", "none"),
        ("GET /dir?n=1x", "", "none"),
        ("GET /one", "", "d"),
        ("GET /a/../one", "", "d"),
        ("GET /one/", "", "none"),
        ("GET /y.x", "", "e"),
        ("POST /inner", "X-Version: 2\r\nContent-Length: 0\r\n", "inner"),
    ] {
        assert_eq!(ask(line, headers), body, "{line} {headers:?}");
    }
}

#[test]
fn a_route_shares_requests_out() {
    let server = serve(
        "location / { route @a=3 @b=1 @c=0; }
         location @a { return 200 a; } location @b { return 200 b; } location @c { return 200 c; }",
    );
    let mut client = server.connect();
    let got: Vec<String> = (0..400).map(|_| client.get("/").body()).collect();
    let count = |name: &str| got.iter().filter(|one| *one == name).count();
    assert!(count("a") + count("b") == 400 && (50..170).contains(&count("b")), "{}", count("b"));
}

#[test]
fn a_request_without_a_path_does_not_go_on_in_a_named_location() {
    let server = serve(
        "error_page 400 414 @bad;
         location @bad { proxy_pass http://127.0.0.1:%%PORT%%; }
         location / { return 200 behind; }",
    );
    let refused = |text: &str| {
        let mut client = server.connect();
        client.send(text);
        client.rest()
    };
    for text in ["GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", "GET\r\n\r\n"] {
        let answer = refused(text);
        assert!(answer.starts_with("HTTP/1.1 500 ") && !answer.contains("behind"), "{answer}");
    }
    let answer = refused("GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.ends_with("behind"), "{answer}");
    let text = "empty URI in redirect to named location \"@bad\" while reading client request line";
    server.wait_log(text, 2);
}
