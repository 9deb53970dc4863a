//! Sessions: what `stream` does with them, seen by their clients and servers.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use rustix::process::Signal;
use weir_testkit::{Server, ask_until, examples, listen};

#[path = "stream/bursts.rs"]
mod bursts;
#[path = "stream/datagrams.rs"]
mod datagrams;
#[path = "stream/ends.rs"]
mod ends;
#[path = "stream/groups.rs"]
mod groups;
#[path = "stream/health.rs"]
mod health;
#[path = "stream/left.rs"]
mod left;
#[path = "stream/rates.rs"]
mod rates;
#[path = "stream/status.rs"]
mod status;
#[path = "stream/tls.rs"]
mod tls;

/// A server with these lines in its `stream` block.
fn stream(lines: &str) -> Server {
    stream_after("", lines)
}

/// The same with lines of their own before `events`.
fn stream_after(main: &str, lines: &str) -> Server {
    let conf = format!(
        "error_log %%DIR%%/error.log info; {main} events {{ }}
         http {{ server {{ listen 127.0.0.1:%%PORT%%; location / {{ return 200 http; }} }} }}
         stream {{ {lines} }}"
    );
    Server::start(env!("CARGO_BIN_EXE_weir"), &conf)
}

fn connect(port: u16) -> TcpStream {
    let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    client
}

/// All that a client hears that sends this and no more.
fn heard(port: u16, sent: &[u8]) -> Vec<u8> {
    let mut client = connect(port);
    client.write_all(sent).unwrap();
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    all
}

/// Sends this through an echo, and hears it again.
fn echoed(client: &mut TcpStream, text: &[u8]) {
    client.write_all(text).unwrap();
    let mut back = vec![0; text.len()];
    client.read_exact(&mut back).unwrap();
    assert_eq!(back, text);
}

#[test]
fn what_is_looked_for_is_empty_until_it_is_clear_that_there_is_none() {
    let s = stream(
        "log_format l '[$v][$ssl_preread_protocol]'; access_log %%DIR%%/seen l;
         server { listen 127.0.0.1:%%PORT1%%; ssl_preread on; set $v x; return $ssl_preread_protocol.; }
         server { listen 127.0.0.1:%%PORT2%% proxy_protocol; set $v x; return ok; }",
    );
    assert_eq!(heard(s.port_at(1), b"no message of TLS"), b".");
    s.wait_file("seen", "[x][-]\n", 1);
    let mut client = connect(s.port_at(1));
    client.write_all(b"\x16\x03\x01\x00\x4a\x01\x00").unwrap();
    drop(client);
    s.wait_file("seen", "[x][]\n", 1);
    // One that ends before anything is set or looked for.
    assert_eq!(heard(s.port_at(2), b"no balancer\r\n"), b"");
    s.wait_file("seen", "[][-]\n", 1);
}

/// A server that says what it hears.
fn echo() -> u16 {
    listen(|mut socket| {
        let mut buf = [0; 16384];
        while let Ok(n) = socket.read(&mut buf)
            && n > 0
        {
            if socket.write_all(&buf[..n]).is_err() {
                return;
            }
        }
    })
}

#[test]
fn bytes_pass_both_ways_and_the_log_counts_them() {
    let to = echo();
    let s = stream(&format!(
        "log_format line '$protocol $status $bytes_received $bytes_sent $upstream_addr \
             $upstream_bytes_sent $upstream_bytes_received $remote_addr $server_port';
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass 127.0.0.1:{to};
             access_log %%DIR%%/a.log line; }}"
    ));
    let port = s.port_at(1);
    let mut client = connect(port);
    echoed(&mut client, b"hello");
    let long: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
    let mut writer = client.try_clone().unwrap();
    let sent = long.clone();
    let sending = std::thread::spawn(move || writer.write_all(&sent).unwrap());
    let mut back = vec![0; long.len()];
    client.read_exact(&mut back).unwrap();
    sending.join().unwrap();
    assert!(back == long);
    drop(client);
    s.wait_file("a.log", "TCP", 1);
    let line = std::fs::read_to_string(s.dir().file("a.log")).unwrap();
    let expected = format!("TCP 200 300005 300005 127.0.0.1:{to} 300005 300005 127.0.0.1 {port}\n");
    assert_eq!(line, expected);
    s.wait_log("client disconnected, bytes from/to client:300005/300005", 1);
}

#[test]
fn a_client_that_sees_the_end_finds_the_session_in_the_log() {
    let to = listen(|mut socket| socket.write_all(b"x").unwrap());
    let s = stream(&format!(
        "log_format l $status; access_log %%DIR%%/seen l;
         server {{ listen 127.0.0.1:%%PORT1%%; return x; }}
         server {{ listen 127.0.0.1:%%PORT2%%; deny all; return x; }}
         server {{ listen 127.0.0.1:%%PORT3%%; proxy_pass 127.0.0.1:{to}; }}"
    ));
    let mut expected = String::new();
    for _ in 0..20 {
        for (port, status) in [(1, "200\n"), (2, "403\n"), (3, "200\n")] {
            heard(s.port_at(port), b"");
            expected.push_str(status);
            assert_eq!(std::fs::read_to_string(s.dir().file("seen")).unwrap(), expected);
        }
    }
}

#[test]
fn a_server_that_is_not_there_is_passed_over() {
    let (to, nobody) = (echo(), weir_testkit::free_port());
    let s = stream(&format!(
        "upstream u {{ server 127.0.0.1:{nobody}; server 127.0.0.1:{to} backup; }}
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass u; }}
         server {{ listen 127.0.0.1:%%PORT2%%; proxy_pass 127.0.0.1:{nobody}; }}
         server {{ listen 127.0.0.1:%%PORT3%%; proxy_pass unix:%%DIR%%/none; }}
         upstream down {{ server 127.0.0.1:{to} down; }}
         log_format l '$upstream_addr $upstream_session_time.'; access_log %%DIR%%/seen l;
         server {{ listen 127.0.0.1:%%PORT4%%; proxy_pass down; }}
         server {{ listen 127.0.0.1:%%PORT5%%; proxy_bind 192.0.2.1; proxy_pass 127.0.0.1:{to};
             access_log %%DIR%%/bound l; }}"
    ));
    echoed(&mut connect(s.port_at(1)), b"hello");
    assert_eq!(heard(s.port_at(2), b""), b"");
    s.wait_log("while connecting to upstream, client: 127.0.0.1, server: 127.0.0.1:", 2);
    assert_eq!(heard(s.port_at(3), b""), b"");
    s.wait_log("[crit]", 1);
    s.wait_log("none failed (2: No such file or directory) while connecting to upstream", 1);
    assert_eq!(heard(s.port_at(4), b""), b"");
    s.wait_file("seen", "down 0.000.\n", 1);
    assert_eq!(heard(s.port_at(5), b""), b"");
    s.wait_log("bind(192.0.2.1) failed", 1);
    s.wait_file("bound", " 0.", 1);
}

#[test]
fn a_session_to_itself_ends_at_worker_connections() {
    let conf = "events { worker_connections 32; } stream {
         server { listen 127.0.0.1:%%PORT1%%; proxy_pass 127.0.0.1:%%PORT1%%; }
         server { listen 127.0.0.1:%%PORT2%%; return ok; } }";
    let s = Server::start(env!("CARGO_BIN_EXE_weir"), conf);
    for _ in 0..2 {
        assert_eq!(heard(s.port_at(1), b""), b"");
        assert_eq!(heard(s.port_at(2), b""), b"ok");
    }
    s.wait_log("32 worker_connections are not enough while connecting to upstream, client: ", 2);
}

#[test]
fn texts_rules_and_variables() {
    let s = stream(
        "map $server_port $which { ~5$ five; default other; }
         geo $near { 127.0.0.0/8 near; default far; }
         split_clients $remote_addr $part { * all; }
         server { listen 127.0.0.1:%%PORT1%%; set $x \"$near-$part\"; return \"$x $remote_addr\\n\"; }
         server { listen 127.0.0.1:%%PORT2%%; deny 127.0.0.1; return no; }
         server { listen 127.0.0.1:%%PORT3%%; allow 127.0.0.0/8; deny all; return yes; }
         server { listen 127.0.0.1:%%PORT4%%; pass 127.0.0.1:%%PORT%%; }
         server { listen 127.0.0.1:%%PORT5%%; proxy_pass 127.0.0.1:1; return last; }
         server { listen 127.0.0.1:%%PORT6%%; pass 127.0.0.1:1; }",
    );
    assert_eq!(heard(s.port_at(1), b""), b"near-all 127.0.0.1\n");
    assert_eq!(heard(s.port_at(2), b""), b"");
    s.wait_log("access forbidden by rule while initializing session, client: 127.0.0.1", 1);
    assert_eq!(heard(s.port_at(3), b""), b"yes");
    // What is said last counts.
    assert_eq!(heard(s.port_at(5), b""), b"last");
    assert_eq!(heard(s.port_at(6), b""), b"");
    s.wait_log("port not found for \"127.0.0.1:1\" while passing connection to port, client", 1);
    let answer = heard(s.port_at(4), b"GET / HTTP/1.0\r\n\r\n");
    assert!(answer.ends_with(b"\r\n\r\nhttp"), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn a_balancer_in_front_is_believed_and_servers_are_told() {
    let to = listen(|mut socket| {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\n") && socket.read(&mut byte).is_ok_and(|n| n == 1) {
            line.push(byte[0]);
        }
        let _ = socket.write_all(&line);
    });
    let s = stream(&format!(
        "set_real_ip_from 127.0.0.1;
         server {{ listen 127.0.0.1:%%PORT1%% proxy_protocol; proxy_protocol on;
             proxy_pass 127.0.0.1:{to}; }}
         server {{ listen 127.0.0.1:%%PORT2%% proxy_protocol;
             return '$remote_addr:$remote_port $realip_remote_addr $proxy_protocol_server_port'; }}"
    ));
    let other = heard(s.port_at(1), b"PROXY TCP6 2001:db8::1 2001:db8::2 5 80\r\n");
    let expected = format!("PROXY TCP6 2001:db8::1 127.0.0.1 5 {}\r\n", s.port_at(1));
    assert_eq!(String::from_utf8(other).unwrap(), expected);
    let head = b"PROXY TCP4 192.0.2.7 192.0.2.8 1234 80\r\n";
    let told = String::from_utf8(heard(s.port_at(1), head)).unwrap();
    assert!(told.starts_with("PROXY "), "{told}");
    assert_eq!(heard(s.port_at(2), head), b"192.0.2.7:1234 127.0.0.1 80");
    assert_eq!(heard(s.port_at(2), b"GET / HTTP/1.0\r\n\r\n"), b"");
    s.wait_log("broken header: \"GET / HTTP/1.0", 1);
}

/// A session may last for hours. The server that it has reached is back for others at once.
#[test]
fn a_recovered_server_is_used_though_its_first_session_lasts() {
    let say = |name: &'static [u8]| {
        move |mut socket: TcpStream| {
            let _ = socket.write_all(name);
            let _ = socket.read(&mut [0]);
        }
    };
    let recovering = weir_testkit::free_port();
    let steady = listen(say(b"b"));
    let s = stream(&format!(
        "upstream u {{ server 127.0.0.1:{recovering} fail_timeout=1s; server 127.0.0.1:{steady}; }}
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass u; }}"
    ));
    let ask = || {
        let mut client = connect(s.port_at(1));
        let mut name = [0];
        client.read_exact(&mut name).unwrap();
        (client, name[0])
    };
    // One of these fails at the server that is down.
    let before: Vec<_> = (0..2).map(|_| ask()).collect();
    assert!(before.iter().all(|(_, name)| *name == b'b'));
    let listener = std::net::TcpListener::bind(("127.0.0.1", recovering)).unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            std::thread::spawn(move || say(b"a")(socket));
        }
    });
    let mut first = None;
    assert!(ask_until(|| {
        let (client, name) = ask();
        first = Some(client);
        name == b'a'
    }));
    let after: Vec<_> = (0..6).map(|_| ask()).collect();
    let (first, back) = (first.unwrap(), after.iter().filter(|(_, name)| *name == b'a').count());
    assert!(back > 0, "none of six sessions reached the server that is back");
    drop(first);
}

/// As in nginx, though the rest is waited for: nginx refuses a header that does not come at once.
#[test]
fn a_part_of_a_proxy_header_is_a_bad_request() {
    let s = stream(
        "log_format l '[$status]'; access_log %%DIR%%/seen l; proxy_protocol_timeout 100ms;
         server { listen 127.0.0.1:%%PORT1%% proxy_protocol; return ok; }",
    );
    let port = s.port_at(1);
    let parts: [&[u8]; 3] = [b"P", b"PROXY TCP4 192.0.2.7", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"];
    for (i, part) in parts.iter().enumerate() {
        assert_eq!(heard(port, part), b"", "late");
        s.wait_file("seen", "[400]\n", 3 * i + 1);
        let mut client = connect(port);
        client.write_all(part).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        s.wait_file("seen", "[400]\n", 3 * i + 2);
        let doing = "while reading PROXY protocol, client: 127.0.0.1";
        let what = match *part {
            [b'\r', ..] => "header is too large".to_owned(),
            part => format!("broken header: \"{}\"", String::from_utf8_lossy(part)),
        };
        s.wait_log(&format!("{what} {doing}"), 1);
        let mut client = connect(port);
        client.write_all(part).unwrap();
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        s.wait_file("seen", "[400]\n", 3 * i + 3);
    }
    // Nothing came, so nothing was wrong.
    assert_eq!(heard(port, b""), b"");
    s.wait_file("seen", "[200]\n", 1);
    // Unless nothing will.
    connect(port).shutdown(Shutdown::Write).unwrap();
    s.wait_log("broken header: \"\" while reading PROXY protocol, client: 127.0.0.1", 1);
}

#[test]
fn the_side_that_broke_off_is_named_and_unsent_bytes_are_not_counted() {
    let resets = listen(|socket| {
        let _ = (&socket).read(&mut [0]);
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    });
    let to = echo();
    let s = stream(&format!(
        "log_format l '$v $status $bytes_received'; access_log %%DIR%%/seen l;
         limit_conn_zone $remote_addr zone=z:64k; map $v $nowhere {{ default nowhere; }}
         server {{ listen 127.0.0.1:%%PORT1%%; set $v one; proxy_pass 127.0.0.1:{resets}; }}
         server {{ listen 127.0.0.1:%%PORT2%%; set $v two; proxy_pass 127.0.0.1:{to}; }}
         server {{ listen 127.0.0.1:%%PORT3%%; set $v three; ssl_preread on; return text; }}
         server {{ listen 127.0.0.1:%%PORT4%%; set $v four; limit_conn z 1; proxy_pass 127.0.0.1:{to}; }}
         server {{ listen 127.0.0.1:%%PORT5%%; set $v five; proxy_pass $nowhere; }}"
    ));
    let doing = "while proxying and reading from";
    heard(s.port_at(1), b"x");
    s.wait_log(&format!("recv() failed (104: Connection reset by peer) {doing} upstream"), 1);
    s.wait_log("upstream disconnected, bytes from/to client:1/0", 1);
    let mut client = connect(s.port_at(2));
    echoed(&mut client, b"text");
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
    drop(client);
    s.wait_log(&format!("recv() failed (104: Connection reset by peer) {doing} client"), 1);
    s.wait_log("client disconnected, bytes from/to client:4/4", 1);
    assert_eq!(heard(s.port_at(3), b"no message of TLS"), b"text");
    s.wait_file("seen", "three 200 0\n", 1);
    let mut client = connect(s.port_at(4));
    echoed(&mut client, b"text");
    assert_eq!(heard(s.port_at(4), b""), b"");
    s.wait_log("limiting connections by zone \"z\" while initializing session, client", 1);
    s.wait_file("seen", "four 503 0\n", 1);
    assert_eq!(heard(s.port_at(5), b""), b"");
    s.wait_log("no port in upstream \"nowhere\", client: 127.0.0.1, server: ", 1);
    s.wait_log(", bytes from/to client:0/0, bytes from/to upstream:0/0", 1);
}

#[test]
fn one_side_may_be_done_before_the_other() {
    let to = listen(|mut socket| {
        let mut all = Vec::new();
        if socket.read_to_end(&mut all).is_ok() {
            let _ = socket.write_all(&all);
        }
    });
    let resets = listen(|mut socket| {
        let _ = socket.read(&mut [0]);
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    });
    let s = stream(&format!(
        "proxy_half_close on;
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass 127.0.0.1:{to}; }}
         server {{ listen 127.0.0.1:%%PORT2%%; proxy_pass 127.0.0.1:{resets}; }}"
    ));
    let mut client = connect(s.port_at(1));
    client.write_all(b"all of it").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    client.read_to_end(&mut back).unwrap();
    assert_eq!(back, b"all of it");
    // A side that resets is done with both ways.
    let mut client = connect(s.port_at(2));
    client.write_all(b"x").unwrap();
    s.wait_log("upstream disconnected, bytes from/to client:1/0", 1);
}

#[test]
fn a_slow_reader_is_neither_cut_off_nor_forgotten() {
    const MUCH: usize = 8 << 20;
    const STEP: usize = 16 << 10;
    let to = listen(|mut socket| {
        let _ = socket.write_all(&vec![b'x'; MUCH]);
        let _ = socket.read(&mut [0]);
    });
    let silent = listen(|mut socket| {
        let _ = socket.read(&mut [0]);
    });
    let s = stream(&format!(
        "log_format sent '[$bytes_sent]';
         server {{ listen 127.0.0.1:%%PORT1%% sndbuf=16k; proxy_pass 127.0.0.1:{to}; proxy_timeout 3s;
             proxy_socket_rcvbuf 1m; proxy_buffer_size 1m; access_log %%DIR%%/sent sent; }}
         server {{ listen 127.0.0.1:%%PORT2%%; proxy_pass 127.0.0.1:{silent}; proxy_timeout 500ms; }}"
    ));
    let mut client = connect(s.port_at(1));
    let mut taken = vec![0; STEP];
    // For longer than it may take nothing at all.
    for _ in 0..8 {
        client.read_exact(&mut taken).unwrap();
        assert_eq!(heard(s.port_at(2), b""), b"");
    }
    drop(client);
    s.wait_file("sent", "]\n", 1);
    let line = std::fs::read_to_string(s.dir().file("sent")).unwrap();
    let sent: usize = line.trim().trim_matches(['[', ']']).parse().unwrap();
    assert!((8 * STEP..MUCH).contains(&sent), "{sent} bytes were sent");
}

#[test]
fn a_limit_holds_while_a_session_lasts() {
    let to = echo();
    let s = stream(&format!(
        "limit_conn_zone $binary_remote_addr zone=z:64k;
         server {{ listen 127.0.0.1:%%PORT1%%; limit_conn z 1; proxy_pass 127.0.0.1:{to}; }}"
    ));
    let mut first = connect(s.port_at(1));
    echoed(&mut first, b"one");
    assert_eq!(heard(s.port_at(1), b""), b"");
    s.wait_log("limiting connections by zone \"z\"", 1);
    drop(first);
    s.wait_log("client disconnected", 1);
    echoed(&mut connect(s.port_at(1)), b"two");
}

/// A session goes on while the server reads another configuration, and new ones follow that.
#[test]
fn sessions_outlive_a_reload() {
    let to = echo();
    let conf = |text: &str| {
        format!(
            "error_log %%DIR%%/error.log info; events {{ }}
             stream {{ server {{ listen 127.0.0.1:%%PORT%%; proxy_pass 127.0.0.1:{to}; }}
                 server {{ listen 127.0.0.1:%%PORT1%%; return {text}; }} }}"
        )
    };
    let mut s = Server::start(env!("CARGO_BIN_EXE_weir"), &conf("old"));
    let mut client = connect(s.port());
    echoed(&mut client, b"before");
    assert_eq!(heard(s.port_at(1), b""), b"old");
    s.configure(&conf("new"));
    s.reload();
    assert_eq!(heard(s.port_at(1), b""), b"new");
    echoed(&mut client, b"after");
    echoed(&mut connect(s.port()), b"another");
    drop(client);
    s.signal(Signal::QUIT);
    s.wait();
}

#[test]
fn what_is_wrong_is_said() {
    let s = stream("server { listen 127.0.0.1:%%PORT1%%; return x; }");
    for (lines, text) in [
        ("server { return x; }", "no \"listen\" is defined for server"),
        ("server { listen 127.0.0.1; return x; }", "no port in \"127.0.0.1\""),
        ("server { listen 127.0.0.1:1; proxy_pass x.invalid; }", "no port in upstream"),
        ("server { listen 127.0.0.1:1; proxy_pass [::1]; }", "no port in upstream \"[::1]\""),
        ("upstream u { server 127.0.0.1; }", "no port in upstream \"127.0.0.1\""),
        (
            "server { listen 1 udp ssl; return x; }",
            "\"listen\" directive \"ssl\" parameter is incompatible with \"udp\"",
        ),
        ("server { listen 1; return $nothing; }", "unknown \"nothing\" variable"),
        ("server { listen 1; proxy_pass a:1; proxy_pass b:1; }", "directive is duplicate"),
        ("server { listen 1; return x; return y; }", "\"return\" directive is duplicate"),
        (
            "proxy_buffer_size 1k; proxy_upstream_buffer 1k;",
            "\"proxy_upstream_buffer\" directive is duplicate",
        ),
        ("server { listen 1; pass [::1]:1; pass [::1]:2; }", "\"pass\" directive is duplicate"),
        (
            "server { listen 1; proxy_ssl_certificate $no.pem; return x; }",
            "unknown \"no\" variable",
        ),
        (
            "proxy_ssl_certificate_key $no; server { listen 1; return x; }",
            "unknown \"no\" variable",
        ),
        ("geo $x { proxy 10.0.0.0/8; }", "invalid network \"proxy\""),
        ("geo $x { proxy_recursive; }", "invalid number of the geo parameters"),
    ] {
        let conf = format!("events {{ }} stream {{ {lines} }}");
        let path = s.configure(&conf);
        let tested = s.command(&["-t", "-c", path.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&tested.stderr).into_owned();
        assert!(!tested.status.success() && said.contains(text), "{lines}: {said}");
    }
}

/// The example of the page, with a client that begins TLS and asks for a name.
#[test]
fn the_example_of_the_page_works() {
    let says = |text: &'static [u8]| {
        listen(move |mut socket| {
            let mut hello = [0; 1024];
            if socket.read(&mut hello).is_ok() {
                let _ = socket.write_all(text);
            }
        })
    };
    let (inside, outside) = (says(b"inside"), says(b"outside"));
    let page = include_str!("../docs/stream.md");
    let example = examples(page).next().unwrap();
    let example = example
        .replace(":8080", ":%%PORT%%")
        .replace(":8081", &format!(":{inside}"))
        .replace(":8082", &format!(":{outside}"));
    let s = Server::start(env!("CARGO_BIN_EXE_weir"), &example);
    assert_eq!(heard(s.port(), &hello(b"db.internal")), b"inside");
    assert_eq!(heard(s.port(), &hello(b"example.org")), b"outside");
    s.wait_file("sessions.log", "TCP 200", 2);
}

#[test]
fn a_name_chooses_among_the_servers_of_an_address() {
    let s = stream(
        "server { listen 127.0.0.1:%%PORT1%%; ssl_preread on; return first; }
         server { listen 127.0.0.1:%%PORT1%%; server_name *.b.example; return second; }
         server { listen 127.0.0.1:%%PORT1%%; server_name $hostname; return own; }",
    );
    let own = rustix::system::uname().nodename().to_bytes().to_vec();
    assert_eq!(heard(s.port_at(1), &hello(&own)), b"own");
    assert_eq!(heard(s.port_at(1), &hello(b"x.b.example")), b"second");
    assert_eq!(heard(s.port_at(1), &hello(b"a.example")), b"first");
    assert_eq!(heard(s.port_at(1), b"no TLS at all"), b"first");
    // A client that has sent less than a record's head and waits has its answer.
    assert_eq!(heard(s.port_at(1), b"hi"), b"first");
}

#[test]
fn a_log_that_does_not_open_is_told_to_the_error_log_of_its_server() {
    let s = stream(
        "log_format l $status; access_log %%DIR%%/none/$status l;
         server { listen 127.0.0.1:%%PORT1%%; error_log %%DIR%%/own; return text; }",
    );
    assert_eq!(heard(s.port_at(1), b""), b"text");
    let text = "none/200\" failed (2: No such file or directory) while returning text, client: ";
    s.wait_file("own", text, 1);
}

/// `preread_buffer_size` holds for bytes that came with a balancer's header, too.
#[test]
fn no_more_is_looked_at_than_the_buffer_holds() {
    let hello = hello(b"a.example");
    let s = stream(&format!(
        "server {{ listen 127.0.0.1:%%PORT1%%; listen 127.0.0.1:%%PORT2%% proxy_protocol;
             ssl_preread on; preread_buffer_size {}; return ok; }}
         server {{ listen 127.0.0.1:%%PORT3%% proxy_protocol;
             ssl_preread on; preread_buffer_size {}; return ok; }}",
        hello.len() - 1,
        hello.len()
    ));
    let behind = [&b"PROXY TCP4 192.0.2.7 192.0.2.8 1 2\r\n"[..], &hello, b"more"].concat();
    for (n, port, sent) in [(1, 1, &hello), (2, 2, &behind)] {
        let (mut client, mut all) = (connect(s.port_at(port)), Vec::new());
        client.write_all(sent).unwrap();
        // The connection may be reset: not all was read.
        let _ = client.read_to_end(&mut all);
        assert_eq!(all, b"");
        s.wait_log("preread buffer full while prereading client data", n);
    }
    assert_eq!(heard(s.port_at(3), &behind), b"ok");
}

/// No pattern is asked about what can be no host, and a port is no part of the name.
#[test]
fn what_can_be_no_host_chooses_no_server() {
    let s = stream(
        "server { listen 127.0.0.1:%%PORT1%%; ssl_preread on; return first; }
         server { listen 127.0.0.1:%%PORT1%%; server_name ~^(.+)$; return <$1>; }
         server { listen 127.0.0.1:%%PORT1%%; server_name b.example; return second; }",
    );
    let says = |name: &[u8]| String::from_utf8(heard(s.port_at(1), &hello(name))).unwrap();
    for name in ["../x", "a/b", "a..b", "a b", "a\0b", "[a", "[::1]a", "a:b", "\u{e9}", ".", ""] {
        assert_eq!(says(name.as_bytes()), "first", "{name}");
    }
    assert_eq!(says(b"B.Example.:443"), "second");
    assert_eq!(says(b"C.Example.:443"), "<c.example>");
}

/// A client's first message of TLS that asks for this name.
fn hello(name: &[u8]) -> Vec<u8> {
    let counted = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes(), bytes].concat();
    let names = counted(&[&[0][..], &counted(name)].concat());
    let extensions = counted(&[&[0, 0][..], &counted(&names)].concat());
    let fixed = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0]].concat();
    let body = [fixed, extensions].concat();
    let length = (body.len() as u32).to_be_bytes();
    let message = [&[1][..], &length[1..], &body].concat();
    [&[22, 3, 1][..], &counted(&message)].concat()
}
