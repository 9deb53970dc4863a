//! Requests and answers, as scripts see and change them.

use super::{ask, said, server, server_with};

#[test]
fn output_is_what_openresty_prints() {
    let script = r#"ngx.say("a", 1, 1.5, 1e15, " ", nil, true, ngx.null, { "x", { 2, "y" } })
        ngx.say({ "a", nil, "c" })
        ngx.print("b", "\n")
        ngx.say(pcall(ngx.say, print))
        ngx.say(pcall(ngx.say, { k = 1 }))"#;
    let expected = "a11.51e+15 niltruenullx2y\nanilc\nb\n\
        falsebad argument #1 to 'say' (string, number, boolean, nil, ngx.null, or array table \
        expected, but got function)\n\
        falsebad argument #1 to 'say' (non-array table found)\n";
    assert_eq!(said(script), expected);
}

#[test]
fn values_are_printed_however_many_there_are() {
    let values = ["1", "nil", "\"c\"", "false", "{ 8, \"t\" }", "0.5", "true"];
    let printed = ["1", "nil", "c", "false", "8t", "0.5", "true"];
    let (mut script, mut expected) = (String::new(), String::new());
    for from in 0..=values.len() {
        for to in from..=values.len() {
            script.push_str(&format!("ngx.say({}) ", values[from..to].join(", ")));
            expected.push_str(&format!("{}\n", printed[from..to].concat()));
        }
    }
    assert_eq!(said(&script), expected);
}

#[test]
fn an_answer_may_come_piece_by_piece() {
    let server = server(
        r#"location = /slow { content_by_lua_block {
               ngx.say("first") ngx.flush(true)
               ngx.req.read_body() -- comes when the client has seen the first line
               ngx.say("then ", ngx.req.get_body_data())
               ngx.eof()
               local ok, err = ngx.say("late")
               ngx.log(ngx.ERR, "after eof: ", ok, " ", err)
           } }"#,
    );
    let mut client = server.connect();
    client.send("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nConnection: close\r\n\r\n");
    client.send("body");
    let answer = client.response();
    assert_eq!(answer.body(), "first\nthen body\n");
    server.wait_log("after eof: nil seen eof", 1);
}

#[test]
fn output_functions_return_what_openresty_returns() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               local seen = {}
               local function note(ok, why) table.insert(seen, why or tostring(ok)) end
               note(ngx.flush()) ngx.send_headers() note(ngx.flush()) note(ngx.flush(true))
               note(ngx.print("a")) note(ngx.flush()) note(ngx.eof()) note(ngx.print("b"))
               ngx.log(ngx.ERR, "seen: ", table.concat(seen, ", "))
           } }
           location = /head { content_by_lua_block {
               local ok, why = ngx.print("a") local _, again = ngx.print("b")
               ngx.log(ngx.ERR, "first ", ok, " ", why, ", then ", again)
           } }
           location = /filter { return 200; body_filter_by_lua_block {
               local function failure(index, value)
                   local _, why = pcall(function() ngx.arg[index] = value end)
                   return why:match(":%d+: (.*)")
               end
               ngx.log(ngx.ERR, "wrong: ", failure(1, { true }), ", ", failure(1, { 1, nil, 2 }), ", ", failure(1, print), ", ",
                   failure(3, 1), ", ", ngx.arg.x)
           } }
           location = /set { set_by_lua $a 'return tostring(ngx.arg[1])' ''; return 200 $a; }
           location = /exec { content_by_lua_block { ngx.exec("@named?a=1", "b=2") } }
           location @named { return 200 "named"; }"#,
    );
    assert_eq!(server.get("/t").body(), "a");
    server.wait_log("seen: nothing to flush, nothing to flush, 1, 1, 1, 1, seen eof", 1);
    assert_eq!(ask(&server, "HEAD /head HTTP/1.1\r\nConnection: close", "").status, 200);
    server.wait_log("first 1 nil, then header only", 1);
    server.get("/filter");
    server.wait_log(
        "wrong: bad argument #3 to '__newindex' (bad data type boolean found), \
         bad argument #3 to '__newindex' (bad data type nil found), bad chunk data type: function, bad index: 3, nil",
        1,
    );
    assert_eq!(server.get("/set").body(), "nil");
    assert_eq!(server.get("/exec").body(), "named");
    server.wait_log("query strings a=1&b=2 ignored when exec'ing named location @named", 1);
}

#[test]
fn old_clients_get_a_length() {
    let server = server("location / { content_by_lua 'ngx.say(1) ngx.say(22)'; }");
    let answer = ask(&server, "GET / HTTP/1.0", "");
    assert_eq!(answer.header("Content-Length"), Some("5"));
    assert_eq!(answer.body(), "1\n22\n");
    // As with HTTP/1.1, the first piece sends the head.
    let head = server.connect().send("HEAD / HTTP/1.0\r\n\r\n").rest();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && !head.contains("Content-Length"), "{head}");
}

#[test]
fn requests_are_seen_and_changed() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               local req = ngx.req
               ngx.say(req.get_method(), " ", req.http_version(), " ", req.is_internal())
               local headers = req.get_headers()
               ngx.say(headers["x-one"], " ", headers.X_One, " ", #headers["X-Two"])
               req.set_header("X-One", "changed") req.set_header("X-New", { "a", "b" })
               req.clear_header("X-Two")
               ngx.say(ngx.var.http_x_one, " ", ngx.var.http_x_new, " ", ngx.var.http_x_two)
               local args = req.get_uri_args()
               ngx.say(args.a, " ", args.b[1], args.b[2], " ", args.c)
               req.set_uri_args({ d = "x y" }) ngx.say(ngx.var.args)
               req.set_method(ngx.HTTP_PUT) ngx.say(ngx.var.request_method)
               req.read_body()
               ngx.say(req.get_body_data(), " ", req.get_post_args().k)
               req.set_body_data("another") ngx.say(req.get_body_data(), ngx.var.http_content_length)
               ngx.say((req.raw_header():gsub("\r\n", "|")))
           } }
           location = /next { content_by_lua 'ngx.say("next")'; }"#,
    );
    let mut client = server.connect();
    client.send(
        "POST /t?a=1&b=2&b=3&c HTTP/1.1\r\nHost: a\r\nX-One: 1\r\nX-Two: 2\r\nX-Two: 3\r\n\
         Content-Length: 3\r\n\r\nk=vGET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    );
    let expected = "POST 1.1 false\n1 1 2\nchanged a, b nil\n1 23 true\nd=x%20y\nPUT\nk=v v\n\
        another7\nPOST /t?a=1&b=2&b=3&c HTTP/1.1|Host: a|X-One: 1|X-Two: 2|X-Two: 3|\
        Content-Length: 3||\n";
    assert_eq!(client.response().body(), expected);
    // What came behind the body is the next request, whatever was added to this one's head.
    assert_eq!(client.response().body(), "next\n");
}

#[test]
fn a_server_behind_gets_what_a_script_has_changed() {
    let server = server(
        r#"location = /behind { content_by_lua_block {
               ngx.req.read_body()
               ngx.print(ngx.req.get_method(), " ", ngx.var.request_uri, " ", ngx.var.http_content_length, " ",
                   ngx.req.get_body_data())
           } }
           location = /args { rewrite_by_lua_block { ngx.req.set_uri_args({ z = 1 }) } try_files /nothing @up; }
           location = /to/args { access_by_lua_block { ngx.req.set_uri_args("z=1") } set $u http://127.0.0.1:%%PORT1%%;
               proxy_pass $u; }
           location @up { proxy_pass http://127.0.0.1:%%PORT1%%; }
           location = /discards { access_by_lua_block {
               ngx.req.discard_body()
               ngx.req.set_method(ngx.HTTP_GET)
           } proxy_pass http://127.0.0.1:%%PORT%%/behind; }
           location = /discarded { content_by_lua_block {
               ngx.req.discard_body() ngx.req.read_body()
               ngx.print(ngx.req.get_body_data(), ngx.req.get_body_file())
           } }
           location = /kept { content_by_lua_block {
               ngx.req.read_body() ngx.req.discard_body()
               ngx.print(ngx.req.get_body_data())
           } }
         }
         server { listen 127.0.0.1:%%PORT1%%; location / { return 200 $request_uri; }"#,
    );
    assert_eq!(server.get("/args?a=b").body(), "/args?z=1");
    assert_eq!(server.get("/to/args?a=b").body(), "/to/args?z=1");
    let mut client = server.connect();
    let chunked = "Transfer-Encoding: chunked\r\n";
    for (headers, body) in [("Content-Length: 3\r\n", "abc"), (chunked, "3\r\nabc\r\n0\r\n\r\n")] {
        // What is thrown away is no next request.
        assert_eq!(client.ask("POST /discards", headers, body).body(), "GET /behind 0 nil");
        assert_eq!(client.ask("POST /discarded", headers, body).body(), "nilnil");
        assert_eq!(client.ask("POST /kept", headers, body).body(), "abc");
    }
    assert_eq!(client.get("/discards").body(), "GET /behind nil nil");
}

#[test]
fn headers_of_a_request_have_as_many_lines_as_nginx_keeps() {
    let server = server(
        r#"location = /behind { content_by_lua_block {
               local h = ngx.req.get_headers()
               ngx.print(h.authorization, " ", h["x-gone"], " ", h["x-two"], " ", h.host, " ", ngx.var.host)
           } }
           location = /t {
               access_by_lua_block {
                   local req = require "ngx.req"
                   req.add_header("Authorization", "second") req.add_header("X-Two", "2")
                   ngx.req.set_header("X-Gone", "")
                   ngx.req.set_header("Host", "[::1]:80")
               }
               proxy_pass http://127.0.0.1:%%PORT%%/behind; proxy_set_header Host $http_host;
           }
           location = /length { content_by_lua_block {
               ngx.req.set_header("Content-Length", 2) ngx.req.read_body()
               ngx.print(ngx.req.get_body_data())
           } }"#,
    );
    let headers = "Authorization: first\r\nX-Gone: 1\r\nX-Two: 1\r\n";
    let answer = server.connect().ask("GET /t", headers, "").body();
    assert_eq!(answer, "second nil 12 [::1]:80 [::1]");
    // What a script says of the length does not make a request of the rest.
    let mut client = server.connect();
    assert_eq!(client.ask("POST /length", "Content-Length: 3\r\n", "abc").body(), "abc");
    assert_eq!(client.get("/t").status, 200);
}

#[test]
fn large_bodies_are_files() {
    let server = server(
        r#"location / { client_body_buffer_size 1k; content_by_lua_block {
               ngx.req.read_body()
               local file = io.open(ngx.req.get_body_file())
               ngx.say(ngx.req.get_body_data(), " ", #file:read("*a"))
               file:close()
           } }"#,
    );
    let body = "x".repeat(100_000);
    let head = format!("POST / HTTP/1.1\r\nContent-Length: {}", body.len());
    assert_eq!(ask(&server, &head, &body).body(), "nil 100000\n");
}

/// The values are those of lua-nginx-module 0.10.23, which knows no bodies in chunks here.
#[test]
fn a_script_receives_the_body_piece_by_piece() {
    let scripts = [
        ("line", "for i = 1, 4 do P(s:receive()) end", "one;two;nil|closed|three;nil|closed;"),
        (
            "all",
            "P(s:receive('*a')) P(s:receive('*a')) P(s:receive(1))",
            "one\r\ntwo\nthree;;nil|closed|;",
        ),
        (
            "size",
            "P(s:receive(5)) P(s:receive(0)) P(s:receive(50)) P(s:receive(1))",
            "one\r\n;;nil|closed|two\nthree;nil|closed;",
        ),
        ("any", "P(s:receiveany(2)) P(s:receiveany(1))", "on;e;"),
        (
            "until",
            "local r = s:receiveuntil('\\nt') P(r()) P(r()) P(r())",
            "one\r;wo;nil|closed|hree;",
        ),
        (
            "zero",
            "local r = s:receiveuntil('t') P(r(0)) P(r(2)) P(r(2)) P(r(2))",
            "one\r\n;wo;\n;nil|nil|nil;",
        ),
        (
            "others",
            "ngx.req.read_body() P(ngx.req.get_body_data()) P(ngx.req.socket()) P(s.send) P(s:receive(3))",
            "nil;nil|request body already exists;nil;one;",
        ),
    ];
    let mut locations = String::new();
    for (name, script, _) in scripts {
        locations += &format!(
            "location = /{name} {{ content_by_lua_block {{
                 local s, err = ngx.req.socket()
                 if not s then return P(nil, err) end
                 {script}
             }} }}"
        );
    }
    locations += "location = /slow { content_by_lua_block {
                      local s = ngx.req.socket()
                      s:settimeout(20)
                      P(s:receive(8))
                      ngx.flush(true)
                      s:settimeout(60000)
                      P(s:receive(4))
                  } }
                  location = /after { content_by_lua_block { ngx.req.read_body() P(ngx.req.socket()) } }";
    let server = server_with(
        "init_by_lua_block {
             function P(...)
                 local t = { ... }
                 for i = 1, select('#', ...) do t[i] = tostring(t[i]) end
                 ngx.print(table.concat(t, '|'), ';')
             end
         }",
        &locations,
    );
    let body = "one\r\ntwo\nthree";
    for (name, _, expected) in scripts {
        // What a script leaves of the body is no request.
        let mut client = server.connect();
        let length = format!("Content-Length: {}\r\n", body.len());
        let line = format!("POST /{name}");
        assert_eq!(client.ask(&line, &length, body).body(), expected, "{name}");
        let chunks: String = body
            .split_inclusive('t')
            .fold(String::new(), |text, piece| format!("{text}{:x}\r\n{piece}\r\n", piece.len()));
        let answer =
            client.ask(&line, "Transfer-Encoding: chunked\r\n", &format!("{chunks}0\r\n\r\n"));
        assert_eq!(answer.body(), expected, "{name} in chunks");
        assert_eq!(client.ask(&line, "", "").body(), "nil|no body;");
    }
    let mut client = server.connect();
    client.send(
        "POST /slow HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 9\r\n\r\nfirst",
    );
    assert_eq!(client.try_line().unwrap(), "HTTP/1.1 200 OK");
    client.send("rest");
    let rest = client.rest();
    assert!(rest.contains("nil|timeout|first;") && rest.contains("rest;"), "{rest}");
    assert_eq!(server.get("/after").body(), "nil|request body already exists;");
}

#[test]
fn a_body_that_cannot_be_read_ends_the_script() {
    let server = server(
        "location / { client_max_body_size 1; content_by_lua_block {
             ngx.req.read_body()
             ngx.say('goes on without it')
         } }",
    );
    let head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked";
    assert_eq!(ask(&server, head, "3\r\nabc\r\n0\r\n\r\n").status, 413);
}

#[test]
fn headers_of_the_answer_are_seen_and_changed() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               local h = ngx.header
               h.content_type = "text/html; charset=utf-8"
               h["X-Several"] = { "1", "2" } h.x_under = "3" h["X-Gone"] = "4" h["X-Gone"] = nil
               h.cache_control = "no-store\r\nX-Evil: 1"
               h.content_length = 6
               ngx.status = 201
               ngx.print(h["x-several"][2], h.X_Under, h.x_gone, ngx.resp.get_headers()["x-under"])
               h.late = "x"
           } }
           location = /typeless { content_by_lua_block { ngx.header.content_type = nil ngx.print(1) } }
           location = /typed { content_by_lua_block { ngx.header.content_type = "" ngx.header.content_type = "a/b" ngx.print(1) } }
           location = /several { content_by_lua_block {
               ngx.header.location = { "http://a.a/", "http://b.b/" }
               ngx.req.set_header("Host", { "a", "b" })
               ngx.header.expires = { "1", "2" }
               ngx.print(ngx.header.location, " ", ngx.var.host, " ", ngx.header.expires)
           } }
           location = /101 { content_by_lua_block { ngx.status = 101 ngx.print(1) } }
           location = /f { return 200 "text"; header_filter_by_lua_block {
               ngx.header.server = "other" ngx.header.content_length = nil ngx.status = 202
           } }"#,
    );
    let answer = server.get("/t");
    assert_eq!((answer.status, answer.body()), (201, "23nil3".to_owned()));
    assert_eq!(answer.header("Content-Type"), Some("text/html; charset=utf-8"));
    assert_eq!(answer.header("Content-Length"), Some("6"));
    assert_eq!(answer.header("cache-control"), Some("no-store%0D%0AX-Evil: 1"));
    assert_eq!(answer.header("X-Gone"), None);
    assert_eq!(answer.header("X-Evil"), None);
    server.wait_log("attempt to set ngx.header.HEADER after sending out response headers", 1);
    let typeless = server.get("/typeless");
    assert_eq!((typeless.body().as_str(), typeless.header("Content-Type")), ("1", None));
    assert_eq!(server.get("/typed").header("Content-Type"), Some("a/b"));
    let several = server.get("/several");
    assert_eq!(several.header("Location"), Some("http://b.b/"));
    assert_eq!(several.body(), "http://b.b/ b 2");
    let switched =
        server.connect().send("GET /101 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").rest();
    assert!(switched.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{switched}");
    let filtered = server.get("/f");
    assert_eq!((filtered.status, filtered.body()), (202, "text".to_owned()));
    assert_eq!(filtered.header("Server"), Some("other"));
}

#[test]
fn headers_that_weir_writes_itself_can_be_removed() {
    let server = server(
        "location / { return 200 a; header_filter_by_lua_block {
             ngx.header.server = nil ngx.header.date = \"\" ngx.header[\"Last-Modified\"] = \"once\" } }",
    );
    let answer = server.get("/");
    assert_eq!((answer.header("Server"), answer.header("Date")), (None, None));
    assert_eq!(answer.header("Last-Modified"), Some("once"));
}

#[test]
fn variables_are_read_and_stored() {
    let server = server(
        r#"location / {
               set $mine "0"; set $gone "1"; rewrite ^/(.*)$ /$1 break;
               content_by_lua_block {
                   ngx.var.args = "" ngx.print("[", ngx.var.args, "] ")
                   ngx.var.args = nil ngx.print(ngx.var.args, " ")
                   ngx.var.gone = nil ngx.print(ngx.var.gone, " ")
                   ngx.var.mine = 5
                   ngx.say(ngx.var.mine, " ", ngx.var[1], " ", ngx.var.nosuch, " ", ngx.var.arg_q)
                   ngx.say(pcall(function() ngx.var.uri = "x" end))
                   ngx.say(pcall(function() ngx.var.nosuch = "x" end))
               }
           }"#,
    );
    let body = server.get("/path?q=1").body();
    let mut lines = body.lines();
    assert_eq!(lines.next(), Some("[] nil nil 5 path nil nil"));
    assert!(lines.next().is_some_and(|line| line.ends_with("variable \"uri\" not changeable")));
    assert!(lines.next().is_some_and(|line| line.contains("\"nosuch\" not found for writing")));
}

#[test]
fn a_body_is_cut_where_the_length_in_its_head_ends() {
    let server = server(
        r#"location = /print { content_by_lua_block {
               ngx.header.content_length = 5
               ngx.print("12345")
               ngx.flush(true)
               ngx.print("HTTP/1.1 200 OK\r\n\r\n")
               ngx.print("more")
           } }
           location = /filter {
               return 200 "hello";
               body_filter_by_lua_block { ngx.arg[1] = ngx.arg[1] .. " and more" }
           }
           location = /next { return 200 "next"; }"#,
    );
    let mut client = server.connect();
    for (path, body) in [("GET /print", "12345"), ("GET /filter", "hello")] {
        assert_eq!(client.ask(path, "", "").body(), body);
        // The connection has no bytes but those of this answer.
        assert_eq!(client.ask("GET /next", "", "").body(), "next");
    }
    server.wait_log("the body is longer than its Content-Length, and is cut", 2);
    assert_eq!(server.logged("the body is longer than its Content-Length"), 2, "{}", server.log());
}
