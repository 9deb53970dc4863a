//! Which servers are checked when, and what the log hears of it. One loop of one worker checks. Its
//! findings stand in the group's zone, where all workers see them.

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

/// How servers are asked.
pub trait CheckSettings: 'static {
    /// A connection that is good for the next check.
    type Connection: 'static;

    /// When they are asked.
    fn line(&self) -> &HealthCheckOptions;

    /// Asks a server once, within a bounded time. A connection that may serve again comes back.
    fn probe(
        self: Arc<Self>,
        handle: &Handle,
        peer: &Arc<Peer>,
        kept: Option<Self::Connection>,
    ) -> impl Future<Output = Result<Option<Self::Connection>, CheckFailure>>;
}

/// Why a server did not pass.
#[derive(Debug)]
pub struct CheckFailure {
    /// What was being done, in the words of the log.
    pub doing: &'static str,
    /// What went wrong, where that says more.
    pub cause: Option<String>,
    /// It was this process that could not ask: nothing is known of the server.
    pub ours: bool,
}

impl CheckFailure {
    /// The words say all.
    pub fn new(doing: &'static str) -> CheckFailure {
        CheckFailure { doing, cause: None, ours: false }
    }

    /// What an error of the system says of the server.
    pub fn io(doing: &'static str, call: &str, error: &io::Error) -> CheckFailure {
        let cause = match error.kind() {
            io::ErrorKind::TimedOut => format!("upstream timed out {}", Cause(&fault::late())),
            _ => format!("{call} failed {}", Cause(error)),
        };
        CheckFailure { doing, cause: Some(cause), ours: !fault::blame(error).counts() }
    }

    /// What a handshake's end says of the server.
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

    /// The server was not asked, since the means for that could not be had.
    pub fn unable(doing: &'static str) -> CheckFailure {
        CheckFailure { ours: true, ..CheckFailure::new(doing) }
    }

    /// The server did what it should not.
    pub fn wrong(doing: &'static str, what: impl Into<String>) -> CheckFailure {
        CheckFailure { doing, cause: Some(what.into()), ours: false }
    }
}

/// Where checks run.
pub struct Watcher {
    /// The loop.
    pub handle: Handle,
    /// The log that hears of findings.
    pub log: Arc<Log>,
    /// The loop takes no more requests.
    pub retiring: Box<dyn Fn() -> bool>,
}

/// What is kept of a server from one check to the next.
struct Memory<K> {
    connection: Option<K>,
    /// Why the last check failed, if it did: the same is told of once.
    cause: Option<String>,
}

/// The servers that are checked. `None`: a check is under way and has the server's memory.
type Memories<K> = RefCell<HashMap<Arc<Peer>, Option<Memory<K>>>>;

/// The right to check a server: there is one for each. Dropped, it gives the memory back.
struct CheckTurn<K> {
    peer: Arc<Peer>,
    memory: Memory<K>,
    memories: Rc<Memories<K>>,
}

impl<K> CheckTurn<K> {
    /// `None`: the last check of this server has not ended.
    fn take(memories: &Rc<Memories<K>>, peer: &Arc<Peer>) -> Option<CheckTurn<K>> {
        let new = || Some(Memory { connection: None, cause: None });
        let memory = memories.borrow_mut().entry(peer.clone()).or_insert_with(new).take()?;
        Some(CheckTurn { peer: peer.clone(), memory, memories: memories.clone() })
    }
}

impl<K> Drop for CheckTurn<K> {
    fn drop(&mut self) {
        let (connection, cause) = (self.memory.connection.take(), self.memory.cause.take());
        let memory = Some(Memory { connection, cause });
        self.memories.borrow_mut().insert(self.peer.clone(), memory);
    }
}

/// Starts a check of a group.
pub fn start<C: CheckSettings>(watcher: &Rc<Watcher>, check: Arc<C>, group: Arc<Group>) {
    watcher.handle.spawn(watch(watcher.clone(), check, group));
}

async fn watch<C: CheckSettings>(watcher: Rc<Watcher>, check: Arc<C>, group: Arc<Group>) {
    let (line, handle) = (check.line(), &watcher.handle);
    if line.mandatory && !line.persistent {
        group.check_anew(handle.now());
    }
    let memories: Rc<Memories<C::Connection>> = Rc::default();
    let (chance, mut round) = (RandomState::new(), 0u64);
    while !(watcher.retiring)() {
        let peers: Vec<_> = group.peers(handle.now()).into_iter().map(|(peer, _)| peer).collect();
        // Servers that left the group are forgotten, once no check of them is under way.
        memories.borrow_mut().retain(|peer, memory| memory.is_none() || peers.contains(peer));
        // A server misses its turn if its last check takes longer than the interval.
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
        // The next configuration has its own checks, which may ask otherwise.
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
    /// Where this server is asked.
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
