//! A group of peers that serve the same requests (`upstream { }`), shared by the loops of a process.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::Peer;
use crate::balance::Balance;
use crate::seats::{Seats, Tried};

/// Peers, the backups that step in for them, and how one is chosen.
#[derive(Debug)]
pub struct Group {
    /// Its name in the configuration, or the host that it stands for.
    pub name: String,
    tables: Mutex<Tables>,
}

#[derive(Debug)]
struct Tables {
    usual: Seats,
    backup: Seats,
    balance: Box<dyn Balance>,
}

/// What a request remembers of its choices.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// What the method hashes: the client's address or a key of the configuration.
    pub key: Vec<u8>,
    /// Seats that were tried.
    pub tried: Tried,
    /// Where a hash has come to.
    pub hash: u64,
    /// How often it was hashed anew.
    pub rehashed: u32,
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
}

/// How it went with a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It answered; how long its head and the whole took, where known.
    Well {
        /// To the head of the answer.
        header: Option<Duration>,
        /// To its last byte.
        response: Option<Duration>,
    },
    /// It failed, and that counts.
    Failed,
    /// Another is to be tried, which is not the peer's fault.
    Next,
}

impl Choice {
    /// The first choice of a request; `key` is what the method hashes, empty for those that do not.
    pub fn new(key: Vec<u8>) -> Choice {
        Choice { key, ..Choice::default() }
    }
}

impl Group {
    /// A group of the given peers; `seed` starts what is random.
    pub fn new(
        name: impl Into<String>,
        peers: Vec<Arc<Peer>>,
        balance: Box<dyn Balance>,
        seed: u64,
    ) -> Group {
        let (backup, usual): (Vec<_>, Vec<_>) = peers.into_iter().partition(|p| p.options.backup);
        let (usual, backup) = (Seats::new(usual, seed), Seats::new(backup, seed));
        Group { name: name.into(), tables: Mutex::new(Tables { usual, backup, balance }) }
    }

    /// Takes a new list of peers: names were resolved again.
    pub fn replace(&self, peers: Vec<Arc<Peer>>) {
        let (backup, usual): (Vec<_>, Vec<_>) = peers.into_iter().partition(|p| p.options.backup);
        let mut tables = self.lock();
        tables.usual.replace(usual);
        tables.backup.replace(backup);
    }

    /// How many peers a request may try.
    pub fn tries(&self) -> u32 {
        let tables = self.lock();
        tables.usual.tries() + tables.backup.tries()
    }

    /// Nobody is in it.
    pub fn is_empty(&self) -> bool {
        let tables = self.lock();
        tables.usual.list.is_empty() && tables.backup.list.is_empty()
    }

    /// Chooses a peer that this request has not tried. `None`: nobody is available.
    pub fn pick(&self, choice: &mut Choice, now: Instant) -> Option<Picked> {
        let mut tables = self.lock();
        let generation = tables.usual.generation;
        if choice.generation != generation {
            // Names were resolved again: indices mean other peers now.
            choice.tried.clear();
            choice.generation = generation;
        }
        let single = tables.is_single();
        if !choice.backup {
            let Tables { usual, balance, .. } = &mut *tables;
            let at = match single {
                true => lonely(usual),
                false => balance.pick(usual, choice, now),
            };
            if let Some(at) = at {
                return tables.usual.sit(at, false, choice, single, now);
            }
            if tables.backup.list.is_empty() {
                return None;
            }
            choice.backup = true;
            choice.tried.clear();
        }
        let at = tables.backup.smooth(&choice.tried, now, |_| true)?;
        tables.backup.sit(at, true, choice, false, now)
    }

    /// The request is done with a peer. True if a failure made it unavailable.
    pub fn ended(&self, picked: &Picked, how: Ended, now: Instant) -> bool {
        let mut tables = self.lock();
        let single = tables.is_single();
        let seats = if picked.backup { &mut tables.backup } else { &mut tables.usual };
        let same = seats.generation == picked.generation;
        let at = match same {
            true => Some(picked.at),
            false => seats.list.iter().position(|s| *s.peer == *picked.peer),
        };
        let Some(seat) = at.and_then(|at| seats.list.get_mut(at)) else { return false };
        seat.conns = seat.conns.saturating_sub(1);
        if single {
            seat.fails = 0;
        }
        match how {
            Ended::Failed if !single => return seat.failed(now),
            Ended::Failed | Ended::Next => {}
            Ended::Well { header, response } => {
                seat.served();
                seat.timed(header, response);
            }
        }
        false
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        // A panic while it was held leaves counters, at worst, one off.
        self.tables.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Tables {
    /// A sole peer is never unavailable: there is no other to spare it for.
    fn is_single(&self) -> bool {
        self.usual.list.len() == 1 && self.backup.list.is_empty()
    }
}

fn lonely(seats: &Seats) -> Option<usize> {
    seats.list.first().filter(|s| !s.peer.options.down && !s.is_full()).map(|_| 0)
}

impl Seats {
    fn sit(
        &mut self,
        at: usize,
        backup: bool,
        choice: &mut Choice,
        single: bool,
        now: Instant,
    ) -> Option<Picked> {
        let generation = self.generation;
        let seat = self.list.get_mut(at)?;
        seat.chosen(now);
        if !single {
            choice.tried.insert(at);
        }
        Some(Picked { peer: seat.peer.clone(), at, backup, generation })
    }
}
