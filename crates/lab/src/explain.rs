//! `weir lab sim --explain`: how the kernel walks the wait list, step by step.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use weir_balance::AcceptPolicy;
use weir_balance::model::{ModelClient, ModelSocket, Note, Visit, What, World};

use crate::finding::wrap;

const MS: Duration = Duration::from_millis(1);
const LOOPS: usize = 3;
const CONNECTIONS: u32 = 4;

/// The accept models that walk the wait list differently, and what to watch for.
const MODELS: &[(&str, &str, &str)] = &[
    (
        "blocking accept()",
        "blocking",
        "Whoever takes a connection leaves the list while it works, and comes back at its end: turns come by themselves.",
    ),
    (
        "EPOLLEXCLUSIVE, registered once",
        "exclusive",
        "No worker leaves the list, so the first one that sleeps is asked first each time.",
    ),
    (
        "EPOLLEXCLUSIVE, re-added every 2 accepts (nginx: every 16)",
        "rotate=2",
        "After every second accept a worker goes to the end of the list.",
    ),
    (
        "plain epoll",
        "herd",
        "No registration is exclusive, so that the walk never ends early: all are woken, and all but one find nothing.",
    ),
    (
        "reuseport",
        "reuseport",
        "A hash of the addresses chooses a queue, and only its owner is there to be woken, asleep or not.",
    ),
    (
        "fair",
        "fair",
        "Whoever has more connections than the others takes itself out of the list; the others go to its end after each accept. \
         When nothing has happened for 20 ms it comes back, to the end, and sleeps.",
    ),
];

/// The whole text.
pub(crate) fn explain() -> String {
    let mut out = wait_list_example();
    for (title, policy, remark) in MODELS {
        if let Ok(kind) = AcceptPolicy::parse(policy) {
            let _ =
                writeln!(out, "\n{title}: {CONNECTIONS} connections, {LOOPS} sleeping workers\n");
            out += &wrap(remark);
            out.push('\n');
            out += &walk(kind);
        }
    }
    out
}

/// The four entries of the published example.
pub(crate) fn wait_list_example() -> String {
    let name = |who: usize| ["A", "B", "C", "D"].get(who).copied().unwrap_or("?").to_owned();
    let mut out = wrap(
        "A listening socket has a list of those who want to hear of connections. An entry is a worker's epoll instance; \
         it is plain, or exclusive (EPOLLEXCLUSIVE). When a connection comes, the kernel walks along the list, tells each \
         entry, and stops behind the first exclusive entry whose worker it could wake. It matters, then, \
         who stands where.",
    );
    out += "\nFour workers register: A plain, B exclusive, C exclusive, D plain.\n";
    let mut socket = ModelSocket::default();
    for (who, exclusive) in [(0, false), (1, true), (2, true), (3, false)] {
        socket.add(who, exclusive);
        let place = if exclusive { "at the end" } else { "at the head" };
        let list = listed(&socket.order(), name);
        let _ = writeln!(out, "  {} is put {place}: {list}", name(who));
    }
    out.push('\n');
    out += &wrap(
        "(fs/eventpoll.c adds exclusive entries with add_wait_queue_exclusive, at the tail, and plain ones with add_wait_queue, \
         at the head. The article on epoll has it the other way round, B C A D; what it concludes of B and C holds all the same.)",
    );
    let describe = |out: &mut String, socket: &mut ModelSocket, title: &str, busy: &[usize]| {
        let _ = writeln!(out, "\n{title}");
        let order = socket.order();
        let walk = socket.arrive(0, Duration::ZERO, |who| !busy.contains(&who));
        steps(out, &order, &walk, name);
        let _ = socket.accept();
    };
    describe(&mut out, &mut socket, "A connection comes while all sleep:", &[]);
    describe(&mut out, &mut socket, "Another one, while B is busy:", &[1]);
    socket.remove(1);
    socket.add(1, true);
    let title = format!(
        "B removes its entry and adds it again, as nginx does after 16 connections: {}. The next one:",
        listed(&socket.order(), name)
    );
    describe(&mut out, &mut socket, &title, &[]);
    out
}

/// Connections that arrive one after another, under a policy.
fn walk(kind: AcceptPolicy) -> String {
    let mut world = World::new(kind, LOOPS, Instant::now());
    // Skips the start.
    world.run(MS);
    world.take_notes();
    for n in 1..=CONNECTIONS {
        world.client(MS * 50 * n, ModelClient { requests: 1, ..ModelClient::keeping(MS) });
    }
    world.run(MS * 50 * (CONNECTIONS + 1));
    let mut out = String::new();
    world.notes().iter().for_each(|note| describe(&mut out, note));
    let got: Vec<String> = world.witness().accepted.iter().map(u64::to_string).collect();
    let _ = writeln!(out, "  So the workers took {}.", got.join(" / "));
    out
}

fn describe(out: &mut String, note: &Note) {
    let at = note.at.as_secs_f64() * 1e3;
    let name = |who: usize| format!("worker {who}");
    match &note.what {
        What::Arrived { connection, order, walk } => {
            let list = listed(order, name);
            let _ = writeln!(
                out,
                "  {at:6.2} ms  connection {} comes; the list: {list}",
                connection + 1
            );
            steps(out, order, walk, name);
        }
        What::Accepted { who, connection, left } => {
            let _ = writeln!(
                out,
                "  {at:6.2} ms  worker {who} accepts connection {}; {left} wait",
                connection + 1
            );
        }
        What::FoundNone { who } => {
            let _ = writeln!(out, "  {at:6.2} ms  worker {who} was woken for nothing");
        }
        What::Registered { who, armed, order } => {
            let deed = if *armed { "stands at the end of the list" } else { "takes itself out" };
            let _ = writeln!(out, "  {at:6.2} ms  worker {who} {deed}: {}", listed(order, name));
        }
    }
}

/// Each entry that the walk visits, why it is woken or not, and the entries not visited.
fn steps(
    out: &mut String,
    order: &[(usize, bool)],
    walk: &[Visit],
    name: impl Fn(usize) -> String,
) {
    for visit in walk {
        let kind = if visit.exclusive { "exclusive" } else { "plain" };
        let fate = match (visit.asleep, visit.exclusive) {
            (true, true) => {
                "sleeps, is woken; the one wake-up for exclusive entries is used, the walk ends"
            }
            (true, false) => {
                "sleeps, is woken; a plain entry does not use the wake-up, the walk goes on"
            }
            (false, _) => {
                "is busy, will see it when it is done; no worker was woken, the walk goes on"
            }
        };
        let _ = writeln!(out, "      {} ({kind}) {fate}", name(visit.who));
    }
    let rest = order.get(walk.len()..).unwrap_or_default();
    let _ = match rest.is_empty() {
        true => writeln!(out, "      no worker is left"),
        false => writeln!(out, "      not asked: {}", listed(rest, name)),
    };
}

fn listed(order: &[(usize, bool)], name: impl Fn(usize) -> String) -> String {
    let names: Vec<String> = order.iter().map(|(who, _)| name(*who)).collect();
    if names.is_empty() { "no worker".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_articles_four_are_walked_as_the_kernel_does() {
        let text = wait_list_example();
        assert!(text.contains("D is put at the head: D, A, B, C"), "{text}");
        let all: Vec<&str> = text.lines().map(str::trim).collect();
        let at = |line: &str| all.iter().position(|l| l.starts_with(line)).unwrap();
        let first = at("A connection comes");
        assert!(all[first + 3].starts_with("B (exclusive) sleeps, is woken; the one wake-up"));
        assert_eq!(all[first + 4], "not asked: C");
        let busy = at("Another one");
        assert!(all[busy + 3].starts_with("B (exclusive) is busy"));
        assert!(all[busy + 4].starts_with("C (exclusive) sleeps"));
        assert!(text.contains("as nginx does after 16 connections: D, A, C, B."));
    }

    #[test]
    fn every_policy_ends_with_its_spread() {
        let text = explain();
        for (title, spread) in
            [("blocking", "2 / 1 / 1"), ("exclusive", "4 / 0 / 0"), ("fair", "1 / 2 / 1")]
        {
            let kind = AcceptPolicy::parse(title).unwrap();
            assert!(walk(kind).contains(&format!("took {spread}.")), "{title}\n{}", walk(kind));
        }
        assert!(text.contains("was woken for nothing"));
        assert!(text.lines().all(|line| line.chars().count() <= 130), "{text}");
    }
}
