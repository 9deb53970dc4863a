//! Rules about limits: those of the configuration for clients, and those of the system for workers.

use super::{NEARLY, share, when};
use crate::Level::{Red, Yellow};
use crate::judge::{Held, Looks};
use crate::snapshot::MemoryUse;

/// The least refused requests within the window that count.
const REFUSED: u64 = 30;

/// Limits refuse most requests.
pub(super) fn flood(looks: Looks<'_>) -> Vec<Held> {
    let (limited, requests) = (looks.grown(|s| s.limited), looks.grown(|s| s.requests));
    if limited < REFUSED || limited.saturating_mul(2) < requests {
        return Vec::new();
    }
    let limited = looks.rate(|s| s.limited).round();
    let requests = looks.rate(|s| s.requests).round().max(limited);
    let text = format!(
        "a flood: limit_req or limit_conn refuses {limited} of {requests} requests a second; the error log names clients and zones"
    );
    vec![Held { level: Yellow, subject: "limits".to_owned(), text, since: None }]
}

/// Workers cannot open more, or soon cannot.
pub(super) fn descriptors(looks: Looks<'_>) -> Vec<Held> {
    let text =
        "connections cannot be accepted: descriptors or memory are short (worker_rlimit_nofile)";
    let mut found = when(looks.grown(|s| s.accepts_failed) > 0, Red, "accept", text);
    for process in &looks.now.processes {
        let (n, most) = (process.descriptors, process.descriptors_limit);
        if most > 0 && share(n, most) >= NEARLY {
            let subject = format!("worker process {}", process.pid);
            let text =
                format!("{subject} has {n} of {most} descriptors open (worker_rlimit_nofile)");
            found.push(Held { level: Yellow, subject, text, since: None });
        }
    }
    found
}

/// The kernel is about to kill processes for want of memory.
pub(super) fn memory(looks: Looks<'_>) -> Vec<Held> {
    let Some(MemoryUse { used, limit }) = looks.now.memory else { return Vec::new() };
    // Rounded, so that the text does not change with every look.
    let percent = (share(used, limit) * 100.0).floor();
    let text = format!(
        "{percent} % of the {} MiB of memory that this container or unit may have are used",
        limit >> 20
    );
    when(share(used, limit) >= NEARLY, Yellow, "memory", &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProcessState;
    use crate::rules::tests::{NOW, finds};
    use crate::snapshot::Snapshot;

    #[test]
    fn memory_is_named_from_nine_tenths_of_the_limit_on() {
        let with = |used| {
            let memory = Some(MemoryUse { used, limit: 1000 << 20 });
            finds(&Snapshot { at: NOW, memory, ..Snapshot::default() })
        };
        assert_eq!(with(899 << 20), []);
        let text = "91 % of the 1000 MiB of memory that this container or unit may have are used";
        assert_eq!(with(919 << 20), [("memory".to_owned(), Yellow, text.to_owned())]);
    }

    #[test]
    fn descriptors_are_named_from_nine_tenths_of_the_limit_on() {
        let with = |descriptors, descriptors_limit| {
            let processes = vec![ProcessState { pid: 7, descriptors, descriptors_limit }];
            finds(&Snapshot { at: NOW, processes, ..Snapshot::default() })
        };
        assert_eq!(with(89, 100), []);
        assert_eq!(with(5000, 0), []);
        let text = "worker process 7 has 90 of 100 descriptors open (worker_rlimit_nofile)";
        assert_eq!(with(90, 100), [("descriptors".to_owned(), Yellow, text.to_owned())]);
    }
}
