//! The threads of a process: one for each issuer in each worker.
//!
//! A configuration that a running worker takes over may want other certificates ([`Acme::take`]). Certificates on disk are
//! found before any handshake needs them. An issuer's thread takes the new list once its current step is done.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use weir_log::{Cause, Log, log};

use crate::keeper::Keeper;
use crate::settings::Issuer;
use crate::state::StateDirectory;
use crate::stop::{Stop, lock};

/// The threads of a process.
#[derive(Clone)]
pub struct Acme {
    log: Arc<Log>,
    listener: Listener,
    threads: Arc<Mutex<Threads>>,
}

/// Called when the standing of a certificate has changed.
pub type Listener = Arc<dyn Fn() + Send + Sync>;

/// The running threads. No thread is started once the worker retires.
#[derive(Default)]
struct Threads {
    is_over: bool,
    list: Vec<Thread>,
}

/// The handle of an issuer's thread.
struct Thread {
    name: String,
    directory: PathBuf,
    stop: Arc<Stop>,
    /// The certificates that it is to keep.
    wanted: Wanted,
}

/// The newest issuer with its certificates.
pub(crate) type Wanted = Arc<Mutex<Arc<Issuer>>>;

impl Acme {
    /// Finds the certificates on disk, and starts a thread for each issuer.
    pub fn start(issuers: &[Arc<Issuer>], log: &Arc<Log>, listener: &Listener) -> Acme {
        let (log, listener) = (Arc::clone(log), Arc::clone(listener));
        let acme = Acme { log, listener, threads: Arc::default() };
        acme.take(issuers);
        acme
    }

    /// Takes these issuers and certificates, and ends the threads of other issuers. Certificates on disk can be used when
    /// this returns. May wait for files.
    pub fn take(&self, issuers: &[Arc<Issuer>]) {
        let wanted = || issuers.iter().filter(|issuer| !issuer.orders.is_empty());
        let is = |thread: &Thread, issuer: &Issuer| {
            thread.name == issuer.name && thread.directory == issuer.directory
        };
        wanted().for_each(|issuer| find_files(issuer));
        let mut threads = lock(&self.threads);
        if threads.is_over {
            return;
        }
        threads.list.retain(|thread| {
            let stays = wanted().any(|issuer| is(thread, issuer));
            if !stays {
                thread.stop.stop();
            }
            stays
        });
        for issuer in wanted() {
            match threads.list.iter().find(|thread| is(thread, issuer)) {
                Some(thread) => *lock(&thread.wanted) = Arc::clone(issuer),
                None => threads.list.extend(self.start_thread(issuer)),
            }
        }
    }

    fn start_thread(&self, issuer: &Arc<Issuer>) -> Option<Thread> {
        let thread = Thread {
            name: issuer.name.clone(),
            directory: issuer.directory.clone(),
            stop: Arc::default(),
            wanted: Arc::new(Mutex::new(Arc::clone(issuer))),
        };
        let (stop, wanted) = (Arc::clone(&thread.stop), Arc::clone(&thread.wanted));
        let keeper = Keeper::new(wanted, Arc::clone(&self.log), stop, Arc::clone(&self.listener));
        let started = thread::Builder::new().name("weir: acme".to_owned());
        match started.spawn(move || keeper.run()) {
            Ok(_) => Some(thread),
            Err(error) => {
                let (name, why) = (&issuer.name, Cause(&error));
                log!(self.log, Alert, None, "acme issuer \"{name}\": no thread {why}");
                None
            }
        }
    }

    /// Ends all threads, since the worker retires. They release the lock at once.
    pub fn stop(&self) {
        let mut threads = lock(&self.threads);
        threads.is_over = true;
        threads.list.iter().for_each(|thread| thread.stop.stop());
    }
}

/// Finds the files of an issuer's certificates that have none yet.
fn find_files(issuer: &Issuer) {
    let new: Vec<_> = issuer.orders.iter().filter(|order| order.file().is_none()).collect();
    if new.is_empty() {
        return;
    }
    let files = StateDirectory::new(&issuer.directory).files();
    for order in new {
        if let Some(stored) = files.newest(&order.id, None) {
            order.set_file(Some(stored.shared_path()));
        }
    }
}
