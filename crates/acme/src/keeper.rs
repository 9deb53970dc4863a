//! The keeper of an issuer's certificates, on a thread of its own.
//!
//! In each turn it takes a new list of certificates into use, looks for new files, and tries to get the lock of the issuer's
//! directory. With the lock, it orders each certificate that is due. Without it, it only follows the files.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weir_log::{Cause, Log, log};

use crate::client::{Client, Failure};
use crate::managed_certificate::{ManagedCertificate, due_of};
use crate::policy::{Now, Pace, Pause, span};
use crate::renewal_window::{PendingRequest, WindowRequest};
use crate::settings::Issuer;
use crate::standing::Standing;
use crate::state::{StateDirectory, StoredCertificate};
use crate::stop::{Stop, Stopped, lock};
use crate::threads::{Listener, Wanted};

/// How often a thread looks for files that another process has written, and tries to get the lock.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The coarsest resolution of a directory's time of change.
const COARSEST_MTIME: Duration = Duration::from_secs(2);
/// How long after its start a process first requests a renewal window.
const FIRST_WINDOW_REQUEST: Duration = Duration::from_secs(60);

/// The state of an issuer's thread.
pub(crate) struct Keeper {
    /// The certificates that it keeps now.
    issuer: Arc<Issuer>,
    /// The certificates that it is to keep from its next step on.
    wanted: Wanted,
    state: StateDirectory,
    log: Arc<Log>,
    stop: Arc<Stop>,
    listener: Listener,
    /// The origin of the steady clock.
    started: Instant,
    /// The directory's modification time when the list of certificates was last read.
    seen: Option<SystemTime>,
    certificates: Vec<ManagedCertificate>,
    pause: Pause,
    /// The request for a renewal window that is under way.
    window_request: Option<PendingRequest>,
    lock: Option<File>,
    /// Whether a failure to open the lock file was logged.
    is_locked_out: bool,
}

impl Keeper {
    pub(crate) fn new(
        wanted: Wanted,
        log: Arc<Log>,
        stop: Arc<Stop>,
        listener: Listener,
    ) -> Keeper {
        let issuer = Arc::clone(&lock(&wanted));
        let kept = |order| {
            ManagedCertificate::new(order, issuer.read_at, Pace::default(), FIRST_WINDOW_REQUEST)
        };
        Keeper {
            certificates: issuer.orders.iter().map(kept).collect(),
            state: StateDirectory::new(&issuer.directory),
            issuer,
            wanted,
            log,
            stop,
            listener,
            started: Instant::now(),
            seen: None,
            pause: Pause::default(),
            window_request: None,
            lock: None,
            is_locked_out: false,
        }
    }

    /// Takes the certificates that a new configuration wants. Records of attempts stay valid unless the issuer's block has
    /// changed.
    fn follow(&mut self) {
        let wanted = Arc::clone(&lock(&self.wanted));
        if Arc::ptr_eq(&wanted, &self.issuer) {
            return;
        }
        let is_same = wanted.digest == self.issuer.digest;
        let mut known: HashMap<String, ManagedCertificate> =
            self.certificates.drain(..).map(|kept| (kept.order.id.clone(), kept)).collect();
        let next_window_request = self.started.elapsed() + FIRST_WINDOW_REQUEST;
        for order in &wanted.orders {
            let old = known.remove(&order.id);
            let pace = || match self.lock {
                Some(_) => Pace::after(self.state.attempts(&order.id)),
                None => Pace::default(),
            };
            let kept = match old {
                Some(old) if is_same => old.of(order),
                Some(old) => {
                    ManagedCertificate { read_at: wanted.read_at, pace: pace(), ..old.of(order) }
                }
                None => ManagedCertificate::new(order, wanted.read_at, pace(), next_window_request),
            };
            self.certificates.push(kept);
        }
        if !is_same {
            self.pause = Pause::default();
        }
        (self.issuer, self.seen) = (wanted, None);
    }

    pub(crate) fn run(mut self) {
        while self.turn().is_ok() && self.stop.wait(CHECK_INTERVAL).is_ok() {}
    }

    fn turn(&mut self) -> Result<(), Stopped> {
        self.follow();
        self.check_files();
        if self.lock.is_none() {
            self.take_lock();
            if self.lock.is_some() {
                self.sweep()?;
            }
        }
        if self.lock.is_none() {
            (0..self.certificates.len()).for_each(|at| self.post_validity(at));
            return Ok(());
        }
        (0..self.certificates.len()).for_each(|at| self.post_standing(at));
        self.take_renewal_window();
        for at in 0..self.certificates.len() {
            self.order_if_due(at)?;
            self.post_standing(at);
            // A new list is taken between two orders: new names do not wait for old ones, and removed ones are not ordered.
            if !Arc::ptr_eq(&lock(&self.wanted), &self.issuer) {
                break;
            }
        }
        Ok(())
    }

    /// Posts the standing of a certificate to the other processes, if it has changed.
    fn post_standing(&mut self, at: usize) {
        let Some(kept) = self.certificates.get_mut(at) else { return };
        let record = kept.pace.record();
        let due_at = kept.due_at(&self.issuer.uri);
        let standing = Standing {
            not_after: kept.stored.as_ref().map(|stored| stored.validity.end),
            failures: record.failures().into(),
            since: record.failing(),
            next: Some(kept.pace.next(due_at, kept.read_at)),
            reason: record.reason().to_owned(),
        };
        if kept.posted.as_ref() == Some(&standing) {
            return;
        }
        if let Some(standings) = &self.issuer.standings {
            standings.note(self.issuer.row_name(&kept.order), &standing);
            (self.listener)();
        }
        kept.posted = Some(standing);
    }

    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        let wall = wall.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
        Now { wall, steady: self.started.elapsed() }
    }

    /// Looks for new files and takes them into use.
    fn check_files(&mut self) {
        let changed = self.state.changed();
        let is_settled =
            changed.is_some_and(|at| at.elapsed().is_ok_and(|age| age > COARSEST_MTIME));
        if is_settled && changed == self.seen {
            return;
        }
        self.seen = changed;
        let files = self.state.files();
        for kept in &mut self.certificates {
            let stored = files.newest(&kept.order.id, kept.stored.as_ref());
            if stored != kept.stored {
                kept.order.set_file(stored.as_ref().map(StoredCertificate::shared_path));
                (kept.stored, kept.suggested) = (stored, None);
            }
        }
    }

    /// Posts only the end of the certificate's validity, while a process of another server has the
    /// lock.
    fn post_validity(&mut self, at: usize) {
        let Some(kept) = self.certificates.get_mut(at) else { return };
        let not_after = kept.stored.as_ref().map(|stored| stored.validity.end);
        let standing = Standing { not_after, ..Standing::default() };
        if kept.posted.as_ref() == Some(&standing) {
            return;
        }
        let known = self.issuer.standing(&kept.order);
        let is_untold = known.next.is_none() && known.since.is_none();
        if let Some(standings) = self.issuer.standings.as_ref().filter(|_| is_untold) {
            standings.note(self.issuer.row_name(&kept.order), &standing);
        }
        kept.posted = Some(standing);
    }

    /// Posts to the other processes that no certificate can be ordered, since the directory cannot be used.
    fn post_unusable_directory(&self, error: &std::io::Error) {
        let Some(standings) = &self.issuer.standings else { return };
        let path = self.state.path().display();
        for kept in &self.certificates {
            let standing = Standing {
                not_after: kept.stored.as_ref().map(|stored| stored.validity.end),
                since: Some(self.now().wall),
                reason: format!("cannot use the state_path \"{path}\": {error}"),
                ..Standing::default()
            };
            standings.note(self.issuer.row_name(&kept.order), &standing);
        }
        (self.listener)();
    }

    /// Takes the lock if it is free. Its holder talks to the authority.
    fn take_lock(&mut self) {
        let prepared = self.state.prepare().and_then(|()| self.state.lock());
        let cleaned = prepared.and_then(|lock| {
            if lock.is_some() {
                self.state.clean()?;
            }
            Ok(lock)
        });
        match cleaned {
            Ok(lock) => {
                self.is_locked_out = false;
                if lock.is_some() {
                    for kept in &mut self.certificates {
                        kept.pace = Pace::after(self.state.attempts(&kept.order.id));
                        kept.posted = None;
                    }
                }
                self.lock = lock;
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_locked_out, true) {
                    self.post_unusable_directory(&error);
                    let (name, path) = (&self.issuer.name, self.state.path().display());
                    let why = Cause(&error);
                    log!(
                        self.log,
                        Error,
                        None,
                        "acme issuer \"{name}\": cannot use the state_path \"{path}\" {why}"
                    );
                }
            }
        }
    }

    /// Removes TXT records that an ended process has left.
    fn sweep(&self) -> Result<(), Stopped> {
        if self.state.records().is_empty() {
            return Ok(());
        }
        let client = Client::new(&self.issuer, &self.state, &self.stop, &self.log);
        match client.and_then(|client| client.sweep()) {
            Err(Failure::Stopped) => Err(Stopped),
            // The failure is logged. The next attempt tries again.
            _ => Ok(()),
        }
    }

    /// Orders a certificate if it is due.
    fn order_if_due(&mut self, at: usize) -> Result<(), Stopped> {
        let now = self.now();
        let Some(kept) = self.certificates.get_mut(at) else { return Ok(()) };
        let uri = &self.issuer.uri;
        let due_at = kept.due_at(uri);
        if self.pause.holds(now) {
            return Ok(());
        }
        if !kept.pace.wait(now, due_at, kept.read_at).is_zero() {
            self.request_renewal_window(at);
            return Ok(());
        }
        let (name, names) = (&self.issuer.name, kept.order.shown());
        if kept.stored.is_none() {
            let until = "until it comes, TLS handshakes with these names fail";
            log!(
                self.log,
                Notice,
                None,
                "acme issuer \"{name}\": asking {uri} for a certificate for \"{names}\"; {until}"
            );
        }
        kept.pace.begin(now, dice());
        if let Err(why) = self.keep_pace(at) {
            // The attempt must be on disk before it begins: a process that ends each time would repeat it without end.
            if let Some(kept) = self.certificates.get_mut(at) {
                kept.pace.stall(now, &why);
            }
            return Ok(());
        }
        let Some(kept) = self.certificates.get(at) else { return Ok(()) };
        let replaces = kept.stored.as_ref().filter(|stored| stored.uri.as_ref() == Some(uri));
        let replaces = replaces.map(|stored| stored.der.clone());
        let client = Client::new(&self.issuer, &self.state, &self.stop, &self.log);
        let result = client.and_then(|client| client.obtain(&kept.order, replaces.as_deref()));
        self.record_result(at, result)
    }

    /// Records the result of an attempt.
    fn record_result(&mut self, at: usize, result: Result<(), Failure>) -> Result<(), Stopped> {
        let now = self.now();
        self.seen = None;
        self.check_files();
        let Some(kept) = self.certificates.get_mut(at) else { return Ok(()) };
        let (name, names) = (&self.issuer.name, kept.order.shown());
        match (result, &kept.stored) {
            (Err(Failure::Stopped), _) => {
                kept.pace.leave(now);
                let _ = self.keep_pace(at);
                return Err(Stopped);
            }
            (Ok(()), Some(stored)) => {
                self.pause.served();
                let due = due_of(stored, None);
                let (valid, renewed) = (span(stored.validity.end, now), span(due, now));
                let life = stored.validity.length();
                let makes_sense = kept.pace.succeed(now, (due, life), dice());
                kept.next_window_request = now.steady;
                log!(
                    self.log,
                    Notice,
                    None,
                    "acme issuer \"{name}\": got a certificate for \"{names}\", valid for {valid}, renewed in {renewed}"
                );
                if !makes_sense {
                    log!(
                        self.log,
                        Error,
                        None,
                        "acme issuer \"{name}\": the new certificate for \"{names}\" is to be renewed already, is the clock right?"
                    );
                }
            }
            (Ok(()), None) => {
                kept.pace.fail(now, ("the new certificate cannot be read back", None), dice());
                log!(
                    self.log,
                    Error,
                    None,
                    "acme issuer \"{name}\": the new certificate for \"{names}\" cannot be read back"
                );
            }
            (Err(Failure::Refused { why, asked, of_all }), stored) => {
                if of_all || asked.is_some() {
                    self.pause.refused(now, asked);
                }
                kept.pace.fail(now, (&why, asked), dice());
                let wait = kept.pace.record().wait();
                let is_valid = stored.as_ref().is_some_and(|stored| stored.validity.end > now.wall);
                match is_valid {
                    true => {
                        log!(
                            self.log,
                            Warn,
                            None,
                            "acme issuer \"{name}\": the certificate for \"{names}\" is not renewed yet: {why}; next attempt in {wait} s"
                        )
                    }
                    false => {
                        log!(
                            self.log,
                            Error,
                            None,
                            "acme issuer \"{name}\": no certificate for \"{names}\": {why}; next attempt in {wait} s"
                        )
                    }
                }
            }
        }
        // A failure to write is logged, and this process keeps the record in memory.
        let _ = self.keep_pace(at);
        Ok(())
    }

    /// Writes the record of attempts to disk. The error is the reason that it could not.
    fn keep_pace(&self, at: usize) -> Result<(), String> {
        let Some(kept) = self.certificates.get(at) else { return Ok(()) };
        let written = self.state.keep_attempts(&kept.order.id, kept.pace.record());
        written.map_err(|error| {
            let (name, path) = (&self.issuer.name, self.state.path().display());
            let why = Cause(&error);
            log!(
                self.log,
                Error,
                None,
                "acme issuer \"{name}\": cannot write in the state_path \"{path}\" {why}"
            );
            format!("cannot write in the state_path \"{path}\": {error}")
        })
    }

    /// Asks the authority for the renewal window of a certificate, unless a request is under way.
    fn request_renewal_window(&mut self, at: usize) {
        let now = self.now();
        let Some(kept) =
            self.certificates.get(at).filter(|kept| kept.next_window_request <= now.steady)
        else {
            return;
        };
        if let Some(stored) = kept.stored.as_ref().filter(|_| self.window_request.is_none()) {
            let request = WindowRequest::new(&kept.order.id, &stored.der);
            self.window_request = Some(request.send(&self.issuer, &self.state, &self.stop));
        }
    }

    /// Takes the answer of a request for a renewal window, if there is one.
    fn take_renewal_window(&mut self) {
        let Some(answer) = self.window_request.as_ref().and_then(PendingRequest::answer) else {
            return;
        };
        self.window_request = None;
        let now = self.now();
        // The certificate may have been replaced, or removed from the configuration.
        let Some(kept) = self.certificates.iter_mut().find(|kept| {
            let stored = kept.stored.as_ref();
            stored.is_some_and(|stored| answer.request.is_of(&kept.order.id, &stored.der))
        }) else {
            return;
        };
        kept.next_window_request = now.steady + answer.next_request_in;
        match answer.window {
            Ok(window) => kept.suggested = window.or(kept.suggested),
            Err(why) => {
                let (name, names) = (&self.issuer.name, kept.order.shown());
                log!(
                    self.log,
                    Info,
                    None,
                    "acme issuer \"{name}\": no opinion on the renewal of \"{names}\": {why}"
                );
            }
        }
    }
}

/// A random number.
fn dice() -> u64 {
    let mut bytes = [0; 8];
    // If there is no randomness, waits have no jitter.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}
