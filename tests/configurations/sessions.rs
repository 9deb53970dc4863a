//! Configurations of `stream` that vary, and each variable of sessions: what a client hears, what the server behind
//! gets, and the line of the log, as with nginx. `WEIR_SEED` is the first seed, `WEIR_CONFIGURATIONS` how many are drawn.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use weir_testkit::{Dice, Oracle, PATIENCE, Server, ask_until, free_port, listen, number};

use crate::families::{Choice, c};
use crate::{WEIR, files};

/// Lines for `m`ain, the block itself, and `s`ervers.
const LINES: &[Choice] = &[
    c("return", "s", &["text", "\"$remote_addr $v $protocol\"", "\"[$ssl_preread_protocol]\""]),
    c("proxy_pass", "s", &["back", "$to", "%%BACK%%", "two", "dead"]),
    c("set", "s", &["$v $server_addr", "$v \"$v+\"", "$w $remote_addr"]),
    c("allow", "ms", &["127.0.1.0/24", "10.0.0.0/8", "all"]),
    c("deny", "ms", &["127.0.1.0/24", "1.2.3.4", "all"]),
    c("set_real_ip_from", "ms", &["127.0.0.0/8", "10.0.0.0/8"]),
    c("limit_conn", "ms", &["few 1", "many 9"]),
    c("limit_conn_dry_run", "ms", &["on", "off"]),
    c("proxy_protocol", "ms", &["on", "off"]),
    c("ssl_preread", "ms", &["on", "off"]),
    c("preread_buffer_size", "ms", &["16", "16k"]),
    c("preread_timeout", "ms", &["1h"]),
    c("proxy_buffer_size", "ms", &["1k", "16k"]),
    c("proxy_upload_rate", "ms", &["0", "1m", "$v"]),
    c("proxy_download_rate", "ms", &["0", "1m"]),
    c("proxy_half_close", "ms", &["on", "off"]),
    c("proxy_next_upstream", "ms", &["on", "off"]),
    c("proxy_next_upstream_tries", "ms", &["0", "1", "2"]),
    c("proxy_bind", "ms", &["127.0.0.2", "off"]),
    c("proxy_timeout", "ms", &["1h"]),
    c("proxy_connect_timeout", "ms", &["30s"]),
    c("tcp_nodelay", "ms", &["on", "off"]),
    c("access_log", "ms", &["off", "%%DIR%%/logs/seen.log seen if=$v"]),
];

/// What is known of a session in the log, the address that is its client's alone first. How many bytes the head of a
/// balancer is depends on ports.
const FORMAT: &str = "$realip_remote_addr|$server_addr|$remote_addr|$status|$protocol|$v|$w|\
    $proxy_protocol_addr|$limit_conn_status|$ssl_preread_protocol|$ssl_preread_server_name|\
    $ssl_preread_alpn_protocols|$upstream_addr";

/// What clients say first.
const CLIENTS: &[&[u8]] = &[
    b"hello\n",
    b"PROXY TCP4 1.2.3.4 5.6.7.8 9 10\r\nhello\n",
    b"PROXY UNKNOWN\r\nhello\n",
    b"PROXY nonsense\r\n",
    b"\x0d\x0a\x0d\x0a\x00\x0d\x0aQUIT\x0a\x21\x11\x00\x0f\x01\x02\x03\x04\x05\x06\x07\x08\
        \x00\x09\x00\x0a\x02\x00\x00hello\n",
    HELLO,
];

/// A first message of TLS: version 1.2, the name `a.example`, the protocol `h2`.
const HELLO: &[u8] = b"\x16\x03\x01\x00\x4a\x01\x00\x00\x46\x03\x03\
    01234567890123456789012345678901\x00\x00\x02\x13\x01\x01\x00\x00\x1b\
    \x00\x00\x00\x0e\x00\x0c\x00\x00\x09a.example\x00\x10\x00\x05\x00\x03\x02h2";

const SKELETON: &str = "
    events { }
    stream {
        log_format seen 'FORMAT'; access_log %%DIR%%/logs/seen.log seen;
        map $remote_addr $to { default back; 1.2.3.4 two; }
        limit_conn_zone $remote_addr zone=few:64k; limit_conn_zone $server_addr zone=many:64k;
        upstream back { server %%BACK%%; }
        upstream two { server 127.0.0.1:%%DEAD%% max_fails=0; server %%BACK%% max_fails=0; }
        upstream dead { server 127.0.0.1:%%DEAD%% max_fails=0; }
        MAIN
        server { listen 127.0.0.1:%%PORT%%; set $v ''; set $w ''; ONE }
        server { listen 127.0.0.1:%%PORT1%% proxy_protocol; set $v ''; set $w ''; TWO }
    }
";

const PLACES: &[(char, &str)] = &[('m', "MAIN"), ('s', "ONE"), ('s', "TWO")];

/// Lines, and where they stand.
type Tree = Vec<(&'static str, String)>;

fn draw(dice: &mut Dice) -> Tree {
    let mut tree = Tree::new();
    for (letter, place) in PLACES {
        let first = if *letter == 's' { dice.pick(&[0, 1, 1, 1]) } else { dice.below(LINES.len()) };
        let more = (0..dice.below(5)).map(|_| dice.below(LINES.len())).collect::<Vec<_>>();
        for n in std::iter::once(first).chain(more) {
            let choice = &LINES[n];
            let again = tree.iter().any(|(at, l)| at == place && l.starts_with(choice.directive));
            let handles = ["return", "proxy_pass"].contains(&choice.directive) && n != first;
            if choice.contexts.contains(*letter) && !again && !handles {
                let value = dice.pick(choice.values);
                tree.push((place, format!("{} {value};", choice.directive)));
            }
        }
    }
    tree
}

/// The server behind: it greets, and notes what it hears.
struct Behind {
    port: u16,
    heard: Arc<Mutex<Vec<u8>>>,
    open: Arc<AtomicUsize>,
}

impl Behind {
    fn start() -> Behind {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let open = Arc::new(AtomicUsize::new(0));
        let (notes, count) = (heard.clone(), open.clone());
        let port = listen(move |mut stream: TcpStream| {
            count.fetch_add(1, Ordering::SeqCst);
            let _ = stream.write_all(b"behind\n");
            let mut all = Vec::new();
            let _ = stream.read_to_end(&mut all);
            notes.lock().unwrap_or_else(PoisonError::into_inner).extend(all);
            count.fetch_sub(1, Ordering::SeqCst);
        });
        Behind { port, heard, open }
    }

    /// What it has heard by the end of its sessions. Ports are chance.
    fn take(&self) -> String {
        assert!(ask_until(|| self.open.load(Ordering::SeqCst) == 0), "a session does not end");
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&std::mem::take(&mut *heard)).into_owned();
        match text.split_once("\r\n") {
            Some((head, rest)) if head.starts_with("PROXY TCP4 127") => {
                let words: Vec<&str> = head.split(' ').take(4).collect();
                format!("{}, {rest}", words.join(" "))
            }
            _ => text,
        }
    }
}

fn text(tree: &Tree, behind: u16, dead: u16) -> String {
    let mut text = SKELETON.replace("FORMAT", FORMAT);
    for (_, place) in PLACES {
        let lines = tree.iter().filter(|(at, _)| at == place).map(|(_, line)| line.as_str());
        text = text.replace(place, &lines.collect::<Vec<_>>().join(" "));
    }
    let text = text.replace("%%BACK%%", &format!("127.0.0.1:{behind}"));
    text.replace("%%DEAD%%", &dead.to_string())
}

/// A session, seen from its client. The client's address comes from this port and number alone.
fn session(server: &Server, port: usize, number: usize, sent: &[u8]) -> String {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let own = SocketAddrV4::new(Ipv4Addr::new(127, 0, port as u8 + 1, number as u8 + 1), 0);
    bind(&socket, &own).expect("an address");
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, server.port_at(port));
    connect(&socket, &to).expect("a connection");
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let _ = stream.write_all(sent);
    let mut all = vec![0; 7];
    // A client is greeted as soon as its session is passed on. What was said comes before its end.
    let n = stream.read(&mut all).unwrap_or(0);
    all.truncate(n);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

/// What a program makes of a configuration, and how many sessions it has logged, at least so many; the text of an error
/// where it does not take it.
fn seen(
    program: &str,
    text: &str,
    behind: &Behind,
    logged: usize,
) -> Result<(Vec<String>, usize), String> {
    let (takes, says) = crate::verdict(program, text);
    if !takes {
        return Err(says);
    }
    let server = Server::start_in(files(), program, text);
    let mut all = Vec::new();
    for port in 0..2 {
        for (number, sent) in CLIENTS.iter().enumerate() {
            let said = session(&server, port, number, sent);
            let (sent, heard) = (String::from_utf8_lossy(sent), behind.take());
            all.push(format!("{port} {sent:?}: {said:?}, behind: {heard:?}"));
        }
    }
    let log = || server.dir().read("logs/seen.log");
    ask_until(|| log().lines().count() >= logged);
    let mut log: Vec<String> = log().lines().map(str::to_owned).collect();
    log.sort();
    let logged = log.len();
    let plain = |line: String| {
        let line = line.replace(&server.dir().path().display().to_string(), "DIR");
        line.replace(&format!(":{}", server.port()), ":P")
            .replace(&format!(":{}", server.port_at(1)), ":P1")
    };
    Ok((all.into_iter().chain(log).map(plain).collect(), logged))
}

/// The first thing that differs.
fn difference(nginx: &str, tree: &Tree, behind: &Behind, dead: u16) -> Option<String> {
    let text = text(tree, behind.port, dead);
    let theirs = seen(nginx, &text, behind, 0);
    // nginx writes the log before it closes.
    let logged = theirs.as_ref().map_or(0, |(_, logged)| *logged);
    match (theirs, seen(WEIR, &text, behind, logged)) {
        (Ok((theirs, _)), Ok((ours, _))) => {
            let at = theirs.iter().zip(&ours).position(|(a, b)| a != b);
            let at = at.or((theirs.len() != ours.len()).then_some(theirs.len().min(ours.len())))?;
            Some(format!("-- nginx:\n{:?}\n-- weir:\n{:?}", theirs.get(at), ours.get(at)))
        }
        (Err(_), Err(_)) => None,
        (theirs, ours) => {
            Some(format!("-- nginx:\n{:?}\n-- weir:\n{:?}", theirs.err(), ours.err()))
        }
    }
}

#[test]
fn generated_sessions_are_as_with_nginx() {
    let Some(nginx) = Oracle::find().filter(|nginx| nginx.has("with-stream") && !nginx.is_old())
    else {
        println!("not run: nginx has no streams, or is too old");
        return;
    };
    let behind = Behind::start();
    let dead = free_port();
    let first = number("WEIR_SEED").unwrap_or(1);
    let count = number("WEIR_CONFIGURATIONS").unwrap_or(25);
    let mut failures = 0;
    for n in first..first + count {
        let mut tree = draw(&mut Dice::salted(n, "sessions"));
        let Some(mut what) = difference(&nginx.path, &tree, &behind, dead) else { continue };
        let mut at = 0;
        while at < tree.len() {
            let mut less = tree.clone();
            less.remove(at);
            match difference(&nginx.path, &less, &behind, dead) {
                Some(now) => (tree, what) = (less, now),
                None => at += 1,
            }
        }
        failures += 1;
        println!("seed {n}: {tree:#?}\n{what}\n");
    }
    println!(
        "{count} configurations of sessions from seed {first} compared with nginx {}",
        nginx.version
    );
    assert_eq!(failures, 0, "configurations differ");
}

/// Variables that are not equal by right, and why.
const UNEQUAL: &[(&str, &[&str])] = &[
    (
        "times",
        &[
            "msec",
            "session_time",
            "time_iso8601",
            "time_local",
            "upstream_connect_time",
            "upstream_first_byte_time",
            "upstream_session_time",
            "ssl_client_v_remain",
        ],
    ),
    (
        "chance, and numbers of processes, ports and connections",
        &[
            "connection",
            "pid",
            "remote_port",
            "realip_remote_port",
            "server_port",
            "ssl_session_id",
        ],
    ),
    (
        "what two libraries of TLS offer",
        &["ssl_cipher", "ssl_ciphers", "ssl_curve", "ssl_curves", "ssl_sigalg", "ssl_sigalgs"],
    ),
    (
        "what had come, or gone, by then",
        &["bytes_received", "bytes_sent", "upstream_bytes_received", "upstream_bytes_sent"],
    ),
    ("nginx has it not", &["loop"]),
];

#[test]
fn each_variable_of_sessions_is_as_with_nginx() {
    let Some(nginx) = Oracle::find().filter(|nginx| nginx.has("with-stream") && !nginx.is_old())
    else {
        println!("not run: nginx has no streams, or is too old");
        return;
    };
    let unequal = |name: &String| UNEQUAL.iter().any(|(_, names)| names.contains(&name.as_str()));
    let names: Vec<String> = weir_server::session_variables();
    for (_, unequal) in UNEQUAL {
        assert!(unequal.iter().all(|name| names.iter().any(|n| n == name)), "{unequal:?}");
    }
    let all: Vec<String> = std::iter::once("realip_remote_addr".to_owned())
        .chain(names.iter().filter(|name| !unequal(name)).cloned())
        .chain(["proxy_protocol_tlv_alpn", "proxy_protocol_tlv_0xea"].map(str::to_owned))
        .map(|name| format!("{name}=[${{{name}}}]"))
        .collect();
    let behind = Behind::start();
    let all = all.join(" ");
    let conf = format!(
        "events {{ }}
         stream {{
             log_format all '{all}'; log_format json escape=json '{all}'; log_format none escape=none '{all}';
             access_log %%DIR%%/logs/seen.log all; access_log %%DIR%%/logs/json.log json;
             access_log %%DIR%%/logs/none.log none;
             ssl_certificate %%DIR%%/self.pem; ssl_certificate_key %%DIR%%/self.key;
             server {{ listen 127.0.0.1:%%PORT%%; return '{all}'; }}
             server {{ listen 127.0.0.1:%%PORT1%% proxy_protocol; return '{all}'; }}
             server {{ listen 127.0.0.1:%%PORT2%%; ssl_preread on; proxy_pass 127.0.0.1:{}; }}
             server {{ listen 127.0.0.1:%%PORT3%% proxy_protocol; set_real_ip_from 127.0.0.1; ssl_preread on;
                 proxy_pass 127.0.0.1:{}; }}
         }}",
        behind.port, behind.port
    );
    let long: Vec<u8> =
        [&b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n"[..], &[b'x'; 5000]]
            .concat();
    let tlv =
        b"\x0d\x0a\x0d\x0a\x00\x0d\x0aQUIT\x0a\x21\x11\x00\x1c\x01\x02\x03\x04\x05\x06\x07\x08\
        \x00\x09\x00\x0a\x01\x00\x05\xc3\xa9\"\\\x01\xea\x00\x00\xea\x00\x02ab";
    let mut name = HELLO.to_vec();
    let at = name.len() - 18;
    name.splice(at..at + 9, *b"\xc3\xa9.\"\\\x01\xff.x");
    let odd = [&long[..], &tlv[..], &name];
    let told = |program: &str| {
        let server = Server::start_in(files(), program, &conf);
        let mut seen = Vec::new();
        for port in 0..4 {
            for (number, sent) in CLIENTS.iter().copied().chain(odd).enumerate() {
                let said = session(&server, port, number, sent);
                seen.push(format!("{port} {:?}: {said}", String::from_utf8_lossy(sent)));
            }
        }
        let count = seen.len();
        for file in ["seen", "json", "none"] {
            let read = || server.dir().read(&format!("logs/{file}.log"));
            ask_until(|| read().lines().count() >= count);
            let mut lines: Vec<String> = read().lines().map(str::to_owned).collect();
            lines.sort();
            seen.extend(lines);
        }
        seen
    };
    let (theirs, ours) = (told(&nginx.path), told(WEIR));
    let mut wrong = Vec::new();
    for (a, b) in theirs.iter().zip(&ours).filter(|(a, b)| a != b) {
        let at = a.split("] ").zip(b.split("] ")).find(|(a, b)| a != b);
        wrong.push(format!("{at:?} in\n{a}"));
    }
    println!(
        "{} of {} variables of sessions compared",
        names.iter().filter(|n| !unequal(n)).count(),
        names.len()
    );
    assert!(
        wrong.is_empty() && theirs.len() == ours.len(),
        "{}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
