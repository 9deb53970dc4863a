//! A worker's part of a change while it runs: see [`crate::change`].

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use weir_acme::Acme;
use weir_engine::{Handle, Remote};
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

/// How long a request waits for the master's answer. The master itself waits for its workers for
/// half of that time, and needs some time for the test of a long configuration.
const PATIENCE: Duration = Duration::from_secs(60);

/// The process's pending request for another configuration.
#[derive(Clone, Default)]
pub struct Asking(Arc<Mutex<AskingState>>);

#[derive(Default)]
struct AskingState {
    /// The number of the last request.
    last: u64,
    /// The request that waits for its answer, and until when.
    waiting: Option<(ChangeAnswer, Instant)>,
    /// A task of a loop watches the deadline.
    watched: bool,
}

impl Asking {
    /// Sends a request to the master, from the loop of `h`.
    pub fn ask(
        &self,
        h: &Handle,
        channel: Option<&ChannelEnd>,
        request: &ChangeRequest,
    ) -> ChangeAnswer {
        let answer = ChangeAnswer::default();
        match self.send(h.now(), channel, request, &answer) {
            Ok(()) => self.watch(h),
            Err(outcome) => answer.set(outcome),
        }
        answer
    }

    fn send(
        &self,
        now: Instant,
        channel: Option<&ChannelEnd>,
        request: &ChangeRequest,
        answer: &ChangeAnswer,
    ) -> Result<(), ChangeOutcome> {
        let mut state = self.state();
        let channel = channel.ok_or_else(|| {
            let why = "a server without master process cannot change its configuration";
            ChangeOutcome::new(ChangeKind::Refused, why)
        })?;
        if state.waiting.is_some() {
            return Err(ChangeOutcome::new(ChangeKind::Busy, "another change is under way"));
        }
        state.last += 1;
        change::numbered(state.last, &request.to_bytes())
            .and_then(|memory| channel.report_with(WorkerReport::AsksChange, memory.as_fd()))
            .map_err(|e| {
                let text = format!("the master process does not hear {}", Cause(&e));
                ChangeOutcome::new(ChangeKind::Unasked, text)
            })?;
        state.waiting = Some((answer.clone(), now + PATIENCE));
        Ok(())
    }

    /// Gives up requests at their deadline, by a task that ends when there are none.
    fn watch(&self, h: &Handle) {
        if std::mem::replace(&mut self.state().watched, true) {
            return;
        }
        let (asking, handle) = (self.clone(), h.clone());
        h.spawn(async move {
            while let Some(until) = asking.next_deadline(handle.now()) {
                handle.sleep_until(until).await;
            }
        });
    }

    /// Gives up a request that has waited until its deadline. Returns the deadline of one that
    /// still waits.
    fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let mut state = self.state();
        if let Some((answer, _)) = state.waiting.take_if(|(_, until)| *until <= now) {
            let text = "the master process has not answered for a minute, and may still take it";
            answer.set(ChangeOutcome::new(ChangeKind::Late, text));
        }
        state.watched = state.waiting.is_some();
        state.waiting.as_ref().map(|(_, until)| *until)
    }

    /// Receives the master's answer. Answers to requests that were given up are dropped.
    pub fn answered(&self, fds: Vec<OwnedFd>) {
        let mut state = self.state();
        let read = fds.into_iter().next().and_then(change::number_and_rest);
        if read.as_ref().is_some_and(|(number, _)| *number != state.last) {
            return;
        }
        let outcome = read.and_then(|(_, bytes)| ChangeOutcome::of(&bytes));
        if let Some((answer, _)) = state.waiting.take() {
            let lost = || ChangeOutcome::new(ChangeKind::Unasked, "the answer was lost");
            answer.set(outcome.unwrap_or_else(lost));
        }
    }

    /// The master has ended and will not answer.
    pub fn master_ended(&self) {
        if let Some((answer, _)) = self.state().waiting.take() {
            let text = "the master process has ended, and may have taken it";
            answer.set(ChangeOutcome::new(ChangeKind::Unasked, text));
        }
    }

    fn state(&self) -> MutexGuard<'_, AskingState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::channel::{self, Received};

    fn outcome(answer: &ChangeAnswer) -> Option<ChangeKind> {
        match pin!(answer.clone()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome.kind),
            Poll::Pending => None,
        }
    }

    /// The descriptor of the next request that the master reads.
    fn heard(master: &ChannelEnd) -> (u64, Vec<u8>) {
        let mut fds = Vec::new();
        assert_eq!(master.next_report(&mut fds), Received::Message(WorkerReport::AsksChange));
        change::number_and_rest(fds.pop().unwrap()).unwrap()
    }

    fn reply(asking: &Asking, number: u64) {
        let taken = ChangeOutcome::new(ChangeKind::Taken, "");
        asking.answered(vec![change::numbered(number, &taken.to_bytes()).unwrap()]);
    }

    #[test]
    fn a_request_waits_for_its_own_answer_until_its_deadline() {
        let (master, worker) = channel::pair().unwrap();
        let (asking, now) = (Asking::default(), Instant::now());
        let request = ChangeRequest::Text(b"events {}".to_vec());
        let ask = |now| {
            let answer = ChangeAnswer::default();
            asking.send(now, Some(&worker), &request, &answer).map(|()| answer)
        };
        let first = ask(now).unwrap();
        let (number, bytes) = heard(&master);
        assert_eq!(ChangeRequest::of(&bytes), Some(request.clone()));
        assert_eq!(ask(now).map(drop).map_err(|outcome| outcome.kind), Err(ChangeKind::Busy));
        assert_eq!(asking.next_deadline(now), Some(now + PATIENCE));
        assert_eq!(outcome(&first), None);
        // The answer was lost.
        assert_eq!(asking.next_deadline(now + PATIENCE), None);
        assert_eq!(outcome(&first), Some(ChangeKind::Late));
        let second = ask(now + PATIENCE).unwrap();
        let (next, _) = heard(&master);
        // The answer to the first arrives after all.
        reply(&asking, number);
        assert_eq!(outcome(&second), None);
        reply(&asking, next);
        assert_eq!(outcome(&second), Some(ChangeKind::Taken));
        let third = ask(now).unwrap();
        asking.answered(Vec::new());
        assert_eq!(outcome(&third), Some(ChangeKind::Unasked));
    }
}
