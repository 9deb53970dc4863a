//! `weir_dashboard`: what it answers, and its page in headless Chromium, where that is installed.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};

use rustix::process::Signal;
use serde_json::Value;
use weir_testkit::{
    Client, Dir, PATIENCE, Process, Server, ask_until, dump_page, examples, listen,
};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

const CONF: &str = "events { } http { access_log off; server { listen 127.0.0.1:%%PORT%%;
    location = /panel { weir_dashboard \"of <this> machine\"; } } }";

#[test]
fn a_page_and_a_snapshot_but_no_method_that_changes() {
    let server = Server::start(WEIR, CONF);
    let page = server.get("/panel");
    assert_eq!(page.status, 200);
    assert_eq!(page.header("Content-Type"), Some("text/html; charset=utf-8"));
    assert_eq!(page.header("Cache-Control"), Some("no-store"));
    let policy = page.header("Content-Security-Policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(page.body().contains("of &lt;this&gt; machine"), "{}", page.body());

    let json = server.ask("GET /panel", "Accept: application/json\r\n", "");
    assert_eq!(json.header("Content-Type"), Some("application/json"));
    assert!(json.body().starts_with('{') && json.body().ends_with('}'), "{}", json.body());
    assert_eq!(server.ask("POST /panel", "Content-Length: 0\r\n", "").status, 405);
}

/// Reads events from a stream that was begun.
fn begin(server: &Server) -> Client {
    let mut client = server.connect();
    client.send("GET /panel HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n");
    client
}

/// The next line that begins an event.
fn event(client: &mut Client) -> String {
    let lines = std::iter::from_fn(|| client.try_line().ok()).take(30);
    lines.into_iter().find(|line| line.starts_with("data: ")).expect("an event")
}

#[test]
fn events_go_on_until_the_worker_ends() {
    let mut server = Server::start(WEIR, CONF);
    let mut client = begin(&server);
    assert!(client.try_line().unwrap().starts_with("HTTP/1.1 200"));
    let (first, second) = (event(&mut client), event(&mut client));
    assert!(first.contains('{') && first.trim_end().ends_with('}'), "{first}");
    assert_ne!(first, second, "the request itself is counted");
    server.signal(Signal::QUIT);
    // Its end is told in order, so the browser comes again at once.
    let rest = client.rest();
    assert!(rest.ends_with("0\r\n\r\n"), "{rest}");
    assert!(server.wait().success());
}

/// A viewer stays for hours, which is no latency. A snapshot's is.
#[test]
fn the_time_that_a_viewer_stays_is_no_latency() {
    let server = Server::start(
        WEIR,
        "events { } http { access_log off; server { listen 127.0.0.1:%%PORT%%; status_zone page; \
            location = /panel { weir_dashboard; } } \
            server { listen 127.0.0.1:%%PORT1%%; weir_status json; } }",
    );
    let zone = || {
        let body = Client::connect(server.port_at(1)).get("/").body();
        let page: Value = serde_json::from_str(&body).unwrap();
        let zone = &page["status_zones"]["page"];
        (zone["requests"]["total"].clone(), zone["latency"]["count"].clone())
    };
    let mut viewer = begin(&server);
    event(&mut viewer);
    drop(viewer);
    assert!(ask_until(|| zone() == (1.into(), 0.into())), "{:?}", zone());
    server.ask("GET /panel", "Accept: application/json\r\n", "");
    assert!(ask_until(|| zone() == (2.into(), 1.into())), "{:?}", zone());
}

/// An event is nearly the text of the one before. curl takes the stream apart and checks its sum at the end.
#[test]
fn events_are_compressed_and_end_in_order() {
    let mut server = Server::start(WEIR, CONF);
    let url = format!("http://127.0.0.1:{}/panel", server.port());
    let (body, wire) = (server.dir().file("body"), server.dir().file("wire"));
    let mut curl = Command::new("curl");
    curl.args([
        "-sSN",
        "--compressed",
        "-H",
        "Accept: text/event-stream",
        "-w",
        "%{size_download}",
    ]);
    curl.arg("-o").arg(&body).arg(&url).stdout(File::create(&wire).unwrap());
    let mut curl = Process::start(&mut curl);
    let events = || server.dir().read("body").matches("data: {").count();
    assert!(ask_until(|| body.exists() && events() > 3), "{} events", events());
    server.signal(Signal::QUIT);
    assert!(curl.wait().success(), "the stream did not end in order");
    assert!(server.wait().success());
    let (text, wire) = (server.dir().read("body"), server.dir().read("wire"));
    for event in text.split_terminator("\n\n") {
        let json = event.strip_prefix("data: ").expect("an event");
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert!(json["loops"][0]["blocked"]["steps"].is_array(), "{json}");
    }
    let wire: usize = wire.parse().unwrap();
    assert!(wire > 500 && wire * 5 < text.len(), "{wire} of {} bytes", text.len());
}

/// The server knows its last seconds, so the first snapshot of a viewer has rates.
#[test]
fn the_first_snapshot_tells_of_the_seconds_before() {
    let server = Server::start(
        WEIR,
        "worker_processes 1; events { } http { access_log off; server { listen 127.0.0.1:%%PORT%%;
            location = /panel { weir_dashboard; } location / { return 200 hello; } } }",
    );
    for _ in 0..5 {
        assert_eq!(server.get("/").status, 200);
    }
    let json = server.ask("GET /panel", "Accept: application/json\r\n", "").body();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let lately = |name: &str| json["loops"][0][name].as_u64().unwrap();
    assert_eq!((lately("lately_requests"), lately("lately_accepted")), (6, 6), "{json}");
    assert!(lately("lately_sent") > 500, "{json}");
    let seconds = json["lately"].as_f64().unwrap();
    assert!(seconds > 0.0 && seconds <= 11.0, "{seconds}");
}

/// All viewers of a loop get the same event, which says when it was made: it is made once, however many look on.
#[test]
fn viewers_of_a_loop_share_each_event() {
    let server = Server::start(WEIR, CONF);
    let mut viewers = [(); 4].map(|()| begin(&server));
    let seen = viewers.each_mut().map(|viewer| [(); 3].map(|()| event(viewer)));
    // The first event of one may be an older one than that of the next.
    for other in &seen[1..] {
        let common = seen[0].iter().filter(|event| other.contains(event)).count();
        assert!(common > 0, "no event in common");
    }
}

#[test]
fn only_so_many_viewers_are_let_in_and_a_leaving_one_makes_room() {
    let server = Server::start(WEIR, CONF);
    let look = || {
        let mut client = begin(&server);
        (client.try_line().unwrap().contains(" 200 "), client)
    };
    let mut all: Vec<Client> = Vec::new();
    loop {
        let (admitted, client) = look();
        if !admitted {
            break;
        }
        all.push(client);
        assert!(all.len() <= 32, "nobody was refused");
    }
    assert_eq!(all.len(), 32);
    all.clear();
    assert!(ask_until(|| look().0), "no room again");
}

/// The page's own source of events is this test, which goes on when the page has shown what it was sent.
struct Stage {
    /// How far the page has come.
    seen: Mutex<usize>,
    changed: Condvar,
    loops: usize,
}

impl Stage {
    fn reach(&self, act: usize) {
        *self.seen.lock().unwrap() = act;
        self.changed.notify_all();
    }

    fn wait(&self, act: usize) -> bool {
        let seen = self.seen.lock().unwrap();
        let waited = self.changed.wait_timeout_while(seen, 4 * PATIENCE, |seen| *seen < act);
        *waited.unwrap().0 >= act
    }

    fn serve(&self, mut stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let head = lines.next().unwrap().unwrap_or_default();
        let path = head.split(' ').nth(1).unwrap_or_default();
        if let Some(act) = path.strip_prefix("/seen/") {
            self.reach(act.parse().unwrap());
        }
        if path == "/hold" {
            self.wait(if self.loops == 0 { 2 } else { ACTS });
        }
        if path != "/events" {
            let _ = stream.write_all(b"HTTP/1.0 204 No Content\r\n\r\n");
            return;
        }
        let head = "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
        let _ = stream.write_all(head.as_bytes());
        for act in 0..ACTS {
            for step in 0..4 {
                let _ = write!(stream, "data: {}\n\n", snapshot(self.loops, act, step));
            }
            if !self.wait(act + 1) {
                return;
            }
        }
    }
}

/// Even, uneven with an alarm, even again.
const ACTS: usize = 3;

/// With two loops, a server behind fails in the second act.
const HEALTH: &str = "\"health\":{\"state\":\"red\",\"since\":1,\"text\":\"shop: 127.0.0.1:8081 refuses connections\",\
    \"findings\":[{\"rule\":\"server_failing\",\"state\":\"red\",\"since\":1,\"subject\":\"shop: 127.0.0.1:8081\",\
    \"text\":\"shop: 127.0.0.1:8081 refuses connections\"}]},";

/// A second of loops of which in the second act one does all the work.
fn snapshot(loops: usize, act: usize, step: usize) -> String {
    let second = 4 * act + step;
    let mut text = format!(
        "{{\"build\":{{\"version\":\"9.{second}\"}},\"now\":{second},\"lately\":10,\"started\":0,\"uptime\":{second},\"totals\":{{\"requests\":0}},\
         \"balance\":{{\"policy\":\"fair\",\"imbalance\":{},\"mean_busy\":0.5,\"threshold\":0.5,\"alarm\":{},\"next\":[1,0]}},\
         \"listeners\":[{{\"address\":\"a\",\"queue\":7,\"backlog\":511,\"queues\":[7]}}],\
         \"culprits\":[{{\"at\":1,\"took_us\":61000,\"worker\":0,\"loop\":1,\"kind\":\"held\",\"what\":\"<b>lua</b>\"}}],\"loops\":[",
        act % 2,
        act == 1
    );
    if loops == 2 && act == 1 {
        text.insert_str(1, HEALTH);
    }
    for i in 0..loops {
        let share = match (act, i) {
            (1, 1) => 0.9,
            (1, _) => 0.0,
            _ => 0.3,
        };
        let comma = if i == 0 { "" } else { "," };
        let _ = write!(
            text,
            "{comma}{{\"worker\":0,\"loop\":{i},\"pid\":7,\"tid\":{i},\"state\":\"armed\",\"open\":3,\"inflight\":1,\"accepted\":0,\
             \"requests\":0,\"share_busy\":{share},\"lately_requests\":25,\
             \"blocked\":{{\"count\":{second},\"sum_us\":{},\"steps\":[[4999,{second}]]}}}}",
            second * 5000
        );
    }
    text + "]}"
}

/// Looks at the panel in a frame, tells the stage what it saw, and in the end what that was.
const WATCHER: &str = "<!doctype html><body><iframe id=panel src=/panel width=WIDTH height=800></iframe><img src=/hold><script>
    const acts = [/^9.3 /, /^9.7 /, /^9.11 /], told = [];
    const look = setInterval(() => {
        const page = document.getElementById('panel').contentDocument, state = page && page.getElementById('state');
        // The last second of each act.
        if (!state || !acts[told.length].test(page.getElementById('about').textContent)) return;
        const bars = [...page.querySelectorAll('.work-bar')].map(bar => parseFloat(bar.style.height));
        told.push(`${state.textContent.trim()} ${state.getAttribute('role')} bars ${bars.length} of ${bars.slice(0, 3).map(Math.round)}`
            + ` rate ${page.querySelector('#tiles dd').textContent} wide ${page.documentElement.scrollWidth <= WIDTH} cut ${[...page.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth).length} next ${page.getElementById('next').textContent}`
            + ` rows ${page.querySelectorAll('#culprits tbody th[scope=row]').length} ${page.querySelectorAll('#culprits b').length}`
            + ` findings ${page.querySelectorAll('#findings tbody th[scope=row]').length} title ${page.title}`);
        fetch('/seen/' + told.length);
        if (told.length === acts.length) {
            clearInterval(look);
            document.getElementById('panel').remove();
            document.body.append('[' + told.join('|') + ']');
        }
    }, 50);
</script>";

/// What the page has shown in the three acts, with so many loops and in a window of this width; none without a browser.
fn play(loops: usize, width: u32) -> Option<Vec<String>> {
    let stage = Arc::new(Stage { seen: Mutex::new(0), changed: Condvar::new(), loops });
    let behind = listen({
        let stage = stage.clone();
        move |stream| stage.serve(stream)
    });
    let dir = Dir::new();
    dir.write("html/watch.html", WATCHER.replace("WIDTH", &width.to_string()));
    let conf = format!(
        "events {{ }} http {{ access_log off; proxy_buffering off; types {{ text/html html; }}
            server {{ listen 127.0.0.1:%%PORT%%; root html; proxy_read_timeout 120s;
                location = /panel {{
                    if ($http_accept ~ event-stream) {{ rewrite ^ /events last; }}
                    weir_dashboard;
                }}
                location ~ ^/(events|seen|hold) {{ proxy_pass http://127.0.0.1:{behind}; }} }} }}"
    );
    let server = Server::start_in(dir, WEIR, &conf);
    let url = format!("http://127.0.0.1:{}/watch.html", server.port());
    let page = dump_page(&server.dir().file("profile"), &url)?;
    let said = page.rsplit_once("</script>").map_or("", |(_, rest)| rest);
    let said = said.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let said = said.unwrap_or_else(|| panic!("the page got as far as {:?}: {page}", stage.seen));
    Some(said.0.replace("&nbsp;", " ").split('|').map(str::to_owned).collect())
}

#[test]
fn bars_move_the_alarm_shows_and_goes_again() {
    let Some(acts) = play(3, 390) else { return };
    let [first, second, third] = &acts[..] else { panic!("{acts:?}") };
    assert!(first.starts_with("● Even status bars 3 of 60,60,60 "), "{acts:#?}");
    assert!(second.starts_with("▲ Uneven: loop 1 works 3.0 times the mean status"), "{acts:#?}");
    assert!(second.contains(" bars 3 of 0,90,0 "), "{acts:#?}");
    assert!(third.starts_with("● Even status bars 3 of 60,60,60 "), "{acts:#?}");
    for act in &acts {
        assert!(
            act.contains("wide true cut 0 next Woken next: 1, then 0 (fair) rows 1 0"),
            "{acts:#?}"
        );
        // No counter moves: the rate is the server's own, of which the first frame knows as well.
        assert!(act.contains(" rate 7.5 a second "), "{acts:#?}");
    }
}

#[test]
fn health_is_the_headline_before_balance() {
    let Some(acts) = play(2, 1280) else { return };
    let [first, second, third] = &acts[..] else { panic!("{acts:?}") };
    assert!(second.starts_with("✕ shop: 127.0.0.1:8081 refuses connections status"), "{acts:#?}");
    assert!(second.ends_with("findings 1 title (!) 127.0.0.1: weir"), "{acts:#?}");
    for healthy in [first, third] {
        assert!(healthy.starts_with("● Even status"), "{acts:#?}");
        assert!(healthy.ends_with("findings 0 title 127.0.0.1: weir"), "{acts:#?}");
    }
    // The table of two loops stands beside their chart, and has room.
    assert!(acts.iter().all(|act| act.contains("wide true cut 0")), "{acts:#?}");
}

#[test]
fn a_hundred_and_twenty_eight_loops_have_room_on_a_phone() {
    let Some(acts) = play(128, 390) else { return };
    assert!(
        acts.iter().all(|act| act.contains(" bars 128 of ") && act.contains("wide true cut 0")),
        "{acts:#?}"
    );
    assert!(acts[1].contains("loop 1 works 128.0 times the mean"), "{acts:#?}");
}

/// Looks at the panel until it says that the work is uneven and, told so, that it is no more.
const GUARD: &str = "<!doctype html><body><iframe id=panel src=/panel width=900 height=800></iframe><img src=/hold><script>
    const told = [];
    const look = setInterval(() => {
        const page = document.getElementById('panel').contentDocument, state = page && page.getElementById('state');
        if (!state || / is busy for /.test(state.textContent) !== (told.length === 0)) return;
        const bars = [...page.querySelectorAll('.work-bar')].map(bar => parseFloat(bar.style.height));
        told.push(`${state.textContent.trim()} bars ${bars.map(Math.round).sort((a, b) => a - b)}`
            + ` culprits ${page.getElementById('culprits').textContent}`);
        fetch('/seen/' + told.length);
        if (told.length < 2) return;
        clearInterval(look);
        document.getElementById('panel').remove();
        document.body.append('[' + told.join('|') + ']');
    }, 50);
</script>";

/// One kept connection has all the work, which no policy can share out: its loop's bar is high, the alarm shows, and
/// goes when the work does.
#[test]
fn a_loop_with_all_the_work_is_seen() {
    let stage = Arc::new(Stage { seen: Mutex::new(0), changed: Condvar::new(), loops: 0 });
    let behind = listen({
        let stage = stage.clone();
        move |stream| stage.serve(stream)
    });
    let dir = Dir::new();
    dir.write("html/watch.html", GUARD);
    let conf = format!(
        "worker_processes 1; worker_threads 4; events {{ request_balance off; }}
         http {{ access_log off; types {{ text/html html; }} keepalive_requests 1000000;
            server {{ listen 127.0.0.1:%%PORT%%; root html; proxy_read_timeout 120s;
                location = /panel {{ weir_dashboard; }}
                location = /busy {{ work spin 30ms; return 204; }}
                location ~ ^/(seen|hold) {{ proxy_pass http://127.0.0.1:{behind}; }} }} }}"
    );
    let server = Server::start_in(dir, WEIR, &conf);
    let mut client = server.connect();
    let load = std::thread::spawn({
        let stage = stage.clone();
        move || {
            while *stage.seen.lock().unwrap() == 0 {
                assert_eq!(client.get("/busy").status, 204);
            }
        }
    });
    let url = format!("http://127.0.0.1:{}/watch.html", server.port());
    let page = dump_page(&server.dir().file("profile"), &url);
    stage.reach(ACTS);
    load.join().unwrap();
    let Some(page) = page else { return };
    let said = page.rsplit_once("</script>").map_or("", |(_, rest)| rest);
    let said = said.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let (said, _) = said.unwrap_or_else(|| panic!("it got as far as {:?}: {page}", stage.seen));
    let (uneven, after) = said.split_once('|').unwrap();
    assert!(
        uneven.starts_with("▲ loop ") && uneven.contains(", the mean of 4 loops is "),
        "{said}"
    );
    let bars = uneven.split_once(" bars ").unwrap().1.split(' ').next().unwrap();
    let bars: Vec<u32> = bars.split(',').map(|bar| bar.parse().unwrap()).collect();
    assert!(bars.len() == 4 && bars[3] > 50 && bars[2] < bars[3], "{said}");
    assert!(uneven.contains("module: \"work\", operation: \"spin\""), "{said}");
    assert!(!after.contains(" is busy for "), "{said}");
}

#[test]
fn the_page_s_example_is_served() {
    let page = include_str!("../docs/panel.md");
    let example = examples(page).next().unwrap();
    let server = Server::start(
        WEIR,
        &format!("events {{ }} http {{ server {{ listen 127.0.0.1:%%PORT%%; {example} }} }}"),
    );
    let shown = server.get("/panel");
    assert!(shown.status == 200 && shown.body().contains("shop, first machine"), "{shown:?}");
}
