//! Who is checked when, and what the log hears of it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use weir_log::Level;
use weir_upstream::{Group, Health, Peer};

use super::Check;
use super::probe::{Failed, Kept, pause, probe};
use crate::worker::Worker;

/// Connections between two checks, by the peer's name.
type Connections = Rc<RefCell<HashMap<String, Kept>>>;

/// Starts the checks of a configuration, on one loop of one worker.
pub fn start(worker: &Rc<Worker>) {
    for check in &worker.site.checks {
        if let Some(upstream) = worker.site.upstreams.get(check.group) {
            worker.handle.spawn(watch(worker.clone(), check, upstream.group.clone()));
        }
    }
}

async fn watch(worker: Rc<Worker>, check: &'static Check, group: Arc<Group>) {
    if check.mandatory && !check.persistent {
        group.check_anew(worker.handle.now());
    }
    let connections = Connections::default();
    while !worker.retiring() {
        for (peer, _) in group.peers(worker.handle.now()) {
            let (worker, connections) = (worker.clone(), connections.clone());
            let one = one(worker.clone(), check, group.clone(), peer, connections);
            worker.handle.spawn(one);
        }
        let random = worker.random_word();
        worker.handle.sleep(pause(check.interval, check.jitter, random)).await;
    }
}

async fn one(
    worker: Rc<Worker>,
    check: &'static Check,
    group: Arc<Group>,
    peer: Arc<Peer>,
    connections: Connections,
) {
    let kept = connections.borrow_mut().remove(&peer.name);
    let outcome = probe(&worker.handle, check, &peer, kept).await;
    let now = worker.handle.now();
    let changed = match &outcome {
        Err(failed) if failed.ours => None,
        outcome => group.checked(&peer, outcome.is_ok(), check.thresholds, now),
    };
    let log = &worker.site.main.core.error_log;
    let (name, address, upstream) = (check.name(), &peer.name, &group.name);
    let about = format!("health check \"{name}\" of peer {address} in upstream \"{upstream}\"");
    match outcome {
        Ok(kept) => {
            if let Some(kept) = kept {
                connections.borrow_mut().insert(peer.name.clone(), kept);
            }
            if changed == Some(Health::Healthy) {
                log.write(Level::Notice, None, format_args!("peer is healthy, {about}"));
            }
        }
        Err(Failed { doing, cause, ours }) => {
            if let Some(cause) = cause {
                let level = if ours { Level::Alert } else { Level::Error };
                log.write(level, None, format_args!("{cause} while {doing}, {about}"));
            }
            if changed == Some(Health::Unhealthy) {
                let text = format_args!("peer is unhealthy while {doing}, {about}");
                log.write(Level::Warn, None, text);
            }
        }
    }
}
