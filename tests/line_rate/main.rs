//! A client sends as fast as a line carries it, at each place where that is read. Another client
//! waits no longer than with nginx, and the loop does not work much meanwhile.
//!
//! A flood goes to one server, and a bystander asks it for a page. The bystander also asks a server
//! that is left alone: its time is the machine's noise. The kernel says how much processor time a
//! worker of weir uses while a client waits, which other processes do not lengthen. The measure is
//! the cost of an answer without a flood. Only ratios count, of builds with optimisation:
//! `WEIR_BINARY` names one where the test has none (`just line-rate`). nginx is `$WEIR_NGINX`, or
//! `nginx` on the path. Without either nothing is compared, and the output says so. `WEIR_PLACES`
//! names the places that are looked at, `WEIR_TABLE` prints all figures.

mod flood;
mod places;
mod sources;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_testkit::{Client, Dir, Oracle, Server};

use flood::Target;
use places::PLACES;
use sources::{SENT, Sources};

/// Looks at a place, alternately with each server, and how long each is.
const LOOKS: usize = 4;
const LOOK: Duration = Duration::from_millis(250);
/// A connection of its own for one question in so many.
const ANEW: usize = 8;
/// So many times as long as with nginx.
const RATIO: u32 = 4;
/// While a client waits, a loop works at most as long as for this many answers.
const ANSWERS: u64 = 1000;
/// A busy machine is asked again.
const TRIES: usize = 3;

/// How long a bystander waited for each answer.
#[derive(Default)]
struct Waits(Vec<Duration>);

impl Waits {
    /// 99 of 100 took no longer.
    fn p99(&mut self) -> Duration {
        self.0.sort_unstable();
        self.0.get(self.0.len().saturating_sub(1) * 99 / 100).copied().unwrap_or(Duration::MAX)
    }
}

/// What a process's first thread has run so far, in nanoseconds.
fn work(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// A client that asks one question after the other.
struct Bystander {
    port: u16,
    worker: i32,
    client: Client,
    asked: usize,
    waits: Waits,
    /// What the worker did meanwhile.
    works: Waits,
}

impl Bystander {
    fn new(server: &Server) -> Bystander {
        let (port, worker) = (server.port(), server.workers()[0]);
        let (waits, works) = (Waits::default(), Waits::default());
        Bystander { port, worker, client: Client::connect(port), asked: 0, waits, works }
    }

    fn ask(&mut self) {
        let (begun, before) = (Instant::now(), work(self.worker));
        if self.asked.is_multiple_of(ANEW) {
            self.client = Client::connect(self.port);
        }
        assert_eq!(self.client.get("/ok").status, 200);
        self.waits.0.push(begun.elapsed());
        self.works.0.push(Duration::from_nanos(work(self.worker) - before));
        self.asked += 1;
    }
}

/// What was seen of a place.
struct Seen {
    weir: Duration,
    nginx: Duration,
    noise: Duration,
    /// What weir did while a client waited, in answers.
    work: u64,
    /// There was a flood at either.
    flows: bool,
}

impl Seen {
    fn is_fair(&self) -> bool {
        self.weir <= self.nginx.max(self.noise) * RATIO && self.work <= ANSWERS
    }
}

fn look(place: &places::Place, weir: &Server, nginx: &Server, still: &Server) -> Seen {
    let (mut busy, mut idle) = ([weir, nginx].map(Bystander::new), Waits::default());
    let answer = quiet(weir);
    let mut bytes = [0; 2];
    for turn in 0..LOOKS * 2 {
        let flooded = turn % 2;
        let server = [weir, nginx][flooded];
        let mut alone = Bystander::new(still);
        let (stop, moved) = (AtomicBool::new(false), AtomicU64::new(0));
        let before = SENT.load(Ordering::Relaxed);
        thread::scope(|scope| {
            for _ in 0..place.clients {
                let target = Target { server, stop: &stop, moved: &moved };
                scope.spawn(move || (place.flood)(&target));
            }
            let begun = Instant::now();
            while begun.elapsed() < LOOK {
                busy[flooded].ask();
                alone.ask();
            }
            stop.store(true, Ordering::Relaxed);
        });
        idle.0.append(&mut alone.waits.0);
        bytes[flooded] += moved.into_inner() + SENT.load(Ordering::Relaxed) - before;
    }
    let [mut weir, mut nginx] = busy;
    let flows = bytes.iter().all(|n| *n > 0);
    let work = weir.works.p99().div_duration_f64(answer) as u64;
    Seen { weir: weir.waits.p99(), nginx: nginx.waits.p99(), noise: idle.p99(), work, flows }
}

/// What an answer takes of a processor where there is no flood.
fn quiet(server: &Server) -> Duration {
    let mut alone = Bystander::new(server);
    (0..100).for_each(|_| alone.ask());
    alone.works.0.iter().sum::<Duration>() / 100
}

#[test]
fn a_bystander_of_a_flood_waits_no_longer_than_with_nginx() {
    let Some(oracle) = Oracle::find() else { return };
    if oracle.is_old() || !oracle.has("http_v2_module") || !oracle.has("with-stream") {
        println!("not run: nginx is too old, or lacks HTTP/2 or streams");
        return;
    }
    let binary = std::env::var("WEIR_BINARY");
    if cfg!(debug_assertions) && binary.is_err() {
        println!("not run: no build with optimisation to look at");
        return;
    }
    let sources = Sources::new();
    let start = |program: &str, is_weir: bool| {
        let dir = Dir::new();
        places::write(&dir);
        Server::start_in(dir, program, &places::own(&places::conf(&sources), is_weir))
    };
    let weir = start(binary.as_deref().unwrap_or(env!("CARGO_BIN_EXE_weir")), true);
    let (nginx, still) = (start(&oracle.path, false), start(&oracle.path, false));
    let wanted = std::env::var("WEIR_PLACES").unwrap_or_default();
    let mut unfair = Vec::new();
    for place in PLACES.iter().filter(|place| place.name.contains(&wanted)) {
        let mut seen = look(place, &weir, &nginx, &still);
        for _ in 1..TRIES {
            if !seen.is_fair() {
                seen = look(place, &weir, &nginx, &still);
            }
        }
        assert!(seen.flows, "{}: nothing flows", place.name);
        let Seen { weir, nginx, noise, work, .. } = seen;
        let line = format!("| {} | {weir:.1?} | {nginx:.1?} | {noise:.1?} | {work} |", place.name);
        if std::env::var_os("WEIR_TABLE").is_some() {
            println!("{line}");
        }
        if !seen.is_fair() {
            unfair.push(line);
        }
    }
    assert!(unfair.is_empty(), "place, weir, nginx, noise, work:\n{}", unfair.join("\n"));
}
