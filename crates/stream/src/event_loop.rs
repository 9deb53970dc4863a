//! One loop's state of the `stream` room.

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

/// Finds the listener with this address: what takes connections over there.
pub type Hand = Rc<dyn Fn(&Address) -> Option<Box<dyn FnOnce(HandedConnection)>>>;

/// What the sessions of one loop share.
pub struct LoopState {
    /// The loop.
    pub handle: Handle,
    /// What it serves.
    pub site: &'static Site,
    /// Which loop this is.
    pub identity: Identity,
    /// This loop's counters.
    pub metrics: Rc<Tally>,
    /// What name servers have told.
    pub resolvers: Rc<Resolvers>,
    pub(crate) logs: Writers,
    pub(crate) offset: Offset,
    pub(crate) hand: RefCell<Option<Hand>>,
    /// Runs its servers' scripts, where they have some.
    pub scripts: OnceCell<Rc<dyn SessionScripts>>,
    /// Certificates with variables in their names.
    pub(crate) certificates: CertificateCache<Arc<weir_tls::ServerConfig>>,
    /// The same of certificates that servers are shown.
    pub(crate) upstream_certificates: CertificateCache<weir_tls::TlsClient>,
    pub(crate) datagrams: Sessions,
    /// What it counts of servers behind.
    pub(crate) counts: Counts,
    pub(crate) open: Rc<OpenSessions>,
    pub(crate) retiring: Cell<Option<Retire>>,
}

impl LoopState {
    /// Where `pass` hands connections over.
    pub fn hands_to(&self, hand: Hand) {
        *self.hand.borrow_mut() = Some(hand);
    }

    /// Begins the end: sessions go on, and no new ones come.
    pub fn retire(&self, how: Retire) {
        self.retiring.set(Some(how));
    }

    /// Whether it has begun to end.
    pub fn retiring(&self) -> bool {
        self.retiring.get().is_some()
    }

    /// Sends buffered lines of access logs to their files, through these queues.
    pub fn flush_logs(&self) -> Writers {
        self.logs.flush(&self.handle);
        self.logs.clone()
    }

    /// Writes all lines of access logs that wait, and returns when that is done: the loop has ended.
    pub fn finish_logs(&self) {
        self.logs.finish();
    }

    /// Open client connections.
    pub fn connections(&self) -> usize {
        self.open.connections()
    }

    /// Sessions that have not come to where they lead.
    pub fn inflight(&self) -> usize {
        self.open.inflight()
    }
}
