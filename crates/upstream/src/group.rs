//! A group of peers that serve the same requests (`upstream { }`). The loops of a process share it.
//! With a `zone`, all workers share the state of its peers.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use weir_zone::{Zone, ZoneRef};

use crate::balance::{Balance, Measure, RoundRobin};
use crate::board::{Board, PeerSlot, PeerSlots};
use crate::changes::{Changes, Duty};
use crate::health::{CheckResult, Health, Thresholds};
use crate::peer::{Peer, PeerAddress, PeerOptions};
use crate::peer_set::{PeerSet, Tried};
use crate::peer_state::{PeerState, PeerTimes};
use crate::queue::Queue;
use crate::retry::Failure;

/// The primary and backup peers, and the method that chooses among them.
#[derive(Debug)]
pub struct Group {
    /// The name in the configuration, or the host that it stands for.
    pub name: String,
    /// Requests that wait for a peer.
    pub queue: Queue,
    zone: Option<ZoneRef>,
    /// See [`Balance::inflight_until`].
    inflight_until: Option<Measure>,
    tables: Mutex<Tables>,
}

#[derive(Debug)]
struct Tables {
    usual: Tier,
    backup: Tier,
    balance: Box<dyn Balance>,
}

#[derive(Debug)]
struct Tier {
    peers: PeerSet,
    slots: PeerSlots,
}

/// The state of a request's choices, kept from one attempt to the next.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// The key of a hashing method: the client's address or the value of `hash`.
    pub key: Vec<u8>,
    /// The [id](Peer::sid) of the peer that the request is bound to; empty for none.
    pub bound: Vec<u8>,
    /// Peers that were tried.
    pub tried: Tried,
    /// State of the hash from one try to the next.
    pub hash: u64,
    /// How often the key was hashed.
    pub rehashed: u32,
    /// How many peers that the hash led to were not free.
    pub refused: u32,
    /// Whether the backups are asked.
    backup: bool,
    generation: u64,
}

/// A peer that a request has chosen. The request must return it with [`Group::ended`].
#[derive(Debug, Clone)]
pub struct Picked {
    /// The peer.
    pub peer: Arc<Peer>,
    at: usize,
    backup: bool,
    generation: u64,
    slot: Option<PeerSlot>,
    /// The request is counted in [`PeerState::inflight`].
    counted: bool,
    /// The peer has failures, so this request is its trial.
    on_trial: bool,
    since: Instant,
}

/// The outcome of an attempt, for the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The peer answered. Times that are known.
    Well(PeerTimes<Option<Duration>>),
    /// The peer answered 403 or 404, and another peer is tried. What is missing on this peer may
    /// exist on another.
    Elsewhere,
    /// The peer failed, which counts against it.
    Failed,
    /// The attempt failed without the peer's fault.
    Next,
}

impl Ended {
    /// The outcome of an attempt that failed.
    pub fn by(failure: Failure) -> Ended {
        match failure {
            failure if failure.counts() => Ended::Failed,
            Failure::Status(_) => Ended::Elsewhere,
            _ => Ended::Next,
        }
    }
}

impl Choice {
    /// The state before the first choice. `key` is empty for methods that do not hash.
    pub fn new(key: Vec<u8>) -> Choice {
        Choice { key, ..Choice::default() }
    }

    /// Lets the request choose the peer again. Used if a kept connection failed, which says nothing
    /// of the peer.
    pub fn forgive(&mut self, picked: &Picked) {
        if self.generation == picked.generation && self.backup == picked.backup {
            self.tried.remove(picked.at);
        }
    }
}

/// Construction.
impl Group {
    /// A group of these peers. `seed` starts the random sequence.
    pub fn new(
        name: impl Into<String>,
        peers: Vec<Arc<Peer>>,
        mut balance: Box<dyn Balance>,
        seed: u64,
    ) -> Group {
        let (backup, usual): (Vec<_>, Vec<_>) = peers.into_iter().partition(|p| p.options.backup);
        let tier = |peers| Tier { peers: PeerSet::new(peers, seed), slots: PeerSlots::default() };
        let (usual, backup) = (tier(usual), tier(backup));
        balance.prepare(&usual.peers);
        Group {
            name: name.into(),
            queue: Queue::default(),
            zone: None,
            inflight_until: balance.inflight_until(),
            tables: Mutex::new(Tables { usual, backup, balance }),
        }
    }

    /// A group of addresses that were resolved for one request or session alone.
    pub fn found(host: &str, endpoints: impl IntoIterator<Item = PeerAddress>) -> Arc<Group> {
        let peer =
            |endpoint| Arc::new(Peer::new(endpoint, host.to_owned(), PeerOptions::default()));
        let peers = endpoints.into_iter().map(peer).collect();
        Arc::new(Group::new(host, peers, Box::new(RoundRobin), 1))
    }

    /// Keeps the state of the peers in a zone, once that is open.
    #[must_use]
    pub fn shared_in(mut self, zone: Option<ZoneRef>) -> Group {
        self.zone = zone;
        self
    }

    /// Lets requests be bound to peers: see [`Choice::bound`].
    #[must_use]
    pub fn binding(self) -> Group {
        let mut tables = self.lock();
        tables.usual.peers.bind();
        tables.backup.peers.bind();
        drop(tables);
        self
    }
}

/// Choices and their outcomes.
impl Group {
    /// How many peers a request may try.
    pub fn tries(&self) -> u32 {
        let tables = self.lock();
        tables.usual.peers.tries() + tables.backup.peers.tries()
    }

    /// Whether the group has no peers.
    pub fn is_empty(&self) -> bool {
        let tables = self.lock();
        tables.usual.peers.list().is_empty() && tables.backup.peers.list().is_empty()
    }

    /// Chooses a peer that this request has not tried. `None` if none is available.
    pub fn pick(&self, choice: &mut Choice, now: Instant) -> Option<Picked> {
        let mut tables = self.lock();
        let generation = tables.usual.peers.generation;
        if choice.generation != generation {
            // The list has changed, so the indices in `tried` stand for other peers.
            choice.tried.clear();
            choice.generation = generation;
        }
        let mut board = self.board();
        tables.read(&mut board, &self.name, now);
        let chosen = tables.choose(choice, now);
        let picked = chosen.and_then(|(at, backup)| tables.take_peer(at, backup, choice, now));
        tables.write(&mut board, picked.as_ref(), now);
        picked
    }

    /// Tells the method that a request has reached `moment`, after `elapsed`.
    pub fn reached(&self, picked: &mut Picked, moment: Measure, elapsed: Duration, now: Instant) {
        if self.inflight_until != Some(moment) {
            return;
        }
        let counted = std::mem::take(&mut picked.counted);
        self.with_state(picked, GivenBack(false), now, |state, _| {
            let mut times = PeerTimes::default();
            *times.of_mut(moment) = Some(elapsed);
            state.timed(times);
            if counted {
                state.inflight.remove(elapsed, now);
            }
        });
    }

    /// Notes that a session has its connection. The peer has passed its trial, however long the
    /// session lasts.
    pub fn connected(&self, picked: &mut Picked, now: Instant) {
        if std::mem::take(&mut picked.on_trial) {
            self.with_state(picked, GivenBack(false), now, |state, _| state.served(now));
            self.queue.wake_first();
        }
    }

    /// Returns a peer with the outcome of the attempt. True if a failure made the peer unavailable.
    pub fn ended(&self, picked: &Picked, how: Ended, now: Instant) -> bool {
        let failed = self.with_state(picked, GivenBack(true), now, |state, single| {
            state.conns = state.conns.saturating_sub(1);
            if picked.counted {
                state.inflight.remove(now.saturating_duration_since(picked.since), now);
            }
            if single {
                state.fails = 0;
            }
            match how {
                Ended::Failed if !single => return state.failed(now),
                Ended::Failed | Ended::Next => {}
                Ended::Elsewhere => state.served(now),
                Ended::Well(mut times) => {
                    state.served(now);
                    if let Some(moment) = self.inflight_until {
                        *times.of_mut(moment) = None;
                    }
                    state.timed(times);
                }
            }
            false
        });
        self.queue.wake_first();
        failed.unwrap_or(false)
    }

    /// Changes the state of a chosen peer, if the group still has the peer. `change` also gets
    /// whether it is the group's only peer.
    fn with_state<T>(
        &self,
        picked: &Picked,
        GivenBack(done): GivenBack,
        now: Instant,
        change: impl FnOnce(&mut PeerState, bool) -> T,
    ) -> Option<T> {
        let mut tables = self.lock();
        let single = tables.is_single();
        let tier = if picked.backup { &mut tables.backup } else { &mut tables.usual };
        let at = match tier.peers.generation == picked.generation {
            true => Some(picked.at),
            false => tier.peers.list().iter().position(|s| *s.peer == *picked.peer),
        };
        let mut board = self.board();
        let changed = at.and_then(|at| {
            tier.read(&mut board, &self.name, Some(at), now);
            let changed = tier.peers.change(at, now, |state| change(state, single))?;
            tier.write(&mut board, Some(at));
            Some(changed)
        });
        if let (true, Some(board), Some(slot)) = (done, &mut board, picked.slot) {
            board.release(slot);
        }
        changed
    }
}

/// Whether the connection no longer counts.
struct GivenBack(bool);

/// Changes of the list of peers, and their health.
impl Group {
    /// Replaces the list of peers, for example when names were resolved again.
    pub fn replace(&self, peers: Vec<Arc<Peer>>) {
        let (backup, usual): (Vec<_>, Vec<_>) = peers.into_iter().partition(|p| p.options.backup);
        let mut tables = self.lock();
        tables.usual.peers.replace(usual);
        tables.backup.peers.replace(backup);
        let Tables { usual, balance, .. } = &mut *tables;
        balance.prepare(&usual.peers);
        drop(tables);
        self.queue.wake_first();
    }

    /// The present state of all peers, the backups last.
    pub fn states(&self, now: Instant) -> Vec<PeerState> {
        let mut tables = self.lock();
        tables.read(&mut self.board(), &self.name, now);
        let all = tables.usual.peers.list().iter().chain(tables.backup.peers.list());
        all.cloned().collect()
    }

    /// The number of peers.
    pub fn servers(&self) -> usize {
        let tables = self.lock();
        tables.usual.peers.list().len() + tables.backup.peers.list().len()
    }

    /// As [`Group::states`], but never waits. If another process holds the zone's lock, it returns
    /// the state that this process knows.
    pub fn states_unless_held(&self, now: Instant) -> Vec<PeerState> {
        let mut tables = self.lock();
        if !self.zone.as_ref().and_then(ZoneRef::get).is_some_and(Zone::is_held) {
            tables.read(&mut self.board(), &self.name, now);
        }
        let all = tables.usual.peers.list().iter().chain(tables.backup.peers.list());
        all.cloned().collect()
    }

    /// Applies an operator's change to some peers. It holds for all processes that share the zone,
    /// or without a zone for this process.
    pub fn change(
        &self,
        which: impl Fn(&PeerState) -> bool,
        change: &dyn Fn(&mut Changes),
        now: Instant,
    ) {
        let mut tables = self.lock();
        let mut board = self.board();
        tables.read(&mut board, &self.name, now);
        let Tables { usual, backup, .. } = &mut *tables;
        for Tier { peers, slots } in [usual, backup] {
            let wanted = peers.each_mut().iter_mut().filter(|state| which(state));
            wanted.for_each(|state| state.change(change, now));
            slots.reweighed(peers);
        }
        tables.write(&mut board, None, now);
        drop(board);
        drop(tables);
        self.queue.wake_first();
    }

    /// All peers that are not down, with their health.
    pub fn peers(&self, now: Instant) -> Vec<(Arc<Peer>, Health)> {
        let mut tables = self.lock();
        tables.read(&mut self.board(), &self.name, now);
        let all = tables.usual.peers.list().iter().chain(tables.backup.peers.list());
        let up = all.filter(|s| s.duty() != Duty::Down);
        up.map(|s| (s.peer.clone(), s.health.health)).collect()
    }

    /// Applies the result of a health check. Returns the new health if it changed. One check serves
    /// all entries of a server that is listed twice.
    pub fn checked(
        &self,
        peer: &Peer,
        verdict: CheckResult,
        by: Thresholds,
        now: Instant,
    ) -> Option<Health> {
        let mut changed = None;
        {
            let mut tables = self.lock();
            let mut board = self.board();
            let tier = if peer.options.backup { &mut tables.backup } else { &mut tables.usual };
            for at in 0..tier.peers.list().len() {
                if tier.peers.list().get(at).is_none_or(|state| *state.peer != *peer) {
                    continue;
                }
                tier.read(&mut board, &self.name, Some(at), now);
                let found = tier.peers.change(at, now, |state| {
                    state.checked(verdict, by, now).then_some(state.health.health)
                });
                changed = found.flatten().or(changed);
                tier.write(&mut board, Some(at));
            }
        }
        self.queue.wake_first();
        changed
    }

    /// Discards earlier results of checks. Peers are used again after they pass a check that begins
    /// from now on.
    pub fn check_anew(&self, now: Instant) {
        self.require_check();
        let mut tables = self.lock();
        let mut board = self.board();
        tables.read(&mut board, &self.name, now);
        let Tables { usual, backup, .. } = &mut *tables;
        for tier in [usual, backup] {
            tier.peers.each_mut().iter_mut().for_each(|state| state.require_check(Some(now)));
        }
        tables.write(&mut board, None, now);
    }

    /// Bars peers until they pass a health check. State in a zone overrides this when it is read.
    pub fn require_check(&self) {
        let mut tables = self.lock();
        tables.usual.peers.require_check();
        tables.backup.peers.require_check();
    }

    /// Whether a zone has the state of the peers.
    pub fn is_shared(&self) -> bool {
        self.zone.is_some()
    }

    /// The name of that zone.
    pub fn zone_name(&self) -> Option<&str> {
        self.zone.as_ref().map(ZoneRef::name)
    }

    /// Whether primary peers are chosen by a rotation.
    #[cfg(test)]
    pub fn rotates(&self) -> bool {
        self.lock().usual.peers.rotates()
    }

    fn board(&self) -> Option<Board<'_>> {
        self.zone.as_ref().and_then(ZoneRef::get).map(Board::new)
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        // A panic under the lock leaves a counter off by one, at worst.
        self.tables.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Tables {
    /// Whether the group has one peer. Failures never make it unavailable, since no other peer
    /// could serve instead.
    fn is_single(&self) -> bool {
        self.usual.peers.list().len() == 1 && self.backup.peers.list().is_empty()
    }

    /// The index of the chosen peer, and whether it is a backup.
    fn choose(&mut self, choice: &mut Choice, now: Instant) -> Option<(usize, bool)> {
        let single = self.is_single();
        let Tables { usual, backup, balance } = self;
        if !choice.backup {
            let at = match usual.bound(choice, now) {
                Some(at) => {
                    balance.out_of_turn(&mut usual.peers, at, choice, now);
                    Some(at)
                }
                None if single => only_peer(&usual.peers),
                None => balance.pick(&mut usual.peers, choice, now),
            };
            if let Some(at) = at {
                return Some((at, false));
            }
            if backup.peers.list().is_empty() {
                return None;
            }
            choice.backup = true;
            choice.tried.clear();
        }
        let at = match backup.bound(choice, now) {
            Some(at) => at,
            None => backup.peers.turn(&choice.tried, now)?,
        };
        Some((at, true))
    }

    fn take_peer(
        &mut self,
        at: usize,
        backup: bool,
        choice: &mut Choice,
        now: Instant,
    ) -> Option<Picked> {
        let single = self.is_single();
        let tier = if backup { &mut self.backup } else { &mut self.usual };
        let balance = &mut self.balance;
        let (counted, peer, on_trial) = tier.peers.change(at, now, |state| {
            state.chosen(now);
            let counted = !single && balance.chosen(state, now);
            (counted, state.peer.clone(), state.fails > 0)
        })?;
        if !single {
            choice.tried.insert(at);
        }
        let (generation, slot) = (tier.peers.generation, tier.slots.get(at));
        Some(Picked { peer, at, backup, generation, slot, counted, on_trial, since: now })
    }

    fn read(&mut self, board: &mut Option<Board<'_>>, group: &str, now: Instant) {
        self.usual.read(board, group, None, now);
        self.backup.read(board, group, None, now);
    }

    fn write(&mut self, board: &mut Option<Board<'_>>, picked: Option<&Picked>, now: Instant) {
        self.usual.write(board, None);
        self.backup.write(board, None);
        if let (Some(board), Some(slot)) = (board, picked.and_then(|p| p.slot)) {
            board.hold(slot, now);
        }
    }
}

impl Tier {
    fn bound(&self, choice: &Choice, now: Instant) -> Option<usize> {
        match choice.bound.is_empty() {
            true => None,
            false => self.peers.bound_to(&choice.bound, &choice.tried, now),
        }
    }

    /// Reads the state of one peer, or of all, from the zone.
    fn read(
        &mut self,
        board: &mut Option<Board<'_>>,
        group: &str,
        only: Option<usize>,
        now: Instant,
    ) {
        if let Some(board) = board {
            board.read(group, &mut self.peers, &mut self.slots, only, now);
        }
    }

    fn write(&self, board: &mut Option<Board<'_>>, only: Option<usize>) {
        if let Some(board) = board {
            board.write(&self.peers, &self.slots, only);
        }
    }
}

fn only_peer(peers: &PeerSet) -> Option<usize> {
    let usable = |s: &&PeerState| s.duty() == Duty::Up && !s.is_full() && s.health.health.allows();
    peers.list().first().filter(usable).map(|_| 0)
}
