//! Timeouts by stage: each directive with a time, at zero, very short and long, in each stage of a
//! connection, over each protocol, beside nginx. The test compares what happens, not when.
//!
//! `WEIR_TIMES` is the number of cases (100000: all), `WEIR_SEED` chooses them, `WEIR_STAGE` names
//! one stage.

mod behind;
mod stages;
mod talk;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use weir_testkit::{Dice, Oracle, Server, number, seed};

use self::behind::Behind;
use self::stages::{Over, STAGES, Stage};
use self::talk::Talk;
use crate::ask::Wire;
use crate::{WEIR, files};

/// Directives, with what they need beside them.
const DIRECTIVES: &[(&str, &str)] = &[
    ("client_header_timeout", ""),
    ("client_body_timeout", ""),
    ("send_timeout", ""),
    ("keepalive_timeout", ""),
    ("keepalive_min_timeout", ""),
    ("keepalive_time", ""),
    ("lingering_time", ""),
    ("lingering_timeout", ""),
    ("lingering_timeout", "lingering_close always;"),
    ("lingering_time", "lingering_close always;"),
    ("resolver_timeout", ""),
    ("proxy_connect_timeout", ""),
    ("proxy_send_timeout", ""),
    ("proxy_read_timeout", ""),
    ("proxy_next_upstream_timeout", ""),
    ("proxy_next_upstream_timeout", "proxy_read_timeout 80ms; proxy_connect_timeout 80ms;"),
    ("proxy_cache_lock_timeout", ""),
    ("proxy_cache_lock_age", ""),
    ("auth_delay", "auth_basic off;"),
    ("client_body_timeout", "proxy_request_buffering off; lingering_close off;"),
    ("send_timeout", "reset_timedout_connection on;"),
];

/// From nothing to very long; [`SHORT`] is shorter than a client's pause, but nothing that is at work takes as long.
const VALUES: &[&str] = &["0", "1ms", "80ms", "20d"];
const SHORT: usize = 2;
const LONG: usize = 3;

const WIRES: [Wire; 4] = [Wire::Plain, Wire::Tls, Wire::Http2, Wire::Http2Tls];

/// How long nothing may come, so that a difference is no chance of a busy machine.
const SILENCES: [u64; 3] = [500, 1_500, 5_000];

/// Clients at a time: nearly all of what they do is to wait.
const CLIENTS: usize = 24;

/// Where weir ends otherwise on purpose (docs/differences.md): stages, how an outcome with nginx ends, and with weir.
const BY_RIGHT: &[(&[&str], &str, &str)] = &[
    // A client that waits for the end of an answer need not have sent all of its request.
    (
        &["a body after its last answer", "half a body for nobody", "half a body of a refusal"],
        ", open",
        ", closed",
    ),
    // A head goes ahead, whether or not TLS is beneath.
    (&["a server with half a body"], "open", "1: 200, open"),
    // What is left of the body is read, and the connection goes on.
    (&["a server that reads nothing"], ", closed", ", open"),
    // Half a head is no reason to keep a connection.
    (
        &["half a head", "a head without its end", "idle, then half a head"],
        ", open",
        ", goaway 1, closed",
    ),
];

fn is_by_right(stage: &str, expected: &BTreeSet<String>, got: &str) -> bool {
    BY_RIGHT.iter().filter(|(stages, ..)| stages.contains(&stage)).any(|(_, theirs, ours)| {
        let ended = |text: &String| text.strip_suffix(theirs).map(|text| format!("{text}{ours}"));
        expected.iter().filter_map(ended).any(|text| sorted(&text) == sorted(got))
    })
}

/// Which of two streams is told first has no meaning.
fn sorted(outcome: &str) -> Vec<&str> {
    let mut events: Vec<&str> = outcome.split(", ").collect();
    events.sort_unstable();
    events
}

#[derive(Clone, Copy)]
struct Case {
    /// Of the server that has the directive.
    server: usize,
    stage: &'static Stage,
    wire: Wire,
}

impl Case {
    /// The same with another value.
    fn with(self, value: usize) -> Case {
        Case { server: self.server - self.server % VALUES.len() + value, ..self }
    }

    /// What the client of a server sees.
    fn seen(&self, server: &Server, silence: Duration) -> String {
        let port = match self.wire {
            Wire::Tls | Wire::Http2Tls => server.port_at(1),
            Wire::Plain | Wire::Http2 => server.port(),
        };
        let address = address(self.server);
        let Ok(mut talk) = Talk::begin(self.wire, (&address, port), silence) else {
            return "no connection".to_owned();
        };
        (self.stage.act)(&mut talk);
        talk.seen()
    }
}

fn address(server: usize) -> String {
    format!("127.9.{}.1", server + 1)
}

/// Directive, value and company of a server.
fn said(server: usize) -> String {
    let (name, beside) = DIRECTIVES[server / VALUES.len()];
    let value = VALUES[server % VALUES.len()];
    format!("{name} {value}; {beside}")
}

#[test]
fn times_run_out_as_with_nginx() {
    let Some(nginx) = Oracle::find() else { return };
    if nginx.is_old() {
        println!("not run: times mean other things to nginx {}", nginx.version);
        return;
    }
    let mut cases = all();
    let mut dice = Dice::new(seed());
    let count = (number("WEIR_TIMES").unwrap_or(300) as usize).min(cases.len());
    let cases: Vec<Case> = (0..count).map(|_| cases.swap_remove(dice.below(cases.len()))).collect();
    let behind = Behind::start();
    let conf = behind.fill(&conf());
    let [theirs, ours] = [nginx.path.as_str(), WEIR].map(|program| {
        let dir = files();
        dir.write("html/big", vec![b'x'; 12 << 20]);
        Server::start_in(dir, program, &conf)
    });
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Relaxed)) {
                    if let Some(difference) = difference(case, &theirs, &ours) {
                        println!("{difference}");
                        wrong.lock().expect("no client has panicked").push(difference);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("no client has panicked");
    println!("{count} cases compared with nginx {}, {} differ", nginx.version, wrong.len());
    assert!(wrong.is_empty(), "{} differ", wrong.len());
}

/// What weir does and nginx never does, however long one listens.
fn difference(case: &Case, theirs: &Server, ours: &Server) -> Option<String> {
    let (mut expected, mut got) = (BTreeSet::new(), String::new());
    for silence in SILENCES.map(Duration::from_millis) {
        let theirs_now = case.seen(theirs, silence);
        got = case.seen(ours, silence);
        // Whether next to nothing is enough for what comes at once is chance, unless it means never.
        if case.server % VALUES.len() < SHORT
            && theirs_now != got
            && theirs_now != case.with(LONG).seen(theirs, silence)
        {
            expected.insert(case.with(SHORT).seen(theirs, silence));
            expected.insert(case.with(0).seen(theirs, silence));
        }
        expected.insert(theirs_now);
        if expected.contains(&got) || is_by_right(case.stage.name, &expected, &got) {
            return None;
        }
    }
    let Case { server, stage, wire } = case;
    Some(format!(
        "{} {}, {wire:?}\n    nginx: {expected:?}\n    weir:  {got:?}",
        said(*server),
        stage.name
    ))
}

fn all() -> Vec<Case> {
    let named = std::env::var("WEIR_STAGE").ok();
    let mut all = Vec::new();
    // Whether a millisecond has passed is chance with a clock that stands still between events.
    let is_chance = |server: usize| {
        server % VALUES.len() < SHORT && said(server).starts_with("keepalive_time ")
    };
    for server in (0..DIRECTIVES.len() * VALUES.len()).filter(|server| !is_chance(*server)) {
        for stage in STAGES.iter().filter(|s| named.as_ref().is_none_or(|name| name == s.name)) {
            for wire in WIRES {
                let is_http2 = matches!(wire, Wire::Http2 | Wire::Http2Tls);
                let is_secured = matches!(wire, Wire::Tls | Wire::Http2Tls);
                let has = match stage.over {
                    Over::All => true,
                    Over::Tls => is_secured,
                    Over::Http1 => !is_http2,
                    Over::Http2 => is_http2,
                };
                if has {
                    all.push(Case { server, stage, wire });
                }
            }
        }
    }
    all
}

fn conf() -> String {
    let mut servers = String::new();
    for server in 0..DIRECTIVES.len() * VALUES.len() {
        let (at, said) = (address(server), said(server));
        let _ = write!(
            servers,
            "server {{
                listen {at}:%%PORT%%; listen {at}:%%PORT1%% ssl; http2 on; server_name s1.example;
                {said}
                include %%DIR%%/locations;
            }}\n"
        );
    }
    CONF.replace("SERVERS", &servers).replace("include %%DIR%%/locations;", LOCATIONS)
}

const CONF: &str = r#"
    worker_rlimit_nofile 8192;
    events { worker_connections 4096; }
    http {
        server_tokens off; access_log off; default_type text/plain;
        ssl_certificate %%DIR%%/self.pem; ssl_certificate_key %%DIR%%/self.key;
        resolver %%MUTE%% ipv6=off;
        proxy_http_version 1.1;
        proxy_cache_path %%DIR%%/stored keys_zone=stored:1m;
        upstream two { server %%SILENT%% max_fails=0; server %%SILENT%% max_fails=0; }
        upstream two-deaf { server %%DEAF%% max_fails=0; server %%DEAF%% max_fails=0; }
        upstream silent-good { server %%SILENT%% weight=1000 max_fails=0; server %%GOOD%% backup; }
        server { listen 127.9.250.1:%%PORT%%; location = /big { alias %%DIR%%/html/big; } }
        SERVERS
    }
"#;

const LOCATIONS: &str = r#"
    location = /return { return 200 "ok\n"; }
    location = /refused { deny all; }
    location = /small { alias %%DIR%%/html/e.txt; }
    location = /big { alias %%DIR%%/html/big; }
    location = /limited { limit_rate 10; limit_rate_after 1k; return 200 "ok\n"; }
    location = /up { proxy_pass http://%%GOOD%%; }
    location = /up-at-once { proxy_request_buffering off; proxy_pass http://%%GOOD%%; }
    location = /up-big { proxy_pass http://127.9.250.1:%%PORT%%/big; }
    location = /silent { proxy_pass http://%%SILENT%%; }
    location = /half-head { proxy_pass http://%%HALFHEAD%%; }
    location = /half-body { proxy_pass http://%%HALFBODY%%; }
    location = /slow { proxy_pass http://%%SLOW%%; }
    location = /slow-at-once { proxy_buffering off; proxy_pass http://%%SLOW%%; }
    location = /deaf { proxy_pass http://%%DEAF%%; }
    location = /unread { client_max_body_size 0; proxy_request_buffering off; proxy_pass http://%%UNREAD%%; }
    location = /name { set $name up.example; proxy_pass http://$name:1; }
    location = /two { proxy_pass http://two; }
    location = /two-deaf { proxy_pass http://two-deaf; }
    location = /silent-good { proxy_pass http://silent-good; }
    location = /switch {
        proxy_set_header Connection upgrade; proxy_set_header Upgrade x; proxy_pass http://%%SWITCHES%%;
    }
    location = /asked-first { auth_request /up; alias %%DIR%%/html/e.txt; }
    location = /asked-in-vain { auth_request /silent; alias %%DIR%%/html/e.txt; }
    location = /locked {
        proxy_cache stored; proxy_cache_key $connection; proxy_cache_lock on; proxy_pass http://%%SLOW%%;
    }
"#;
