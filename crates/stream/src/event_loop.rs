//! One loop's state of the `stream` room.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use weir_engine::Handle;
use weir_metrics::subjects::{Cells, SubjectKind};
use weir_metrics::{Metric, Tally};
use weir_resolver::Resolvers;
use weir_ssl::{Handed, Loaded};
use weir_upstream::config::dynamic::{self, Looker};
use weir_upstream::counts::Counts;
use weir_values::log::Writers;
use weir_values::{Address, Identity, Offset, Retire};

use crate::datagrams::Sessions;
use crate::health;
use crate::serve;
use crate::site::Site;

/// Finds the listener with this address: what takes connections over there.
pub type Hand = Rc<dyn Fn(&Address) -> Option<Box<dyn FnOnce(Handed)>>>;

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
    /// Certificates with variables in their names.
    pub(crate) certificates: Loaded<Arc<weir_tls::ServerConfig>>,
    /// The same of certificates that servers are shown.
    pub(crate) upstream_certificates: Loaded<weir_tls::TlsClient>,
    pub(crate) datagrams: Sessions,
    /// What it counts of servers behind.
    pub(crate) counts: Counts,
    sessions: Cell<usize>,
    inflight: Cell<usize>,
    retiring: Cell<Option<Retire>>,
}

impl LoopState {
    /// The state of this thread's loop.
    pub fn new(
        handle: Handle,
        site: &'static Site,
        identity: Identity,
        metrics: Rc<Tally>,
        cells: Rc<Cells>,
    ) -> Rc<LoopState> {
        let event_loop = Rc::new(LoopState {
            handle,
            site,
            identity,
            metrics,
            resolvers: Resolvers::telling(&site.main_log),
            logs: Writers::new(&site.targets, &site.main_log),
            offset: Offset::default(),
            hand: RefCell::new(None),
            certificates: Loaded::default(),
            upstream_certificates: Loaded::default(),
            datagrams: Sessions::default(),
            counts: Counts::new(cells, SubjectKind::StreamPeer),
            sessions: Cell::new(0),
            inflight: Cell::new(0),
            retiring: Cell::new(None),
        });
        if identity.index == 0 {
            let told = Rc::downgrade(&event_loop);
            let retiring = move || told.upgrade().is_none_or(|event_loop| event_loop.retiring());
            weir_ssl::ocsp::staple::start(&event_loop.handle, &site.staplings, retiring.clone());
            let looker = Looker {
                handle: event_loop.handle.clone(),
                resolvers: event_loop.resolvers.clone(),
                log: site.main_log.clone(),
                retiring: Box::new(retiring),
            };
            dynamic::start(&site.upstreams, &Rc::new(looker));
            if identity.worker == 0 {
                health::start(&event_loop);
            }
        }
        event_loop
    }

    /// Takes an accepted socket (non-blocking) of the site's listening socket number `listen`.
    pub fn accepted(self: &Rc<Self>, fd: OwnedFd, peer: Address, listen: usize) {
        self.metrics.add(Metric::Accepted, 1);
        if let Ok(stream) = self.handle.stream(fd) {
            self.metrics.add(Metric::Handled, 1);
            self.handle.spawn(serve::serve(self.clone(), stream, peer, listen));
        }
    }

    /// Takes over a connection for the site's listening socket number `listen`.
    pub fn take_over(self: &Rc<Self>, handed: Handed, listen: usize) {
        self.handle.spawn(serve::serve_on(self.clone(), handed, listen));
    }

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

    /// Sends buffered lines of access logs to their files.
    pub fn flush_logs(&self) {
        self.logs.flush(&self.handle);
    }

    /// Writes all lines of access logs that wait, and returns when that is done: the loop has ended.
    pub fn finish_logs(&self) {
        self.logs.finish();
    }

    /// Open client connections.
    pub fn connections(&self) -> usize {
        self.sessions.get()
    }

    /// Sessions that have not come to where they lead.
    pub fn inflight(&self) -> usize {
        self.inflight.get()
    }
}

/// One session as its loop counts it. What is counted is undone when the value is dropped.
pub struct Presence {
    event_loop: Rc<LoopState>,
    busy: Cell<bool>,
}

impl Presence {
    /// A session that was accepted, and is on its way.
    pub fn begin(event_loop: &Rc<LoopState>) -> Presence {
        event_loop.metrics.add(Metric::Active, 1);
        event_loop.sessions.set(event_loop.sessions.get() + 1);
        event_loop.inflight.set(event_loop.inflight.get() + 1);
        Presence { event_loop: event_loop.clone(), busy: Cell::new(true) }
    }

    /// It has come to where it leads: from now on it costs what its bytes cost.
    pub fn quiet(&self) {
        if self.busy.replace(false) {
            self.event_loop.inflight.set(self.event_loop.inflight.get().saturating_sub(1));
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.quiet();
        self.event_loop.metrics.sub(Metric::Active, 1);
        self.event_loop.sessions.set(self.event_loop.sessions.get().saturating_sub(1));
    }
}
