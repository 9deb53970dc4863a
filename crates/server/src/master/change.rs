//! The master's part of a change while the workers run: see [`crate::change`].

use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use weir_conf::{ConfigTree, FileTexts, with_files};
use weir_log::{Cause, log};
use weir_metrics::Metric;
use weir_values::{ChangeKind, ChangeOutcome, ChangeRequest};

use super::{Master, Role, wall};
use crate::change::{self, Attached, Parcel};
use crate::channel::Order;
use crate::cycle::{Complaint, Cycle, Plan};
use crate::sockets::Purpose;
use crate::trial;

/// For so long the workers' answers are waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// A change that is not over.
#[derive(Debug)]
pub(super) struct Change {
    /// The worker that has asked for it, if one has.
    asker: Option<Pid>,
    /// Workers that have not taken it, or that others take over from.
    waiting: Vec<Pid>,
    /// Workers that begin with it take over from all others.
    by_new_workers: bool,
    /// The reason for that.
    why: String,
    until: Instant,
}

/// How a plan comes into use.
enum Way {
    /// By the workers that run.
    Running(Box<Cycle>, Parcel),
    /// By new ones, for this reason.
    New(Box<Cycle>, String),
}

impl Master {
    /// A worker asks for what is in `request`.
    fn change_as_asked(&mut self, asker: Pid, request: Option<OwnedFd>) -> ControlFlow<Role> {
        let bytes = request.and_then(|fd| change::contents(fd, change::LONGEST).ok());
        let request = bytes.and_then(|bytes| ChangeRequest::of(&bytes));
        let lost = "the request is too long, or did not reach the master process";
        let wanted = request.ok_or_else(|| ChangeOutcome::new(ChangeKind::Refused, lost)).and_then(
            |request| change::wanted(&self.origin, &self.cycle.text.main, &self.attached, &request),
        );
        match wanted {
            Ok((tree, attached)) => self.change(tree, attached, Some(asker)),
            Err(outcome) => {
                self.tell_outcome(Some(asker), &outcome);
                ControlFlow::Continue(())
            }
        }
    }

    /// Takes the configuration of a tree into use while the workers run: texts of the API and trees of other programs end
    /// here. `attached` came with the tree. A worker that asks gets the outcome; without one only the log tells it.
    pub(super) fn change(
        &mut self,
        tree: ConfigTree,
        attached: Attached,
        asker: Option<Pid>,
    ) -> ControlFlow<Role> {
        let busy = self.change.is_some() || self.is_replacing() || self.ending.is_some();
        if busy || self.kin.successor.is_some() {
            let outcome = ChangeOutcome::new(ChangeKind::Busy, "another change is under way");
            self.tell_outcome(asker, &outcome);
            return ControlFlow::Continue(());
        }
        log!(self.cycle.log, Notice, None, "changing the configuration");
        let way = self.way(tree, attached.files.clone());
        if way.is_ok() {
            self.attached = attached;
        }
        match way {
            Err((kind, complaint)) => {
                self.counters.add(Metric::ReloadFailed, 1);
                let Complaint { text, place } = complaint;
                self.tell_outcome(asker, &ChangeOutcome { kind, place, text });
                ControlFlow::Continue(())
            }
            Ok(Way::Running(cycle, parcel)) => self.pass_round(*cycle, &parcel, asker),
            Ok(Way::New(cycle, why)) => {
                log!(self.cycle.log, Notice, None, "new workers take the configuration: {why}");
                self.begin_change(asker, Vec::new(), Some(why));
                self.adopt(*cycle)
            }
        }
    }

    fn begin_change(&mut self, asker: Option<Pid>, waiting: Vec<Pid>, new: Option<String>) {
        self.change = Some(Change {
            asker,
            waiting,
            by_new_workers: new.is_some(),
            why: new.unwrap_or_default(),
            until: Instant::now() + PATIENCE,
        });
    }

    /// Tests a tree as `-t` does, and opens what it needs.
    fn way(&self, tree: ConfigTree, files: FileTexts) -> Result<Way, (ChangeKind, Complaint)> {
        let log = &self.cycle.log;
        let wrong = |complaint| (ChangeKind::Wrong, complaint);
        let failed = |failed| (ChangeKind::Wrong, Complaint::from(failed));
        let of_disk = change::from_disk(&self.cycle.text.main, &tree.main);
        if let Some(name) = of_disk.filter(|_| tree.broken.is_none()) {
            let text = format!("\"{name}\" may only be changed in the file, by a reload");
            return Err((ChangeKind::Refused, Complaint::new(text)));
        }
        let known = self.origin.logs.paths();
        let sites = Some(&self.cycle.sites)
            .filter(|_| change::is_same_around(&self.cycle.text.main, &tree.main));
        let (plan, files) = with_files(files, || self.origin.compile(tree, None, sites, log));
        let plan = plan.map_err(wrong)?;
        if let Some(site) = &plan.sites.http {
            let (taken, all) = (site.taken, site.servers.len());
            log!(log, Notice, None, "{taken} of {all} servers are as before");
        }
        let plan = self.origin.open_logs(plan, log).map_err(failed)?;
        let (old, new) = (&self.cycle, &plan);
        let (before, main) = (&old.text.main, &new.text.main);
        let why = change::needs_new_workers(&old.sites, before, &new.sites, main);
        if let Some(why) = why {
            return self.open_anew(plan, why.to_owned());
        }
        let logs = self.origin.logs.paths().into_iter().filter(|path| !known.contains(path));
        let logs = logs.filter_map(|path| self.origin.logs.get(&path)).collect();
        let parcel = Parcel::new(&self.cycle.text, &plan.text, &plan.sources, &files, logs);
        let parcel = parcel.map_err(|e| {
            log!(log, Alert, None, "memfd_create() failed {}", Cause(&e));
            wrong(Complaint::new("there is no memory for it"))
        })?;
        let Some(parcel) = parcel else {
            return self.open_anew(plan, "it has many new log files".to_owned());
        };
        match plan.beside(&self.cycle, log).map_err(failed)? {
            Ok(mut cycle) => {
                trial::run(&mut cycle, log).map_err(failed)?;
                Ok(Way::Running(Box::new(cycle), parcel))
            }
            Err(plan) => {
                self.open_anew(*plan, "it needs shared memory that is not open".to_owned())
            }
        }
    }

    fn open_anew(&self, plan: Plan, why: String) -> Result<Way, (ChangeKind, Complaint)> {
        let (old, log) = (&self.cycle, &self.cycle.log);
        let failed = |failed| (ChangeKind::Wrong, Complaint::from(failed));
        let cycle = plan.open(&old.sockets, &old.zones, &old.post, Purpose::Serve, log);
        let mut cycle = cycle.map_err(failed)?;
        trial::run(&mut cycle, log).map_err(failed)?;
        Ok(Way::New(Box::new(cycle), why))
    }

    /// Goes on with a cycle that the workers take beside their own.
    fn pass_round(
        &mut self,
        cycle: Cycle,
        parcel: &Parcel,
        asker: Option<Pid>,
    ) -> ControlFlow<Role> {
        self.cycle = cycle;
        self.counters.add(Metric::Changed, 1);
        self.registry.set_configured(wall(), true);
        let (may_ask, may_change) =
            (self.cycle.sites.take_commands(), self.cycle.sites.take_changes());
        let mut waiting = Vec::new();
        let mut unheard = false;
        for child in &mut self.children {
            if child.exiting || !Arc::ptr_eq(&child.load, &self.cycle.load) {
                continue;
            }
            // A request of the old site may still ask.
            child.may_ask |= may_ask;
            child.may_change |= may_change;
            unheard |= child.channel.order_with(Order::Change, &parcel.fds()).is_err();
            waiting.push(child.pid);
        }
        self.begin_change(asker, waiting, None);
        // What the configuration before took, while the workers take this one.
        weir_sys::allocator::give_back();
        if unheard {
            return self.replace_all();
        }
        self.look_at_change();
        ControlFlow::Continue(())
    }

    /// A worker has taken the change, or could not.
    pub(super) fn changed(&mut self, pid: Pid, taken: bool) -> ControlFlow<Role> {
        let Some(change) = &mut self.change else { return ControlFlow::Continue(()) };
        if change.by_new_workers || !change.waiting.contains(&pid) {
            return ControlFlow::Continue(());
        }
        if !taken {
            return self.replace_all();
        }
        change.waiting.retain(|waiting| *waiting != pid);
        self.look_at_change();
        ControlFlow::Continue(())
    }

    /// New workers have taken over, and these are told so. Until they say that they take nothing more, the change is not over.
    pub(super) fn change_waits_for(&mut self, told: Vec<Pid>) {
        if let Some(change) = self.change.as_mut().filter(|change| change.by_new_workers) {
            change.waiting.extend(told);
        }
    }

    /// A worker has ended, and the one that comes after it begins with the newest; or it takes no connections any more.
    pub(super) fn change_lacks(&mut self, pid: Pid) {
        if let Some(change) = &mut self.change {
            change.waiting.retain(|waiting| *waiting != pid);
        }
        self.look_at_change();
    }

    /// New workers take what a running one could not.
    fn replace_all(&mut self) -> ControlFlow<Role> {
        let why = "a worker could not take it";
        log!(self.cycle.log, Notice, None, "new workers take the configuration: {why}");
        let cycle = match self.cycle.renewed() {
            Ok(cycle) => cycle,
            Err(e) => {
                log!(self.cycle.log, Alert, None, "the load table could not be made {}", Cause(&e));
                return ControlFlow::Continue(());
            }
        };
        if let Some(change) = &mut self.change {
            (change.by_new_workers, change.why) = (true, why.to_owned());
            change.waiting.clear();
        }
        self.adopt(cycle)
    }

    /// Whether the change is over, or has taken too long.
    pub(super) fn look_at_change(&mut self) {
        let Some(change) = &self.change else { return };
        let begins = change.by_new_workers && self.is_replacing();
        let is_over = !begins && change.waiting.is_empty();
        let kind = match (is_over, change.by_new_workers) {
            (true, false) => ChangeKind::Taken,
            (true, true) => ChangeKind::Reloaded,
            (false, _) if Instant::now() >= change.until => ChangeKind::Late,
            (false, _) => return,
        };
        let text = match kind {
            ChangeKind::Late => "a worker has not taken it yet".to_owned(),
            _ => change.why.clone(),
        };
        let asker = change.asker;
        self.change = None;
        self.tell_outcome(asker, &ChangeOutcome::new(kind, text));
    }

    /// When a change has taken too long.
    pub(super) fn change_ends(&self) -> Option<Instant> {
        self.change.as_ref().map(|change| change.until)
    }

    fn tell_outcome(&self, asker: Option<Pid>, outcome: &ChangeOutcome) {
        log!(self.cycle.log, Notice, None, "change of the configuration: {:?}", outcome.kind);
        let Some(child) = asker.and_then(|pid| self.children.iter().find(|c| c.pid == pid)) else {
            return;
        };
        let told = change::memory(&outcome.to_bytes())
            .and_then(|memory| child.channel.order_with(Order::Outcome, &[memory.as_fd()]));
        if let Err(e) = told {
            log!(self.cycle.log, Alert, None, "sendmsg() to a worker failed {}", Cause(&e));
        }
    }

    /// What the workers have asked for since the last look.
    pub(super) fn carry_out_changes(&mut self, asked: Vec<ChangeReport>) -> ControlFlow<Role> {
        asked.into_iter().try_for_each(|report| match report {
            ChangeReport::Asks(pid, text) => self.change_as_asked(pid, text),
            ChangeReport::Done(pid, taken) => self.changed(pid, taken),
            ChangeReport::Retired(pid) => {
                self.change_lacks(pid);
                ControlFlow::Continue(())
            }
        })
    }
}

/// What a worker says of changes.
pub(super) enum ChangeReport {
    /// It asks for one.
    Asks(Pid, Option<OwnedFd>),
    /// It has taken one, or not.
    Done(Pid, bool),
    /// It takes no connections any more: others have taken over.
    Retired(Pid),
}
