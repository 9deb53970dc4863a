//! Derives findings from the measurements. Pure.

use crate::datagrams;
use crate::report::{Finding, ListenAddress, Severity, WaitMethod, Worker};

/// A worker with at least this processor time is overloaded.
const OVERLOADED: f64 = 0.9;

/// The findings about an address, the most severe first. There is at least one.
pub(crate) fn findings(place: &ListenAddress, processors: usize) -> Vec<Finding> {
    let rules = [overflow, queue_of_one, skewed, herd, one_overloaded, datagrams::dropped];
    let mut out: Vec<Finding> = rules.iter().filter_map(|rule| rule(place)).collect();
    out.extend(all_overloaded(place, processors));
    out.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    if out.is_empty() {
        out.push(Finding {
            severity: Severity::Fine,
            what: "nothing is wrong that can be seen from outside".to_owned(),
            why: String::new(),
            advice: String::new(),
        });
    }
    out
}

fn name(worker: &Worker) -> String {
    format!("{} {}", worker.name, worker.pid)
}

fn is_nginx(place: &ListenAddress) -> bool {
    place.program == "nginx"
}

/// The workers that serve connections. If some are passed connections, only these.
fn serving(place: &ListenAddress) -> Vec<&Worker> {
    let handed = |worker: &&Worker| worker.waits == WaitMethod::Handed;
    let some: Vec<&Worker> = place.workers.iter().filter(handed).collect();
    if some.is_empty() { place.workers.iter().collect() } else { some }
}

/// One worker has most of the connections.
fn skewed(place: &ListenAddress) -> Option<Finding> {
    let serving = serving(place);
    let all: usize = serving.iter().map(|worker| worker.connections).sum();
    let first = serving.iter().max_by_key(|worker| worker.connections)?;
    let without = serving.iter().filter(|worker| worker.connections == 0).count();
    let count = serving.len();
    // More than twice the even share, and at least three: with fewer connections it may be chance.
    let is_skewed = count > 1 && first.connections >= 3 && first.connections * count > all * 2;
    if !is_skewed {
        return None;
    }
    let what = format!(
        "{} has {} of {all} connections; {without} of {count} workers have none",
        name(first),
        first.connections
    );
    let one_queue = place.queues.len() == 1;
    let in_turns = place.workers.iter().any(|worker| worker.waits == WaitMethod::Turns);
    let why = match (one_queue, first.waits) {
        (_, WaitMethod::Handed) => "one process accepts all connections and hands them on",
        (true, _) if in_turns => {
            "not all wait at the queue (with accept_mutex one at a time does), and the one that waits takes most"
        }
        (true, WaitMethod::EpollExclusive) => {
            "all wait at one queue, and the kernel wakes the first in its list, again and again the same one while it sleeps between two connections"
        }
        (true, WaitMethod::Epoll | WaitMethod::Poll) => {
            "all wait at one queue and are all woken; a worker that is awake already takes most"
        }
        (true, _) => "all wait at one queue, and the first one takes",
        (false, _) => {
            "each has a queue of its own, which the kernel fills by a hash, whatever a worker has already"
        }
    };
    let advice = match (one_queue, is_nginx(place)) {
        _ if first.waits == WaitMethod::Handed => {
            "let it hand them out by what each has, or have the workers listen themselves, with SO_REUSEPORT (then see `weir balance`)"
        }
        (true, true) => {
            "nginx has no setting that is even and keeps one queue. `listen ... reuseport` evens it out at the price of a queue \
             for each worker (then see `weir balance`); weir serves the same nginx.conf with one queue and evenly"
        }
        (true, false) => {
            "if it can listen with SO_REUSEPORT, that evens it out at the price of a queue for each worker (then see `weir balance`)"
        }
        (false, _) => "`weir balance` gives new connections to the workers that have time for them",
    };
    Some(Finding { severity: Severity::Bad, what, why: why.to_owned(), advice: advice.to_owned() })
}

/// Connections wait in one worker's queue while another worker has time.
fn queue_of_one(place: &ListenAddress) -> Option<Finding> {
    if place.queues.len() < 2 {
        return None;
    }
    let longest = place.queues.iter().max_by_key(|queue| queue.waiting)?;
    let waiting = longest.waiting.filter(|n| *n > 1)?;
    let free = place.queues.iter().filter(|queue| queue.waiting == Some(0)).count();
    let worker = place.workers.iter().find(|worker| longest.workers.contains(&worker.pid))?;
    (free > 0).then(|| Finding {
        severity: Severity::Bad,
        what: format!("{waiting} connections waited for {} while {free} queues were empty", name(worker)),
        why: "each worker has a queue of its own: a connection in it waits for this worker, even if another has time".to_owned(),
        advice: "`weir balance` keeps new connections away from a worker that is behind; one queue for all (without \
                 `reuseport`) has nobody wait beside a worker that has time"
            .to_owned(),
    })
}

/// A queue is full or nearly full.
fn overflow(place: &ListenAddress) -> Option<Finding> {
    let fullest = place.queues.iter().filter_map(|queue| queue.waiting.zip(queue.room));
    let (waiting, room) = fullest.max_by_key(|(waiting, _)| *waiting)?;
    let dropped = place.overflows.unwrap_or(0);
    // A backlog may be as long as net.core.somaxconn lets it.
    if u64::from(waiting) * 5 < u64::from(room) * 4 || room == 0 {
        return None;
    }
    Some(Finding {
        severity: Severity::Bad,
        what: format!(
            "{waiting} connections waited where {room} have room; {dropped} were dropped on this machine meanwhile"
        ),
        why: "they come faster than they are accepted, in bursts or always".to_owned(),
        advice: "a longer queue (nginx: `listen ... backlog=N`, and net.core.somaxconn) bears bursts; if it is full always, \
                 workers are too few or too slow"
            .to_owned(),
    })
}

/// Each connection wakes all workers.
fn herd(place: &ListenAddress) -> Option<Finding> {
    let one_queue = place.queues.len() == 1;
    let waits = |worker: &&Worker| matches!(worker.waits, WaitMethod::Epoll | WaitMethod::Poll);
    let woken = place.workers.iter().filter(waits).count();
    let polls = place.workers.iter().any(|worker| worker.waits == WaitMethod::Poll);
    if !one_queue || woken < 2 {
        return None;
    }
    let switches: f64 = place.workers.iter().map(|worker| worker.switches).sum();
    Some(Finding {
        severity: Severity::Note,
        what: format!(
            "a connection wakes up to {woken} workers ({switches:.0} context switches a second in all)"
        ),
        why: match polls {
            true => "they wait in poll(2) or select(2), which knows no other way".to_owned(),
            false => "they wait in epoll without EPOLLEXCLUSIVE".to_owned(),
        },
        advice: match is_nginx(place) {
            true => "leave `accept_mutex off` and use nginx 1.11.3 or later on Linux 4.5 or later, or `reuseport`".to_owned(),
            false => "that costs little with few workers: of programs with threads (gunicorn --threads, puma -t) rather take fewer \
                      workers with more threads; a newer version may wait with EPOLLEXCLUSIVE, or listen with SO_REUSEPORT"
                .to_owned(),
        },
    })
}

/// One worker is overloaded and the others are not.
fn one_overloaded(place: &ListenAddress) -> Option<Finding> {
    let count = place.workers.len();
    let first = place.workers.iter().max_by(|a, b| a.cpu.total_cmp(&b.cpu))?;
    let others = place.workers.iter().map(|worker| worker.cpu).sum::<f64>() - first.cpu;
    let mean = others / count.saturating_sub(1).max(1) as f64;
    (count > 1 && first.busiest > OVERLOADED && mean < OVERLOADED / 2.0).then(|| Finding {
        severity: Severity::Bad,
        what: format!("{} has no time left ({:.0} % of a processor), the others have {:.0} % on average", name(first), first.cpu * 100.0, mean * 100.0),
        why: "its connections ask for more than it can do, and connections stay where they were accepted".to_owned(),
        advice: "spread the connections (above), and let clients that ask much reconnect now and then (nginx: keepalive_requests, keepalive_time)".to_owned(),
    })
}

/// All workers are overloaded.
fn all_overloaded(place: &ListenAddress, processors: usize) -> Option<Finding> {
    let threads: usize = place.workers.iter().map(|worker| worker.loops.max(1)).sum();
    let all_full =
        !place.workers.is_empty() && place.workers.iter().all(|worker| worker.busiest > OVERLOADED);
    if !all_full {
        return None;
    }
    let advice = if threads < processors {
        format!(
            "it has {threads} loops on {processors} processors: more workers (nginx: `worker_processes auto`)"
        )
    } else {
        "this machine has no more to give: profile it, cache more, or take a second one".to_owned()
    };
    Some(Finding {
        severity: Severity::Bad,
        what: "all workers have no time left".to_owned(),
        why: "each is at work all the time".to_owned(),
        advice,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::AcceptQueue;

    fn place(connections: &[usize], queues: &[u32]) -> ListenAddress {
        let workers: Vec<Worker> = (1..)
            .zip(connections)
            .map(|(pid, connections)| Worker {
                pid,
                name: "nginx".to_owned(),
                waits: WaitMethod::EpollExclusive,
                loops: 1,
                threads: 1,
                cpu: 0.1,
                busiest: 0.1,
                rows: Vec::new(),
                switches: 10.0,
                connections: *connections,
            })
            .collect();
        let queue = |(pid, waiting): (i32, &u32)| AcceptQueue {
            waiting: Some(*waiting),
            room: Some(511),
            workers: if queues.len() == 1 {
                (1..=workers.len() as i32).collect()
            } else {
                vec![pid]
            },
        };
        ListenAddress {
            address: "127.0.0.1:80".to_owned(),
            program: "nginx".to_owned(),
            queues: (1..).zip(queues).map(queue).collect(),
            workers,
            connections: connections.iter().sum(),
            overflows: Some(0),
            datagrams: None,
            findings: Vec::new(),
            health: None,
        }
    }

    #[test]
    fn an_accepting_process_without_connections_is_no_finding() {
        let mut node = place(&[0, 2, 2, 2], &[0]);
        node.workers[1..].iter_mut().for_each(|worker| worker.waits = WaitMethod::Handed);
        assert_eq!(said(&node), ["nothing is wrong that can be seen from outside"]);
        node.workers[1].connections = 20;
        let found = findings(&node, 4);
        assert_eq!(found[0].what, "nginx 2 has 20 of 24 connections; 0 of 3 workers have none");
        assert!(found[0].why.contains("hands them on"), "{found:?}");
    }

    fn said(place: &ListenAddress) -> Vec<String> {
        findings(place, 4).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn the_worker_with_most_connections_is_named() {
        let found = findings(&place(&[0, 4, 0, 0], &[0]), 4);
        assert_eq!(found[0].what, "nginx 2 has 4 of 4 connections; 3 of 4 workers have none");
        assert!(found[0].why.contains("one queue") && found[0].advice.contains("weir"));
        assert_eq!(
            said(&place(&[9, 11, 10, 8], &[0])),
            ["nothing is wrong that can be seen from outside"]
        );
        assert_eq!(said(&place(&[1, 0, 0, 0], &[0])).len(), 1, "one is no skew");
    }

    #[test]
    fn a_connection_that_waits_beside_a_free_worker_is_reported() {
        let said = said(&place(&[5, 5, 5, 5], &[0, 7, 0, 1]));
        assert_eq!(said, ["7 connections waited for nginx 2 while 2 queues were empty"]);
    }

    #[test]
    fn full_queues_and_overloaded_workers_are_reported() {
        assert!(said(&place(&[5, 5], &[500]))[0].starts_with("500 connections waited where 511"));
        let mut long = place(&[5, 5], &[500]);
        long.queues[0].room = Some(1 << 30);
        assert_eq!(said(&long), ["nothing is wrong that can be seen from outside"]);
        let mut busy = place(&[5, 5], &[0]);
        busy.workers[1].cpu = 1.0;
        busy.workers[1].busiest = 1.0;
        assert!(said(&busy)[0].starts_with("nginx 2 has no time left (100 %"));
        busy.workers[0].busiest = 0.95;
        busy.workers[0].cpu = 0.95;
        let all = findings(&busy, 4);
        assert_eq!(all[0].what, "all workers have no time left");
        assert!(all[0].advice.contains("2 loops on 4 processors"));
    }

    #[test]
    fn a_herd_is_reported() {
        let mut herd = place(&[5, 5], &[0]);
        herd.workers.iter_mut().for_each(|worker| worker.waits = WaitMethod::Epoll);
        assert!(said(&herd)[0].starts_with("a connection wakes up to 2 workers"));
        herd.workers.iter_mut().for_each(|worker| worker.waits = WaitMethod::Poll);
        assert!(findings(&herd, 4)[0].why.contains("poll(2) or select(2)"));
    }
}
