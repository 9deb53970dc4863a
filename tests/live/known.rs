//! Servers that say the same as before are taken as they were compiled: what they answer must not tell.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use weir_testkit::Dice;

use super::*;

/// How a host answers.
#[derive(Clone, Debug)]
struct Host {
    kind: usize,
    word: u64,
}

const KINDS: usize = 15;

impl Host {
    fn any(dice: &mut Dice) -> Host {
        Host { kind: dice.below(KINDS), word: dice.any() % 1000 }
    }

    /// What the `http` block and the server say; `i` is the host's number.
    fn lines(&self, i: usize, ports: &[u16]) -> (String, String) {
        let Host { kind, word } = self;
        let port = ports[*word as usize % ports.len()];
        let mut http = String::new();
        let server = match kind {
            0 => format!("location / {{ return 200 w{word}; }}"),
            1 => format!("set $own{i} w{word}; location / {{ return 200 $own{i}; }}"),
            2 => format!("set $same w{word}; location / {{ return 200 $same; }}"),
            3 => {
                format!("location ~ ^/(?<part{word}>.)(.*)$ {{ return 200 w{word}$2$part{word}; }}")
            }
            4 => {
                http = format!("upstream g{i} {{ server 127.0.0.1:{port}; }}");
                format!("location / {{ proxy_pass http://g{i}; }}")
            }
            5 => format!("location / {{ proxy_pass http://127.0.0.1:{port}; }}"),
            6 => {
                http = format!("map $arg_no $mapped{i} {{ default w{word}; yes no; }}");
                format!("location / {{ return 200 $mapped{i}; }}")
            }
            7 => format!(
                "status_zone z{}; access_log %%DIR%%/log{} combined;
                 location / {{ return 200 w{word}; }}",
                word % 3,
                word % 5
            ),
            8 => format!(
                "error_page 404 = @n; location @n {{ return 200 w{word}; }}
                 location / {{ location /deep {{ return 404; }} return 404; }}"
            ),
            9 => {
                format!("if ($arg_n != x) {{ return 200 w{word}; }} location / {{ return 200 x; }}")
            }
            10 => format!("rewrite ^/ /to?w=w{word}; location /to {{ return 200 $arg_w; }}"),
            11 => format!(
                "add_header X-Own $http_x_own; location / {{ limit_except GET {{ deny all; }}
                 proxy_set_header X-W w{word}; proxy_pass http://127.0.0.1:{port}; }}"
            ),
            12 => format!(
                "location / {{ set $low w{word}; if ($request_method = GET) {{ return 200 $low; }} }}"
            ),
            13 => format!(
                "status_zone s{}; location / {{ status_zone l{}; return 200 w{word}; }}",
                word % 4,
                word % 5
            ),
            _ => format!(
                "location = / {{ return 200 exact; }}
                 location ^~ /a {{ return 200 w{word}; }} location / {{ return 200 no; }}"
            ),
        };
        (http, format!("server {{ listen 127.0.0.1:%%PORT%%; server_name h{i}.test; {server} }}\n"))
    }

    /// Names that its requests count under.
    fn zones(&self) -> Vec<String> {
        match self.kind {
            7 => vec![format!("z{}", self.word % 3)],
            13 => vec![format!("s{}", self.word % 4), format!("l{}", self.word % 5)],
            _ => Vec::new(),
        }
    }

    fn answer(&self, ports: &[u16]) -> String {
        let port = ports[self.word as usize % ports.len()];
        match self.kind {
            3 => format!("w{}bca", self.word),
            4 | 5 | 11 => port.to_string(),
            _ => format!("w{}", self.word),
        }
    }
}

/// A configuration of these hosts, in this order.
fn hosts(all: &BTreeMap<usize, Host>, order: &[usize], more: &str, ports: &[u16]) -> String {
    let lines: Vec<_> = order.iter().map(|i| all[i].lines(*i, ports)).collect();
    let (http, servers): (Vec<_>, Vec<_>) = lines.into_iter().unzip();
    let http = format!("{more} {} {}", http.concat(), servers.concat());
    with_default(&http, "location / { return 200 rest; }")
}

/// Other servers stand before the one with these locations and the API, which is the default one.
fn with_default(http: &str, locations: &str) -> String {
    let text = conf("", http, locations);
    let at = text.rfind("%%PORT%%;").unwrap();
    let (before, own) = text.split_at(at);
    before.to_owned() + &own.replacen(';', " default_server;", 1)
}

/// A server that says its port.
fn speaking() -> u16 {
    listen(|mut stream| {
        let port = stream.local_addr().unwrap().port().to_string();
        let mut head = [0; 4096];
        if stream.read(&mut head).is_ok_and(|n| n > 0) {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", port.len());
            let answer = format!("{head}Connection: close\r\n\r\n{port}");
            let _ = stream.write_all(answer.as_bytes());
        }
    })
}

fn shuffled(dice: &mut Dice, all: &BTreeMap<usize, Host>) -> Vec<usize> {
    let mut left: Vec<usize> = all.keys().copied().collect();
    (0..left.len()).map(|_| left.swap_remove(dice.below(left.len()))).collect()
}

/// Requests with status 200 by the name that they count under.
fn counted(server: &Server) -> BTreeMap<String, u64> {
    let text = server.get("/metrics").body();
    let lines = text.lines().filter_map(|line| {
        let (name, rest) =
            line.strip_prefix("weir_zone_requests_total{zone=\"")?.split_once('"')?;
        Some((name.to_owned(), rest.strip_prefix(",status=\"2xx\"} ")?.parse().ok()?))
    });
    lines.collect()
}

fn change_at_random(seed: u64) {
    const MOST: usize = 12;
    let mut dice = Dice::new(seed);
    let ports: Vec<u16> = (0..3).map(|_| speaking()).collect();
    let mut all: BTreeMap<usize, Host> = (0..8).map(|i| (i, Host::any(&mut dice))).collect();
    let mut order = shuffled(&mut dice, &all);
    let mut more = "";
    let mut server = Server::start(WEIR, &hosts(&all, &order, more, &ports));
    let dir = server.dir().path().display().to_string();
    let place = |text: String| text.replace("%%DIR%%", &dir);
    // What the logs of hosts must have.
    let mut logged: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    let mut kept = server.connect();
    let mut in_parts = parts::Sender::default();
    for step in 0..25 {
        for _ in 0..=dice.below(3) {
            let i = dice.below(MOST);
            match dice.one_in(4) && all.len() > 1 {
                true => drop(all.remove(&i)),
                false => drop(all.insert(i, Host::any(&mut dice))),
            }
        }
        if dice.one_in(5) || order.len() != all.len() || order.iter().any(|i| !all.contains_key(i))
        {
            order = shuffled(&mut dice, &all);
        }
        if dice.one_in(8) {
            more = if more.is_empty() { "client_max_body_size 2m;" } else { "" };
        }
        let text = place(hosts(&all, &order, more, &ports));
        let answer = match seed % 2 {
            0 => put(&server, &text),
            _ => in_parts.put(&server, &text),
        };
        assert_eq!(answer.status, 200, "seed {seed}, step {step}: {}\n{text}", answer.body());
        if json(&answer)["taken_by"] == "new workers" {
            kept = server.connect();
        }
        let named: BTreeSet<String> = all.values().flat_map(Host::zones).collect();
        let shown: BTreeSet<String> = counted(&server).into_keys().collect();
        assert_eq!(shown, named, "seed {seed}, step {step}");
        for i in 0..MOST {
            let zones = all.get(&i).map(Host::zones).unwrap_or_default();
            let mut wanted = if zones.is_empty() { BTreeMap::new() } else { counted(&server) };
            zones.iter().for_each(|zone| *wanted.entry(zone.clone()).or_default() += 1);
            let expected = all.get(&i).map_or("rest".to_owned(), |host| host.answer(&ports));
            let mark = format!("mark-{step}-{i}-");
            kept.send(format!("GET /abc?{mark} HTTP/1.1\r\nHost: h{i}.test\r\n\r\n"));
            if let Some(Host { kind: 7, word }) = all.get(&i) {
                logged.entry(word % 5).or_default().insert(mark);
            }
            let body = kept.response().body();
            assert_eq!(
                body,
                expected,
                "seed {seed}, step {step}, host {i}: {:?}\n{text}",
                all.get(&i)
            );
            assert!(
                zones.is_empty() || ask_until(|| counted(&server) == wanted),
                "seed {seed}, step {step}, host {i}: {:?} and not {wanted:?}",
                counted(&server)
            );
        }
    }
    server.stop();
    for n in 0..5 {
        let text = fs::read_to_string(server.dir().file(&format!("log{n}"))).unwrap_or_default();
        let marks = text
            .lines()
            .filter_map(|line| line.split(['?', ' ']).find(|word| word.starts_with("mark-")));
        let found: BTreeSet<String> = marks.map(str::to_owned).collect();
        assert_eq!(found, logged.remove(&n).unwrap_or_default(), "seed {seed}, log{n}");
    }
    // Many were not compiled again.
    let log = server.log();
    let taken = log.lines().filter_map(|line| line.split_once(" servers are as before"));
    let taken = taken.filter_map(|(line, _)| line.rsplit(' ').nth(2)?.parse::<usize>().ok());
    assert!(taken.sum::<usize>() > 50, "{log}");
}

#[test]
fn hosts_answer_as_their_configuration_says_over_random_changes() {
    (1..=4).for_each(change_at_random);
}

#[test]
fn one_of_many_servers_is_compiled_where_one_has_changed() {
    let text = |word: &str, more: &str| {
        let one = |i| {
            let own = if i == 7 { word } else { "same" };
            format!(
                "server {{ listen 127.0.0.1:%%PORT%%; server_name s{i}.test;
                 location / {{ add_header X-Own $http_x; return 200 {own}; }} }}\n"
            )
        };
        with_default(&(0..20).map(one).collect::<String>(), more)
    };
    let server = Server::start(WEIR, &text("old", ""));
    // The one with `weir_api` says what it does to the whole site, and is read each time.
    for (word, more, expected) in [
        ("new", "", "19 of 21 servers"),
        ("newer", "", "19 of 21 servers"),
        ("newer", "location /x { return 204; }", "20 of 21 servers"),
    ] {
        take(&server, &text(word, more));
        let log = server.log();
        let said = log.lines().rfind(|line| line.contains(" are as before"));
        assert!(said.is_some_and(|line| line.contains(expected)), "{log}");
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: s7.test\r\n\r\n");
        assert_eq!(client.response().body(), word);
    }
}

#[test]
fn a_variable_goes_with_the_server_that_has_set_it() {
    let text = |sets: &str| {
        let uses =
            "server { listen 127.0.0.1:%%PORT%%; server_name uses.test; return 200 $shared; }";
        with_default(&format!("{sets} {uses}"), "location / { return 200 rest; }")
    };
    let sets = "server { listen 127.0.0.1:%%PORT%%; server_name sets.test; set $shared x; }";
    let server = Server::start(WEIR, &text(sets));
    let answer = put(&server, &text(""));
    assert_eq!(answer.status, 422, "{}", answer.body());
    assert!(answer.body().contains("unknown \\\"shared\\\" variable"), "{}", answer.body());
    take(&server, &text(sets).replace("rest", "other"));
    assert_eq!(server.get("/").status, 200);
}

#[test]
fn a_certificate_is_read_again_though_its_server_says_the_same() {
    let dir = Dir::new();
    let write = |name: &str| {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        fs::write(dir.file("crt"), made.cert.pem()).unwrap();
        fs::write(dir.file("key"), made.signing_key.serialize_pem()).unwrap();
    };
    write("first.test");
    let own = dir.path().display().to_string();
    let text = |word: &str| {
        let tls = "server { listen 127.0.0.1:%%PORT1%% ssl; ssl_certificate OWN/crt; ssl_certificate_key OWN/key; }";
        conf("", &tls.replace("OWN", &own), &format!("location / {{ return 200 {word}; }}"))
    };
    let server = Server::start(WEIR, &text("old"));
    let port = server.port_at(1);
    let shown = || {
        let said = s_client(dir.path(), port, &["-showcerts"], "");
        said.expect("an answer of openssl")
    };
    assert!(shown().contains("rcgen"), "{}", shown());
    let before = shown();
    let place = |text: String| text.replace("%%PORT1%%", &port.to_string());
    take(&server, &place(text("new")));
    let certificate = |said: &str| said.split("-----").nth(2).unwrap_or_default().to_owned();
    assert_eq!(certificate(&shown()), certificate(&before));
    write("second.test");
    take(&server, &place(text("newer")));
    assert_ne!(certificate(&shown()), certificate(&before));
    assert_eq!(server.get("/").body(), "newer");
}
