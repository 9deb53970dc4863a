//! A server's memory, descriptors and tasks after many requests are those after the first few.
//!
//! `WEIR_SOAK` is the number of seconds; without it the test sends a few thousand requests.

use std::fs;
use std::time::{Duration, Instant};

use weir_testkit::{Dice, Dir, Server, ask_until, memory_of, number, seed};

use super::ask::Ask;
use super::{ASKS, Fresh, Step, Used, site};

/// Rounds, and what clients do in each.
const ROUNDS: usize = 4;
const ROUND: usize = 400;
/// Connections to servers are kept for the next request: there may be more or fewer.
const SLACK: usize = 16;
/// Memory that a rush leaves behind, for the next one: kilobytes.
const LEFT: u64 = 12 * 1024;

#[derive(Debug)]
struct Has {
    /// This question's own, and those that wait for the next request to a server, at both of their ends.
    connections: usize,
    descriptors: usize,
    /// Kilobytes of its own that were written.
    memory: u64,
    /// Those of them that are in no zone or file: heap and stacks.
    heap: u64,
}

impl Has {
    fn is_like(&self, usual: &Has) -> bool {
        self.connections <= 1 + SLACK / 2
            && self.descriptors <= usual.descriptors + SLACK
            && self.memory <= usual.memory + LEFT
            && self.heap <= usual.heap + LEFT
    }
}

/// What the worker has once no request is being served: as much as `usual`, or what it has by then.
fn at_rest(used: &mut Used, usual: Option<&Has>) -> Has {
    used.http1.clear();
    used.http2.clear();
    used.held = None;
    let worker = used.server.workers()[0];
    let mut has = Has { connections: usize::MAX, descriptors: 0, memory: 0, heap: 0 };
    // Connections end when their ends are seen, and memory goes back a while after a rush.
    ask_until(|| {
        has = look(&used.server, worker);
        has.connections <= 1 + SLACK / 2 && usual.is_none_or(|usual| has.is_like(usual))
    });
    has
}

fn look(server: &Server, worker: i32) -> Has {
    Has {
        connections: active(server),
        descriptors: fs::read_dir(format!("/proc/{worker}/fd")).unwrap().count(),
        memory: memory_of(worker, "Private_Dirty"),
        heap: memory_of(worker, "Pss_Anon"),
    }
}

fn active(server: &Server) -> usize {
    let body = server.get("/status").body();
    let count = body.lines().next().and_then(|line| line.rsplit(": ").next());
    count.and_then(|count| count.trim().parse().ok()).expect("stub_status")
}

#[test]
fn nothing_is_kept_of_served_requests() {
    let mut dice = Dice::new(seed());
    let soak = number("WEIR_SOAK").map(Duration::from_secs);
    let html = Dir::new();
    site::write(&html);
    let conf = site::conf(&html, site::origin(), site::scripts());
    let asks: Vec<Ask> = (0..ASKS).map(|_| Ask::any(&mut dice)).collect();
    let mut used = Used::new(&conf);
    let (begun, mut has) = (Instant::now(), Vec::new());
    while has.len() < ROUNDS || soak.is_some_and(|soak| begun.elapsed() < soak) {
        for _ in 0..ROUND {
            used.act(&Step::any(&mut dice, &asks));
        }
        // The first rounds grow what is kept, within its bounds.
        let usual = has.get(1).or(has.first());
        let now = at_rest(&mut used, usual);
        assert!(usual.is_none_or(|usual| now.is_like(usual)), "{now:?} behind {has:?}");
        if soak.is_some() {
            println!("{} s: {now:?}", begun.elapsed().as_secs());
        }
        has.push(now);
    }
    println!("{} requests: {:?} and {:?}", has.len() * ROUND, has[0], has[has.len() - 1]);
    // And it is none the worse for it. What it has stored may be the answer to another one.
    let mut fresh = Fresh { conf: &conf, known: Default::default() };
    for ask in asks.iter().filter(|ask| !ask.is_stored()).take(5) {
        assert_eq!(used.ask(std::slice::from_ref(ask), false)[0], fresh.answer(ask), "{ask:?}");
    }
}
