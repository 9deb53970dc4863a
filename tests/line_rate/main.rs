//! Whoever sends as fast as a line carries it, and wherever that is read: another client waits no longer than with nginx.
//!
//! A flood goes to one server, and a bystander asks it meanwhile for a page, as well as a server that is left alone:
//! what that one takes is the machine's noise. Only ratios count, of builds with optimisation: `WEIR_BINARY` names one where
//! the test has none (`just line-rate`). nginx is `$WEIR_NGINX`, or `nginx` on the path; without either nothing is
//! compared, and the output says so. `WEIR_PLACES` names the places that are looked at, `WEIR_TABLE` prints all figures.

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

/// A client that asks one question after the other.
struct Bystander {
    port: u16,
    client: Client,
    asked: usize,
    waits: Waits,
}

impl Bystander {
    fn new(port: u16) -> Bystander {
        Bystander { port, client: Client::connect(port), asked: 0, waits: Waits::default() }
    }

    fn ask(&mut self) {
        let begun = Instant::now();
        if self.asked.is_multiple_of(ANEW) {
            self.client = Client::connect(self.port);
        }
        assert_eq!(self.client.get("/ok").status, 200);
        self.waits.0.push(begun.elapsed());
        self.asked += 1;
    }
}

/// What was seen of a place.
struct Seen {
    weir: Duration,
    nginx: Duration,
    noise: Duration,
    /// There was a flood at either.
    flows: bool,
}

impl Seen {
    fn is_fair(&self) -> bool {
        self.weir <= self.nginx.max(self.noise) * RATIO
    }
}

fn look(place: &places::Place, weir: &Server, nginx: &Server, still: &Server) -> Seen {
    let (mut busy, mut idle) = ([weir, nginx].map(|s| Bystander::new(s.port())), Waits::default());
    let mut bytes = [0; 2];
    for turn in 0..LOOKS * 2 {
        let flooded = turn % 2;
        let server = [weir, nginx][flooded];
        let mut alone = Bystander::new(still.port());
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
    let [mut weir, mut nginx] = busy.map(|one| one.waits);
    let flows = bytes.iter().all(|n| *n > 0);
    Seen { weir: weir.p99(), nginx: nginx.p99(), noise: idle.p99(), flows }
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
    let start = |program: &str| {
        let dir = Dir::new();
        places::write(&dir);
        Server::start_in(dir, program, &places::conf(&sources))
    };
    let weir = start(binary.as_deref().unwrap_or(env!("CARGO_BIN_EXE_weir")));
    let (nginx, still) = (start(&oracle.path), start(&oracle.path));
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
        let Seen { weir, nginx, noise, .. } = seen;
        let line = format!("| {} | {weir:.1?} | {nginx:.1?} | {noise:.1?} |", place.name);
        if std::env::var_os("WEIR_TABLE").is_some() {
            println!("{line}");
        }
        if !seen.is_fair() {
            unfair.push(line);
        }
    }
    assert!(unfair.is_empty(), "place, weir, nginx, noise:\n{}", unfair.join("\n"));
}
