//! Starts workers: all of a configuration, or successors of dead ones.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use weir_log::{Cause, log};
use weir_sys::process::{Fork, fork};

use super::children::{AGENT, Child, name_of};
use super::{Assignment, Master, Role};
use crate::channel::{self, ChannelEnd};
use crate::config::MOST_LOOPS;
use crate::cycle::Cycle;
use crate::listen::CycleShared;
use crate::worker::stalls::Bell;

impl Master {
    /// Starts all workers of the current cycle.
    pub(super) fn start_workers(&mut self) -> ControlFlow<Role> {
        log!(self.cycle.log, Notice, None, "start worker processes");
        // Returns the memory that reading the configuration took. Workers would inherit it.
        weir_sys::allocator::give_back();
        self.restarts.clear();
        self.cycle.steer();
        let generation = self.generation;
        (0..self.cycle.config.processes).try_for_each(|index| self.start(index, generation))?;
        self.start(AGENT, generation)
    }

    /// Starts a worker of the configuration with this generation. With [`AGENT`] the privileged
    /// agent, if scripts of that configuration want one.
    fn start(&mut self, index: usize, generation: u64) -> ControlFlow<Role> {
        let replaced = self.replaced.iter().find(|old| old.generation == generation);
        let cycle = replaced.map_or(&self.cycle, |old| &old.cycle);
        if index != AGENT {
            let cycle = cycle.clone();
            return self.start_child(index, cycle, generation);
        }
        let Some(connections) = cycle.agent else { return ControlFlow::Continue(()) };
        match cycle.for_agent(connections) {
            Ok(cycle) => self.start_child(AGENT, cycle, generation),
            Err(e) => {
                let cause = Cause(&e);
                log!(cycle.log, Alert, None, "the load table could not be made {cause}");
                ControlFlow::Continue(())
            }
        }
    }

    /// Plans a successor of the privileged agent, unless other workers have replaced those of its
    /// configuration.
    pub(super) fn plan_agent(&mut self, generation: u64, was_ready: bool) {
        let replaced = self.replaced.iter_mut().find(|old| old.generation == generation);
        if let Some(old) = replaced {
            old.restarts.plan(AGENT, was_ready, Instant::now());
        } else if generation == self.generation {
            self.restarts.plan(AGENT, was_ready, Instant::now());
        }
    }

    fn start_child(&mut self, index: usize, cycle: Cycle, generation: u64) -> ControlFlow<Role> {
        let name = name_of(index);
        let Some(tallies) = self.tallies.take(cycle.config.threads) else {
            log!(cycle.log, Alert, None, "no more than {MOST_LOOPS} loops can run at a time");
            self.plan_again(index, &cycle, generation);
            return ControlFlow::Continue(());
        };
        let ends = || Ok((channel::pair()?, Bell::new()?));
        let forked = ends().and_then(|ends: (_, _)| Ok((ends, fork()?)));
        match forked {
            Ok((((_, channel), bell), Fork::Child)) => {
                let line = (channel, bell);
                ControlFlow::Break(self.assignment(cycle, generation, index, tallies, line))
            }
            Ok((((channel, _), bell), Fork::Parent(pid))) => {
                let shown = pid.as_raw_nonzero();
                log!(cycle.log, Notice, None, "start {name} {shown}");
                let (ready, exiting, notified_at) = (false, false, None);
                let (may_ask, silent) = (cycle.sites.take_commands(), false);
                let may_change = cycle.sites.take_changes();
                let load = cycle.load;
                self.children.push(Child {
                    pid,
                    index,
                    load,
                    generation,
                    may_ask,
                    may_change,
                    channel,
                    bell,
                    tallies,
                    ready,
                    exiting,
                    notified_at,
                    silent,
                });
                ControlFlow::Continue(())
            }
            Err(e) => {
                let cause = Cause(&e);
                log!(cycle.log, Alert, None, "fork() failed while spawning \"{name}\" {cause}");
                self.tallies.give(&tallies);
                self.plan_again(index, &cycle, generation);
                ControlFlow::Continue(())
            }
        }
    }

    /// Plans another attempt, since a process could not be started.
    fn plan_again(&mut self, index: usize, cycle: &Cycle, generation: u64) {
        match index {
            AGENT => self.plan_agent(generation, false),
            _ => self.plan(index, &cycle.load, false),
        }
    }

    fn assignment(
        &mut self,
        cycle: Cycle,
        generation: u64,
        index: usize,
        tallies: Vec<usize>,
        (channel, bell): (ChannelEnd, Bell),
    ) -> Role {
        Role::Worker(Box::new(Assignment {
            cycle,
            origin: Arc::clone(&self.origin),
            index: if index == AGENT { 0 } else { index },
            is_agent: index == AGENT,
            tallies,
            generation,
            registry: self.registry,
            channel: Some(channel),
            bell: Some(bell),
            title: Arc::new(Mutex::new(self.title.take())),
        }))
    }

    /// Plans a successor of a dead worker. A configuration that no longer serves gets none.
    pub(super) fn plan(&mut self, index: usize, load: &Arc<CycleShared>, was_ready: bool) {
        let now = Instant::now();
        let mut replaced = self.replaced.iter_mut();
        if Arc::ptr_eq(load, &self.cycle.load) {
            self.restarts.plan(index, was_ready, now);
        } else if let Some(old) = replaced.find(|old| Arc::ptr_eq(load, &old.cycle.load)) {
            old.restarts.plan(index, was_ready, now);
        }
    }

    pub(super) fn start_due(&mut self) -> ControlFlow<Role> {
        let now = Instant::now();
        if self.ending.is_some() {
            return ControlFlow::Continue(());
        }
        while let Some((index, generation)) = self.next_due(now) {
            self.start(index, generation)?;
        }
        ControlFlow::Continue(())
    }

    /// Takes a process whose start is due, with the generation of its configuration.
    fn next_due(&mut self, now: Instant) -> Option<(usize, u64)> {
        let newest = self.restarts.due(now).map(|index| (index, self.generation));
        let mut older = self.replaced.iter_mut();
        newest.or_else(|| older.find_map(|old| Some((old.restarts.due(now)?, old.generation))))
    }
}
