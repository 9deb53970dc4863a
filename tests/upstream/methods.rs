//! Which server of a group is chosen, by the method that its block names.

use weir_testkit::Server;

use super::origin::{self, Slow};
use super::start;

/// A group of these servers.
fn group(method: &str, ports: &[u16]) -> Server {
    let servers: String =
        ports.iter().map(|port| format!("server 127.0.0.1:{port} max_fails=0;")).collect();
    start("", &format!("upstream u {{ {method} {servers} }} add_header X-Asked $upstream_addr;"))
}

fn asked(server: &Server) -> u16 {
    let answer = server.get("/");
    let address = answer.header("X-Asked").and_then(|address| address.rsplit(':').next());
    address.and_then(|port| port.parse().ok()).expect("who was asked")
}

#[test]
fn the_server_with_the_fewest_connections_is_asked_first() {
    let (slow, quick) = (Slow::new(), origin::named("quick", ""));
    let server = group("least_conn;", &[slow.port, quick]);
    let mut held = server.connect();
    held.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = slow.asked();
    for _ in 0..4 {
        assert_eq!(asked(&server), quick);
    }
    drop(answer);
    assert_eq!(held.response().status, 200);
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a server that is slow")]
fn the_fastest_server_is_asked_first() {
    for method in ["least_time header;", "least_time last_byte;"] {
        let slow = origin::serve(|_| {
            std::thread::sleep(std::time::Duration::from_millis(300));
            Some(String::new())
        });
        let quick = origin::named("quick", "");
        let server = group(method, &[slow, quick]);
        // Both are known from here on.
        assert_ne!(asked(&server), asked(&server), "{method}");
        for _ in 0..6 {
            assert_eq!(asked(&server), quick, "{method}");
        }
    }
}

#[test]
fn chance_takes_no_turns() {
    let ports = [origin::named("one", ""), origin::named("other", "")];
    let server = group("random;", &ports);
    let mut last = asked(&server);
    // Turns that chance takes by chance end some time.
    assert!((0..100).any(|_| {
        let before = std::mem::replace(&mut last, asked(&server));
        before == last
    }));
}

#[test]
fn a_client_of_ipv4_has_one_server_at_sockets_of_both_families() {
    let behind: String = (1..=3)
        .map(|n| format!("server {{ listen 127.0.0.1:%%PORT{n}%%; return 200 {n}; }}\n"))
        .collect();
    let server = Server::start(
        env!("CARGO_BIN_EXE_weir"),
        &format!(
            "events {{ }} http {{ access_log off; set_real_ip_from 127.0.0.1; real_ip_header X-Client;
             upstream u {{ ip_hash; server 127.0.0.1:%%PORT1%%; server 127.0.0.1:%%PORT2%%; server 127.0.0.1:%%PORT3%%; }}
             server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://u; }} }}
             {behind} }}"
        ),
    );
    let chosen = |client: String| {
        let headers = format!("X-Client: {client}\r\nConnection: close\r\n");
        server.ask("GET /", &headers, "").body()
    };
    for net in 0..20 {
        let [plain, mapped, neighbour] = ["192.0.{}.1", "::ffff:192.0.{}.1", "::ffff:192.0.{}.200"]
            .map(|text| chosen(text.replace("{}", &net.to_string())));
        assert_eq!((&mapped, &neighbour), (&plain, &plain), "{net}");
    }
}
