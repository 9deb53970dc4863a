//! Processes that are killed at any step, disks that take nothing, files that make no sense.

use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};
use weir_acme::{CertificateOrder, KeyKind};
use weir_testkit::{Dir, Server, ask_until, children};

use crate::authority::{Ask, Authority, Reaction};
use crate::{ALL, USUAL, WEIR, conf, held, start, wait_secure};

/// The master's process, as its file says.
fn master(pid_file: &Path) -> i32 {
    std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap()
}

fn kill(pid: i32) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

#[test]
fn a_certificate_comes_in_the_end_wherever_the_master_is_killed() {
    let course = |step: Ask| {
        let authority = Authority::new();
        let dir = Dir::new();
        let pid_file = dir.file("nginx.pid");
        let conf = conf(&authority.lines(&dir), "example.org", USUAL);
        let mut kills = 1;
        let own = pid_file.clone();
        authority.reacts(move |ask| {
            if ask != step || kills == 0 {
                return Reaction::Serve;
            }
            kills -= 1;
            let master = master(&own);
            let workers = children(master);
            kill(master);
            workers.into_iter().for_each(kill);
            Reaction::Forget
        });
        let mut server = start(&authority, dir, &conf);
        server.wait();
        std::fs::remove_file(&pid_file).unwrap();
        let server = start(&authority, Dir::of_before(server.dir().path()), &conf);
        wait_secure(&authority, &server, "example.org");
        let orders = authority.asked(Ask::NewOrder);
        assert!(orders <= 2, "{step:?}: {orders} orders");
    };
    std::thread::scope(|scope| {
        for step in ALL {
            scope.spawn(move || course(step));
        }
    });
}

#[test]
fn an_attempt_that_kills_its_worker_each_time_is_made_four_times_and_then_waits() {
    let authority = Authority::new();
    let dir = Dir::new();
    let pid_file = dir.file("nginx.pid");
    let conf = conf(&authority.lines(&dir), "example.org", USUAL);
    authority.reacts(move |ask| {
        if ask == Ask::NewOrder {
            children(master(&pid_file)).into_iter().for_each(kill);
            return Reaction::Close;
        }
        Reaction::Serve
    });
    let server = start(&authority, dir, &conf);
    let attempts = server.dir().file("acme_test").join("attempts").join(id("example.org"));
    let mut record = serde_json::Value::Null;
    let waits = ask_until(|| {
        let text = std::fs::read(&attempts).unwrap_or_default();
        record = serde_json::from_slice(&text).unwrap_or_default();
        record["interrupted"] == 4
    });
    assert!(waits && record["wait"].as_u64() >= Some(60), "{record}");
    // The worker after that one waits, and says when it goes on.
    let mut row = serde_json::Value::Null;
    let told = ask_until(|| {
        // A worker that is killed resets its connections.
        let mut client = server.connect();
        let asked = client.try_send("GET /json HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let page = asked.and_then(|()| client.try_response()).map(|r| r.body()).unwrap_or_default();
        let page: serde_json::Value = serde_json::from_str(&page).unwrap_or_default();
        row = page["acme"][0].clone();
        authority.asked(Ask::NewOrder) == 4
            && row["next_attempt"].as_f64().unwrap_or(0.0)
                >= record["since"].as_f64().unwrap() + 60.0
    });
    assert!(told, "{} orders, {row}, {record}", authority.asked(Ask::NewOrder));
}

/// The file of a certificate's attempts.
fn id(name: &str) -> PathBuf {
    let order = CertificateOrder::new(vec![name.to_owned()], KeyKind::P256);
    PathBuf::from(format!("{}.json", order.id))
}

#[test]
fn where_attempts_cannot_be_written_down_the_authority_is_not_asked() {
    let authority = Authority::new();
    let dir = Dir::new();
    // No file can be renamed to this, as on a disk that takes nothing.
    let blocked = dir.file("acme_test").join("attempts").join(id("example.org"));
    std::fs::create_dir_all(blocked.join("full")).unwrap();
    let conf = conf(&authority.lines(&dir), "example.org", USUAL);
    let server = start(&authority, dir, &format!("user root; {conf}"));
    server.wait_log("acme issuer \"test\": cannot write in the state_path \"", 1);
    let mut health = serde_json::Value::Null;
    let found = ask_until(|| {
        let page: serde_json::Value = serde_json::from_str(&server.get("/json").body()).unwrap();
        health = page["health"].clone();
        health["text"].as_str().is_some_and(|text| text.contains("cannot write in the state_path"))
    });
    assert!(found && health["state"] == "red", "{health}");
    assert_eq!(authority.asked(Ask::Directory), 0);
    // Seconds later it has not tried again.
    assert_eq!(server.logged("cannot write in the state_path"), 1, "{}", server.log());
}

#[test]
fn garbled_files_are_taken_for_none() {
    let course = |garble: &dyn Fn(&[u8]) -> Vec<u8>| {
        let authority = Authority::new();
        let dir = Dir::new();
        let conf = format!("user root; {}", conf(&authority.lines(&dir), "example.org", USUAL));
        let mut server = start(&authority, dir, &conf);
        wait_secure(&authority, &server, "example.org");
        server.stop();
        let dir = Dir::of_before(server.dir().path());
        let state = dir.file("acme_test");
        std::fs::write(state.join("orders").join(id("example.org")), "{}").unwrap();
        std::fs::write(state.join("records").join("0.json"), "[]").unwrap();
        let mut garbled = 0;
        for folder in ["", "certificates", "orders", "attempts", "records"] {
            for entry in std::fs::read_dir(state.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() {
                    std::fs::write(&path, garble(&std::fs::read(&path).unwrap())).unwrap();
                    garbled += 1;
                }
            }
        }
        assert!(garbled >= 6, "{garbled} files");
        std::fs::write(dir.file("error.log"), "").unwrap();
        let server = start(&authority, dir, &conf);
        wait_secure(&authority, &server, "example.org");
        assert_eq!(authority.asked(Ask::NewOrder), 2);
    };
    let cut = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();
    let none = |_: &[u8]| Vec::new();
    let other = |_: &[u8]| b"{\"url\": 7, \"failures\": -1}".to_vec();
    let noise =
        |bytes: &[u8]| bytes.iter().map(|b| b.wrapping_mul(167) ^ 0xa5).collect::<Vec<u8>>();
    std::thread::scope(|scope| {
        scope.spawn(|| course(&cut));
        scope.spawn(|| course(&none));
        scope.spawn(|| course(&other));
        scope.spawn(|| course(&noise));
    });
}

/// As when a worker ends after it has written the certificate, and before it has removed the order.
#[test]
fn an_order_whose_certificate_is_there_is_not_gone_on_with() {
    let authority = Authority::new();
    let go = held(&authority, Ask::Certificate);
    let dir = Dir::new();
    let conf = format!("user root; {}", conf(&authority.lines(&dir), "example.org", USUAL));
    let mut server = start(&authority, dir, &conf);
    assert!(ask_until(|| authority.asked(Ask::Certificate) > 0), "{}", server.log());
    let dir = Dir::of_before(server.dir().path());
    let state = dir.file("acme_test");
    let file = state.join("orders").join(id("example.org"));
    let mut order: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    go.send(()).unwrap();
    wait_secure(&authority, &server, "example.org");
    server.stop();
    authority.reacts(|_| Reaction::Serve);
    // The certificate of this order is old by now.
    let (chain, key) = authority.issue("example.org", -80, 10);
    order["key"] = key.as_str().into();
    std::fs::write(&file, order.to_string()).unwrap();
    let certificate = id("example.org").with_extension("1.pem");
    let text = format!("Issued by ACME server: {}\n{chain}{key}", authority.uri());
    std::fs::write(state.join("certificates").join(certificate), text).unwrap();
    std::fs::remove_file(state.join("attempts").join(id("example.org"))).unwrap();
    std::fs::write(dir.file("error.log"), "").unwrap();
    let server = start(&authority, dir, &conf);
    assert!(ask_until(|| server.logged("acme issuer \"test\": ") > 0));
    assert_eq!(server.logged("got a certificate"), 1, "{}", server.log());
    assert_eq!(authority.orders(), 2);
}

#[test]
fn an_authority_that_fails_at_any_step_is_asked_once_and_then_left_alone() {
    let course = |step: Ask| {
        let authority = Authority::new();
        authority.reacts(move |ask| match ask == step {
            true => Reaction::Fail(500, None),
            false => Reaction::Serve,
        });
        let dir = Dir::new();
        let conf = conf(&authority.lines(&dir), "example.org", USUAL);
        let server = start(&authority, dir, &conf);
        server.wait_log("next attempt in ", 1);
        assert!(authority.asked(Ask::NewOrder) <= 1, "{step:?}");
        // A nonce is asked for twice, all else once.
        let asked = authority.asked(step);
        assert!((1..=2).contains(&asked), "{step:?}: {asked} requests");
    };
    std::thread::scope(|scope| {
        for step in ALL {
            scope.spawn(move || course(step));
        }
    });
}

#[test]
fn an_authority_that_loses_its_answers_has_three_orders_at_most() {
    let authority = Authority::new();
    let dir = Dir::new();
    authority.reacts(|ask| match ask {
        Ask::NewOrder => Reaction::Forget,
        _ => Reaction::Serve,
    });
    let conf = conf(&authority.lines(&dir), "example.org", USUAL);
    let server = start(&authority, dir, &conf);
    server.wait_log("next attempt in ", 1);
    assert!((1..=3).contains(&authority.orders()), "{} orders", authority.orders());
}

#[test]
fn servers_that_share_a_state_path_share_the_certificate_and_say_so() {
    let (authority, shared) = (Authority::new(), Dir::new());
    let begin = || {
        let dir = Dir::new();
        let path = shared.file("state");
        let lines = format!("state_path {}; {}", path.display(), authority.lines(&dir));
        let conf = conf(&lines, "example.org", USUAL);
        Server::start_in(dir, WEIR, &format!("user root; {conf}"))
    };
    let first = begin();
    authority.asks_at(first.port());
    wait_secure(&authority, &first, "example.org");
    // The first one keeps the lock.
    let second = begin();
    let mut page = serde_json::Value::Null;
    let told = ask_until(|| {
        page = serde_json::from_str(&second.get("/json").body()).unwrap();
        page["acme"][0]["not_after"].as_f64().unwrap_or(0.0) > 0.0
    });
    assert!(told && page["health"]["state"] == "green", "{page}");
    assert!(crate::ask(&authority, second.port_at(1), "example.org").is_ok());
    assert_eq!(authority.asked(Ask::NewOrder), 1);
}
