//! Two mistakes in one configuration: which one is reported, for which line, and with which exit
//! code, beside nginx where there is one. Drawn at random.
//!
//! `WEIR_SEED` replays a run, `WEIR_CASES` makes it longer.

use std::process::Command;

use weir_testkit::{Dice, Dir, Oracle, number, seed};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Where a line may stand.
const MAIN: usize = 0;
const EVENTS: usize = 1;
const HTTP: usize = 2;
const UPSTREAM: usize = 3;
const SERVER: usize = 4;
const LOCATION: usize = 5;

/// Mistakes and where they are made.
const MISTAKES: &[(&[usize], &str)] = &[
    (&[MAIN, EVENTS, HTTP, UPSTREAM, SERVER, LOCATION], "no_such_thing 1;"),
    (&[MAIN, EVENTS, HTTP, UPSTREAM, SERVER, LOCATION], "no_such_block { }"),
    (&[MAIN, EVENTS, HTTP, UPSTREAM, SERVER, LOCATION], "}"),
    (&[MAIN, EVENTS, HTTP, UPSTREAM, SERVER, LOCATION], ";"),
    (&[MAIN, EVENTS, HTTP, UPSTREAM, SERVER, LOCATION], "include none.conf;"),
    (&[MAIN, HTTP, SERVER, LOCATION], "no_semicolon on"),
    (&[MAIN, HTTP, SERVER, LOCATION], "add_header \"open 1;"),
    (&[MAIN, EVENTS, UPSTREAM], "sendfile on;"),
    (&[HTTP, SERVER, LOCATION], "sendfile maybe;"),
    (&[HTTP, SERVER, LOCATION], "sendfile on off;"),
    (&[HTTP, SERVER, LOCATION], "sendfile on; sendfile on;"),
    (&[HTTP, SERVER, LOCATION], "client_max_body_size 1x;"),
    (&[HTTP, SERVER, LOCATION], "keepalive_timeout 1 2 3;"),
    (&[HTTP, SERVER, LOCATION], "add_header X $no_such_variable;"),
    (&[HTTP, SERVER, LOCATION], "access_log logs/a.log no_such_format;"),
    (&[HTTP, SERVER, LOCATION], "error_page 200 /x;"),
    (&[HTTP, SERVER, LOCATION], "error_page 99 /x;"),
    (&[HTTP, SERVER, LOCATION], "limit_req zone=none;"),
    (&[HTTP, SERVER, LOCATION], "limit_conn none 1;"),
    (&[HTTP, SERVER, LOCATION], "proxy_buffers 8;"),
    (&[HTTP, SERVER, LOCATION], "proxy_next_upstream never;"),
    (&[HTTP, SERVER, LOCATION], "allow 1.2.3.400;"),
    (&[HTTP, SERVER, LOCATION], "expires soon;"),
    (&[HTTP, SERVER, LOCATION], "error_log logs/e.log loud;"),
    (&[HTTP], "map $uri $x { default 1; default 2; }"),
    (&[HTTP], "map $uri { }"),
    (&[HTTP], "geo $x { 1.2.3.400 1; }"),
    (&[HTTP], "log_format f $no_such_variable; log_format f x;"),
    (&[HTTP], "limit_req_zone $uri zone=z:1k rate=1r/s;"),
    (&[HTTP], "limit_req_zone $uri zone=z:1m rate=1;"),
    (&[HTTP], "proxy_cache_path cache;"),
    (&[HTTP], "upstream u { server 127.0.0.1; }"),
    (&[HTTP], "upstream empty { }"),
    (&[HTTP], "server { listen 127.0.0.1:8080 nonsense; }"),
    (&[HTTP], "server { listen 127.0.0.1:99999; }"),
    (&[HTTP], "server { listen 127.0.0.1:8080 default_server; }"),
    (&[UPSTREAM], "server 127.0.0.1 weight=0;"),
    (&[UPSTREAM], "server 127.0.0.1:1 colour=red;"),
    (&[UPSTREAM], "keepalive 0x;"),
    (&[SERVER], "listen 127.0.0.1:8080;"),
    (&[SERVER], "server_name ~^(;"),
    (&[SERVER], "location ~ ( { }"),
    (&[SERVER], "location /l { }"),
    (&[SERVER], "location = { }"),
    (&[SERVER], "location @n { location /x { } }"),
    (&[SERVER, LOCATION], "return 1000;"),
    (&[SERVER, LOCATION], "rewrite ^( /x;"),
    (&[SERVER, LOCATION], "rewrite ^ /x sometimes;"),
    (&[SERVER, LOCATION], "if ($uri { }"),
    (&[SERVER, LOCATION], "if ($uri ~ ( ) { }"),
    (&[SERVER, LOCATION], "set x 1;"),
    (&[SERVER, LOCATION], "try_files /only;"),
    (&[LOCATION], "alias /a; root /b;"),
    (&[LOCATION], "proxy_pass nowhere;"),
    (&[LOCATION], "proxy_pass http://127.0.0.1:99999;"),
    (&[LOCATION], "limit_except NONE { }"),
    (&[LOCATION], "limit_except CONNECT { }"),
    (&[LOCATION], "internal on;"),
    (&[LOCATION], "location /other { }"),
    (&[LOCATION], "listen 80;"),
    (&[EVENTS], "worker_connections none;"),
    (&[EVENTS], "use nothing;"),
    (&[MAIN], "worker_processes none;"),
    (&[MAIN], "worker_processes 1; worker_processes 2;"),
    (&[MAIN], "http { }"),
    (&[MAIN], "events { }"),
    (&[MAIN], "user nobody-of-that-name;"),
    (&[MAIN], "pid;"),
];

/// A configuration with these lines in their places, each on a line of its own.
fn conf(mistakes: &[(usize, &str)]) -> String {
    let of = |place: usize| -> String {
        let lines = mistakes.iter().filter(|(at, _)| *at == place);
        lines.map(|(_, text)| format!("{text}\n")).collect()
    };
    let [main, events, http, upstream, server, location] = std::array::from_fn(of);
    format!(
        "pid logs/nginx.pid;\n{main}events {{\n{events}}}\nhttp {{\naccess_log off;\n{http}\
         upstream u {{\nserver 127.0.0.1:1;\n{upstream}}}\nserver {{\nlisten 127.0.0.1:8080;\n{server}\
         location /l {{\n{location}}}\n}}\n}}\n"
    )
}

/// Exit code, and the lines of `-t` without the program's name and without what only weir adds.
fn verdict(program: &str, dir: &Dir) -> (Option<i32>, Vec<String>) {
    let prefix = format!("{}/", dir.path().display());
    let said = Command::new(program)
        .args(["-t", "-q", "-p", &prefix, "-c", "nginx.conf", "-e", "logs/error.log"])
        .output()
        .expect("a program to run");
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    let lines = text.lines().filter_map(|line| {
        let line = line.strip_prefix("nginx: ").or_else(|| line.strip_prefix("weir: "))?;
        Some(line.replace(&prefix, "DIR/"))
    });
    (said.status.code(), lines.collect())
}

/// What is told first.
fn told(verdict: &(Option<i32>, Vec<String>)) -> &str {
    verdict.1.first().map_or("", String::as_str)
}

#[test]
fn of_two_mistakes_one_is_told_as_if_it_were_alone() {
    let mut dice = Dice::salted(seed(), "mistakes");
    let Some(nginx) = Oracle::find() else { return };
    let cases = number("WEIR_CASES").unwrap_or(60);
    let mut different = Vec::new();
    let mut first = 0;
    for _ in 0..cases {
        let mut draw = || {
            let (places, text) = dice.pick(MISTAKES);
            (dice.pick(places), text)
        };
        let (one, mut two) = (draw(), draw());
        // A directive twice in a block is a mistake of its own, which weir sees before it looks at what either says.
        let name = |(place, text): (usize, &'static str)| (place, text.split(' ').next());
        while name(one) == name(two) {
            two = draw();
        }
        let none = |at: (usize, &str)| (at.0, "");
        let dir = Dir::new();
        let both = |mistakes: [(usize, &'static str); 2]| {
            dir.write("nginx.conf", conf(&mistakes));
            (verdict(&nginx.path, &dir), verdict(WEIR, &dir))
        };
        let alone = [both([one, none(two)]), both([none(one), two])];
        for (mistake, (theirs, ours)) in [one, two].iter().zip(&alone) {
            if theirs != ours {
                different.push(format!("{mistake:?}\n  nginx: {theirs:?}\n  weir:  {ours:?}"));
            }
        }
        let (theirs, ours) = both([one, two]);
        first += u64::from(theirs == ours);
        // Two that make sense together, or a third one by both, are the same to both.
        let is_one = alone.iter().any(|(_, alone)| told(alone) == told(&ours));
        if theirs.0 != ours.0 || theirs != ours && !is_one {
            different.push(format!("{one:?} {two:?}\n  nginx: {theirs:?}\n  weir:  {ours:?}"));
        }
    }
    println!("{cases} cases beside nginx {}: {first} told the same first", nginx.version);
    different.sort_unstable();
    different.dedup();
    assert!(different.is_empty(), "{}", different.join("\n"));
}
