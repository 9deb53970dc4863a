//! A worker's part of a change while it runs: see [`crate::change`].

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use weir_acme::Acme;
use weir_engine::Remote;
use weir_log::{Cause, log};
use weir_zone::Zones;

use super::control::Control;
use super::turns;
use crate::change;
use crate::channel::{ChannelEnd, WorkerReport};
use crate::cycle::{Cycle, Edition, Origin};
use crate::service::Sites;
use weir_upstream::config::servers_file::FileGroups;
use weir_values::{ChangeAnswer, ChangeKind, ChangeOutcome, ChangeRequest};

/// The newest sites of the process. The next ones are compiled in relation to them.
pub struct Newest {
    sites: Sites,
    zones: Zones,
    text: Edition,
    /// The groups whose servers are read from files.
    in_files: FileGroups,
    /// The threads that renew certificates.
    acme: Acme,
}

/// The process's pending request for another configuration.
#[derive(Clone, Default)]
pub struct Asking(Arc<Mutex<Option<ChangeAnswer>>>);

impl Asking {
    /// Sends a request to the master.
    pub fn ask(&self, channel: Option<&ChannelEnd>, request: &ChangeRequest) -> ChangeAnswer {
        let answer = ChangeAnswer::default();
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(channel) = channel else {
            let why = "a server without master process cannot change its configuration";
            answer.set(ChangeOutcome::new(ChangeKind::Refused, why));
            return answer;
        };
        if waiting.is_some() {
            answer.set(ChangeOutcome::new(ChangeKind::Busy, "another change is under way"));
            return answer;
        }
        let told = change::memory(&request.to_bytes())
            .and_then(|memory| channel.report_with(WorkerReport::AsksChange, memory.as_fd()));
        match told {
            Ok(()) => *waiting = Some(answer.clone()),
            Err(e) => {
                let text = format!("the master process does not hear {}", Cause(&e));
                answer.set(ChangeOutcome::new(ChangeKind::Unasked, text));
            }
        }
        answer
    }

    /// Receives the master's answer.
    pub fn answered(&self, fds: Vec<OwnedFd>) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let bytes = fds.into_iter().next().map(|fd| change::contents(fd, change::LONGEST));
        let outcome = bytes.and_then(Result::ok).and_then(|bytes| ChangeOutcome::of(&bytes));
        if let Some(waiting) = waiting {
            let lost = || ChangeOutcome::new(ChangeKind::Unasked, "the answer was lost");
            waiting.set(outcome.unwrap_or_else(lost));
        }
    }
}

/// The data of the thread that compiles a site.
struct Compiler {
    origin: Arc<Origin>,
    newest: Arc<Mutex<Newest>>,
    loops: Vec<Remote>,
    channel: ChannelEnd,
    log: Arc<weir_log::Log>,
}

impl Newest {
    /// The sites with which the process starts.
    pub fn new(cycle: &Cycle, log: &Arc<weir_log::Log>, acme: Acme) -> Arc<Mutex<Newest>> {
        let Cycle { sites, zones, text, .. } = cycle.clone();
        let in_files = FileGroups::new(Arc::clone(log));
        in_files.take(sites.in_files());
        Arc::new(Mutex::new(Newest { sites, zones, text, in_files, acme }))
    }
}

impl Control {
    /// Takes another site from these descriptors. Compiles it on a thread of its own and gives it
    /// to all loops.
    pub(super) fn change(self: &Rc<Self>, fds: Vec<OwnedFd>) {
        let Some(channel) = self.channel.clone() else { return };
        let told = channel.clone();
        let compiler = Compiler {
            origin: Arc::clone(&self.origin),
            newest: Arc::clone(&self.newest),
            loops: self.loops.clone(),
            channel,
            log: Arc::clone(&self.log),
        };
        // The simulated world has no turns for such a thread.
        if cfg!(feature = "sim") {
            return compiler.run(fds);
        }
        let started =
            thread::Builder::new().name("weir: change".to_owned()).spawn(move || compiler.run(fds));
        if let Err(e) = started {
            log!(self.log, Alert, None, "pthread_create() failed {}", Cause(&e));
            let _ = told.report(WorkerReport::Unchanged);
        }
    }
}

impl Compiler {
    fn run(self, fds: Vec<OwnedFd>) {
        // The lock makes sites that arrive soon after each other compile one by one.
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let Newest { sites, zones, text, .. } = &*newest;
        let made = change::compile(&self.origin, fds, (sites, zones, text), &self.log);
        let Some((sites, zones, text)) = made else {
            self.report(WorkerReport::Unchanged);
            return;
        };
        // Before the first request that may need them.
        newest.in_files.take(sites.in_files());
        newest.acme.take(sites.issuers());
        (newest.sites, newest.zones, newest.text) = (sites.clone(), zones.clone(), text);
        let served = sites.lend();
        let left = Arc::new(AtomicUsize::new(self.loops.len()));
        for remote in &self.loops {
            let (sites, zones, left) = (sites.clone(), zones.clone(), Arc::clone(&left));
            let served = served.clone();
            let channel = self.channel.clone();
            remote.post(Box::new(move |_| {
                turns::take(served, &sites, &zones);
                if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                    // A master that has gone waits for nothing.
                    let _ = channel.report(WorkerReport::Changed);
                }
            }));
        }
    }

    fn report(&self, report: WorkerReport) {
        if let Err(e) = self.channel.report(report) {
            log!(self.log, Alert, None, "sendmsg() to the master failed {}", Cause(&e));
        }
    }
}
