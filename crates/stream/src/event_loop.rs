//! The state of one event loop for `stream` sessions.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use weir_engine::Handle;
use weir_metrics::Tally;
use weir_resolver::Resolvers;
use weir_ssl::scripted::SessionScripts;
use weir_ssl::{CertificateCache, HandedConnection};
use weir_upstream::counts::Counts;
use weir_values::log::Writers;
use weir_values::presence::OpenSessions;
use weir_values::{Address, Identity, Offset, Retire};

use crate::datagrams::Sessions;
use crate::site::Site;

/// Finds the listener with an address. The function that it returns takes the connection over.
pub type ListenerLookup = Rc<dyn Fn(&Address) -> Option<Box<dyn FnOnce(HandedConnection)>>>;

/// What the sessions of one loop share.
pub struct LoopState {
    /// The loop.
    pub handle: Handle,
    /// The configuration that it serves.
    pub site: &'static Site,
    /// Which loop this is.
    pub identity: Identity,
    /// This loop's counters.
    pub metrics: Rc<Tally>,
    /// Resolvers and their cached answers.
    pub resolvers: Rc<Resolvers>,
    pub(crate) logs: Writers,
    pub(crate) offset: Offset,
    pub(crate) listener_lookup: RefCell<Option<ListenerLookup>>,
    /// Runs Lua scripts, if the configuration has some.
    pub scripts: OnceCell<Rc<dyn SessionScripts>>,
    /// Server certificates whose file names have variables.
    pub(crate) certificates: CertificateCache<Arc<weir_tls::ServerConfig>>,
    /// Client certificates for upstream servers whose file names have variables.
    pub(crate) upstream_certificates: CertificateCache<weir_tls::TlsClient>,
    pub(crate) datagrams: Sessions,
    /// Metrics of upstream servers.
    pub(crate) counts: Counts,
    pub(crate) open: Rc<OpenSessions>,
    pub(crate) retiring: Cell<Option<Retire>>,
}

impl LoopState {
    /// Sets how `pass` finds the listener that it passes connections to.
    pub fn set_listener_lookup(&self, lookup: ListenerLookup) {
        *self.listener_lookup.borrow_mut() = Some(lookup);
    }

    /// Marks the loop as shutting down. Its sessions go on; the caller gives it no new ones.
    pub fn retire(&self, how: Retire) {
        self.retiring.set(Some(how));
    }

    /// Whether the loop is shutting down.
    pub fn retiring(&self) -> bool {
        self.retiring.get().is_some()
    }

    /// Starts to write buffered lines of access logs to their files. Returns the writers whose
    /// queues carry them.
    pub fn flush_logs(&self) -> Writers {
        self.logs.flush(&self.handle);
        self.logs.clone()
    }

    /// Writes all waiting lines of access logs before it returns. Called when the loop has ended.
    pub fn finish_logs(&self) {
        self.logs.finish();
    }

    /// Open client connections.
    pub fn connections(&self) -> usize {
        self.open.connections()
    }

    /// Sessions that have not yet reached their upstream server.
    pub fn inflight(&self) -> usize {
        self.open.inflight()
    }
}
