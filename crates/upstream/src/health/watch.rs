//! The loop of health checks: when servers are checked, and what is logged. One loop of one worker
//! checks. The results go to the group's zone, where all workers see them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_engine::Handle;
use weir_log::{Cause, Level, Log};
use weir_tls::HandshakeError;

use super::{CheckResult, Health, HealthCheckOptions};
use crate::{Group, Peer, PeerAddress, fault};

/// A kind of check, for one protocol.
pub trait CheckSettings: 'static {
    /// A connection that is kept for the next check.
    type Connection: 'static;

    /// The settings that all kinds share.
    fn line(&self) -> &HealthCheckOptions;

    /// Checks a server once, within a bounded time. Returns a connection that the next check may
    /// use.
    fn probe(
        self: Arc<Self>,
        handle: &Handle,
        peer: &Arc<Peer>,
        kept: Option<Self::Connection>,
    ) -> impl Future<Output = Result<Option<Self::Connection>, CheckFailure>>;
}

/// Why a check failed.
#[derive(Debug)]
pub struct CheckFailure {
    /// The step that failed, in words of the log.
    pub doing: &'static str,
    /// The cause, if there is more to say.
    pub cause: Option<String>,
    /// This process could not ask, so nothing is known of the server.
    pub ours: bool,
}

impl CheckFailure {
    /// A failure without a further cause.
    pub fn new(doing: &'static str) -> CheckFailure {
        CheckFailure { doing, cause: None, ours: false }
    }

    /// The failure of a system call.
    pub fn io(doing: &'static str, call: &str, error: &io::Error) -> CheckFailure {
        let cause = match error.kind() {
            io::ErrorKind::TimedOut => format!("upstream timed out {}", Cause(&fault::late())),
            _ => format!("{call} failed {}", Cause(error)),
        };
        CheckFailure { doing, cause: Some(cause), ours: !fault::blame(error).counts() }
    }

    /// A failed handshake.
    pub fn handshake(error: &HandshakeError) -> CheckFailure {
        const SECURING: &str = "SSL handshaking to upstream";
        match error {
            HandshakeError::Io(error) => CheckFailure::io(SECURING, "SSL_do_handshake()", error),
            error => {
                let ours = !fault::blame_handshake(error, false).counts();
                CheckFailure { ours, ..CheckFailure::wrong(SECURING, error.to_string()) }
            }
        }
    }

    /// The server was not asked, since this process lacked something.
    pub fn unable(doing: &'static str) -> CheckFailure {
        CheckFailure { ours: true, ..CheckFailure::new(doing) }
    }

    /// The server answered otherwise than expected.
    pub fn wrong(doing: &'static str, what: impl Into<String>) -> CheckFailure {
        CheckFailure { doing, cause: Some(what.into()), ours: false }
    }
}

/// The loop that runs the checks.
pub struct Watcher {
    /// The loop.
    pub handle: Handle,
    /// The log for changes and failures.
    pub log: Arc<Log>,
    /// Whether the loop retires.
    pub retiring: Box<dyn Fn() -> bool>,
}

/// The state of a server that is kept from one check to the next.
struct CheckMemory<K> {
    connection: Option<K>,
    /// The cause of the last failure. A cause is logged once at its level, and as `info` while it
    /// repeats.
    cause: Option<String>,
}

/// The servers that are checked. `None` while a check is under way, which has the server's state.
type CheckMemories<K> = RefCell<HashMap<Arc<Peer>, Option<CheckMemory<K>>>>;

/// The right to check a server, of which there is one for each server. Dropping it puts the state
/// back.
struct CheckTurn<K> {
    peer: Arc<Peer>,
    memory: CheckMemory<K>,
    memories: Rc<CheckMemories<K>>,
}

impl<K> CheckTurn<K> {
    /// `None` if a check of this server is under way.
    fn take(memories: &Rc<CheckMemories<K>>, peer: &Arc<Peer>) -> Option<CheckTurn<K>> {
        let new = || Some(CheckMemory { connection: None, cause: None });
        let memory = memories.borrow_mut().entry(peer.clone()).or_insert_with(new).take()?;
        Some(CheckTurn { peer: peer.clone(), memory, memories: memories.clone() })
    }
}

impl<K> Drop for CheckTurn<K> {
    fn drop(&mut self) {
        let (connection, cause) = (self.memory.connection.take(), self.memory.cause.take());
        let memory = Some(CheckMemory { connection, cause });
        self.memories.borrow_mut().insert(self.peer.clone(), memory);
    }
}

/// Starts the checks of a group.
pub fn start<C: CheckSettings>(watcher: &Rc<Watcher>, check: Arc<C>, group: Arc<Group>) {
    watcher.handle.spawn(watch(watcher.clone(), check, group));
}

async fn watch<C: CheckSettings>(watcher: Rc<Watcher>, check: Arc<C>, group: Arc<Group>) {
    let (line, handle) = (check.line(), &watcher.handle);
    if line.mandatory && !line.persistent {
        group.check_anew(handle.now());
    }
    let memories: Rc<CheckMemories<C::Connection>> = Rc::default();
    let (chance, mut round) = (RandomState::new(), 0u64);
    while !(watcher.retiring)() {
        let peers: Vec<_> = group.peers(handle.now()).into_iter().map(|(peer, _)| peer).collect();
        // Drops the state of servers that have left the group and are not being checked.
        memories.borrow_mut().retain(|peer, memory| memory.is_none() || peers.contains(peer));
        // A server whose check takes longer than the interval is left out this time.
        for turn in peers.iter().filter_map(|peer| CheckTurn::take(&memories, peer)) {
            handle.spawn(one(watcher.clone(), Arc::clone(&check), group.clone(), turn));
        }
        round += 1;
        handle.sleep(pause(line.interval, line.jitter, chance.hash_one(round))).await;
    }
}

async fn one<C: CheckSettings>(
    watcher: Rc<Watcher>,
    check: Arc<C>,
    group: Arc<Group>,
    mut turn: CheckTurn<C::Connection>,
) {
    let (handle, log, line) = (&watcher.handle, &watcher.log, check.line());
    let (peer, memory) = (turn.peer.clone(), &mut turn.memory);
    let asked = handle.now();
    let outcome = Arc::clone(&check).probe(handle, &peer, memory.connection.take()).await;
    if (watcher.retiring)() {
        // The result is dropped: the next configuration may have other checks.
        return;
    }
    let changed = match &outcome {
        Err(failed) if failed.ours => None,
        outcome => {
            let verdict = CheckResult { passed: outcome.is_ok(), asked };
            group.checked(&peer, verdict, line.thresholds, handle.now())
        }
    };
    let name = line.rules.as_deref().unwrap_or_default();
    let (address, upstream) = (&peer.name, &group.name);
    let about = format!("health check \"{name}\" of peer {address} in upstream \"{upstream}\"");
    match outcome {
        Ok(kept) => {
            (memory.connection, memory.cause) = (kept, None);
            if changed == Some(Health::Healthy) {
                log.write(Level::Notice, None, format_args!("peer is healthy, {about}"));
            }
        }
        Err(CheckFailure { doing, cause, ours }) => {
            if let Some(cause) = cause {
                let level = match (memory.cause.as_ref() == Some(&cause), ours) {
                    (true, _) => Level::Info,
                    (false, true) => Level::Alert,
                    (false, false) => Level::Error,
                };
                log.write(level, None, format_args!("{cause} while {doing}, {about}"));
                memory.cause = Some(cause);
            }
            if changed == Some(Health::Unhealthy) {
                let text = format_args!("peer is unhealthy while {doing}, {about}");
                log.write(Level::Error, None, text);
            }
        }
    }
}

impl HealthCheckOptions {
    /// The address to check.
    pub fn endpoint(&self, peer: &Peer) -> PeerAddress {
        match (&peer.endpoint, self.port) {
            (PeerAddress::Inet(address), Some(port)) => {
                let mut address = *address;
                address.set_port(port);
                PeerAddress::Inet(address)
            }
            (endpoint, _) => endpoint.clone(),
        }
    }
}

/// A wait of `interval` and up to `jitter` more.
fn pause(interval: Duration, jitter: Duration, random: u64) -> Duration {
    let millis = jitter.as_millis() as u64;
    interval + Duration::from_millis(random % millis.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_only_adds() {
        let (second, tenth) = (Duration::from_secs(1), Duration::from_millis(100));
        for random in [0, 1, 99, 100, 101, u64::MAX] {
            let pause = pause(second, tenth, random);
            assert!(pause >= second && pause <= second + tenth, "{pause:?}");
        }
        assert_eq!(pause(second, Duration::ZERO, 7), second);
    }
}
