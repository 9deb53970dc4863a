//! Rules about servers that this one asks, and about requests that fail.

use super::when;
use crate::Level::{Red, Yellow};
use crate::judge::{Held, Looks};
use crate::snapshot::{FailingServer, ServerBehind};

/// Failures in a row from which on a reachable server counts as broken. A single one may be a bad request's.
const FAILURES: u64 = 3;

fn is_broken(server: &ServerBehind) -> Option<&FailingServer> {
    let failing = server.failing.as_ref().filter(|_| !server.is_out)?;
    (failing.unreachable || failing.in_a_row >= FAILURES).then_some(failing)
}

/// Whether all servers of a group that are to serve are broken.
fn is_lost(group: &str, all: &[ServerBehind]) -> bool {
    let mut own = all.iter().filter(|server| server.group == group && !server.is_out);
    own.all(|server| is_broken(server).is_some())
}

/// No server of a group works: its requests fail.
pub(super) fn no_live_server(looks: Looks<'_>) -> Vec<Held> {
    let all = &looks.now.servers;
    let mut found: Vec<Held> = Vec::new();
    for server in all {
        let Some(failing) = is_broken(server) else { continue };
        if found.iter().any(|held| held.subject == server.group) || !is_lost(&server.group, all) {
            continue;
        }
        let (group, name) = (&server.group, &server.server);
        let own = all.iter().filter(|other| other.group == *group && !other.is_out);
        let n = own.count();
        let text = match n {
            1 => format!("{group}: {name} fails: {}", failing.reason),
            _ => format!("{group}: all {n} servers fail, {name}: {}", failing.reason),
        };
        let (subject, since) = (group.clone(), failing.since);
        found.push(Held { level: Red, subject, text, since });
    }
    found
}

/// A server behind fails, others of its group do not.
pub(super) fn server_failing(looks: Looks<'_>) -> Vec<Held> {
    let all = &looks.now.servers;
    let broken = all.iter().filter_map(|server| Some((server, is_broken(server)?)));
    let some = broken.filter(|(server, _)| !is_lost(&server.group, all));
    let held = some.map(|(server, failing)| {
        let subject = format!("{}: {}", server.group, server.server);
        let text = format!("{subject} fails: {}", failing.reason);
        Held { level: Yellow, subject, text, since: failing.since }
    });
    held.collect()
}

/// The least errors within the window that count.
const ERRORS: u64 = 5;
/// The shares of failed requests from which on the finding is yellow and red.
const SOME_ERRORS: f64 = 0.05;
const MANY_ERRORS: f64 = 0.25;

/// Many requests end in 5xx.
pub(super) fn server_errors(looks: Looks<'_>) -> Vec<Held> {
    let (errors, requests) = (looks.grown(|s| s.errors), looks.grown(|s| s.requests));
    // A request is counted at its beginning, its error at its end.
    let requests = requests.max(errors);
    let share = errors as f64 / requests.max(1) as f64;
    if errors < ERRORS || share < SOME_ERRORS {
        return Vec::new();
    }
    let level = if share < MANY_ERRORS { Yellow } else { Red };
    let errors = looks.rate(|s| s.errors).round();
    let requests = looks.rate(|s| s.requests).round().max(errors);
    let text = format!("{errors} of {requests} requests a second end in 5xx");
    vec![Held { level, subject: "requests".to_owned(), text, since: None }]
}

/// Names cannot be looked up.
pub(super) fn name_server(looks: Looks<'_>) -> Vec<Held> {
    let text = "a name server does not answer in time: requests to names fail or wait";
    when(looks.grown(|s| s.lookups_timed_out) > 0, Yellow, "resolver", text)
}
