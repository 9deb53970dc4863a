//! Several processes with a group in one zone: any of them may be stopped or killed before any step
//! of shared memory. No peer ever has more connections of living processes than its limit.
//! Connections of killed processes are given back, all of them.
//!
//! `WEIR_SEED` replays a run, `WEIR_CASES` makes it longer.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_testkit::processes::{Me, ProcessWorld};
use weir_testkit::{Dice, number, seed};
use weir_zone::ZoneRef;

use super::sharing::{limited, zone};
use super::*;

/// What one does in its life.
const DEEDS: usize = 30;
/// Each of three peers takes so many.
const MOST: u32 = 2;

struct ProcessCase {
    world: Arc<ProcessWorld>,
    zone: ZoneRef,
    peers: Vec<Arc<Peer>>,
    now: Instant,
    /// What each process has.
    held: Mutex<BTreeMap<u64, Vec<String>>>,
}

impl ProcessCase {
    fn new(seed: u64) -> ProcessCase {
        let (world, zone, now) = (ProcessWorld::new(seed), zone(), Instant::now());
        ProcessCase { world, zone, peers: limited(MOST), now, held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<String>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn group(&self, dice: &mut Dice) -> Group {
        let balance: Box<dyn Balance> =
            if dice.one_in(2) { Box::new(LeastConn) } else { Box::new(RoundRobin) };
        Group::new("g", self.peers.clone(), balance, dice.any()).shared_in(Some(self.zone.clone()))
    }

    fn live(&self, Me { place, owner, .. }: Me, mut dice: Dice) {
        let group = self.group(&mut dice);
        let mut mine = Vec::new();
        for _ in 0..DEEDS {
            if !mine.is_empty() && dice.one_in(2) {
                let picked: crate::Picked = mine.swap_remove(dice.below(mine.len()));
                let name = picked.peer.name.to_string();
                let mut held = self.held();
                let list = held.entry(owner).or_default();
                let at = list.iter().position(|held| *held == name).expect("it was noted");
                list.swap_remove(at);
                drop(held);
                group.ended(&picked, well(), self.now);
            } else if let Some(picked) = group.pick(&mut Choice::default(), self.now) {
                let name = picked.peer.name.to_string();
                mine.push(picked);
                let mut held = self.held();
                held.entry(owner).or_default().push(name.clone());
                let living = held.iter().filter(|(owner, _)| self.world.lives(**owner));
                let all = living.flat_map(|(_, list)| list).filter(|held| **held == name).count();
                assert!(all <= MOST as usize, "{all} connections of the living to {name}");
            }
            if dice.one_in(4) {
                self.world.give_way(place);
            }
        }
        for picked in mine {
            self.held().remove(&owner);
            group.ended(&picked, well(), self.now);
        }
    }

    fn look_at_the_end(&self, mut dice: Dice) {
        let group = self.group(&mut dice);
        let picks = std::iter::from_fn(|| group.pick(&mut Choice::default(), self.now)).take(100);
        assert_eq!(picks.count(), self.peers.len() * MOST as usize, "what the dead had");
    }

    fn run(&self, seed: u64) -> Option<Box<dyn Any + Send>> {
        let wrong = self.world.run(seed, |me, dice| self.live(me, dice));
        wrong.or_else(|| self.world.look(|_| self.look_at_the_end(Dice::salted(seed, "end"))))
    }
}

#[test]
fn connections_of_killed_processes_come_back() {
    let first = seed();
    for seed in first..first + number("WEIR_CASES").unwrap_or(10) {
        if let Some(why) = ProcessCase::new(seed).run(seed) {
            println!("failed: WEIR_SEED={seed}");
            resume_unwind(why);
        }
    }
}
