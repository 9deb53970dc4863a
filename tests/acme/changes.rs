//! Configurations that running workers take: `PUT /config` of `weir_api`.

use std::fmt::Write as _;
use std::sync::mpsc;

use weir_testkit::{Dir, Server, ask_until};

use crate::authority::{Ask, Authority, Reaction};
use crate::{WEIR, alert, ask, held, leave};

/// A site with these servers; the API is beside the answers to challenges.
fn conf(lines: &str, servers: &str) -> String {
    format!(
        "worker_processes 2; worker_threads 2; events {{ }}
         http {{
            acme_issuer test {{ {lines} }}
            server {{
                listen 127.0.0.1:%%PORT%%; listen 127.0.0.1:%%PORT1%% ssl default_server;
                ssl_reject_handshake on;
                location / {{ return 404; }}
                location /api {{ weir_api config; allow 127.0.0.1; deny all; client_max_body_size 10m; }}
                location = /json {{ weir_status json; }}
            }}
            {servers}
         }}"
    )
}

/// A server with TLS, which says `word`.
fn site(name: &str, word: &str) -> String {
    format!(
        "server {{ listen 127.0.0.1:%%PORT1%% ssl; server_name {name}; acme_certificate test;
            location / {{ return 200 {word}; }} }}"
    )
}

/// All loops take the configuration, without a new worker.
fn take(server: &Server, conf: &str) {
    let text = conf
        .replace("%%PORT%%", &server.port().to_string())
        .replace("%%PORT1%%", &server.port_at(1).to_string());
    let headers = format!("Content-Type: text/plain\r\nContent-Length: {}\r\n", text.len());
    let answer = server.ask("PUT /api/config", &headers, &text);
    let body = answer.body();
    assert!(answer.status == 200 && body.contains("running workers"), "{body}\n{}", server.log());
}

/// What the server says, once a handshake with the name succeeds.
fn says(authority: &Authority, server: &Server, name: &str) -> String {
    let mut text = String::new();
    let came = ask_until(|| match ask(authority, server.port_at(1), name) {
        Ok((said, _)) => {
            text = said;
            true
        }
        Err(_) => false,
    });
    assert!(came, "{name}:\n{}", server.log());
    text.rsplit("\r\n").next().unwrap_or_default().to_owned()
}

fn start(authority: &Authority, dir: Dir, conf: &str) -> Server {
    let server = Server::start_in(dir, WEIR, &format!("user root; {conf}"));
    authority.asks_at(server.port());
    server
}

#[test]
fn running_workers_get_certificates_for_names_that_a_change_adds() {
    let authority = Authority::new();
    let dir = Dir::new();
    let lines = authority.lines(&dir);
    // No certificate is wanted at first.
    let server = start(&authority, dir, &conf(&lines, ""));
    let workers = server.workers();
    let put = |servers: &str| take(&server, &format!("user root; {}", conf(&lines, servers)));
    put(&site("a.test", "one"));
    assert_eq!(says(&authority, &server, "a.test"), "one");
    // Servers that stay are taken as they are, and use what they have.
    let (a, b) = (site("a.test", "one"), site("b.test", "two"));
    put(&format!("{a}{b}"));
    assert_eq!(says(&authority, &server, "a.test"), "one");
    assert_eq!(says(&authority, &server, "b.test"), "two");
    // All but the server with the API.
    server.wait_log("1 of 3 servers are as before", 1);
    // Another server of the same name, too.
    put(&format!("{}{b}", site("a.test", "three")));
    for _ in 0..8 {
        let (text, _) = ask(&authority, server.port_at(1), "a.test").unwrap();
        assert!(text.ends_with("three"), "{text}");
    }
    assert_eq!(authority.orders(), 2);
    let page = server.get("/json").body();
    assert!(page.contains("a.test") && page.contains("b.test"), "{page}");
    assert_eq!(server.workers(), workers);
    let is_wrong = |line: &str| line.contains("[error]") && line.contains("acme");
    assert!(!server.log().lines().any(is_wrong), "{}", server.log());
}

#[test]
fn names_that_go_are_not_asked_for_and_are_served_at_once_when_they_return() {
    let authority = Authority::new();
    let dir = Dir::new();
    let lines = authority.lines(&dir);
    leave(&dir, "old.test", authority.issue("old.test", -10, 80));
    let server = start(&authority, dir, &conf(&lines, &site("a.test", "one")));
    says(&authority, &server, "a.test");
    let put = |servers: &str| take(&server, &format!("user root; {}", conf(&lines, servers)));
    put("");
    alert(&authority, server.port_at(1), "a.test");
    // Files that are there are used from the first handshake on, by each loop.
    put(&format!("{}{}", site("a.test", "again"), site("old.test", "old")));
    for _ in 0..8 {
        for name in ["a.test", "old.test"] {
            assert!(ask(&authority, server.port_at(1), name).is_ok(), "{}", server.log());
        }
    }
    assert_eq!(authority.orders(), 1);
}

#[test]
fn a_change_asks_for_nothing_anew_unless_it_is_of_the_issuer() {
    let authority = Authority::new();
    authority.reacts(|asked| match asked {
        Ask::NewOrder => Reaction::Fail(500, None),
        _ => Reaction::Serve,
    });
    let dir = Dir::new();
    let lines = authority.lines(&dir);
    let server = start(&authority, dir, &conf(&lines, &site("a.test", "one")));
    server.wait_log("no certificate for \"a.test\"", 1);
    let put = |lines: &str, servers: &str| {
        take(&server, &format!("user root; {}", conf(lines, servers)));
    };
    let mut servers = site("a.test", "one");
    for n in 0..5 {
        write!(servers, "server {{ listen 127.0.0.1:%%PORT%%; server_name n{n}; }}").unwrap();
        put(&lines, &servers);
    }
    // A name that is new waits for the issuer, as all of its names do. So nothing is asked for until the issuer is another one.
    put(&lines, &format!("{servers}{}", site("b.test", "two")));
    authority.reacts(|_| Reaction::Serve);
    let asked = authority.asked(Ask::NewOrder);
    assert_eq!(asked, 1, "{}", server.log());
    let lines = format!("{lines} contact admin@a.test;");
    put(&lines, &format!("{servers}{}", site("b.test", "two")));
    assert_eq!(says(&authority, &server, "b.test"), "two");
}

#[test]
fn the_threads_of_an_issuer_end_with_it() {
    let authority = Authority::new();
    let dir = Dir::new();
    let lines = authority.lines(&dir);
    let server = start(&authority, dir, &conf(&lines, &site("a.test", "one")));
    says(&authority, &server, "a.test");
    let threads = || {
        let named = |pid: &i32| {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            let names = tasks
                .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
            names.filter(|name| name.trim_end() == "weir: acme").count()
        };
        server.workers().iter().map(named).sum::<usize>()
    };
    assert!(ask_until(|| threads() == 2), "{} threads", threads());
    take(&server, &format!("user root; {}", conf(&lines, "")));
    assert!(ask_until(|| threads() == 0), "{} threads", threads());
    take(&server, &format!("user root; {}", conf(&lines, &site("a.test", "two"))));
    assert_eq!(says(&authority, &server, "a.test"), "two");
    assert!(ask_until(|| threads() == 2), "{} threads", threads());
}

#[test]
fn an_authority_that_says_no_time_of_renewal_holds_up_no_order() {
    let authority = Authority::new();
    let (go, wait) = mpsc::channel::<()>();
    authority.reacts(move |asked| {
        if asked == Ask::Renewal {
            let _ = wait.recv();
        }
        Reaction::Serve
    });
    let dir = Dir::new();
    let lines = authority.lines(&dir);
    let server = start(&authority, dir, &conf(&lines, &site("a.test", "one")));
    says(&authority, &server, "a.test");
    assert!(ask_until(|| authority.asked(Ask::Renewal) == 1), "{}", server.log());
    // The authority does not answer this, but all else, and another name is wanted.
    authority.reacts(|_| Reaction::Serve);
    let both = [site("a.test", "one"), site("b.test", "two")].concat();
    take(&server, &format!("user root; {}", conf(&lines, &both)));
    assert_eq!(says(&authority, &server, "b.test"), "two");
    assert_eq!(authority.asked(Ask::Renewal), 1, "one question at a time");
    drop(go);
    // Once it has answered, it is asked about the other certificate.
    assert!(ask_until(|| authority.asked(Ask::Renewal) == 2), "{}", server.log());
}

#[test]
fn a_name_that_goes_while_another_is_asked_for_is_not_asked_for() {
    let authority = Authority::new();
    let go = held(&authority, Ask::NewOrder);
    let dir = Dir::new();
    let lines = authority.lines(&dir);
    let all = ["a.test", "b.test", "c.test"].map(|name| site(name, "one")).concat();
    let server = start(&authority, dir, &conf(&lines, &all));
    assert!(ask_until(|| authority.asked(Ask::NewOrder) == 1), "{}", server.log());
    // The authority takes its time with the first of them.
    let new = [site("a.test", "two"), site("d.test", "two")].concat();
    take(&server, &format!("user root; {}", conf(&lines, &new)));
    drop(go);
    for name in ["a.test", "d.test"] {
        assert_eq!(says(&authority, &server, name), "two");
    }
    assert_eq!(authority.orders(), 2, "{}", server.log());
}
