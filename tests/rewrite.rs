//! The rewrite module, from request to answer.

use weir_testkit::{Dir, Oracle, Server, free_port};

fn server(locations: &str) -> Server {
    let conf = format!(
        "events {{ }} http {{ access_log off; server {{ listen 127.0.0.1:%%PORT%%; root %%DIR%%; \
         default_type text/plain; {locations} }} }}"
    );
    Server::start(env!("CARGO_BIN_EXE_weir"), &conf)
}

#[test]
fn return_answers_redirects_and_refuses() {
    let s = server(
        "location /text { return 200 \"$uri $arg_a\"; } location /there { return 307 /text?$args; }
         location /url { return http://example.org/; } location /page { return 404; }
         location /own { return 404 \"not here\"; } location /none { return 204; }
         location = /a.html { return 200 x; }",
    );
    assert_eq!(s.get("/text?a=1").body(), "/text 1");
    let there = s.get("/there?a=b");
    assert_eq!(there.status, 307);
    let location = format!("http://localhost:{}/text?a=b", s.port());
    assert_eq!(there.header("location"), Some(location.as_str()));
    assert_eq!(s.get("/url").header("location"), Some("http://example.org/"));
    assert!(s.get("/page").body().contains("<h1>404 Not Found</h1>"));
    assert_eq!((s.get("/own").status, s.get("/own").body().as_str()), (404, "not here"));
    assert_eq!(s.get("/none").header("content-type"), None);
    assert_eq!(s.get("/a.html").header("content-type"), Some("text/html"));
}

#[test]
fn return_answers_with_any_status() {
    let s = server(
        "location = /0 { return 0; } location = /7 { return 7 \"$status\"; } location = /199 { return 199 x; }
         location = /205 { return 205 x; } location = /425 { return 425; } location = /426 { return 426 x; }",
    );
    let head = |path: &str, body: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = s.connect().send(request).rest();
        assert!(answer.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{answer}");
        assert!(answer.ends_with(&format!("\r\n\r\n{body}")), "{answer}");
        answer.lines().next().unwrap().to_owned()
    };
    assert_eq!(head("/0", ""), "HTTP/1.1 000 ");
    assert_eq!(head("/7", "007"), "HTTP/1.1 007 ");
    assert_eq!(head("/199", "x"), "HTTP/1.1 199 ");
    assert_eq!(head("/205", "x"), "HTTP/1.1 205 ");
    assert_eq!(head("/425", ""), "HTTP/1.1 425 ");
    assert_eq!(head("/426", "x"), "HTTP/1.1 426 ");
}

#[test]
fn the_text_of_return_tells_its_status() {
    let s = server(
        "location = /302 { return 302 /to?$status; } location = /url { return http://a/$status; }
         location = /page { return 404 $status; } location = /again { return 301 $status; error_page 301 = /302; }",
    );
    let location = |path| s.get(path).header("location").map(str::to_owned);
    let to = format!("http://localhost:{}/to?302", s.port());
    assert_eq!(location("/302"), Some(to.clone()));
    assert_eq!(location("/url").as_deref(), Some("http://a/302"));
    assert_eq!(s.get("/page").body(), "404");
    assert_eq!(location("/again"), Some(to));
}

#[test]
fn a_path_is_rewritten_until_it_stays() {
    let s = server(
        "rewrite ^/old/(.*)$ /new/$1?from=$1;
         location /new { return 200 \"$uri $args\"; }
         location /last { rewrite ^ /new last; return 200 unreached; }
         location /drop { rewrite ^ /new?; }
         location /cycle { rewrite ^ /cycle; }
         location /go { rewrite ^/go/(.*)$ /to/$1 permanent; }",
    );
    assert_eq!(s.get("/old/x?q=1").body(), "/new/x from=x&q=1");
    assert_eq!(s.get("/old/a%26b").body(), "/new/a&b from=a%26b");
    assert_eq!(s.get("/last?q=1").body(), "/new q=1");
    assert_eq!(s.get("/drop?q=1").body(), "/new ");
    assert_eq!(s.get("/cycle").status, 500);
    s.wait_log("rewrite or internal redirection cycle while processing \"/cycle\"", 1);
    let go = s.get("/go/a%20b?q=1");
    let location = format!("http://localhost:{}/to/a%20b?q=1", s.port());
    assert_eq!((go.status, go.header("location")), (301, Some(location.as_str())));
}

#[test]
fn lines_and_conditions_run_in_order() {
    let s = server(
        "set $mode server;
         location / {
             set $a 1;
             if ($arg_x = yes) { set $a 2; add_header X-Inside $a; }
             set $b \"$a$mode\";
             if ($arg_x ~* ^st(.*)$) { return 200 \"stop $1\"; }
             return 200 $b;
         }",
    );
    assert_eq!(s.get("/").body(), "1server");
    let inside = s.get("/?x=yes");
    assert_eq!((inside.body().as_str(), inside.header("x-inside")), ("2server", Some("2")));
    assert_eq!(s.get("/?x=STop").body(), "stop op");
}

#[test]
fn captures_before_a_map_are_those_of_the_rule() {
    let s = Server::start(
        env!("CARGO_BIN_EXE_weir"),
        "events { } http { access_log off; map $arg_x $turned { \"~(.)(.)\" $2$1; } \
         server { listen 127.0.0.1:%%PORT%%; default_type text/plain; \
         location / { rewrite ^/(.*)$ /$1/$turned/$1; return 200 $uri; } } }",
    );
    assert_eq!(s.get("/a?x=12").body(), "/a/21/1");
    assert_eq!(s.get("/a").body(), "/a//a");
}

#[test]
fn conditions_ask_about_files() {
    let s = server(
        "location / {
             if (-f %%DIR%%$arg_p) { return 200 file; }
             if (-d %%DIR%%$arg_p) { return 200 directory; }
             if (!-e %%DIR%%$arg_p) { return 200 nothing; }
         }",
    );
    s.dir().write("here.txt", "x");
    assert_eq!(s.get("/?p=/here.txt").body(), "file");
    assert_eq!(s.get("/?p=/").body(), "directory");
    assert_eq!(s.get("/?p=/missing").body(), "nothing");
    assert_eq!(s.get("/?p=/here.txt/under").body(), "nothing");
}

#[test]
fn some_variables_of_modules_may_be_set() {
    let s = server(
        "set $proxy_port 5;
         location /passed { set $proxy_host 127.0.0.1:%%PORT%%; proxy_pass http://$proxy_host/told; }
         location /told { return 200 told; }
         location /set { set $ssl_protocol p; set $msie m; set $invalid_referer i;
             return 200 \"$ssl_protocol $msie $invalid_referer $proxy_port\"; }
         location /unset { return 200 \"$ssl_protocol $msie $proxy_port\"; }",
    );
    assert_eq!(s.get("/passed").body(), "told");
    assert_eq!(s.get("/set").body(), "p m i 5");
    assert_eq!(s.get("/unset").body(), "  5");
}

#[test]
fn a_server_without_a_name_takes_no_page_for_its_own() {
    let s = server(
        "location /own { valid_referers server_names; return 200 \"[$invalid_referer]\"; }
         location /none { valid_referers none blocked server_names;
             return 200 \"[$invalid_referer]\"; }",
    );
    for (path, headers, expected) in [
        ("/own", "", "[1]"),
        ("/own", "Referer: http://other.example/\r\n", "[1]"),
        ("/none", "", "[]"),
        ("/none", "Referer: removed\r\n", "[]"),
        ("/none", "Referer: http://other.example/\r\n", "[1]"),
    ] {
        assert_eq!(s.ask(&format!("GET {path}"), headers, "").body(), expected, "{path} {headers}");
    }
}

/// nginx wants a name beside `none` and `blocked`, and takes no pattern for one.
#[test]
fn patterns_of_referers_suffice_beside_none_and_blocked() {
    let s = server(
        "location / { valid_referers none blocked ~good\\.; return 200 \"[$invalid_referer]\"; }",
    );
    for (headers, expected) in [
        ("", "[]"),
        ("Referer: removed\r\n", "[]"),
        ("Referer: http://good.example/\r\n", "[]"),
        ("Referer: http://other.example/\r\n", "[1]"),
    ] {
        assert_eq!(s.ask("GET /", headers, "").body(), expected, "{headers}");
    }
}

#[test]
fn a_variable_that_no_set_has_reached_is_empty_and_told() {
    let s = server(
        "location /set { set $x 1; } location / { return 200 \"[$x]\"; }
         location /head { set $http_x_y mine; return 200 $http_x_y; }
         location /other { return 200 $http_x_y; }",
    );
    assert_eq!(s.get("/").body(), "[]");
    s.wait_log("using uninitialized \"x\" variable", 1);
    assert_eq!(s.get("/head").body(), "mine");
    let mut client = s.connect();
    client.send("GET /other HTTP/1.1\r\nHost: a\r\nX-Y: theirs\r\n\r\n");
    assert_eq!(client.response().body(), "theirs");
}

/// A thread may have to find `$realpath_root` before a handler asks for it. The variables in the root keep no value of that time.
#[test]
fn a_root_with_variables_is_the_one_that_set_has_made() {
    let conf = "error_log %%DIR%%/error.log info; events { }
                http {
                    map $wanted $folder { default other; yes site; }
                    map $uri $matched { default 0; ~/(.*) $1; }
                    server {
                        listen 127.0.0.1:%%PORT%%;
                        set $wanted yes;
                        root %%DIR%%/$folder;
                        location /real { return 200 $realpath_root; }
                        location ~ ^/(g)roup {
                            root %%DIR%%/$matched;
                            set $group $1;
                            return 200 $group;
                        }
                    }
                }";
    let dir = Dir::new();
    dir.write("site/a.txt", "the right one");
    dir.write("other/a.txt", "the wrong one");
    let s = Server::start_in(dir, env!("CARGO_BIN_EXE_weir"), conf);
    assert_eq!(s.get("/a.txt").body(), "the right one");
    let real = s.dir().file("site").canonicalize().unwrap();
    assert_eq!(s.get("/real").body(), real.display().to_string());
    assert_eq!(s.get("/group").body(), "g");
    let log = s.dir().read("error.log");
    assert!(!log.contains("uninitialized"), "{log}");
}

/// A refused request comes to no phase, but its headers and its line in the log may have the root.
#[test]
fn the_root_is_found_for_a_refused_request() {
    let conf = "error_log %%DIR%%/error.log; events { }
                http {
                    server {
                        listen 127.0.0.1:%%PORT%%;
                        root %%DIR%%/none;
                        add_header X-Root \"$realpath_root\" always;
                    }
                }";
    let s = Server::start_in(Dir::new(), env!("CARGO_BIN_EXE_weir"), conf);
    let mut client = s.connect();
    client.send("GET / HTTP/1.1\r\nHost: a b\r\n\r\n");
    assert_eq!(client.response().status, 400);
    s.wait_log("/none\" failed (2: No such file or directory)", 1);
}

#[test]
fn bytes_that_are_no_text_are_logged_one_by_one() {
    let s = server(
        "rewrite_log on; rewrite ^/a(.*)$ /b$1?$arg_q; rewrite ^/c(.*)$ /d$1 redirect; location / { return 204; }",
    );
    let mut client = s.connect();
    client.send(b"GET /a%fc?q=\xfc HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().status, 204);
    s.wait_log(r#"rewritten data: "/b\xFC", args: "\xFC&q=\xFC", client"#, 1);
    client.send(b"GET /c%fc?\xfc HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().status, 302);
    s.wait_log(r#"rewritten redirect: "/d%FC?\xFC", client"#, 1);
}

#[test]
fn a_variable_that_a_pattern_sets_too_is_missing_until_then() {
    let conf = "error_log %%DIR%%/error.log info; events { } http { log_format v \"[$a][$b][$c]\";
         map x $c { default mapped; }
         server { listen 127.0.0.1:%%PORT%%; access_log %%DIR%%/v.log v;
             location = /set { set $a 1; set $b 2; return 200; }
             location ~ ^/(?<a>x)(?<b>y)(?<c>z)$ { return 200; }
             location = /again { set $a 3; return 200; }
             location / { return 200; } } }";
    let mut servers = vec![env!("CARGO_BIN_EXE_weir").to_owned()];
    servers.extend(Oracle::find().map(|nginx| nginx.path));
    for server in &servers {
        let s = Server::start(server, conf);
        for path in ["/", "/set", "/xyz", "/again"] {
            assert_eq!(s.get(path).status, 200);
        }
        s.wait_file("v.log", "[-][-][-]\n[1][2][-]\n[x][y][z]\n[3][-][-]\n", 1);
        assert!(!s.dir().read("error.log").contains("uninitialized"), "{server}");
    }
}

#[test]
fn a_pattern_that_takes_too_many_steps_is_an_error() {
    let s = server(
        "location ~ ^/(?:a+)+$ { return 200; }
         location /if { if ($arg_a ~ ^(?:a+)+$) { return 200 yes; } return 200 no; }
         location /rewrite { rewrite ^/rewrite/(?:a+)+$ /x last; return 200 same; }
         location /own { if ($arg_a ~ \"(*LIMIT_MATCH=10)^(?:a|aa|aaa)+b$\") { return 200; } return 200 no; }",
    );
    let many = format!("{}b", "a".repeat(21));
    for path in [format!("/{many}"), format!("/if?a={many}"), format!("/rewrite/{many}")] {
        assert_eq!(s.get(&path).status, 500, "{path}");
        s.wait_log("pcre2_match() failed: -47 on", 1);
    }
    // A limit in front of the pattern is a person's own.
    assert_eq!(s.get("/own?a=aaaaaaaaabx").status, 500);
    assert_eq!(s.get("/if?a=aaaa").body(), "yes");
    assert_eq!(s.get("/if?a=b").body(), "no");
}

/// Behind several `if`s that hold, the last one that names a handler decides which it is, the last one of all which
/// settings it has.
#[test]
fn several_ifs_share_the_handler_and_its_settings_as_in_nginx() {
    #[derive(Clone, Copy, PartialEq)]
    enum Handler {
        Files,
        A,
        B,
        Gif,
        Grpc,
    }
    use Handler::*;
    let all = [Files, A, B, Grpc, Gif];
    // `empty_gif` is not for `if`.
    let inside = [Files, A, B, Grpc];
    let closed = free_port();
    let text = |handler| match handler {
        Files => String::new(),
        A => "proxy_pass http://127.0.0.1:%%PORT1%%;".to_owned(),
        B => "proxy_pass http://127.0.0.1:%%PORT2%%;".to_owned(),
        Gif => "empty_gif;".to_owned(),
        Grpc => format!("grpc_pass 127.0.0.1:{closed};"),
    };
    let kind = |handler| if handler == B { A } else { handler };
    let mut cases = Vec::new();
    let mut locations = String::new();
    for (i, outer) in all.into_iter().enumerate() {
        for (j, first) in inside.into_iter().enumerate() {
            for (k, second) in inside.into_iter().enumerate() {
                let path = format!("/{i}{j}{k}");
                let ([outer_text, first_text], second_text) =
                    ([outer, first].map(text), text(second));
                locations += &format!(
                    "location {path} {{ if ($arg_1) {{ {first_text} }} {outer_text} \
                     if ($arg_2) {{ set $x 1; {second_text} }} }}\n"
                );
                for (args, blocks) in [
                    ("", vec![]),
                    ("1=1", vec![first]),
                    ("2=1", vec![second]),
                    ("1=1&2=1", vec![first, second]),
                ] {
                    let last = *blocks.last().unwrap_or(&Files);
                    let settings = if last == Files { outer } else { last };
                    let named = blocks.iter().rev().find(|block| **block != Files);
                    let named = named.map_or(kind(outer), |named| kind(*named));
                    let answers = if kind(settings) == named { Some(settings) } else { None };
                    let wanted = match answers {
                        Some(Files) => (200, "files"),
                        Some(A) => (200, "a"),
                        Some(B) => (200, "b"),
                        Some(Grpc) => (502, ""),
                        Some(Gif) => (200, "GIF"),
                        None => (500, ""),
                    };
                    cases.push((format!("{path}/f?{args}"), wanted));
                }
            }
        }
    }
    let conf = format!(
        "events {{ }} http {{ access_log off;
         server {{ listen 127.0.0.1:%%PORT%%; root %%DIR%%/root; {locations} }}
         server {{ listen 127.0.0.1:%%PORT1%%; return 200 a; }}
         server {{ listen 127.0.0.1:%%PORT2%%; return 200 b; }} }}"
    );
    let mut servers = vec![env!("CARGO_BIN_EXE_weir").to_owned()];
    servers.extend(Oracle::find().map(|nginx| nginx.path));
    for server in &servers {
        let s = Server::start(server, &conf);
        for (target, _) in &cases {
            let (path, _) = target.split_once('?').unwrap();
            s.dir().write(&format!("root{path}"), "files");
        }
        for (target, (status, body)) in &cases {
            let answer = s.get(target);
            let shown = answer.body();
            let fits = answer.status == *status && (*status != 200 || shown.starts_with(body));
            assert!(fits, "{server} {target}: {} {shown}, not {status} {body}", answer.status);
        }
    }
}

#[test]
fn variables_that_nginx_does_not_have_may_be_set() {
    let server = server(
        "location / {
             set $upstream_cache_key ''; set $upstream_cache_reason r; set $event_loop_blocked b;
             if ($arg_x) { set $loop x; set $upstream_cache_key k; }
             return 200 \"$upstream_cache_key $upstream_cache_reason $event_loop_blocked $loop\";
         }
         location /own { return 200 $upstream_cache_key$loop; }",
    );
    assert_eq!(server.get("/?x=1").body(), "k r b x");
    assert_eq!(server.get("/own").body(), "0");
}
