//! Who is checked when, and what the log hears of it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use weir_log::Level;
use weir_upstream::{Group, Health, Peer};

use super::Check;
use super::probe::{Failed, Kept, pause, probe};
use crate::event_loop::LoopState;

/// Connections between two checks, by the peer's name.
type Connections = Rc<RefCell<HashMap<String, Kept>>>;

/// Starts the checks of a configuration, on one loop of one worker.
pub fn start(event_loop: &Rc<LoopState>) {
    for check in &event_loop.site.checks {
        if let Some(upstream) = event_loop.site.upstreams.get(check.group) {
            event_loop.handle.spawn(watch(event_loop.clone(), check, upstream.group.clone()));
        }
    }
}

async fn watch(event_loop: Rc<LoopState>, check: &'static Check, group: Arc<Group>) {
    if check.mandatory && !check.persistent {
        group.check_anew(event_loop.handle.now());
    }
    let connections = Connections::default();
    while !event_loop.retiring() {
        for (peer, _) in group.peers(event_loop.handle.now()) {
            let (event_loop, connections) = (event_loop.clone(), connections.clone());
            let one = one(event_loop.clone(), check, group.clone(), peer, connections);
            event_loop.handle.spawn(one);
        }
        let random = event_loop.random_word();
        event_loop.handle.sleep(pause(check.interval, check.jitter, random)).await;
    }
}

async fn one(
    event_loop: Rc<LoopState>,
    check: &'static Check,
    group: Arc<Group>,
    peer: Arc<Peer>,
    connections: Connections,
) {
    let kept = connections.borrow_mut().remove(&peer.name);
    let outcome = probe(&event_loop.handle, check, &peer, kept).await;
    let now = event_loop.handle.now();
    let changed = match &outcome {
        Err(failed) if failed.ours => None,
        outcome => group.checked(&peer, outcome.is_ok(), check.thresholds, now),
    };
    let log = &event_loop.site.main.core.error_log;
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
