//! The master's part of a change while workers run: see [`crate::change`].

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

/// How long the master waits for the workers' answers.
const PATIENCE: Duration = Duration::from_secs(30);

/// An unfinished change.
#[derive(Debug)]
pub(super) struct Change {
    /// The worker's request for it. None if another part of the program wants it.
    asker: Option<Asker>,
    /// Workers that have not taken the change yet, or have not retired yet.
    waiting: Vec<Pid>,
    /// The generation of the new workers, if new ones replace all others.
    by_new_workers: Option<u64>,
    /// The reason for new workers.
    why: String,
    until: Instant,
}

/// A worker's request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    worker: Pid,
    /// The worker's number of the request.
    number: u64,
}

/// How a plan is applied.
enum ChangeWay {
    /// By the running workers.
    Running(Box<Cycle>, Parcel),
    /// By new workers, for this reason.
    New(Box<Cycle>, String),
}

impl Master {
    /// Handles a worker's request for another configuration.
    fn change_as_asked(&mut self, worker: Pid, request: Option<OwnedFd>) -> ControlFlow<Role> {
        let Some((number, bytes)) = request.and_then(change::number_and_rest) else {
            // The worker gives the request up by itself.
            return ControlFlow::Continue(());
        };
        let asker = Asker { worker, number };
        let request = ChangeRequest::of(&bytes);
        let unreadable = || ChangeOutcome::new(ChangeKind::Refused, "the request is unreadable");
        let wanted = request.ok_or_else(unreadable).and_then(|request| {
            change::wanted(&self.origin, &self.cycle.text.main, &self.attached, &request)
        });
        match wanted {
            Ok((tree, attached)) => self.change(tree, attached, Some(asker)),
            Err(outcome) => {
                self.tell_outcome(Some(asker), &outcome);
                ControlFlow::Continue(())
            }
        }
    }

    /// Applies the configuration of a tree while workers run. Requests of the API and trees of
    /// other programs end here. `attached` came with the tree. `asker` gets the outcome; without
    /// one it is only logged.
    pub(super) fn change(
        &mut self,
        tree: ConfigTree,
        attached: Attached,
        asker: Option<Asker>,
    ) -> ControlFlow<Role> {
        let busy = self.change.is_some() || self.is_replacing() || self.ending.is_some();
        if busy || self.kin.successor.is_some() {
            let outcome = ChangeOutcome::new(ChangeKind::Busy, "another change is under way");
            self.tell_outcome(asker, &outcome);
            return ControlFlow::Continue(());
        }
        log!(self.cycle.log, Notice, None, "changing the configuration");
        let way = self.way(tree, attached.files.clone());
        match way {
            Err((kind, complaint)) => {
                self.counters.add(Metric::ReloadFailed, 1);
                let Complaint { text, place } = complaint;
                self.tell_outcome(asker, &ChangeOutcome { kind, place, text });
                ControlFlow::Continue(())
            }
            Ok(ChangeWay::Running(cycle, parcel)) => {
                self.attached = attached;
                self.pass_to_workers(*cycle, &parcel, asker)
            }
            Ok(ChangeWay::New(cycle, why)) => {
                log!(self.cycle.log, Notice, None, "new workers take the configuration: {why}");
                self.begin_change(asker, Vec::new(), Some(why));
                self.adopt(*cycle, attached)
            }
        }
    }

    fn begin_change(&mut self, asker: Option<Asker>, waiting: Vec<Pid>, new: Option<String>) {
        self.change = Some(Change {
            asker,
            waiting,
            by_new_workers: new.is_some().then_some(self.replacements + 1),
            why: new.unwrap_or_default(),
            until: Instant::now() + PATIENCE,
        });
    }

    /// Checks a tree as `-t` does, and opens what it needs.
    fn way(
        &self,
        tree: ConfigTree,
        files: FileTexts,
    ) -> Result<ChangeWay, (ChangeKind, Complaint)> {
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
        let secrets = weir_ssl::ticket_secrets_made();
        let (plan, files) = with_files(files, || self.origin.compile(tree, None, sites, log));
        let plan = plan.map_err(wrong)?;
        if let Some(site) = &plan.sites.http {
            let (reused, all) = (site.reused, site.servers.len());
            log!(log, Notice, None, "{reused} of {all} servers are as before");
        }
        let plan = self.origin.open_logs(plan, log).map_err(failed)?;
        let (old, new) = (&self.cycle, &plan);
        let (before, main) = (&old.text.main, &new.text.main);
        let why = change::needs_new_workers(&old.sites, before, &new.sites, main).or_else(|| {
            let is_new = weir_ssl::ticket_secrets_made() != secrets;
            is_new.then_some("its session tickets have keys that running workers do not share")
        });
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
                Ok(ChangeWay::Running(Box::new(cycle), parcel))
            }
            Err(plan) => {
                self.open_anew(*plan, "it needs shared memory that is not open".to_owned())
            }
        }
    }

    fn open_anew(&self, plan: Plan, why: String) -> Result<ChangeWay, (ChangeKind, Complaint)> {
        let (old, log) = (&self.cycle, &self.cycle.log);
        let failed = |failed| (ChangeKind::Wrong, Complaint::from(failed));
        let cycle = plan.open(&old.sockets, &old.zones, &old.post, Purpose::Serve, log);
        let mut cycle = cycle.map_err(failed)?;
        trial::run(&mut cycle, log).map_err(failed)?;
        Ok(ChangeWay::New(Box::new(cycle), why))
    }

    /// Adopts a cycle and sends it to the running workers.
    fn pass_to_workers(
        &mut self,
        cycle: Cycle,
        parcel: &Parcel,
        asker: Option<Asker>,
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
            // Requests that still use the old site may use its API.
            child.may_ask |= may_ask;
            child.may_change |= may_change;
            unheard |= child.channel.order_with(Order::Change, &parcel.fds()).is_err();
            waiting.push(child.pid);
        }
        self.begin_change(asker, waiting, None);
        // Returns the memory of the previous configuration.
        weir_sys::allocator::give_back();
        if unheard {
            return self.replace_all();
        }
        self.check_change();
        ControlFlow::Continue(())
    }

    /// A worker has taken the change, or could not.
    pub(super) fn changed(&mut self, pid: Pid, taken: bool) -> ControlFlow<Role> {
        let Some(change) = &mut self.change else { return ControlFlow::Continue(()) };
        if change.by_new_workers.is_some() || !change.waiting.contains(&pid) {
            return ControlFlow::Continue(());
        }
        if !taken {
            return self.replace_all();
        }
        change.waiting.retain(|waiting| *waiting != pid);
        self.check_change();
        ControlFlow::Continue(())
    }

    /// Workers of generation `running` have taken over, and these older workers were told to
    /// retire. The change is finished once they have.
    pub(super) fn change_waits_for(&mut self, running: u64, told: Vec<Pid>) {
        if let Some(change) = &mut self.change
            && change.by_new_workers.is_some_and(|generation| generation <= running)
        {
            change.waiting.extend(told);
        }
    }

    /// A worker has retired, or has ended and its successor starts with the newest configuration.
    /// The change no longer waits for it.
    pub(super) fn change_waits_no_more_for(&mut self, pid: Pid) {
        if let Some(change) = &mut self.change {
            change.waiting.retain(|waiting| *waiting != pid);
        }
        self.check_change();
    }

    /// Replaces all workers, since a running one could not take the change.
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
            (change.by_new_workers, change.why) = (Some(self.replacements + 1), why.to_owned());
            change.waiting.clear();
        }
        self.adopt(cycle, self.attached.clone())
    }

    /// Finishes the change if all workers have taken it, or if it has taken too long.
    pub(super) fn check_change(&mut self) {
        let Some(change) = &self.change else { return };
        let begins = change.by_new_workers.is_some_and(|generation| self.serving < generation);
        let is_over = !begins && change.waiting.is_empty();
        let kind = match (is_over, change.by_new_workers.is_some()) {
            (true, false) => ChangeKind::Taken,
            (true, true) => ChangeKind::Reloaded,
            (false, _) if Instant::now() >= change.until => ChangeKind::Late,
            (false, _) => return,
        };
        let text = match kind {
            ChangeKind::Late => "a worker has not taken it yet".to_owned(),
            _ => change.why.clone(),
        };
        self.end_change(ChangeOutcome::new(kind, text));
    }

    /// The newest configuration was given up. Ends the change that led there, if there is one.
    pub(super) fn give_up_change(&mut self, outcome: ChangeOutcome) {
        let by_new_workers = self.change.as_ref().and_then(|change| change.by_new_workers);
        if by_new_workers.is_some_and(|generation| generation > self.generation) {
            self.end_change(outcome);
        }
    }

    /// Ends the change, if there is one, with this outcome.
    fn end_change(&mut self, outcome: ChangeOutcome) {
        if let Some(change) = self.change.take() {
            self.tell_outcome(change.asker, &outcome);
        }
    }

    /// When a change has taken too long.
    pub(super) fn change_deadline(&self) -> Option<Instant> {
        self.change.as_ref().map(|change| change.until)
    }

    fn tell_outcome(&self, asker: Option<Asker>, outcome: &ChangeOutcome) {
        log!(self.cycle.log, Notice, None, "change of the configuration: {:?}", outcome.kind);
        let Some(Asker { worker, number }) = asker else { return };
        let Some(child) = self.children.iter().find(|child| child.pid == worker) else { return };
        let told = change::numbered(number, &outcome.to_bytes())
            .and_then(|memory| child.channel.order_with(Order::Outcome, &[memory.as_fd()]));
        if let Err(e) = told {
            log!(self.cycle.log, Alert, None, "sendmsg() to a worker failed {}", Cause(&e));
        }
    }

    /// Handles the workers' reports about changes.
    pub(super) fn carry_out_changes(&mut self, asked: Vec<ChangeReport>) -> ControlFlow<Role> {
        asked.into_iter().try_for_each(|report| match report {
            ChangeReport::Asks(pid, text) => self.change_as_asked(pid, text),
            ChangeReport::Done(pid, taken) => self.changed(pid, taken),
            ChangeReport::Retired(pid) => {
                self.change_waits_no_more_for(pid);
                ControlFlow::Continue(())
            }
        })
    }
}

/// A worker's report about a change.
pub(super) enum ChangeReport {
    /// It requests a change.
    Asks(Pid, Option<OwnedFd>),
    /// It has taken the change, or could not.
    Done(Pid, bool),
    /// It has retired: other workers have taken over.
    Retired(Pid),
}
