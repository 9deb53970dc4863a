//! Clients and servers that stop reading and sending, each at some point of an exchange. Each
//! connection is closed when its timeout is over, and a worker that ends does not wait longer for
//! them.

use std::thread;

use rustix::process::Signal;
use weir_testkit::{Dice, Server, ask_until, certified, number, seed};

#[path = "../tls/anybody.rs"]
mod anybody;
mod backs;
mod cases;
mod line;

use cases::{CASES, Case};
use line::Line;

/// How a round ends.
#[derive(Clone, Copy, Debug)]
enum Ends {
    /// The timeouts alone end the connections.
    Timeouts,
    Quit,
    Reload,
}

/// `WEIR_ROUNDS`: how often each case stands still; each time in another way.
#[test]
fn peers_that_stand_still_are_gone_after_their_timeouts() {
    let (seed, rounds) = (seed(), number("WEIR_ROUNDS").unwrap_or(1));
    let backs = backs::start();
    for round in 0..rounds {
        thread::scope(|scope| {
            for ends in [Ends::Timeouts, Ends::Quit, Ends::Reload] {
                let (salt, backs) = (format!("{round} {ends:?}"), &backs);
                scope.spawn(move || stand_still(Dice::salted(seed, &salt), ends, backs));
            }
        });
    }
}

fn stand_still(mut dice: Dice, ends: Ends, backs: &backs::Backs) {
    let timeout = dice.pick(&["400ms", "700ms", "1s"]);
    let dir = certified();
    dir.write("big", vec![b'x'; 2_000_000]);
    let mut server = Server::start_in(dir, env!("CARGO_BIN_EXE_weir"), &conf(timeout, backs));
    let wanted = std::env::var("WEIR_CASE").unwrap_or_default();
    let cases = CASES.iter().copied().flatten().filter(|case| case.name.contains(&wanted));
    let threads: Vec<_> = cases
        .map(|case| {
            let (dice, ports) = (Dice::salted(dice.any(), case.name), ports(&server));
            thread::spawn(move || begin(case, dice, ports))
        })
        .collect();
    let still: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let old = server.workers();
    match ends {
        Ends::Timeouts => {
            let alone = || server.get("/status").body().contains("Active connections: 1 ");
            assert!(ask_until(alone), "{timeout}: still there: {}", open(&still));
            server.stop();
        }
        Ends::Quit => {
            server.signal(Signal::QUIT);
            assert!(ask_until(|| server.workers().is_empty()), "QUIT, {timeout}: {}", open(&still));
            server.wait();
        }
        Ends::Reload => {
            server.reload();
            let gone = || old.iter().all(|pid| !server.workers().contains(pid));
            assert!(ask_until(gone), "reload, {timeout}: {}", open(&still));
            server.stop();
        }
    }
}

/// A client that stands still.
struct Still {
    name: &'static str,
    line: Line,
}

fn begin(case: &'static Case, mut dice: Dice, ports: [u16; 10]) -> Still {
    let mut line = Line::connect(case.door, ports, &mut dice);
    (case.say)(&mut line, &mut dice);
    Still { name: case.name, line }
}

/// The names of the cases with open connections.
fn open(still: &[Still]) -> String {
    let open = still.iter().filter_map(|still| still.line.is_open().then_some(still.name));
    open.collect::<Vec<_>>().join(", ")
}

fn ports(server: &Server) -> [u16; 10] {
    std::array::from_fn(|n| server.port_at(n))
}

fn conf(time: &str, backs: &backs::Backs) -> String {
    let of = |names: &[&str]| -> String {
        names.iter().map(|name| format!("{name}_timeout {time}; ")).collect()
    };
    let http = of(&[
        "send",
        "client_header",
        "client_body",
        "keepalive",
        "lingering",
        "resolver",
        "lua_socket_connect_",
        "lua_socket_send_",
        "lua_socket_read_",
    ])
    .replace("__", "_");
    let protocols = ["proxy", "fastcgi", "uwsgi", "scgi", "grpc", "memcached"];
    let protocols: String = protocols
        .iter()
        .map(|name| {
            of(&["connect", "send", "read"]
                .map(|what| format!("{name}_{what}"))
                .each_ref()
                .map(String::as_str))
        })
        .collect();
    let backs::Backs { silent, flood, says, answers, deaf, names } = backs;
    let said: String = says
        .iter()
        .map(|(name, port)| {
            format!(
                "location /{name} {{ proxy_pass http://127.0.0.1:{port}; }}
                 location /unbuffered/{name} {{ proxy_buffering off; proxy_request_buffering off;
                     proxy_pass http://127.0.0.1:{port}; }}"
            )
        })
        .collect();
    format!(
        "worker_processes 1; events {{ worker_connections 2048; }}
         http {{
             {http} {protocols} lingering_time {time}; client_max_body_size 0; early_hints 1;
             proxy_http_version 1.1; proxy_set_header Connection $http_connection;
             proxy_set_header Upgrade $http_upgrade; proxy_buffer_size 64k; proxy_buffers 4 64k;
             proxy_busy_buffers_size 128k; resolver 127.0.0.1:{names};
             proxy_cache_path %%DIR%%/cache keys_zone=kept:1m;
             upstream checked {{ zone checked 64k; server 127.0.0.1:{silent}; }}
             server {{
                 listen 127.0.0.1:%%PORT%% sndbuf=4k;
                 listen 127.0.0.1:%%PORT1%% ssl sndbuf=4k;
                 listen 127.0.0.1:%%PORT2%% proxy_protocol sndbuf=4k;
                 http2 on; ssl_certificate chain.pem; ssl_certificate_key leaf.key;
                 location = /status {{ stub_status; }}
                 location = /ok {{ return 200 ok; }}
                 location = /big {{ alias %%DIR%%/big; }}
                 location = /error {{ error_page 404 /big; return 404; }}
                 location = /gzip {{ alias %%DIR%%/big; gzip on; gzip_types *; gzip_comp_level 1;
                     types {{ }} default_type text/plain; limit_rate_after 1k; }}
                 location = /rate {{ alias %%DIR%%/big; limit_rate 100k; }}
                 location = /small {{ client_max_body_size 10; return 200; }}
                 location = /flood {{ proxy_pass http://127.0.0.1:{flood}; }}
                 location = /flood/memory {{ proxy_max_temp_file_size 0; proxy_pass http://127.0.0.1:{flood}; }}
                 location = /flood/unbuffered {{ proxy_buffering off; proxy_pass http://127.0.0.1:{flood}; }}
                 location = /cached {{ proxy_cache kept; proxy_cache_valid any 1m; proxy_cache_lock on;
                     proxy_cache_key k; proxy_pass http://127.0.0.1:{flood}; }}
                 location /silent {{ proxy_pass http://127.0.0.1:{silent}; }}
                 location /unbuffered/silent {{ proxy_buffering off; proxy_request_buffering off;
                     proxy_pass http://127.0.0.1:{silent}; }}
                 location /deaf {{ proxy_pass http://127.0.0.1:{deaf}; }}
                 location /https {{ proxy_pass https://127.0.0.1:{silent}; }}
                 location /http2 {{ proxy_http_version 2; proxy_pass http://127.0.0.1:{silent}; }}
                 location /grpc {{ grpc_pass 127.0.0.1:{silent}; }}
                 location /fastcgi {{ fastcgi_pass 127.0.0.1:{silent}; }}
                 location /uwsgi {{ uwsgi_pass 127.0.0.1:{silent}; }}
                 location /scgi {{ scgi_pass 127.0.0.1:{silent}; }}
                 location /memcached {{ set $memcached_key x; memcached_pass 127.0.0.1:{silent}; }}
                 location /checked {{ proxy_pass http://checked; health_check interval=200ms; }}
                 location /named {{ proxy_pass http://$arg_name:80; }}
                 location /auth {{ auth_request /silent; return 200; }}
                 location /mirror {{ mirror /silent; proxy_pass http://127.0.0.1:{answers}; }}
                 location /answers {{ proxy_pass http://127.0.0.1:{answers}; }}
                 location /unbuffered/answers {{ proxy_request_buffering off; proxy_pass http://127.0.0.1:{answers}; }}
                 location = /lua/print {{ content_by_lua_block {{
                     for i = 1, 200 do ngx.print(string.rep('x', 10000)) ngx.flush(true) end }} }}
                 location = /lua/socket {{ content_by_lua_block {{
                     local s = ngx.socket.tcp() s:connect('127.0.0.1', {silent}) s:receive() }} }}
                 location = /lua/body {{ content_by_lua_block {{ ngx.req.read_body() }} }}
                 location = /lua/eof {{ content_by_lua_block {{ ngx.say('x') ngx.eof() }} }}
                 {said}
             }}
         }}
         stream {{
             proxy_timeout {time}; proxy_connect_timeout {time}; preread_timeout {time};
             proxy_protocol_timeout {time}; ssl_handshake_timeout {time};
             ssl_certificate chain.pem; ssl_certificate_key leaf.key;
             server {{ listen 127.0.0.1:%%PORT3%% sndbuf=4k; proxy_pass 127.0.0.1:{flood}; }}
             server {{ listen 127.0.0.1:%%PORT4%%; proxy_pass 127.0.0.1:{silent}; proxy_protocol on; }}
             server {{ listen 127.0.0.1:%%PORT5%% sndbuf=4k; set $a {long}; set $b $a$a$a$a$a$a$a$a;
                 set $c $b$b$b$b$b$b$b$b; return $c; }}
             server {{ listen 127.0.0.1:%%PORT6%%; ssl_preread on; proxy_pass 127.0.0.1:{silent}; }}
             server {{ listen 127.0.0.1:%%PORT7%% proxy_protocol; return x; }}
             server {{ listen 127.0.0.1:%%PORT8%% ssl sndbuf=4k; proxy_pass 127.0.0.1:{flood}; }}
             server {{ listen 127.0.0.1:%%PORT9%%; proxy_ssl on; proxy_pass 127.0.0.1:{silent}; }}
         }}",
        long = "x".repeat(3500),
    )
}
