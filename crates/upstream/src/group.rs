//! A group of peers that serve the same requests (`upstream { }`), shared by the loops of a process, and with a
//! zone by all workers.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use weir_zone::{Zone, ZoneRef};

use crate::balance::{Balance, Measure, RoundRobin};
use crate::board::{Board, PeerSlot, PeerSlots};
use crate::changes::{Changes, Duty};
use crate::health::{CheckResult, Health, Thresholds};
use crate::peer::{Peer, PeerAddress, PeerOptions};
use crate::queue::Queue;
use crate::retry::Failure;
use crate::seat::{PeerState, PeerTimes};
use crate::seats::{PeerSet, Tried};

/// Peers, the backups that step in for them, and how one is chosen.
#[derive(Debug)]
pub struct Group {
    /// Its name in the configuration, or the host that it stands for.
    pub name: String,
    /// Requests that wait for a peer.
    pub queue: Queue,
    zone: Option<ZoneRef>,
    /// The method wants to know of this moment.
    hears_of: Option<Measure>,
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
    seats: PeerSet,
    places: PeerSlots,
}

/// What a request remembers of its choices.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// What the method hashes: the client's address or a key of the configuration.
    pub key: Vec<u8>,
    /// The [name](Peer::sid) of the peer that it is bound to; empty: to none.
    pub bound: Vec<u8>,
    /// Seats that were tried.
    pub tried: Tried,
    /// Where a hash has come to.
    pub hash: u64,
    /// How often it was hashed anew.
    pub rehashed: u32,
    /// How many seats that a hash led to were not free.
    pub refused: u32,
    /// The backups' turn.
    backup: bool,
    generation: u64,
}

/// A peer that was chosen. It must be given back with [`Group::ended`].
#[derive(Debug, Clone)]
pub struct Picked {
    /// The peer.
    pub peer: Arc<Peer>,
    at: usize,
    backup: bool,
    generation: u64,
    place: Option<PeerSlot>,
    /// The method counts it among the requests in flight.
    counted: bool,
    /// Its failures count, so this request is its trial.
    on_trial: bool,
    since: Instant,
}

/// How it went with a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It answered; how long that took, where known.
    Well(PeerTimes<Option<Duration>>),
    /// It answered, and another is to be tried: what is missing on this peer may exist on another.
    Elsewhere,
    /// It failed, and that counts.
    Failed,
    /// Another is to be tried, which is not the peer's fault.
    Next,
}

impl Ended {
    /// By this failure, which may count against the peer or not.
    pub fn by(failure: Failure) -> Ended {
        match failure {
            failure if failure.counts() => Ended::Failed,
            Failure::Status(_) => Ended::Elsewhere,
            _ => Ended::Next,
        }
    }
}

impl Choice {
    /// The first choice of a request; `key` is what the method hashes, empty for those that do not.
    pub fn new(key: Vec<u8>) -> Choice {
        Choice { key, ..Choice::default() }
    }

    /// The peer may be chosen again: it was not tried, only a connection to it was.
    pub fn forgive(&mut self, picked: &Picked) {
        if self.generation == picked.generation && self.backup == picked.backup {
            self.tried.remove(picked.at);
        }
    }
}

/// Making one.
impl Group {
    /// A group of the given peers; `seed` starts what is random.
    pub fn new(
        name: impl Into<String>,
        peers: Vec<Arc<Peer>>,
        mut balance: Box<dyn Balance>,
        seed: u64,
    ) -> Group {
        let (backup, usual): (Vec<_>, Vec<_>) = peers.into_iter().partition(|p| p.options.backup);
        let tier = |peers| Tier { seats: PeerSet::new(peers, seed), places: PeerSlots::default() };
        let (usual, backup) = (tier(usual), tier(backup));
        balance.prepare(&usual.seats);
        Group {
            name: name.into(),
            queue: Queue::default(),
            zone: None,
            hears_of: balance.hears_of(),
            tables: Mutex::new(Tables { usual, backup, balance }),
        }
    }

    /// Servers that were found for one request or session. No other one shares them.
    pub fn found(host: &str, endpoints: impl IntoIterator<Item = PeerAddress>) -> Arc<Group> {
        let peer =
            |endpoint| Arc::new(Peer::new(endpoint, host.to_owned(), PeerOptions::default()));
        let peers = endpoints.into_iter().map(peer).collect();
        Arc::new(Group::new(host, peers, Box::new(RoundRobin), 1))
    }

    /// Its peers' state stands in a zone, once that is open.
    #[must_use]
    pub fn shared_in(mut self, zone: Option<ZoneRef>) -> Group {
        self.zone = zone;
        self
    }

    /// Requests may be bound to a peer: see [`Choice::bound`].
    #[must_use]
    pub fn binding(self) -> Group {
        let mut tables = self.lock();
        tables.usual.seats.bind();
        tables.backup.seats.bind();
        drop(tables);
        self
    }
}

/// Choosing.
impl Group {
    /// How many peers a request may try.
    pub fn tries(&self) -> u32 {
        let tables = self.lock();
        tables.usual.seats.tries() + tables.backup.seats.tries()
    }

    /// It has no peers.
    pub fn is_empty(&self) -> bool {
        let tables = self.lock();
        tables.usual.seats.list().is_empty() && tables.backup.seats.list().is_empty()
    }

    /// Chooses a peer that this request has not tried. `None`: no peer is available.
    pub fn pick(&self, choice: &mut Choice, now: Instant) -> Option<Picked> {
        let mut tables = self.lock();
        let generation = tables.usual.seats.generation;
        if choice.generation != generation {
            // Names were resolved again: indices mean other peers now.
            choice.tried.clear();
            choice.generation = generation;
        }
        let mut board = self.board();
        tables.read(&mut board, &self.name, now);
        let chosen = tables.choose(choice, now);
        let picked = chosen.and_then(|(at, backup)| tables.sit(at, backup, choice, now));
        tables.write(&mut board, picked.as_ref(), now);
        picked
    }

    /// A request has come to this moment, after so long.
    pub fn reached(&self, picked: &mut Picked, moment: Measure, took: Duration, now: Instant) {
        if self.hears_of != Some(moment) {
            return;
        }
        let counted = std::mem::take(&mut picked.counted);
        self.with_seat(picked, GivenBack(false), now, |seat, _| {
            let mut times = PeerTimes::default();
            *times.of_mut(moment) = Some(took);
            seat.timed(times);
            if counted {
                seat.inflight.end(took, now);
            }
        });
    }

    /// A session has its connection. The peer has passed its trial, however long the session lasts.
    pub fn connected(&self, picked: &mut Picked, now: Instant) {
        if std::mem::take(&mut picked.on_trial) {
            self.with_seat(picked, GivenBack(false), now, |seat, _| seat.served(now));
            self.queue.call();
        }
    }

    /// The request is done with a peer. True if a failure made it unavailable.
    pub fn ended(&self, picked: &Picked, how: Ended, now: Instant) -> bool {
        let failed = self.with_seat(picked, GivenBack(true), now, |seat, single| {
            seat.conns = seat.conns.saturating_sub(1);
            if picked.counted {
                seat.inflight.end(now.saturating_duration_since(picked.since), now);
            }
            if single {
                seat.fails = 0;
            }
            match how {
                Ended::Failed if !single => return seat.failed(now),
                Ended::Failed | Ended::Next => {}
                Ended::Elsewhere => seat.served(now),
                Ended::Well(mut times) => {
                    seat.served(now);
                    if let Some(moment) = self.hears_of {
                        *times.of_mut(moment) = None;
                    }
                    seat.timed(times);
                }
            }
            false
        });
        self.queue.call();
        failed.unwrap_or(false)
    }

    /// Changes the seat of a peer that was chosen, if it still has one.
    fn with_seat<T>(
        &self,
        picked: &Picked,
        GivenBack(done): GivenBack,
        now: Instant,
        change: impl FnOnce(&mut PeerState, bool) -> T,
    ) -> Option<T> {
        let mut tables = self.lock();
        let single = tables.is_single();
        let tier = if picked.backup { &mut tables.backup } else { &mut tables.usual };
        let at = match tier.seats.generation == picked.generation {
            true => Some(picked.at),
            false => tier.seats.list().iter().position(|s| *s.peer == *picked.peer),
        };
        let mut board = self.board();
        let changed = at.and_then(|at| {
            tier.read(&mut board, &self.name, Some(at), now);
            let changed = tier.seats.change(at, now, |seat| change(seat, single))?;
            tier.write(&mut board, Some(at));
            Some(changed)
        });
        if let (true, Some(board), Some(place)) = (done, &mut board, picked.place) {
            board.release(place);
        }
        changed
    }
}

/// The connection is given back.
struct GivenBack(bool);

/// Peers that come and go, and their health.
impl Group {
    /// Takes a new list of peers: names were resolved again.
    pub fn replace(&self, peers: Vec<Arc<Peer>>) {
        let (backup, usual): (Vec<_>, Vec<_>) = peers.into_iter().partition(|p| p.options.backup);
        let mut tables = self.lock();
        tables.usual.seats.replace(usual);
        tables.backup.seats.replace(backup);
        let Tables { usual, balance, .. } = &mut *tables;
        balance.prepare(&usual.seats);
        drop(tables);
        self.queue.call();
    }

    /// All peers as they are now, the backups last.
    pub fn seats(&self, now: Instant) -> Vec<PeerState> {
        let mut tables = self.lock();
        tables.read(&mut self.board(), &self.name, now);
        let all = tables.usual.seats.list().iter().chain(tables.backup.seats.list());
        all.cloned().collect()
    }

    /// How many they are.
    pub fn servers(&self) -> usize {
        let tables = self.lock();
        tables.usual.seats.list().len() + tables.backup.seats.list().len()
    }

    /// As [`Group::seats`], for a process that must not wait: while another process holds the zone, they are as this one knows them.
    pub fn seats_unless_held(&self, now: Instant) -> Vec<PeerState> {
        let mut tables = self.lock();
        if !self.zone.as_ref().and_then(ZoneRef::get).is_some_and(Zone::is_held) {
            tables.read(&mut self.board(), &self.name, now);
        }
        let all = tables.usual.seats.list().iter().chain(tables.backup.seats.list());
        all.cloned().collect()
    }

    /// Changes some of them, for all processes that share the zone; without one, for this process
    /// alone.
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
        for Tier { seats, places } in [usual, backup] {
            let wanted = seats.each_mut().iter_mut().filter(|seat| which(seat));
            wanted.for_each(|seat| seat.change(change, now));
            places.reweighed(seats);
        }
        tables.write(&mut board, None, now);
        drop(board);
        drop(tables);
        self.queue.call();
    }

    /// All peers that are not down, with what is known of their health.
    pub fn peers(&self, now: Instant) -> Vec<(Arc<Peer>, Health)> {
        let mut tables = self.lock();
        tables.read(&mut self.board(), &self.name, now);
        let all = tables.usual.seats.list().iter().chain(tables.backup.seats.list());
        let up = all.filter(|s| s.duty() != Duty::Down);
        up.map(|s| (s.peer.clone(), s.health.health)).collect()
    }

    /// A peer was checked. Its new state, if it changed. A server that is listed twice is checked once for both.
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
            for at in 0..tier.seats.list().len() {
                if tier.seats.list().get(at).is_none_or(|seat| *seat.peer != *peer) {
                    continue;
                }
                tier.read(&mut board, &self.name, Some(at), now);
                let found = tier.seats.change(at, now, |seat| {
                    seat.checked(verdict, by, now).then_some(seat.health.health)
                });
                changed = found.flatten().or(changed);
                tier.write(&mut board, Some(at));
            }
        }
        self.queue.call();
        changed
    }

    /// Forgets what checks have found: peers must pass one that is asked from now on before they are used again.
    pub fn check_anew(&self, now: Instant) {
        self.guard();
        let mut tables = self.lock();
        let mut board = self.board();
        tables.read(&mut board, &self.name, now);
        let Tables { usual, backup, .. } = &mut *tables;
        for tier in [usual, backup] {
            tier.seats.each_mut().iter_mut().for_each(|seat| seat.guard(Some(now)));
        }
        tables.write(&mut board, None, now);
    }

    /// Peers must pass a check before they are used, as far as no zone knows better.
    pub fn guard(&self) {
        let mut tables = self.lock();
        tables.usual.seats.guard();
        tables.backup.seats.guard();
    }

    /// Its peers' state stands in a zone.
    pub fn is_shared(&self) -> bool {
        self.zone.is_some()
    }

    /// That zone's name.
    pub fn zone_name(&self) -> Option<&str> {
        self.zone.as_ref().map(ZoneRef::name)
    }

    /// Its usual peers are taken in a known order.
    #[cfg(test)]
    pub fn rotates(&self) -> bool {
        self.lock().usual.seats.rotates()
    }

    fn board(&self) -> Option<Board<'_>> {
        self.zone.as_ref().and_then(ZoneRef::get).map(Board::new)
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        // A panic while it was held leaves counters, at worst, one off.
        self.tables.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Tables {
    /// A sole peer is never unavailable: there is no other to spare it for.
    fn is_single(&self) -> bool {
        self.usual.seats.list().len() == 1 && self.backup.seats.list().is_empty()
    }

    /// The index of a seat, and whether it is a backup's.
    fn choose(&mut self, choice: &mut Choice, now: Instant) -> Option<(usize, bool)> {
        let single = self.is_single();
        let Tables { usual, backup, balance } = self;
        if !choice.backup {
            let at = match usual.bound(choice, now) {
                Some(at) => {
                    balance.out_of_turn(&mut usual.seats, at, choice, now);
                    Some(at)
                }
                None if single => lonely(&usual.seats),
                None => balance.pick(&mut usual.seats, choice, now),
            };
            if let Some(at) = at {
                return Some((at, false));
            }
            if backup.seats.list().is_empty() {
                return None;
            }
            choice.backup = true;
            choice.tried.clear();
        }
        let at = match backup.bound(choice, now) {
            Some(at) => at,
            None => backup.seats.turn(&choice.tried, now)?,
        };
        Some((at, true))
    }

    fn sit(
        &mut self,
        at: usize,
        backup: bool,
        choice: &mut Choice,
        now: Instant,
    ) -> Option<Picked> {
        let single = self.is_single();
        let tier = if backup { &mut self.backup } else { &mut self.usual };
        let balance = &mut self.balance;
        let (counted, peer, on_trial) = tier.seats.change(at, now, |seat| {
            seat.chosen(now);
            let counted = !single && balance.chosen(seat, now);
            (counted, seat.peer.clone(), seat.fails > 0)
        })?;
        if !single {
            choice.tried.insert(at);
        }
        let (generation, place) = (tier.seats.generation, tier.places.get(at));
        Some(Picked { peer, at, backup, generation, place, counted, on_trial, since: now })
    }

    fn read(&mut self, board: &mut Option<Board<'_>>, group: &str, now: Instant) {
        self.usual.read(board, group, None, now);
        self.backup.read(board, group, None, now);
    }

    fn write(&mut self, board: &mut Option<Board<'_>>, picked: Option<&Picked>, now: Instant) {
        self.usual.write(board, None);
        self.backup.write(board, None);
        if let (Some(board), Some(place)) = (board, picked.and_then(|p| p.place)) {
            board.hold(place, now);
        }
    }
}

impl Tier {
    fn bound(&self, choice: &Choice, now: Instant) -> Option<usize> {
        match choice.bound.is_empty() {
            true => None,
            false => self.seats.bound_to(&choice.bound, &choice.tried, now),
        }
    }

    /// Reads the state of one seat, or of all.
    fn read(
        &mut self,
        board: &mut Option<Board<'_>>,
        group: &str,
        only: Option<usize>,
        now: Instant,
    ) {
        if let Some(board) = board {
            board.read(group, &mut self.seats, &mut self.places, only, now);
        }
    }

    fn write(&self, board: &mut Option<Board<'_>>, only: Option<usize>) {
        if let Some(board) = board {
            board.write(&self.seats, &self.places, only);
        }
    }
}

fn lonely(seats: &PeerSet) -> Option<usize> {
    let usable = |s: &&PeerState| s.duty() == Duty::Up && !s.is_full() && s.health.health.allows();
    seats.list().first().filter(usable).map(|_| 0)
}
