//! Scripts of `stream`.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::time::Duration;

use super::WEIR;
use weir_testkit::{Dir, Server, certified, s_client};

/// A server with these lines in `stream`, and without `http`.
fn stream(lines: &str) -> Server {
    stream_in(Dir::new(), lines)
}

fn stream_in(dir: Dir, lines: &str) -> Server {
    Server::start_in(dir, WEIR, &format!("events {{ }} stream {{ {lines} }}"))
}

fn connect(server: &Server, n: usize) -> TcpStream {
    let client = TcpStream::connect(("127.0.0.1", server.port_at(n))).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    client
}

/// All that a server says to a client of its port number `n` that sends this and no more.
fn heard(server: &Server, n: usize, text: &str) -> String {
    let mut client = connect(server, n);
    client.write_all(text.as_bytes()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    rest(&mut client)
}

fn rest(client: &mut TcpStream) -> String {
    let mut all = Vec::new();
    // A session that ends with an error may reset the connection.
    let _ = client.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn scripts_of_sessions_run_in_their_phases() {
    let server = stream(
        r#"init_by_lua_block { began = "init" }
           init_worker_by_lua_block { began = began .. " " .. ngx.get_phase() }
           lua_shared_dict counts 1m;
           lua_add_variable $mine;
           lua_capture_error_log 32k;
           server {
               listen 127.0.0.1:%%PORT%%;
               preread_by_lua_block { ngx.ctx.way = ngx.get_phase() }
               content_by_lua_block {
                   ngx.say(began, ", ", ngx.ctx.way, " ", ngx.get_phase(), ", ", ngx.config.subsystem, ngx.config.ngx_lua_version)
                   ngx.say(ngx.shared.counts:incr("sessions", 1, 0), " ", ngx.var.mine)
                   ngx.var.mine = "set"
                   ngx.say(ngx.var.protocol, " ", ngx.var.remote_addr, " ", ngx.var.mine, " ", ngx.var.nothing)
                   ngx.sleep(0.001)
                   ngx.say(ngx.location, ngx.header, ngx.req.get_headers)
                   ngx.say(ngx.status, ngx.headers_sent, ngx.is_subrequest, ngx.var[1])
                   ngx.eof()
                   ngx.print(ngx.say("too late"))
                   ngx.log(ngx.ERR, "to be kept")
                   local kept = require("ngx.errlog").get_logs()
                   ngx.log(ngx.WARN, "kept: ", kept[#kept]:match("to be kept"))
               }
               log_by_lua_block { ngx.log(ngx.WARN, "over ", ngx.get_phase(), " ", ngx.ctx.way, " ", ngx.var.status) }
           }"#,
    );
    let said = "init init_worker, preread content, stream20\n1 nil\nTCP 127.0.0.1 set nil\nnilnilnil\n0nilnilnil\n";
    assert_eq!(heard(&server, 0, ""), said);
    server.wait_log("lua sleep timer expired, client: ", 1);
    server.wait_log("kept: to be kept", 1);
    server.wait_log("over log preread 200, client: 127.0.0.1, server: 127.0.0.1:", 1);
}

#[test]
fn a_script_speaks_with_the_client_of_its_session() {
    let server = stream(
        r#"server {
               listen 127.0.0.1:%%PORT%%;
               content_by_lua_block {
                   local client = assert(ngx.req.socket(true))
                   ngx.print("name? ")
                   local name = client:receive()
                   client:send("hello " .. name .. ", ")
                   ngx.print("and ")
                   local number = client:receive(3)
                   client:send(number .. " ")
                   ngx.print(client:receiveuntil("!")(), " ")
                   client:settimeout(20)
                   ngx.print(select(2, client:receive(100)), " ")
                   client:settimeout(60000)
                   client:shutdown("send")
                   ngx.log(ngx.WARN, "still came ", client:receive("*a"))
               }
               log_by_lua_block { ngx.log(ngx.WARN, "came ", ngx.var.bytes_received, " sent ", ngx.var.bytes_sent) }
           }"#,
    );
    let mut client = connect(&server, 0);
    client.write_all(b"you\r\n123four!").unwrap();
    assert_eq!(rest(&mut client), "name? hello you, and 123 four timeout ");
    client.write_all(b"more").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    server.wait_log("still came more", 1);
    server.wait_log("came 17 sent 38", 1);
}

#[test]
fn a_script_looks_at_the_first_bytes_and_chooses_where_the_session_leads() {
    let server = stream(
        r#"lua_add_variable $to;
           preread_buffer_size 16;
           server {
               listen 127.0.0.1:%%PORT%%;
               preread_by_lua_block {
                   local client = ngx.req.socket()
                   local kind = client:peek(2)
                   if kind == "no" then return ngx.exit(403) end
                   if kind == "xx" then client:peek(17) end
                   if kind == "ww" then error("wrong") end
                   if kind == "rr" then
                       client:receive(2)
                       ngx.log(ngx.WARN, select(2, pcall(client.peek, client, 1)))
                       ngx.log(ngx.WARN, select(2, pcall(client.peek, client, -1)))
                       ngx.log(ngx.WARN, select(2, pcall(client.peek, client)))
                   end
                   ngx.var.to = kind == "b:" and "127.0.0.1:%%PORT2%%" or "127.0.0.1:%%PORT1%%"
               }
               log_by_lua_block { ngx.log(ngx.WARN, "status ", ngx.var.status) }
               proxy_half_close on; proxy_pass $to;
           }
           server { listen 127.0.0.1:%%PORT1%%; content_by_lua_block { ngx.say("a ", ngx.req.socket():receive("*a")) } }
           server { listen 127.0.0.1:%%PORT2%%; content_by_lua_block { ngx.say("b ", ngx.req.socket():receive("*a")) } }"#,
    );
    assert_eq!(heard(&server, 0, "a: whole"), "a a: whole\n");
    assert_eq!(heard(&server, 0, "b: whole"), "b b: whole\n");
    // What a script has received is gone.
    assert_eq!(heard(&server, 0, "rrest"), "a est\n");
    server
        .wait_log("attempt to peek on a consumed socket while prereading client data, client: ", 1);
    server.wait_log("bytes can not be negative", 1);
    server.wait_log("expecting 2 arguments (including the object), but got 1", 1);
    server.wait_log("status 200", 3);
    assert_eq!(heard(&server, 0, "no"), "");
    server.wait_log("status 403", 1);
    assert_eq!(heard(&server, 0, "xx and more than 16 bytes"), "");
    server.wait_log("preread buffer full while prereading client data, client: ", 1);
    server.wait_log("status 400", 1);
    assert_eq!(heard(&server, 0, "w"), "");
    server.wait_log("status 200", 4);
    assert_eq!(heard(&server, 0, "ww"), "");
    server.wait_log("lua entry thread aborted: runtime error: preread_by_lua(nginx.conf:", 1);
    server.wait_log("status 500", 1);
}

#[test]
fn a_preread_script_runs_behind_ssl_preread_unless_it_is_not_postponed() {
    let server = |early: &str| {
        stream(&format!(
            r#"preread_by_lua_no_postpone {early};
               server {{
                   listen 127.0.0.1:%%PORT%%; ssl_preread on; preread_timeout 60s;
                   preread_by_lua_block {{ ngx.say("script") ngx.flush() }}
                   content_by_lua_block {{ ngx.print("content") }}
               }}"#
        ))
    };
    // Half a message: `ssl_preread` waits for the rest.
    let half = b"\x16\x03\x01\x00\x50\x01";
    let early = server("on");
    let mut client = connect(&early, 0);
    client.write_all(half).unwrap();
    let mut said = [0; 7];
    client.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"script\n");
    let late = server("off");
    let mut client = connect(&late, 0);
    client.write_all(half).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut client), "");
    assert_eq!(heard(&late, 0, "no TLS"), "script\ncontent");
}

#[test]
fn a_script_answers_datagrams() {
    let server = stream(
        r#"server {
               listen 127.0.0.1:%%PORT%% udp;
               content_by_lua_block {
                   local client = ngx.req.socket()
                   local first = client:receive(2)
                   ngx.say("got ", first, " ", client:receive())
                   client:send(select(2, client:receive()))
               }
           }
           server {
               listen 127.0.0.1:%%PORT1%% udp;
               preread_by_lua_block { ngx.req.socket():receive(1) }
               proxy_responses 2; proxy_pass 127.0.0.1:%%PORT%%;
           }"#,
    );
    let answers = |port: u16| {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(("127.0.0.1", port)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        client.send(b"datagram").unwrap();
        [(); 2].map(|()| {
            let mut buf = [0; 100];
            let n = client.recv(&mut buf).unwrap();
            String::from_utf8_lossy(&buf[..n]).into_owned()
        })
    };
    assert_eq!(answers(server.port()), ["got da tagram\n", "no more data"]);
    // What a script has not received goes on.
    assert_eq!(answers(server.port_at(1)), ["got at agram\n", "no more data"]);
}

#[test]
fn scripts_of_sessions_and_of_requests_share_nothing() {
    let server = Server::start(
        WEIR,
        r#"events { }
           http {
               init_by_lua_block { side = "requests" }
               lua_shared_dict of_http 1m;
               server {
                   listen 127.0.0.1:%%PORT%%;
                   location / { content_by_lua_block {
                       ngx.say(side, " ", ngx.config.subsystem, " ", ngx.shared.of_stream, " ", ngx.shared.of_http ~= nil)
                   } }
               }
           }
           stream {
               init_by_lua_block { side = "sessions" }
               lua_shared_dict of_stream 1m;
               lua_socket_read_timeout 20ms;
               server {
                   listen 127.0.0.1:%%PORT1%%;
                   content_by_lua_block {
                       ngx.say(side, " ", ngx.config.subsystem, " ", ngx.shared.of_http, " ", ngx.shared.of_stream ~= nil)
                       local socket = ngx.socket.tcp()
                       assert(socket:connect("127.0.0.1", %%PORT%%))
                       socket:send("GET / HTTP/1.0\r\nHost: a\r\n\r\n")
                       ngx.say(socket:receiveuntil("\r\n\r\n")() and socket:receive())
                       ngx.say(select(2, ngx.req.socket():receive()))
                       local ran = ngx.thread.spawn(function() ngx.sleep(0.001) return "thread" end)
                       ngx.timer.at(0, function() ngx.log(ngx.WARN, "timer of ", side) end)
                       ngx.say(select(2, ngx.thread.wait(ran)))
                       ngx.say(pcall(require("resty.core.base").allows_subsystem, "http"))
                   }
               }
           }"#,
    );
    assert_eq!(server.get("/").body(), "requests http nil true\n");
    let mut client = connect(&server, 1);
    assert_eq!(
        rest(&mut client),
        "sessions stream nil true\nrequests http nil true\ntimeout\nthread\n\
         falseunsupported subsystem: stream\n"
    );
    let same = server.dir().write(
        "same.conf",
        "events { } http { lua_shared_dict same 1m; } stream { lua_shared_dict same 1m; }",
    );
    let refused = server.command(&["-t", "-c", same.to_str().unwrap()]);
    assert!(!refused.status.success());
    let why = "the shared memory zone \"same\" is already declared for a different use";
    assert!(String::from_utf8_lossy(&refused.stderr).contains(why));
    server.wait_log(
        "timer of sessions, context: ngx.timer, client: 127.0.0.1, server: 127.0.0.1:",
        1,
    );
}

#[test]
fn scripts_of_sessions_may_stand_in_files() {
    let dir = Dir::new();
    dir.write("init.lua", "began = 'init file'");
    dir.write("worker.lua", "began = began .. ', worker file'");
    dir.write("preread.lua", "ngx.ctx.seen = 'preread file'");
    dir.write("content.lua", "ngx.say(began, ', ', ngx.ctx.seen, ', ', require('more'))");
    dir.write("log.lua", "ngx.log(ngx.WARN, 'log file')");
    dir.write("more.lua", "return 'a module'");
    let server = stream_in(
        dir,
        "lua_package_path $prefix/?.lua;
         init_by_lua_file init.lua; init_worker_by_lua_file worker.lua; preread_by_lua_file preread.lua;
         log_by_lua_file log.lua;
         server { listen 127.0.0.1:%%PORT%%; content_by_lua_file content.lua; }
         server { listen 127.0.0.1:%%PORT1%%; content_by_lua_block { ngx.exit(ngx.ERROR) }
                  log_by_lua_block { ngx.log(ngx.WARN, 'own log ', ngx.var.status) } }
         server { listen 127.0.0.1:%%PORT2%%; content_by_lua_file late.lua; }",
    );
    let said = "init file, worker file, preread file, a module\n";
    assert_eq!(heard(&server, 0, ""), said);
    server.wait_log("log file", 1);
    assert_eq!(heard(&server, 1, ""), "");
    server.wait_log("own log 500", 1);
    server.reload();
    assert_eq!(heard(&server, 0, ""), said);
    assert_eq!(heard(&server, 2, ""), "");
    server.wait_log("/late.lua (2: No such file or directory)", 1);
    server.dir().write("late.lua", "ngx.say('late file')");
    assert_eq!(heard(&server, 2, ""), "late file\n");
    let twice = server.dir().write(
        "twice.conf",
        "events { } stream { server { listen 127.0.0.1:1; content_by_lua_block { } content_by_lua_file content.lua; } }",
    );
    let refused = server.command(&["-t", "-c", twice.to_str().unwrap()]);
    assert!(!refused.status.success());
    assert!(
        String::from_utf8_lossy(&refused.stderr)
            .contains("\"content_by_lua_file\" directive is duplicate")
    );
}

#[test]
fn a_script_chooses_the_server_of_each_attempt_of_a_session() {
    let dir = Dir::new();
    dir.write("own.lua", "ngx.ctx.asked = (ngx.ctx.asked or 0) + 1");
    let server = stream_in(
        dir,
        r#"upstream chosen {
               server 127.0.0.1:1 max_fails=3;
               balancer_by_lua_block {
                   local balancer = require "ngx.balancer"
                   local before = balancer.get_last_failure()
                   ngx.log(ngx.WARN, "asked in ", ngx.get_phase(), " after ", balancer.get_last_failure())
                   if not before then
                       assert(balancer.set_more_tries(1))
                       assert(balancer.set_timeouts(60, 60, 60))
                       assert(balancer.bind_to_local_addr("127.0.0.2"))
                       return assert(balancer.set_current_peer("127.0.0.1", 1))
                   end
                   ngx.log(ngx.WARN, pcall(balancer.enable_keepalive))
                   assert(balancer.set_current_peer("127.0.0.1", %%PORT1%%))
               }
           }
           upstream own { server 127.0.0.1:%%PORT1%%; balancer_by_lua_file own.lua; }
           upstream none { balancer_by_lua_block { ngx.say("never") } }
           upstream empty { balancer_by_lua_block { } }
           upstream refused { balancer_by_lua_block { ngx.exit(403) } }
           log_by_lua_block { ngx.log(ngx.WARN, "status ", ngx.var.status, " of ", ngx.var.upstream_addr, " asked ", ngx.ctx.asked) }
           server { listen 127.0.0.1:%%PORT%%; proxy_pass chosen; }
           server { listen 127.0.0.1:%%PORT1%%; content_by_lua_block { ngx.say("from ", ngx.var.remote_addr) } }
           server { listen 127.0.0.1:%%PORT2%%; proxy_pass own; }
           server { listen 127.0.0.1:%%PORT3%%; proxy_pass none; }
           server { listen 127.0.0.1:%%PORT4%%; proxy_pass empty; }
           server { listen 127.0.0.1:%%PORT5%%; proxy_pass refused; }"#,
    );
    let mut client = connect(&server, 0);
    assert_eq!(rest(&mut client), "from 127.0.0.2\n");
    let both = format!("status 200 of 127.0.0.1:1, 127.0.0.1:{} asked nil", server.port_at(1));
    server.wait_log(&both, 1);
    server.wait_log("asked in balancer after nil while connecting to upstream, client: ", 1);
    server.wait_log("asked in balancer after failed0 while connecting to upstream, client: ", 1);
    server.wait_log("'enable_keepalive' not yet implemented in stream subsystem", 1);
    assert_eq!(rest(&mut connect(&server, 2)), "from 127.0.0.1\n");
    server.wait_log(&format!("status 200 of 127.0.0.1:{} asked 1", server.port_at(1)), 1);
    assert_eq!(rest(&mut connect(&server, 3)), "");
    server.wait_log("failed to run balancer_by_lua*: balancer_by_lua:1: API disabled", 1);
    assert_eq!(rest(&mut connect(&server, 4)), "");
    server.wait_log("lua balancer: no peer set while connecting to upstream, client: ", 1);
    server.wait_log("status 500 of nil", 2);
    assert_eq!(rest(&mut connect(&server, 5)), "");
    server.wait_log("status 403 of nil", 1);
}

#[test]
fn scripts_take_part_in_the_handshakes_of_sessions() {
    let server = stream_in(
        certified(),
        r#"lua_shared_dict certificates 1m;
           init_worker_by_lua_block {
               local function read(name)
                   local file = assert(io.open("%%DIR%%/" .. name))
                   local text = file:read("*a")
                   file:close()
                   return text
               end
               ngx.shared.certificates:set("www.example.org", read("chain.pem"))
               ngx.shared.certificates:set("www.example.org key", read("leaf.key"))
           }
           ssl_certificate self.pem; ssl_certificate_key self.key;
           server {
               listen 127.0.0.1:%%PORT%% ssl;
               ssl_client_hello_by_lua_block {
                   local name = require("ngx.ssl.clienthello").get_client_hello_server_name()
                   ngx.ctx.hello = name
                   if name == "old.example.org" then require("ngx.ssl.clienthello").set_protocols({ "TLSv1.2" }) end
                   if name == "no.example.org" then ngx.exit(ngx.ERROR) end
               }
               ssl_certificate_by_lua_block {
                   local ssl, all = require "ngx.ssl", ngx.shared.certificates
                   local name, server = ssl.server_name(), ssl.raw_server_addr()
                   ngx.ctx.seen = server:byte(1) .. " " .. ssl.server_port() - %%PORT%% .. " " .. ssl.get_tls1_version_str()
                   ngx.sleep(0.001)
                   if name == "asked.example.org" then assert(ssl.verify_client()) end
                   if name == "wrong.example.org" then error("no such name") end
                   local chain = all:get(name)
                   if not chain then return end
                   assert(ssl.clear_certs())
                   assert(ssl.set_cert(assert(ssl.parse_pem_cert(chain))))
                   assert(ssl.set_priv_key(assert(ssl.parse_pem_priv_key(all:get(name .. " key")))))
               }
               content_by_lua_block {
                   local ssl = require "ngx.ssl"
                   ngx.say("<", ssl.server_name(), " ", ngx.ctx.hello, " ", ngx.ctx.seen, " ", ssl.get_tls1_version_str(), ">")
                   ngx.say("verified: ", ngx.var.ssl_client_verify)
               }
           }"#,
    );
    let said = |name: &str, args: &[&str]| {
        let args = [&["-ign_eof", "-servername", name, "-CAfile", "root.pem"], args].concat();
        s_client(server.dir().path(), server.port(), &args, "").expect("OpenSSL")
    };
    let good = said("www.example.org", &["-verify_hostname", "www.example.org"]);
    assert!(good.contains("Verify return code: 0 (ok)"), "{good}");
    assert!(good.contains("<www.example.org www.example.org 127 0 TLSv1.3 TLSv1.3>"), "{good}");
    assert!(good.contains("verified: NONE"), "{good}");
    let asked = said("asked.example.org", &["-cert", "client.pem", "-key", "client.key"]);
    assert!(asked.contains("verified: FAILED:"), "{asked}");
    let old = said("old.example.org", &[]);
    assert!(old.contains("CN = self"), "{old}");
    assert!(old.contains("<old.example.org old.example.org 127 0 TLSv1.2 TLSv1.2>"), "{old}");
    assert!(said("no.example.org", &[]).contains("SSL alert number 80\n"));
    server.wait_log("(SSL: callback failed) while SSL handshaking, client: ", 1);
    assert!(said("wrong.example.org", &[]).contains("SSL alert number 80\n"));
    server.wait_log("(SSL: cert cb error) while SSL handshaking, client: ", 1);
    let wrong = "no such name\\x0Astack traceback:";
    assert!(
        server.wait_line(wrong).contains(", context: ssl_certificate_by_lua*, client: 127.0.0.1")
    );
}

#[test]
fn a_script_of_a_session_that_computes_for_too_long_is_ended() {
    let server = stream(
        r#"lua_max_run_time 200ms;
           server {
               listen 127.0.0.1:%%PORT%%;
               content_by_lua_block {
                   ngx.timer.at(0, function() while true do end end)
                   ngx.say("before")
                   while true do pcall(function() while true do end end) end
               }
           }
           server { listen 127.0.0.1:%%PORT1%%; preread_by_lua_block { while true do end } return "no"; }
           server {
               listen 127.0.0.1:%%PORT2%%;
               content_by_lua_block { ngx.print("answered") }
               log_by_lua_block { if ngx.var.server_port == "%%PORT2%%" then while true do end end }
           }
           server {
               lua_max_run_time 0;
               listen 127.0.0.1:%%PORT3%%;
               content_by_lua_block {
                   local sum = 0
                   for i = 1, 3e6 do sum = sum + i % 7 end
                   ngx.print(sum)
               }
           }"#,
    );
    let text = "the script computed for longer than lua_max_run_time (200ms)";
    assert_eq!(heard(&server, 0, ""), "before\n");
    // Of the session and of its timer.
    server.wait_log(text, 2);
    assert!(server.log().contains("stack traceback:"), "{}", server.log());
    assert_eq!(heard(&server, 1, ""), "");
    server.wait_log(text, 3);
    assert_eq!(heard(&server, 2, ""), "answered");
    server.wait_log(text, 4);
    assert_eq!(heard(&server, 3, ""), "8999997");
}

#[test]
fn a_script_of_a_session_ends_with_its_client_where_it_is_asked_to() {
    let server = stream(
        r#"lua_check_client_abort on;
           log_by_lua_block { ngx.log(ngx.WARN, "over with ", ngx.var.status) }
           server {
               listen 127.0.0.1:%%PORT%%;
               content_by_lua_block { ngx.log(ngx.WARN, "waiting") ngx.sleep(1000) }
           }
           server {
               listen 127.0.0.1:%%PORT1%%;
               preread_by_lua_block {
                   ngx.on_abort(function()
                       ngx.sleep(0.001)
                       ngx.log(ngx.WARN, "said good-bye")
                       ngx.exit(444)
                   end)
                   ngx.log(ngx.WARN, "the second: ", select(2, ngx.on_abort(function() end)))
                   ngx.sleep(1000)
               }
               return "no";
           }
           server {
               listen 127.0.0.1:%%PORT2%%;
               content_by_lua_block {
                   local client = ngx.req.socket()
                   ngx.sleep(0.05)
                   ngx.say("heard ", client:receive("*a"))
               }
           }
           server {
               lua_check_client_abort off;
               listen 127.0.0.1:%%PORT3%%;
               content_by_lua_block {
                   ngx.say(select(2, ngx.on_abort(function() end)))
                   ngx.sleep(0.05)
                   ngx.log(ngx.WARN, "went on")
               }
           }"#,
    );
    let mut client = connect(&server, 0);
    server.wait_log("waiting", 1);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut client), "");
    server.wait_log("over with 500", 1);
    let client = connect(&server, 1);
    server.wait_log("the second: duplicate call", 1);
    drop(client);
    server.wait_log("said good-bye", 1);
    server.wait_log("over with 444", 1);
    // What waits to be received is of a client that stays.
    assert_eq!(heard(&server, 2, "this"), "heard this\n");
    assert_eq!(heard(&server, 3, ""), "lua_check_client_abort is off\n");
    server.wait_log("went on", 1);
}

#[test]
fn functions_of_sessions_answer_as_in_openresty() {
    let server = stream(
        r#"server {
               listen 127.0.0.1:%%PORT%%;
               content_by_lua_block {
                   ngx.say(ngx.status, " ", ngx.headers_sent)
                   local function failure(...) return (tostring(select(2, pcall(...))):gsub("^content_by_lua%b():%d+: ", "")) end
                   local other = ngx.socket.tcp()
                   other:connect("127.0.0.1", %%PORT1%%)
                   other:send("all of it")
                   ngx.say(failure(function() other:shutdown("both") end))
                   ngx.say(other:shutdown("send"), " ", select(2, other:shutdown("send")), " ", other:receive("*a"))
                   other:close()
                   ngx.say(select(2, other:shutdown("send")))
                   other:bind("192.0.2.1")
                   ngx.say(select(2, other:connect("127.0.0.1", %%PORT1%%)))
                   local client = ngx.req.socket()
                   ngx.say(failure(client.peek, client, 1))
                   ngx.say(failure(function() client.receive("x") end))
                   -- No rule of the kernel has redirected the client.
                   local original, why = ngx.req.get_original_addr()
                   ngx.say(original == "127.0.0.1:%%PORT%%" or why == "failed to get IPv4 origin addr")
                   ngx.timer.at(0, function() ngx.log(ngx.WARN, "timer: ", failure(ngx.req.socket)) end)
               }
               log_by_lua_block { ngx.log(ngx.WARN, "over ", ngx.status) }
           }
           server { listen 127.0.0.1:%%PORT1%%; content_by_lua_block { ngx.print(ngx.req.socket():receive("*a")) } }"#,
    );
    let said = "0 nil\n\
                bad argument #1 to 'shutdown' (bad shutdown argument: both)\n\
                1 already shutdown all of it\n\
                closed\n\
                cannot assign requested address\n\
                API disabled in the context of content_by_lua*\n\
                bad argument #1 to 'receive' (table expected, got string)\n\
                true\n";
    assert_eq!(heard(&server, 0, ""), said);
    server.wait_log("timer: API disabled in the context of ngx.timer", 1);
    server.wait_log("stream [lua] log_by_lua(nginx.conf:", 1);
    server.wait_log("over 200", 1);
}
