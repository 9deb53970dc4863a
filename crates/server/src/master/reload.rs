//! Applies a new configuration while the old one serves.
//!
//! The new configuration is read and its sockets are opened before anything changes. Then its
//! workers start on the same sockets. Once their loops run, workers of older cycles are told to
//! retire. So some loops accept at all times.

use std::io;
use std::ops::ControlFlow;

use weir_conf::FileTexts;
use weir_log::{Cause, Log, log};
use weir_metrics::Metric;
use weir_sys::guarded;
use weir_values::{ChangeKind, ChangeOutcome};

use super::children::{Child, Replaced};
use super::{Master, Role, wall};
use crate::boot::redirect_stderr;
use crate::change::Attached;
use crate::channel::Order;
use crate::cycle::Cycle;
use crate::pidfile;
use crate::sockets::{Purpose, SocketsFailed};
use crate::trial;

/// Workers of this many older configurations wait for their idle clients. Those of still older ones
/// close idle connections, as when the server quits. So repeated reloads do not accumulate
/// processes.
const PATIENT: u64 = 4;

impl Master {
    pub(super) fn reconfigure(&mut self) -> ControlFlow<Role> {
        log!(self.cycle.log, Notice, None, "reconfiguring");
        match self.next_cycle() {
            Ok(cycle) => {
                // A configuration from disk has no attached files.
                let parts = self.attached.parts.clone();
                self.adopt(cycle, Attached { files: FileTexts::default(), parts })
            }
            // The reason is in the log, and the old configuration stays in use.
            Err(SocketsFailed) => {
                self.health.reload_failed();
                self.counters.add(Metric::ReloadFailed, 1);
                self.registry.set_configured(wall(), false);
                ControlFlow::Continue(())
            }
        }
    }

    fn next_cycle(&self) -> Result<Cycle, SocketsFailed> {
        let log = &self.cycle.log;
        let plan = self.origin.read(log)?;
        let sockets =
            self.cycle.sockets.and(self.replaced.iter().rev().map(|old| &old.cycle.sockets));
        let mut cycle =
            plan.open(&sockets, &self.cycle.zones, &self.cycle.post, Purpose::Serve, log)?;
        trial::run(&mut cycle, log)?;
        self.write_pid(&cycle, log).map_err(|_| SocketsFailed)?;
        Ok(cycle)
    }

    /// Writes the pid file of a cycle that is to replace the present one, unless both have the same.
    /// A failure is logged.
    fn write_pid(&self, next: &Cycle, log: &Log) -> io::Result<()> {
        match &next.config.pid {
            Some(path) if next.config.pid != self.cycle.config.pid => pidfile::write(path)
                .inspect_err(|e| {
                    log!(log, Emerg, None, "open() \"{}\" failed {}", path.display(), Cause(e));
                }),
            _ => Ok(()),
        }
    }

    /// Adopts the new cycle and what came with it, and starts its workers.
    pub(super) fn adopt(&mut self, cycle: Cycle, attached: Attached) -> ControlFlow<Role> {
        let old = Replaced {
            cycle: self.replace_cycle(cycle),
            attached: std::mem::replace(&mut self.attached, attached),
            generation: self.generation,
            restarts: std::mem::take(&mut self.restarts),
        };
        self.replaced.push(old);
        self.counters.add(Metric::Reloaded, 1);
        self.registry.set_configured(wall(), true);
        self.health.reloaded();
        self.replacements += 1;
        self.generation = self.replacements;
        // Reloads without a pause must not accumulate configurations.
        let with_workers: Vec<u64> = self.serving_workers().map(|child| child.generation).collect();
        let serving = self.serving;
        self.forget_replaced(|old| {
            old.generation == serving || with_workers.contains(&old.generation)
        });
        self.start_workers()
    }

    /// Makes this cycle the present one. The previous one leaves its pid file to it.
    fn replace_cycle(&mut self, cycle: Cycle) -> Cycle {
        let old = std::mem::replace(&mut self.cycle, cycle);
        redirect_stderr(&self.cycle.log);
        if let Some(path) = &old.config.pid
            && old.config.pid != self.cycle.config.pid
            && let Err(e) = guarded::remove(path)
        {
            log!(
                self.cycle.log,
                Alert,
                None,
                "unlink() \"{}\" failed {}",
                path.display(),
                Cause(&e)
            );
        }
        old
    }

    /// Forgets the older configurations that are not needed any more. They leave their sockets to
    /// the others. Until then a configuration may be returned to, and keeps the files of its
    /// Unix-domain sockets.
    pub(super) fn forget_replaced(&mut self, is_needed: impl Fn(&Replaced) -> bool) {
        let all = std::mem::take(&mut self.replaced).into_iter();
        let (needed, others): (Vec<_>, Vec<_>) = all.partition(is_needed);
        self.replaced = needed;
        others.iter().for_each(|old| self.leave(&old.cycle));
    }

    /// A cycle that is not used any more leaves its sockets to those that are.
    fn leave(&self, old: &Cycle) {
        let older = self.replaced.iter().rev().map(|old| &old.cycle);
        let used: Vec<_> =
            std::iter::once(&self.cycle).chain(older).map(|cycle| &cycle.sockets).collect();
        old.sockets.leave_to(&used, &old.load, &self.cycle.log);
    }

    /// Whether workers of older configurations still serve, since not all workers of the newest one
    /// run.
    pub(super) fn is_replacing(&self) -> bool {
        self.serving < self.generation
    }

    /// Tells the workers of older cycles to retire, once those of a newer one run. That need not be
    /// the newest: another reload may follow before all workers run.
    ///
    /// If no new worker can start, the old ones continue: the old configuration is better than
    /// none.
    pub(super) fn retire_replaced(&mut self) {
        if !self.is_replacing() {
            return;
        }
        let Some(running) = self.newest_running().filter(|newest| *newest > self.serving) else {
            return;
        };
        self.serving = running;
        self.forget_replaced(|old| old.generation >= running);
        weir_sys::allocator::give_back();
        let rested = std::mem::take(&mut self.kin.resting);
        let mut told = Vec::new();
        for child in self.children.iter_mut().filter(|child| child.generation < running) {
            // Workers that WINCH has told to finish had the sockets to themselves.
            if rested || child.generation + PATIENT < self.generation {
                child.order(Order::Yield, &self.cycle.log);
            } else if !child.exiting {
                child.order(Order::Retire, &self.cycle.log);
                told.push(child.pid);
            }
        }
        self.change_waits_for(running, told);
    }

    /// Returns to the configuration before the newest one, as long as no worker of the newest can
    /// start. What changes or replaces the configuration from now on continues from there.
    pub(super) fn give_up_newest(&mut self) {
        while self.ending.is_none() && self.is_replacing() && !self.may_newest_start() {
            let Some(old) = self.replaced.pop() else { return };
            self.return_to(old);
        }
    }

    fn may_newest_start(&self) -> bool {
        let is_newest = |child: &Child| child.generation == self.generation && !child.is_agent();
        self.restarts.has_workers() || self.children.iter().any(is_newest)
    }

    fn return_to(&mut self, old: Replaced) {
        let Replaced { cycle, attached, generation, restarts } = old;
        // The configuration serves, also without the file.
        let _ = self.write_pid(&cycle, &cycle.log);
        let failed = self.replace_cycle(cycle);
        self.leave(&failed);
        (self.attached, self.generation, self.restarts) = (attached, generation, restarts);
        self.cycle.steer();
        let text = "no worker of the new configuration can start, the previous one stays in use";
        log!(self.cycle.log, Error, None, "{text}");
        for child in self.children.iter_mut().filter(|child| child.generation > generation) {
            child.order(Order::Retire, &self.cycle.log);
        }
        self.counters.add(Metric::ReloadFailed, 1);
        self.registry.set_configured(wall(), false);
        self.health.reloaded();
        self.health.reload_failed();
        self.give_up_change(ChangeOutcome::new(ChangeKind::Wrong, text));
    }

    /// Workers that serve or start. The privileged agent is none, since it serves no clients, nor
    /// are workers that were told to end.
    fn serving_workers(&self) -> impl Iterator<Item = &Child> {
        self.children.iter().filter(|child| !child.is_agent() && !child.exiting)
    }

    /// The newest generation whose workers all run.
    fn newest_running(&self) -> Option<u64> {
        let begins = |generation| {
            self.serving_workers().any(|child| child.generation == generation && !child.ready)
        };
        let all = self.serving_workers().map(|child| child.generation);
        all.filter(|generation| !begins(*generation)).max()
    }
}
