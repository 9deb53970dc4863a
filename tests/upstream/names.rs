//! Servers known by name: what a reload keeps of them, and how soon an unreachable name server is
//! asked again.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use weir_testkit::{NameRecord, NameReply, Server};

use super::origin::serve;
use super::{WEIR, start};

/// A name server that knows all names as 127.0.0.1, and does not answer as long as it is told to be silent.
struct Names {
    port: u16,
    silent: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

impl Names {
    fn new() -> Names {
        Names::that_miss(0)
    }

    /// It misses the first datagrams.
    fn that_miss(first: usize) -> Names {
        let (silent, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (is_silent, count) = (silent.clone(), asked.clone());
        let port = weir_testkit::name_server(move |_| {
            let missed = count.fetch_add(1, Ordering::SeqCst) < first;
            match missed || is_silent.load(Ordering::SeqCst) {
                true => NameReply::Silence,
                false => NameReply::Records(60, vec![NameRecord::Address(Ipv4Addr::LOCALHOST)]),
            }
        });
        Names { port, silent, asked }
    }

    fn resolver(&self) -> String {
        format!("resolver 127.0.0.1:{} ipv6=off;", self.port)
    }
}

#[test]
fn a_reload_keeps_the_addresses_until_the_name_server_answers() {
    let (names, port) = (Names::new(), serve(|_| Some(String::new())));
    let upstream =
        format!("{} upstream u {{ zone u 64k; server up.test:{port} resolve; }}", names.resolver());
    let server = start("worker_processes 1;", &upstream);
    assert!(weir_testkit::ask_until(|| server.get("/").status == 200), "{}", server.log());
    names.silent.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let (old, asked) = (server.workers(), names.asked.load(Ordering::SeqCst));
        server.reload();
        // The new worker asks, and serves without an answer.
        assert!(weir_testkit::ask_until(|| names.asked.load(Ordering::SeqCst) > asked));
        let gone = || !server.workers().iter().any(|worker| old.contains(worker));
        assert!(weir_testkit::ask_until(gone), "{}", server.log());
        assert_eq!(server.get("/").status, 200, "{}", server.log());
    }
}

#[test]
fn a_name_server_that_is_back_is_asked_at_once() {
    let (names, port) = (Names::that_miss(2), serve(|_| Some(String::new())));
    let conf = format!(
        "events {{ }} http {{ {} resolver_timeout 500ms;
             server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://$arg_h:{port}; }} }} }}",
        names.resolver()
    );
    // Long before the time of the first datagram is over, 5 seconds.
    let server = Server::start(WEIR, &conf);
    assert_eq!(server.get("/?h=up.test").status, 502);
    assert_eq!(server.get("/?h=up.test").status, 502);
    assert_eq!(server.get("/?h=up.test").status, 200, "{}", server.log());
    assert_eq!(names.asked.load(Ordering::SeqCst), 3);
}

/// `service=`: the servers of a service, those of later priorities as backups, as long as the name server says so.
#[test]
fn a_service_has_the_servers_that_its_records_name() {
    let [a, b] = ["a", "b"].map(|name| super::origin::named(name, ""));
    let (moved, nobody) = (Arc::new(AtomicBool::new(false)), weir_testkit::free_port());
    let has_moved = moved.clone();
    let names = weir_testkit::name_server(move |name| {
        let service =
            |priority, port| NameRecord::Service { priority, weight: 1, port, target: "s.test" };
        let first = if has_moved.load(Ordering::SeqCst) { nobody } else { a };
        match name {
            "_web._tcp.up.test" => NameReply::Records(1, vec![service(1, first), service(2, b)]),
            "s.test" => NameReply::Records(60, vec![NameRecord::Address(Ipv4Addr::LOCALHOST)]),
            _ => NameReply::NoSuchName,
        }
    });
    let server = start(
        "worker_processes 1;",
        &format!(
            "resolver 127.0.0.1:{names} ipv6=off;
             upstream u {{ zone u 64k; server up.test service=web resolve; }}
             upstream gone {{ zone gone 64k; server gone.test service=web resolve; }}"
        ),
    );
    server.wait_log("service web of gone.test could not be resolved (3: Host not found)", 1);
    let origin = || server.get("/").header("X-Origin").unwrap_or("-").to_owned();
    assert!(weir_testkit::ask_until(|| origin() == "a"), "{}", server.log());
    assert!((0..4).all(|_| origin() == "a"));
    moved.store(true, Ordering::SeqCst);
    assert!(weir_testkit::ask_until(|| origin() == "b"), "{}", server.log());
}

/// A target of a service that cannot be found is named in the log. The other targets serve.
#[test]
fn a_target_of_a_service_that_is_not_found_is_told_of() {
    let port = super::origin::named("a", "");
    let names = weir_testkit::name_server(move |name| {
        let service = |target| NameRecord::Service { priority: 1, weight: 1, port, target };
        match name {
            "_web._tcp.up.test" => {
                NameReply::Records(60, vec![service("s.test"), service("none.test")])
            }
            "s.test" => NameReply::Records(60, vec![NameRecord::Address(Ipv4Addr::LOCALHOST)]),
            _ => NameReply::NoSuchName,
        }
    });
    let upstream = format!(
        "resolver 127.0.0.1:{names} ipv6=off;
         upstream u {{ zone u 64k; server up.test service=web resolve; }}"
    );
    let server = start("worker_processes 1;", &upstream);
    let text = "none.test could not be resolved (3: Host not found) while resolving service web of up.test";
    server.wait_log(text, 1);
    assert!(weir_testkit::ask_until(|| server.get("/").status == 200), "{}", server.log());
}

/// A name that does not exist is asked for again after `valid=`, not after the time that a silent name server is given.
#[test]
fn a_name_that_comes_back_serves_again_soon() {
    let (is_gone, port) = (Arc::new(AtomicBool::new(true)), serve(|_| Some(String::new())));
    let gone = is_gone.clone();
    let names = weir_testkit::name_server(move |_| match gone.load(Ordering::SeqCst) {
        true => NameReply::NoSuchName,
        false => NameReply::Records(60, vec![NameRecord::Address(Ipv4Addr::LOCALHOST)]),
    });
    let upstream = format!(
        "resolver 127.0.0.1:{names} ipv6=off valid=1s; resolver_timeout 1h;
         upstream u {{ zone u 64k; server up.test:{port} resolve; }}"
    );
    let server = start("worker_processes 1;", &upstream);
    server.wait_log("up.test could not be resolved (3: Host not found)", 1);
    is_gone.store(false, Ordering::SeqCst);
    assert!(weir_testkit::ask_until(|| server.get("/").status == 200), "{}", server.log());
}

/// Priority, weight and port of one server of a service.
type ServiceRecord = (u16, u16, u16);

/// A name server that knows services: of which hosts, with which priorities, weights and ports.
fn services(all: Vec<(&'static str, Vec<ServiceRecord>)>, silent: Arc<AtomicBool>) -> u16 {
    const TARGETS: [&str; 3] = ["one.test", "two.test", "three.test"];
    weir_testkit::name_server(move |name| {
        let service = all.iter().find(|(host, _)| name == format!("_web._tcp.{host}"));
        let records = |(i, (priority, weight, port)): (usize, &(u16, u16, u16))| {
            let (priority, weight, port) = (*priority, *weight, *port);
            NameRecord::Service { priority, weight, port, target: TARGETS[i] }
        };
        match service {
            _ if silent.load(Ordering::SeqCst) => NameReply::Silence,
            Some((_, list)) => {
                NameReply::Records(60, list.iter().enumerate().map(records).collect())
            }
            None if TARGETS.contains(&name) => {
                NameReply::Records(60, vec![NameRecord::Address(Ipv4Addr::LOCALHOST)])
            }
            None => NameReply::NoSuchName,
        }
    })
}

/// `hash KEY consistent`: the names of a service's servers make the ring, also while the name server does not answer.
#[test]
fn keys_stay_with_the_servers_of_a_service() {
    let ports = ["a", "b", "c"].map(|name| super::origin::named(name, ""));
    let silent = Arc::new(AtomicBool::new(false));
    let list = ports.map(|port| (1, 1, port)).to_vec();
    let names = services(vec![("up.test", list)], silent.clone());
    let server = start(
        "worker_processes 1;",
        &format!(
            "resolver 127.0.0.1:{names} ipv6=off;
             upstream u {{ zone u 64k; hash $arg_k consistent; server up.test service=web resolve; }}"
        ),
    );
    let origin = |k: usize| server.get(&format!("/?k={k}")).header("X-Origin").map(str::to_owned);
    assert!(weir_testkit::ask_until(|| origin(0).is_some()), "{}", server.log());
    // As many as no round of three servers fits into.
    let all = || (0..11).map(origin).collect::<Vec<_>>();
    let first = all();
    assert!(first.iter().any(|name| *name != first[0]), "{first:?}");
    assert!((0..3).all(|_| all() == first));
    silent.store(true, Ordering::SeqCst);
    let old = server.workers();
    server.reload();
    let gone = || !server.workers().iter().any(|worker| old.contains(worker));
    assert!(weir_testkit::ask_until(gone), "{}", server.log());
    assert_eq!(all(), first, "{}", server.log());
}

/// The servers of a name are in the order of their addresses, whatever the order of the answer: keys stay with them.
#[test]
fn keys_do_not_depend_on_the_order_of_an_answer() {
    let answered = |last: u8| {
        let names = weir_testkit::name_server(move |_| {
            let record = |n: u8| NameRecord::Address(Ipv4Addr::new(127, 0, 0, n));
            NameReply::Records(60, vec![record(3 - last), record(last)])
        });
        let server = Server::start(
            WEIR,
            &format!(
                "worker_processes 1; events {{ }} http {{
                     resolver 127.0.0.1:{names} ipv6=off;
                     upstream u {{ zone u 64k; hash $arg_k; server up.test:%%PORT1%% resolve; }}
                     server {{
                         listen 127.0.0.1:%%PORT1%%; listen 127.0.0.2:%%PORT1%%;
                         return 200 $server_addr;
                     }}
                     server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://u; }} }} }}"
            ),
        );
        let ask = |k: usize| server.get(&format!("/?k={k}"));
        assert!(weir_testkit::ask_until(|| ask(0).status == 200), "{}", server.log());
        (0..9).map(|k| ask(k).body()).collect::<Vec<_>>()
    };
    let first = answered(1);
    assert!(first.iter().any(|address| *address != first[0]), "{first:?}");
    assert_eq!(answered(2), first);
}

/// What the configuration says of a service's servers comes first; without it, the service says it.
#[test]
fn a_service_says_weights_where_the_configuration_does_not() {
    let ports = ["a", "b", "c"].map(|name| super::origin::named(name, ""));
    let list = vec![(1, 3, ports[0]), (1, 1, ports[1])];
    let later = vec![(1, 1, ports[0]), (9, 1, ports[2])];
    let names = services(vec![("up.test", list), ("later.test", later)], Arc::default());
    let nobody = weir_testkit::free_port();
    let server = Server::start(
        WEIR,
        &format!(
            "worker_processes 1; events {{ }} http {{
             resolver 127.0.0.1:{names} ipv6=off;
             upstream own {{ zone own 64k; server up.test service=web resolve; }}
             upstream said {{ zone said 64k; server up.test service=web resolve weight=2; }}
             upstream late {{
                 zone late 64k;
                 server 127.0.0.1:{nobody} max_fails=0;
                 server later.test service=web resolve backup;
             }}
             server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://$arg_u; }} }} }}"
        ),
    );
    for (group, expected) in [("own", [6, 2, 0]), ("said", [4, 4, 0]), ("late", [8, 0, 0])] {
        let origin = || {
            let answer = server.get(&format!("/?u={group}"));
            answer.header("X-Origin").unwrap_or("-").to_owned()
        };
        assert!(weir_testkit::ask_until(|| origin() != "-"), "{group} {}", server.log());
        let origins: Vec<_> = (0..8).map(|_| origin()).collect();
        let count = |name| origins.iter().filter(|origin| *origin == name).count();
        assert_eq!(["a", "b", "c"].map(count), expected, "{group}");
    }
}

#[test]
fn a_url_of_nothing_but_its_scheme_has_none() {
    let server = Server::start(
        WEIR,
        "events { } http {
             server { listen 127.0.0.1:%%PORT%%; location / { proxy_pass http$arg_s://$arg_h; } } }",
    );
    assert_eq!((server.get("/").status, server.get("/?s=s").status), (500, 500));
    server.wait_log("invalid URL prefix in \"http://\"", 1);
    server.wait_log("invalid URL prefix in \"https://\"", 1);
}

/// Port 0 would be asked for ever, in vain.
#[test]
fn an_address_without_a_port_is_refused_where_no_port_is_usual() {
    let s = start("", "upstream u { server 127.0.0.1:1; }");
    let tested = |line: &str| {
        let conf = format!("events {{ }} http {{ server {{ listen 127.0.0.1:1; {line} }} }}");
        let path = s.configure(&conf);
        let tested = s.command(&["-t", "-c", path.to_str().unwrap()]);
        (tested.status.success(), String::from_utf8_lossy(&tested.stderr).into_owned())
    };
    for pass in ["fastcgi_pass", "scgi_pass", "uwsgi_pass", "grpc_pass"] {
        for address in ["127.0.0.1", "[::1]", "localhost"] {
            let (good, said) = tested(&format!("location / {{ {pass} {address}; }}"));
            let told = said.contains(&format!("no port in upstream \"{address}\""));
            assert!(!good && told, "{pass} {address}: {said}");
        }
        let (good, said) = tested(&format!("location / {{ {pass} unix:/x; }}"));
        assert!(good, "{pass}: {said}");
    }
    assert!(tested("location / { proxy_pass http://127.0.0.1; }").0);
}

/// A name server that answers each question with these messages; how many questions came.
fn answering(
    answers: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static,
) -> (UdpSocket, Arc<AtomicUsize>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (own, asked) = (socket.try_clone().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = asked.clone();
    std::thread::spawn(move || {
        let mut buf = [0; 512];
        while let Ok((n, from)) = own.recv_from(&mut buf) {
            for answer in answers(&buf[..n]) {
                let _ = own.send_to(&answer, from);
            }
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    (socket, asked)
}

/// An answer to a question, which says that its name is at this address.
fn address(question: &[u8], ip: [u8; 4]) -> Vec<u8> {
    let mut answer = question.to_vec();
    answer[2..4].copy_from_slice(&[0x81, 0x80]);
    answer[7] = 1;
    answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
    answer.extend_from_slice(&ip);
    answer
}

fn passing_to_names(port: u16, names: u16) -> Server {
    let conf = format!(
        "worker_processes 1; events {{ }}
         http {{ resolver 127.0.0.1:{names} ipv6=off; resolver_timeout 2s; proxy_connect_timeout 1s;
             server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://$arg_h:{port}; }} }} }}"
    );
    Server::start(WEIR, &conf)
}

/// An answer counts for the question that it repeats, and for no other one, though its number be right.
#[test]
fn an_answer_to_another_question_is_ignored() {
    let port = serve(|_| Some(String::new()));
    let (names, _) = answering(|question| {
        // No server listens there.
        let wrong = [127, 0, 0, 99];
        let mut other_name = question.to_vec();
        other_name[13] ^= 1;
        let (mut other_kind, mut other_class, end) =
            (question.to_vec(), question.to_vec(), question.len());
        other_kind[end - 3] = 28;
        other_class[end - 1] = 3;
        let mut other_number = question.to_vec();
        other_number[0] ^= 1;
        let mut upper = question.to_vec();
        upper[13].make_ascii_uppercase();
        let forged = [other_name, other_kind, other_class, other_number];
        let mut all: Vec<_> = forged.iter().map(|question| address(question, wrong)).collect();
        all.push(b"no message".to_vec());
        all.push(address(&upper, [127, 0, 0, 1]));
        all
    });
    let server = passing_to_names(port, names.local_addr().unwrap().port());
    assert_eq!(server.get("/?h=up.test").status, 200, "{}", server.log());
}

/// Two names that stand for one another have no address. Each is asked for once.
#[test]
fn a_circle_of_names_is_found_at_once() {
    let (names, asked) = answering(|question| {
        let mut answer = question.to_vec();
        answer[2..4].copy_from_slice(&[0x81, 0x80]);
        answer[7] = 1;
        // The other name, of a letter and what the first one ends with.
        let other = if question[13] == b'a' { b'b' } else { b'a' };
        answer.extend_from_slice(&[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 60, 0, 4, 1, other, 0xc0, 14]);
        vec![answer]
    });
    let server = passing_to_names(1, names.local_addr().unwrap().port());
    assert_eq!(server.get("/?h=a.test").status, 502, "{}", server.log());
    server.wait_log("a.test could not be resolved (3: Host not found)", 1);
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

/// An address of IPv6 where one of IPv4 was asked for is no answer, nor is a message that breaks off: the log has both.
#[test]
fn addresses_of_another_kind_are_no_answer() {
    let port = serve(|_| Some(String::new()));
    let (names, _) = answering(|question| {
        let right = address(question, [127, 0, 0, 1]);
        let mut other = right[..question.len()].to_vec();
        other.extend_from_slice(&[0xc0, 12, 0, 28, 0, 1, 0, 0, 0, 60, 0, 16]);
        other.extend_from_slice(&std::net::Ipv6Addr::LOCALHOST.octets());
        let broken = right[..right.len() - 1].to_vec();
        vec![broken, other, right]
    });
    let server = passing_to_names(port, names.local_addr().unwrap().port());
    assert_eq!(server.get("/?h=up.test").status, 200, "{}", server.log());
    server.wait_log("unexpected AAAA record in DNS response for up.test", 1);
    server.wait_log("malformed DNS response for up.test", 1);
}

/// The only name server does not understand the question, and is not asked again at once.
#[test]
fn a_server_that_does_not_understand_is_left_alone() {
    let (names, asked) = answering(|question| {
        let mut answer = question.to_vec();
        answer[2..4].copy_from_slice(&[0x81, 0x81]);
        vec![answer]
    });
    let server = passing_to_names(1, names.local_addr().unwrap().port());
    assert_eq!(server.get("/?h=up.test").status, 502, "{}", server.log());
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

/// Over TCP as well, where the answer does not fit in a datagram.
#[test]
fn an_answer_to_another_question_is_ignored_over_tcp() {
    let port = serve(|_| Some(String::new()));
    let (names, _) = answering(|question| {
        let mut short = question.to_vec();
        short[2..4].copy_from_slice(&[0x83, 0x80]);
        vec![short]
    });
    let at = names.local_addr().unwrap();
    // Another program hardly ever has the same port of TCP.
    let Ok(listener) = TcpListener::bind(at) else { return };
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            let mut length = [0; 2];
            let _ = socket.read_exact(&mut length);
            let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
            let _ = socket.read_exact(&mut question);
            if question.get(13) == Some(&b'f') {
                question[13] = b'g';
            }
            let answer = address(&question, [127, 0, 0, 1]);
            let _ = socket.write_all(&(answer.len() as u16).to_be_bytes());
            let _ = socket.write_all(&answer);
        }
    });
    let server = passing_to_names(port, at.port());
    assert_eq!(server.get("/?h=right.test").status, 200, "{}", server.log());
    assert_eq!(server.get("/?h=forged.test").status, 502, "{}", server.log());
}

/// A name server says nothing, and clients ask for ever new names. They share a socket, which is gone when they are.
#[test]
fn names_of_a_silent_name_server_hold_no_descriptors() {
    const NAMES: usize = 60;
    let (names, asked) = answering(|_| Vec::new());
    let server = passing_to_names(1, names.local_addr().unwrap().port());
    let worker = server.workers()[0];
    let open = || {
        let all = std::fs::read_dir(format!("/proc/{worker}/fd")).unwrap();
        let links = all.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
    };
    let before = open();
    let clients: Vec<_> = (0..NAMES)
        .map(|n| {
            let mut client = server.connect();
            client.send(format!("GET /?h=n{n}.test HTTP/1.1\r\nHost: a\r\n\r\n"));
            client
        })
        .collect();
    assert!(weir_testkit::ask_until(|| asked.load(Ordering::SeqCst) >= NAMES));
    let most = before + NAMES + 2;
    assert!(open() <= most, "{} sockets, {before} before", open());
    drop(clients);
    assert!(weir_testkit::ask_until(|| open() <= before), "{} sockets", open());
}

/// Four numbers are decimal wherever an address is written: the resolver of the system takes 010 as 8.
#[test]
fn addresses_with_leading_zeros_are_decimal() {
    let server = Server::start(
        WEIR,
        "events { } http {
             resolver 127.0.0.010:1; resolver_timeout 1s;
             upstream u { server 127.0.0.010:%%PORT1%%; }
             upstream binding { server 127.0.0.1:%%PORT1%%; }
             server { listen 127.0.0.8:%%PORT1%%; return 200 eight; }
             server { listen 127.0.0.010:%%PORT1%%; return 200 ten; }
             server { listen 127.0.0.1:%%PORT1%%; return 200 $remote_addr; }
             server {
                 listen 127.0.0.1:%%PORT%%;
                 location /group { proxy_pass http://u; }
                 location /written { proxy_pass http://127.0.0.010:%%PORT1%%; }
                 location /variable { proxy_pass http://$arg_h:%%PORT1%%; }
                 location /bound { proxy_bind 127.0.0.010; proxy_pass http://binding; }
                 location /binds { proxy_bind $arg_b; proxy_pass http://binding; }
             } }
         stream { server { listen 127.0.0.1:%%PORT2%%; proxy_pass 127.0.0.010:%%PORT1%%; } }",
    );
    for path in ["/group", "/written", "/variable?h=127.0.0.010"] {
        assert_eq!(server.get(path).body(), "ten", "{path} {}", server.log());
    }
    for path in ["/bound", "/binds?b=127.0.0.010", "/binds?b=127.0.0.010:%%PORT3%%"] {
        let path = path.replace("%%PORT3%%", &weir_testkit::free_port().to_string());
        assert_eq!(server.get(&path).body(), "127.0.0.10", "{path} {}", server.log());
    }
    let mut session = weir_testkit::Client::connect(server.port_at(2));
    assert_eq!(session.get("/").body(), "ten");
}
