//! Sockets of scripts: how they end, and what the log says of them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use weir_testkit::{PATIENCE, Server, certified, free_port, listen};

use super::{WEIR, server, server_with};

#[test]
fn a_script_still_sends_when_the_other_side_has_said_all() {
    let port = listen(|mut stream: TcpStream| {
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut question = String::new();
        let _ = stream.read_to_string(&mut question);
        assert_eq!(question, "late");
    });
    let server = server(&format!(
        r#"location = /t {{ content_by_lua_block {{
               local sock = ngx.socket.tcp()
               assert(sock:connect("127.0.0.1", {port}))
               ngx.say(sock:receive())
               ngx.say(sock:receive())
               ngx.say(sock:send("late"))
               ngx.say(sock:setkeepalive())
               ngx.say(sock:close())
               ngx.say(sock:close())
               ngx.say(sock:send("too late"))
           }} }}"#
    ));
    let said = "nilclosed\nnilclosed\n4\nnilclosed\n1\nnilclosed\nnilclosed\n";
    assert_eq!(server.get("/t").body(), said);
    server.wait_log("attempt to receive data on a closed socket", 1);
    server.wait_log("attempt to send data on a closed socket", 1);
}

#[test]
fn a_script_that_has_received_all_is_told_of_the_end_once_more() {
    let port = listen(|mut stream: TcpStream| {
        let _ = stream.write_all(b"all");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let server = server(&format!(
        r#"location = /t {{ content_by_lua_block {{
               local sock = ngx.socket.tcp()
               assert(sock:connect("127.0.0.1", {port}))
               ngx.say(sock:receive("*a"))
               ngx.say(sock:setkeepalive())
               ngx.say("again: ", sock:receive("*a"))
               local line, why, rest = sock:receive()
               ngx.say(line, why, #rest)
               ngx.say(sock:receive())
               ngx.say(sock:close())
           }} }}"#
    ));
    assert_eq!(server.get("/t").body(), "all\nnilclosed\nagain: \nnilclosed0\nnilclosed\n1\n");
}

#[test]
fn the_end_of_the_pieces_is_told_however_the_next_one_is_asked_for() {
    let port = listen(|mut stream: TcpStream| {
        let _ = stream.write_all(b"ab--cd--ef");
    });
    let server = server(&format!(
        r#"location = /t {{ content_by_lua_block {{
               local sock = ngx.socket.tcp()
               assert(sock:connect("127.0.0.1", {port}))
               local read = sock:receiveuntil("--")
               ngx.say(read(4), " ", read(), " ", read(), " ", read(4))
               ngx.say(sock:receive())
               ngx.say(read(4))
           }} }}"#
    ));
    assert_eq!(server.get("/t").body(), "ab nil cd nilclosedef\nnilclosed\nnilclosed\n");
}

#[test]
fn bytes_that_have_arrived_are_received_where_a_script_cannot_yield() {
    let port = listen(|mut stream: TcpStream| {
        let _ = stream.write_all(b"one\ntwo\nthree--four--five");
        let _ = stream.read_exact(&mut [0]);
    });
    let server = server(&format!(
        r#"location = /t {{ content_by_lua_block {{
               local sock = ngx.socket.tcp()
               assert(sock:connect("127.0.0.1", {port}))
               ngx.say(sock:receive())
               -- The function is called by one of C.
               local function inside(f) return (("x"):gsub("x", f)) end
               local to_mark = sock:receiveuntil("--")
               ngx.say(inside(function() return sock:receive() end))
               ngx.say(inside(function() return to_mark() end))
               ngx.say(inside(function() return to_mark(4) end))
               ngx.say(inside(function() return sock:receive(2) end))
               ngx.say(inside(function() return sock:receiveany(2) end))
               ngx.say(pcall(inside, function() return sock:receive(9) end))
           }} }}"#
    ));
    assert_eq!(
        server.get("/t").body(),
        "one\ntwo\nthree\nfour\n--\nfi\nfalseattempt to yield across C-call boundary\n"
    );
}

#[test]
fn a_socket_that_another_thread_uses_stays_open() {
    let port = listen(|mut stream: TcpStream| {
        let _ = stream.read_exact(&mut [0]);
        let _ = stream.write_all(b"answer\n");
    });
    let server = server(&format!(
        r#"location = /t {{ content_by_lua_block {{
               local sock = ngx.socket.tcp()
               assert(sock:connect("127.0.0.1", {port}))
               local reader = ngx.thread.spawn(function() return sock:receive() end)
               ngx.say(sock:close())
               ngx.say(sock:setkeepalive())
               ngx.say(sock:sslhandshake())
               ngx.say(sock:connect("127.0.0.1", {port}))
               ngx.say(sock:send("x"))
               ngx.say(ngx.thread.wait(reader))
               ngx.say(sock:close())
           }} }}"#
    ));
    let busy = "nilsocket busy reading\n".repeat(4);
    assert_eq!(server.get("/t").body(), format!("{busy}1\ntrueanswer\n1\n"));
}

#[test]
fn nothing_else_is_done_with_a_socket_that_connects_or_shakes_hands() {
    let silent = listen(|mut stream: TcpStream| {
        let _ = stream.read_exact(&mut [0; 1000]);
    });
    let server = server_with(
        "resolver 127.0.0.1:1; resolver_timeout 300ms; lua_socket_connect_timeout 300ms;",
        &format!(
            r#"location = /t {{ content_by_lua_block {{
                   local sock = ngx.socket.tcp()
                   local function all(port)
                       ngx.say(sock:connect("127.0.0.1", port))
                       ngx.say(sock:sslhandshake())
                       ngx.say(sock:send("x"))
                       ngx.say(sock:receive())
                       ngx.say(sock:receiveany(1))
                       ngx.say(sock:setkeepalive())
                       ngx.say(sock:close())
                   end
                   local looking = ngx.thread.spawn(function() return sock:connect("name.test", 80) end)
                   all({silent})
                   ngx.say((ngx.thread.wait(looking)))
                   ngx.say(sock:connect("127.0.0.1", {silent}))
                   local shaking = ngx.thread.spawn(function() return sock:sslhandshake() end)
                   all({silent})
                   ngx.say(ngx.thread.wait(shaking))
                   ngx.say(sock:send("x"))
               }} }}"#
        ),
    );
    let busy = "nilsocket busy connecting\n".repeat(7);
    let answer = server.get("/t").body();
    assert_eq!(answer, format!("{busy}true\n1\n{busy}trueniltimeout\nnilclosed\n"));
    assert!(!server.log().contains("socket busy"), "{}", server.log());
}

#[test]
fn a_socket_connects_from_the_address_and_port_that_a_script_says() {
    let port = listen(|mut stream: TcpStream| {
        let _ = writeln!(stream, "{}", stream.peer_addr().unwrap());
    });
    let own = free_port();
    let server = server(&format!(
        r#"location = /t {{ content_by_lua_block {{
               local sock = ngx.socket.tcp()
               ngx.say(sock:bind("127.0.0.1", {{}}))
               ngx.say(sock:bind("127.0.0.1", 65536))
               ngx.say(sock:bind("127.0.0.2", {own}))
               assert(sock:connect("127.0.0.1", {port}))
               ngx.say(sock:receive())
           }} }}"#
    ));
    let said = format!(
        "nilexpecting port to be a number but got type: table\nnilbad port number: 65536\ntrue\n127.0.0.2:{own}\n"
    );
    assert_eq!(server.get("/t").body(), said);
}

#[test]
fn options_of_a_socket_are_the_systems() {
    let port = listen(|mut stream: TcpStream| drop(stream.read_to_end(&mut Vec::new())));
    let server = server(&format!(
        r#"location = /t {{ content_by_lua_block {{
               local sock = ngx.socket.tcp()
               ngx.say(select(2, pcall(sock.getoption, sock, "sndbuf")))
               assert(sock:connect("127.0.0.1", {port}))
               ngx.say(sock:getoption())
               ngx.say(sock:getoption("linger"))
               for _, name in ipairs {{ "keepalive", "tcp-nodelay" }} do
                   for _, value in ipairs {{ true, 0, 1, false }} do
                       ngx.say(name, " ", sock:setoption(name, value), " ", sock:getoption(name))
                   end
               end
               ngx.say(sock:setoption("keepcnt", 5), " ", sock:getoption("keepcnt"))
               ngx.say(sock:setoption("keepcnt", -1))
               sock:setoption("rcvbuf", 20000)
               ngx.say(sock:getoption("rcvbuf"), " ", type(sock:getoption("reuseaddr")))
               ngx.say(select(2, pcall(sock.setoption, sock, "sndbuf", "large")))
               sock:close()
               ngx.say(sock:getoption("sndbuf"))
               ngx.say(sock:setoption("sndbuf", 20000))
           }} }}"#
    ));
    let said = server.get("/t").body();
    let said: Vec<&str> = said.lines().collect();
    let raised = |line: &str, text: &str| assert!(line.ends_with(text), "{line}");
    raised(said[0], "socket is never created nor connected");
    assert_eq!(said[1..3], ["nilmissing the \"option\" argument", "nilunsupported option linger"]);
    for (lines, name) in said[3..11].chunks(4).zip(["keepalive", "tcp-nodelay"]) {
        let numbers = [1, 0, 1, 0].map(|n| format!("{name} true {n}"));
        assert_eq!(lines, numbers);
    }
    assert_eq!(said[11..14], ["true 5", "nilInvalid argument", "40000 number"]);
    raised(said[14], "bad argument #3 to '?' (cannot convert 'string' to 'int')");
    assert_eq!(said[15..], ["nilclosed", "nilclosed"]);
}

#[test]
fn a_socket_sends_no_table_with_holes() {
    let port = listen(|mut stream: TcpStream| drop(stream.read_to_end(&mut Vec::new())));
    let server = server(&format!(
        r#"location = /t {{ content_by_lua_block {{
               local sock = ngx.socket.tcp()
               assert(sock:connect("127.0.0.1", {port}))
               for _, odd in ipairs {{ {{ "a", nil, "b" }}, {{ true }}, {{ {{ ngx.null }} }}, {{ 1, {{ "c" }} }} }} do
                   local _, why = pcall(sock.send, sock, odd)
                   ngx.say((tostring(why):gsub("^.*%(", "")))
               end
           }} }}"#
    ));
    let said = "bad data type nil found)\nbad data type boolean found)\n\
        bad data type userdata found)\n2\n";
    assert_eq!(server.get("/t").body(), said);
}

#[test]
fn the_log_says_which_request_waited_in_vain_for_a_server() {
    let port = listen(|mut stream: TcpStream| {
        let _ = stream.write_all(b"+a part");
        let _ = stream.read(&mut [0]);
    });
    let server = server(&format!(
        r#"lua_socket_read_timeout 20ms;
           location = /t {{ content_by_lua_block {{
               local sock = ngx.socket.tcp()
               assert(sock:connect("127.0.0.1", {port}))
               sock:settimeout(20000)
               assert(sock:receive(1) == "+")
               sock:settimeout(20)
               ngx.say(sock:receive())
               local datagrams = ngx.socket.udp()
               assert(datagrams:setpeername("127.0.0.1", {port}))
               ngx.say(datagrams:receive())
               ngx.say(sock:connect("unix:/nowhere/at/all"))
           }} }}"#
    ));
    let said = "niltimeouta part\nniltimeout\nnilno such file or directory\n";
    assert_eq!(server.get("/t").body(), said);
    for kind in ["tcp", "udp"] {
        let server_behind = format!("upstream: 127.0.0.1:{port}(127.0.0.1), client: 127.0.0.1");
        server.wait_log(&format!("lua {kind} socket read timed out, {server_behind}"), 1);
    }
    server.wait_log("connect() to unix:/nowhere/at/all failed (2: No such file or directory)", 1);
}

#[test]
fn a_script_takes_its_clients_connection_over() {
    let server = server(
        r#"location = /upgrade { content_by_lua_block {
               ngx.status = 101
               ngx.header.Upgrade = "lines"
               ngx.send_headers()
               ngx.flush(true)
               local sock = assert(ngx.req.socket(true))
               sock:settimeout(20000)
               for line in function() return sock:receive() end do
                   sock:send({ #line, " ", line, "\n" })
                   if line == "bye" then return end
               end
           } }
           location = /own { content_by_lua_block {
               local sock = assert(ngx.req.socket(true))
               local body = sock:receive(5)
               sock:send("HTTP/1.1 202 Own\r\nContent-Length: 8\r\n\r\nown" .. body)
               ngx.log(ngx.WARN, "fd ", type(sock:getfd()), " say ", select(2, ngx.say("x")),
                   ", flush ", select(2, ngx.flush()), ", eof ", select(2, ngx.eof()),
                   ", again ", select(2, ngx.req.socket(true)), ".")
           } }
           location = /old { content_by_lua_block {
               ngx.say("first")
               ngx.say(ngx.req.socket(true))
           } }"#,
    );
    let mut client = server.connect();
    client.send(
        "GET /upgrade HTTP/1.1\r\nHost: a\r\nUpgrade: lines\r\nConnection: upgrade\r\n\r\nearly\n",
    );
    assert_eq!(client.try_line().unwrap(), "HTTP/1.1 101 Switching Protocols");
    let mut head = Vec::new();
    loop {
        match client.try_line().unwrap() {
            line if line.is_empty() => break,
            line => head.push(line),
        }
    }
    assert!(head.contains(&"Upgrade: lines".to_owned()), "{head:?}");
    assert!(head.contains(&"Connection: upgrade".to_owned()), "{head:?}");
    assert_eq!(client.try_line().unwrap(), "5 early");
    client.send("later on\n");
    assert_eq!(client.try_line().unwrap(), "8 later on");
    client.send("bye\n");
    assert_eq!(client.try_line().unwrap(), "3 bye");
    assert_eq!(client.rest(), "");

    let mut client = server.connect();
    client.send("POST /own HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
    client.send("bytes");
    assert_eq!(client.rest(), "HTTP/1.1 202 Own\r\nContent-Length: 8\r\n\r\nownbytes");
    server.wait_log("fd number say raw request socket acquired, flush raw request socket", 1);
    server.wait_log("eof raw request socket acquired, again duplicate call.", 1);

    let answer = server.connect().send("GET /old HTTP/1.0\r\n\r\n").response();
    assert_eq!(answer.body(), "first\nnilhttp 1.0 buffering\n");
}

#[test]
fn a_server_that_speaks_no_tls_fails_the_handshake() {
    let port = listen(|mut stream: TcpStream| {
        let _ = stream.write_all(b"220 ready when you are\r\n");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let server = server(&format!(
        r#"location = /t {{ content_by_lua_block {{
               local sock = ngx.socket.tcp()
               assert(sock:connect("127.0.0.1", {port}))
               ngx.say(sock:sslhandshake())
           }} }}
           location = /filter {{ return 200 x; header_filter_by_lua_block {{ ngx.socket.tcp() }} }}"#
    ));
    assert_eq!(server.get("/t").body(), "nilhandshake failed\n");
    server.wait_log("lua ssl handshake: SSL_do_handshake() failed (SSL: ", 1);
    assert!(server.connect().send("GET /filter HTTP/1.1\r\nHost: a\r\n\r\n").is_closed());
    server.wait_log("API disabled in the context of header_filter_by_lua*", 1);
}

#[test]
fn a_kept_connection_closes_when_its_server_says_something() {
    for is_end in [true, false] {
        let (go, may_go) = channel();
        let (tell, ended) = channel();
        let ends = Mutex::new((may_go, tell));
        let port = listen(move |mut stream: TcpStream| {
            let (may_go, tell) = &*ends.lock().unwrap();
            may_go.recv().unwrap();
            match is_end {
                true => stream.shutdown(Shutdown::Write).unwrap(),
                false => stream.write_all(b"unasked").unwrap(),
            }
            // The other direction ends, too.
            let _ = stream.read_to_end(&mut Vec::new());
            tell.send(()).unwrap();
        });
        let server = server(&format!(
            r#"location = /t {{ content_by_lua_block {{
                   local sock = ngx.socket.tcp()
                   assert(sock:connect("127.0.0.1", {port}))
                   ngx.say(sock:setkeepalive(0))
               }} }}"#
        ));
        assert_eq!(server.get("/t").body(), "1\n");
        go.send(()).unwrap();
        ended.recv_timeout(PATIENCE).expect("an end");
        // A later one is watched as well.
        assert_eq!(server.get("/t").body(), "1\n");
        go.send(()).unwrap();
        ended.recv_timeout(PATIENCE).expect("another end");
    }
}

/// A server that tells of the end of each connection.
fn listen_for_ends() -> (u16, Receiver<()>) {
    let (tell, ended) = channel();
    let port = listen(move |mut stream: TcpStream| {
        let _ = stream.read_to_end(&mut Vec::new());
        tell.send(()).unwrap();
    });
    (port, ended)
}

#[test]
fn a_socket_closes_with_the_timer_that_opened_it() {
    let (port, ended) = listen_for_ends();
    let server = server(&format!(
        r#"location = /t {{ content_by_lua_block {{
               ngx.timer.at(0, function()
                   kept = ngx.socket.tcp()
                   assert(kept:connect("127.0.0.1", {port}))
               end)
           }} }}
           location = /kept {{ content_by_lua_block {{ ngx.say(kept:send("x")) }} }}"#
    ));
    assert_eq!(server.get("/t").status, 200);
    ended.recv_timeout(PATIENCE).expect("an end");
    assert_eq!(server.get("/kept").body(), "nilclosed\n");
}

#[test]
fn a_socket_belongs_to_the_request_that_opened_it() {
    let (port, ended) = listen_for_ends();
    let server = server(&format!(
        r#"location = /own {{ content_by_lua_block {{
               tcp, udp = ngx.socket.tcp(), ngx.socket.udp()
               assert(tcp:connect("127.0.0.1", {port}) and udp:setpeername("127.0.0.1", {port}))
               ngx.print(ngx.location.capture("/other").body)
               -- So do coroutines of the request.
               ngx.say(ngx.thread.wait(ngx.thread.spawn(function() return tcp:send("x") end)))
           }} }}
           location = /other {{ content_by_lua_block {{
               local function said(f, ...)
                   local ok, why = pcall(f, ...)
                   ngx.say(ok, " ", (tostring(why):gsub("^.*: ", "")))
               end
               said(tcp.connect, tcp, "127.0.0.1", {port})
               said(tcp.sslhandshake, tcp)
               for _, one in ipairs {{ tcp, udp }} do
                   said(one.send, one, "x")
                   said(one.receive, one)
                   said(one.close, one)
               end
               said(tcp.receiveuntil(tcp, "x"))
               said(tcp.setkeepalive, tcp)
               said(udp.setpeername, udp, "127.0.0.1", {port})
           }} }}
           location = /next {{ content_by_lua_block {{
               ngx.say(tcp:send("x"), tcp:connect("127.0.0.1", {port}), tcp:send("y"))
           }} }}"#
    ));
    let refused = "false bad request\n".repeat(11) + "true1\n";
    assert_eq!(server.get("/own").body(), refused);
    ended.recv_timeout(PATIENCE).expect("the end with the first request");
    // Its owner has ended, so the next one may take it.
    assert_eq!(server.get("/next").body(), "nil11\n");
    ended.recv_timeout(PATIENCE).expect("the end with the second request");
}

#[test]
fn a_script_that_took_the_connection_over_is_told_that_its_client_has_left() {
    let server = server(
        r#"lua_check_client_abort on;
           location = /t { content_by_lua_block {
               ngx.on_abort(function() end)
               ngx.send_headers()
               ngx.flush(true)
               local sock = ngx.req.socket(true)
               ngx.log(ngx.WARN, "got ", sock:receive(3), " and ", select(2, sock:receive("*a")), ", ", select(2, sock:receive()))
           } }
           location = /off { lua_check_client_abort off; content_by_lua_block {
               ngx.send_headers()
               ngx.flush(true)
               local sock = ngx.req.socket(true)
               ngx.log(ngx.WARN, "got ", sock:receive("*a"), " and ", select(2, sock:receive()))
           } }"#,
    );
    for (path, told) in
        [("/t", "got abc and client aborted, closed"), ("/off", "got abc and closed")]
    {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\nabc").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        server.wait_log(told, 1);
    }
}

#[test]
fn the_socket_of_a_body_has_the_options_of_the_clients_connection() {
    let server = server(
        r#"location = /t { content_by_lua_block {
               local body = ngx.req.socket()
               ngx.say(body:getoption("keepalive"), body:setoption("keepalive", 1), body:getoption("keepalive"), type(body:getfd()))
               ngx.say(body:receive(5))
               ngx.say(pcall(function() return body:getsslpointer() end))
           } }
           location = /ssl { content_by_lua_block {
               local sock = ngx.socket.tcp()
               for _, name in ipairs { "getsslctx", "sslhandshake" } do
                   ngx.say((select(2, pcall(sock[name], sock)):gsub("^.*: ", "")))
               end
               ngx.say(sock:connect("unix:"))
               assert(sock:connect("127.0.0.1", ngx.var.server_port))
               ngx.say(sock:getsslpointer()) ngx.say(sock:getsslctx())
               sock:close()
               ngx.say(sock:getsslpointer())
           } }"#,
    );
    let said = server.ask("POST /t", "Content-Length: 5\r\n", "hello").body();
    assert!(said.starts_with("0true1number\nhello\nfalse"), "{said}");
    let said = server.get("/ssl").body();
    let expected = "socket is never created nor connected\nsocket is never created nor connected\n\
        nilfailed to parse host name \"unix:\": no path in the unix domain socket\nnilno ssl connection\nnilno ssl context\nnilclosed\n";
    assert_eq!(said, expected);
}

#[test]
fn a_pool_has_the_size_that_its_first_connection_says() {
    let port = listen(|mut stream: TcpStream| drop(stream.read_to_end(&mut Vec::new())));
    let server = server(&format!(
        r#"location = /t {{ content_by_lua_block {{
               local function open(options)
                   local sock = ngx.socket.tcp()
                   assert(sock:connect("127.0.0.1", {port}, options))
                   return sock
               end
               local first, second = open({{ pool_size = 1 }}), open()
               assert(first:setkeepalive(0, 20) and second:setkeepalive(0, 20))
               first, second = open(), open()
               ngx.say(first:getreusedtimes(), " ", second:getreusedtimes())
               assert(first:setkeepalive(0, 20) and second:setkeepalive(0, 20))
               first, second = open(), open()
               ngx.say(first:getreusedtimes(), " ", second:getreusedtimes())
               -- The pool is gone with its last connection.
               first:close() second:close()
               first, second = open(), open()
               assert(first:setkeepalive(0, 20) and second:setkeepalive(0, 20))
               first, second = open(), open()
               ngx.say(first:getreusedtimes(), " ", second:getreusedtimes())
           }} }}"#
    ));
    assert_eq!(server.get("/t").body(), "1 0\n1 0\n1 1\n");
}

#[test]
fn certificates_of_scripts_are_objects_of_openssl() {
    let show = r#"
        local ssl = require "ngx.ssl"
        local is_object = type(ssl.parse_pem_cert(assert(io.open(ngx.config.prefix() .. "self.pem")):read("*a"))) == "cdata"
        local ffi = require "ffi"
        ffi.cdef [[
            int OPENSSL_sk_num(const void *); void *X509_chain_up_ref(void *); int EVP_PKEY_get_bits(const void *);
            struct evp_pkey_st;
        ]]
        local function read(name)
            local file = assert(io.open(ngx.config.prefix() .. name))
            local text = file:read("*a")
            file:close()
            return text
        end
        local chain = assert(ssl.parse_pem_cert(read("chain.pem")))
        local key = assert(ssl.parse_pem_priv_key(read("leaf.key")))
    "#;
    let conf = format!(
        r#"events {{ }} http {{
            server {{
                listen 127.0.0.1:%%PORT1%% ssl;
                ssl_certificate self.pem; ssl_certificate_key self.key;
                ssl_verify_client on; ssl_client_certificate root.pem;
                ssl_certificate_by_lua_block {{ {show}
                    assert(ssl.clear_certs())
                    -- A stack that is not of ngx.ssl.
                    assert(ssl.set_cert(ffi.C.X509_chain_up_ref(chain)))
                    assert(ssl.set_priv_key(ffi.cast("struct evp_pkey_st *", key)))
                }}
                return 200 "$ssl_client_verify";
            }}
            server {{ listen 127.0.0.1:%%PORT%%; location / {{ content_by_lua_block {{ {show}
                ngx.say(is_object, " ", type(chain), " ", ffi.C.OPENSSL_sk_num(chain), " ", type(key), " ", ffi.C.EVP_PKEY_get_bits(key) > 0)
                ngx.say(rawequal(chain, ssl.parse_pem_cert(read("chain.pem"))), " ", rawequal(chain, ssl.parse_der_cert(ssl.cert_pem_to_der(read("chain.pem")))))
                ngx.say(select(2, ssl.parse_pem_cert("none")))
                local sock = ngx.socket.tcp()
                assert(sock:connect("127.0.0.1", %%PORT1%%))
                ngx.say(select(2, sock:setclientcert(chain, "x")))
                assert(sock:setclientcert(ssl.parse_pem_cert(read("client.pem")), ssl.parse_pem_priv_key(read("client.key"))))
                assert(sock:sslhandshake(nil, "www.example.org", false))
                sock:send("GET / HTTP/1.0\r\n\r\n")
                ngx.say(sock:receive("*a"):match("\r\n\r\n(.*)"))
            }} }} }}
        }}"#
    );
    let server = Server::start_in(certified(), WEIR, &conf);
    let said = server.get("/").body();
    if said.is_empty() && server.log().contains("undefined symbol") {
        return;
    }
    let expected = "true cdata 2 cdata true\ntrue false\nPEM_read_bio_X509_AUX() failed\n\
                    bad pkey arg: cdata expected, got string\nSUCCESS\n";
    assert_eq!(said, expected);
}
