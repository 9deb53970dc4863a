//! What functions of `ngx` return: how many values, of which types, and the words of their errors.
//!
//! `returns/facts.tsv` has calls, and what they returned in lua-nginx-module 0.10.23 with lua-resty-core 0.1.25. A server
//! with that module (`$WEIR_OPENRESTY`, such as Debian's nginx) is asked as well. `WEIR_CASES` draws more than 300 calls.

use std::net::UdpSocket;
use std::process::Command;
use std::thread;

use weir_testkit::{Client, Dice, Dir, Server, number, seed};

use super::WEIR;

const FACTS: &str = include_str!("returns/facts.tsv");
const DRIVER: &str = include_str!("returns/driver.lua");

/// A server that makes calls and tells what they return.
struct Caller {
    client: Client,
    _server: Server,
}

impl Caller {
    fn start(program: &str, modules: &str) -> Caller {
        let dir = Dir::new();
        dir.write("driver.lua", DRIVER);
        let echo = echo();
        let conf = format!(
            "{modules} worker_processes 1; events {{}}
             http {{
                 access_log off; default_type text/plain; keepalive_requests 100000; lua_shared_dict d 1m;
                 lua_socket_log_errors off; client_body_buffer_size 64k;
                 server {{
                     listen 127.0.0.1:%%PORT%%;
                     location /cases {{ set $v 1; set $echo {echo}; content_by_lua_file %%DIR%%/driver.lua; }}
                     location /status {{ return 204; }}
                     location /echo {{ return 200 \"echo\\n\"; }}
                 }}
             }}"
        );
        let server = Server::start_in(dir, program, &conf);
        Caller { client: server.connect(), _server: server }
    }

    /// What a call returns, or raises. An error of Lua within lua-resty-core has no words of its own.
    fn call(&mut self, call: &str) -> String {
        let length = call.len();
        let head = format!("X-One: 1\r\nCookie: a=b\r\nContent-Length: {length}\r\n");
        let answer = self.client.ask("POST /cases?a=1&b=2&a=3&c", &head, call).body();
        let returned = answer.rsplit_once("\nreturned ").map(|(_, returned)| returned);
        let returned = returned.unwrap_or_else(|| panic!("{call}: {answer}"));
        if returned.starts_with("error ") && returned.contains("/resty/core/") {
            return "error CORE".to_owned();
        }
        returned.to_owned()
    }
}

/// The port of a server that sends each datagram back, but those that begin with `silent`.
fn echo() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut bytes = vec![0; 65_536];
        while let Ok((n, from)) = socket.recv_from(&mut bytes) {
            if !bytes[..n].starts_with(b"silent") {
                let _ = socket.send_to(&bytes[..n], from);
            }
        }
    });
    port
}

/// The other server, where there is one.
fn openresty() -> Option<Caller> {
    let program = std::env::var("WEIR_OPENRESTY").ok()?;
    let said = Command::new(&program).arg("-V").output().ok()?;
    let built = String::from_utf8_lossy(&said.stderr).into_owned();
    let modules = built.split("--modules-path=").nth(1).and_then(|path| path.split(' ').next());
    let load = ["ndk_http_module", "ngx_http_lua_module"].map(|name| {
        let path = format!("{}/{name}.so", modules.unwrap_or_default());
        if std::fs::exists(&path).unwrap_or(false) {
            format!("load_module {path};")
        } else {
            String::new()
        }
    });
    Some(Caller::start(&program, &load.concat()))
}

/// Whether what weir returned is as in OpenResty.
fn is_as(ours: &str, theirs: &str) -> bool {
    // OpenResty's LuaJIT has what Lua 5.2 adds, Debian's does not: the second value of `coroutine.running`.
    let is_newer = (ours, theirs) == ("thread false", "thread");
    ours == theirs || is_newer || theirs == "error CORE" && ours.starts_with("error \"case:2: ")
}

/// lua-nginx-module has started the first subrequest when it refuses the second. On a connection that is kept it then
/// mostly does not end the request.
const UNANSWERED: &str = r#"ngx.location.capture_multi({ { "/echo" }, "x" })"#;

#[test]
fn functions_of_ngx_return_what_they_return_in_openresty() {
    let (mut weir, mut openresty) = (Caller::start(WEIR, ""), openresty());
    let mut wrong = Vec::new();
    for fact in FACTS.lines() {
        let (call, expected) = fact.split_once('\t').unwrap();
        let returned = weir.call(call);
        if !is_as(&returned, expected) {
            wrong.push(format!("{call}\n  returned {returned}\n  expected {expected}"));
        }
        if call == UNANSWERED {
            continue;
        }
        if let Some(theirs) = openresty.as_mut().map(|openresty| openresty.call(call))
            && theirs != expected
        {
            wrong.push(format!("{call}\n  expected {expected}\n  in OpenResty {theirs}"));
        }
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}

/// Functions, and the most arguments that they have a use for. `S` is a socket, `C` one that is connected, `U` and `V` are
/// the same for datagrams, `W` is a semaphore.
const FUNCTIONS: &[(&str, usize)] = &[
    ("ngx.say", 2),
    ("ngx.print", 2),
    ("ngx.flush", 1),
    ("ngx.log", 3),
    ("print", 2),
    ("ngx.on_abort", 1),
    ("ngx.escape_uri", 2),
    ("ngx.unescape_uri", 1),
    ("ngx.encode_args", 1),
    ("ngx.decode_args", 2),
    ("ngx.encode_base64", 2),
    ("ngx.decode_base64", 1),
    ("ngx.crc32_short", 1),
    ("ngx.hmac_sha1", 2),
    ("ngx.md5", 1),
    ("ngx.sha1_bin", 1),
    ("ngx.quote_sql_str", 1),
    ("ngx.http_time", 1),
    ("ngx.cookie_time", 1),
    ("ngx.parse_http_time", 1),
    ("ngx.req.set_method", 1),
    ("ngx.req.get_headers", 2),
    ("ngx.req.set_header", 2),
    ("ngx.req.clear_header", 1),
    ("ngx.req.get_uri_args", 2),
    ("ngx.req.set_uri_args", 1),
    ("ngx.req.set_uri", 2),
    ("ngx.req.get_post_args", 1),
    ("ngx.req.get_body_data", 0),
    ("ngx.req.get_body_file", 0),
    ("ngx.req.read_body", 0),
    ("ngx.req.discard_body", 0),
    ("ngx.req.set_body_data", 1),
    ("ngx.req.raw_header", 1),
    ("ngx.resp.get_headers", 2),
    ("ngx.re.match", 5),
    ("ngx.re.find", 5),
    ("ngx.re.gmatch", 3),
    ("ngx.re.sub", 4),
    ("ngx.re.gsub", 4),
    ("ngx.location.capture_multi", 1),
    ("ngx.thread.wait", 2),
    ("ngx.thread.kill", 1),
    ("ngx.timer.at", 3),
    ("ngx.timer.every", 3),
    ("ngx.socket.connect", 3),
    ("coroutine.wrap", 1),
    ("coroutine.resume", 2),
    ("coroutine.status", 1),
    ("d:get", 1),
    ("d:get_stale", 1),
    ("d:set", 4),
    ("d:safe_set", 4),
    ("d:add", 4),
    ("d:safe_add", 4),
    ("d:replace", 4),
    ("d:delete", 1),
    ("d:incr", 4),
    ("d:lpush", 2),
    ("d:rpush", 2),
    ("d:lpop", 1),
    ("d:rpop", 1),
    ("d:llen", 1),
    ("d:ttl", 1),
    ("d:expire", 2),
    ("d:flush_all", 0),
    ("d:flush_expired", 1),
    ("d:get_keys", 1),
    ("d:capacity", 0),
    ("d:free_space", 0),
    ("S:connect", 3),
    ("S:send", 1),
    ("S:receive", 1),
    ("S:receiveany", 1),
    ("S:receiveuntil", 2),
    ("S:settimeout", 1),
    ("S:settimeouts", 3),
    ("S:setkeepalive", 2),
    ("S:setoption", 2),
    ("S:getreusedtimes", 0),
    ("S:close", 0),
    ("C:send", 1),
    ("C:receive", 1),
    ("C:receiveany", 1),
    ("C:receiveuntil", 2),
    ("C:settimeouts", 3),
    ("C:getreusedtimes", 0),
    ("C:close", 0),
    ("ngx.socket.udp", 0),
    ("U:setpeername", 2),
    ("U:send", 1),
    ("U:receive", 1),
    ("U:settimeout", 1),
    ("U:close", 0),
    ("V:setpeername", 2),
    ("V:send", 1),
    ("V:receive", 1),
    ("V:settimeout", 1),
    ("V:close", 0),
    ("W.new", 1),
    ("W:post", 1),
    ("W:count", 0),
];

const VALUES: &[&str] = &[
    "nil",
    "true",
    "false",
    "\"\"",
    "\"abc\"",
    "\"12\"",
    "\"s\"",
    "\"n\"",
    "\"l\"",
    "\"(b)\"",
    "\"jo\"",
    "0",
    "1",
    "-1",
    "1.5",
    "60",
    "{}",
    "{ \"a\" }",
    "{ a = 1 }",
    "{ a = {} }",
    "{ pos = 2 }",
    "function() end",
    "ngx.null",
    "coroutine.create(function() end)",
    "(\"x\"):rep(500)",
];

/// What a number in C cannot hold: undefined there, and only to be survived here.
const UNDEFINED: &[&str] = &["1e300", "-1e300", "1/0", "0/0", "2^53"];

/// Words of calls about which the versions differ, or in which lua-resty-core fails or succeeds by chance: newer versions
/// count more arguments, and tables of options are read as texts or not at all.
const APART: &[&str] = &["S:settimeouts(", "C:settimeouts(", "get_body_data(", "ngx.re."];

fn draw(dice: &mut Dice) -> String {
    let (function, most) = dice.pick(FUNCTIONS);
    let values = (0..dice.below(most + 2)).map(|_| match dice.one_in(12) {
        true => dice.pick(UNDEFINED),
        false => dice.pick(VALUES),
    });
    let call = format!("{function}({})", values.collect::<Vec<_>>().join(", "));
    match function.as_bytes()[0] {
        b'S' => format!("local S = ngx.socket.tcp() S:settimeout(20) ;; {call}"),
        b'C' => format!(
            "local C = ngx.socket.tcp() C:settimeout(20) C:connect('127.0.0.1', P) \
             C:send('GET /echo HTTP/1.0\\r\\n\\r\\n') ;; {call}"
        ),
        b'U' => format!("local U = ngx.socket.udp() U:settimeout(20) ;; {call}"),
        b'V' => format!(
            "local V = ngx.socket.udp() V:settimeout(200) V:setpeername('127.0.0.1', E) \
             V:send('datagram') ;; {call}"
        ),
        b'W' => format!("local W = require('ngx.semaphore').new(1) ;; {call}"),
        _ => call,
    }
}

/// Types of the values, or the words of an error.
fn shape(returned: &str) -> String {
    if let Some(error) = returned.strip_prefix("error ") {
        // Functions of lua-resty-core tell one place or another, or none.
        let places = ["\"case:2: ", "\"ngx.socket.connect:1: ", "\""];
        let words = places.iter().find_map(|place| error.strip_prefix(place));
        return format!("error \"case:2: {}", words.unwrap_or(error));
    }
    let mut kinds = String::new();
    let (mut depth, mut in_text, mut begins) = (0, false, true);
    for c in returned.chars() {
        match c {
            '"' => in_text = !in_text,
            '{' if !in_text => depth += 1,
            '}' if !in_text => depth -= 1,
            ' ' if !in_text && depth == 0 => {
                begins = true;
                continue;
            }
            _ => {}
        }
        if std::mem::take(&mut begins) {
            kinds.push(if c.is_ascii_digit() || c == '-' { '0' } else { c });
        }
    }
    kinds
}

#[test]
fn errors_of_ngx_are_texts_with_the_place_of_the_call() {
    let (mut weir, mut openresty) = (Caller::start(WEIR, ""), openresty());
    let seed = seed();
    let mut dice = Dice::new(seed);
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for _ in 0..number("WEIR_CASES").unwrap_or(300) {
        let call = draw(&mut dice);
        let returned = weir.call(&call);
        if returned.starts_with("error ") && !returned.starts_with("error \"case:2: ") {
            wrong.push(format!("{call}\n  {returned}"));
        }
        if UNDEFINED.iter().chain(APART).any(|word| call.contains(word)) {
            continue;
        }
        let Some(theirs) = openresty.as_mut().map(|openresty| openresty.call(&call)) else {
            continue;
        };
        compared += 1;
        let theirs_shape = if theirs == "error CORE" { theirs.clone() } else { shape(&theirs) };
        if !is_as(&shape(&returned), &theirs_shape) {
            wrong.push(format!("{call}\n  returned {returned}\n  in OpenResty {theirs}"));
        }
    }
    println!("{compared} compared");
    assert!(wrong.is_empty(), "WEIR_SEED={seed}, {}:\n{}", wrong.len(), wrong.join("\n"));
}
