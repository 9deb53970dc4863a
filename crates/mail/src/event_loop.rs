//! One loop's state of the `mail` room.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use weir_engine::Handle;
use weir_metrics::{Metric, Tally};
use weir_resolver::Resolvers;
use weir_ssl::{CertificateCache, HandedConnection};
use weir_upstream::config::dynamic::{self, NameUpdater};
use weir_values::presence::OpenSessions;
use weir_values::{Address, Identity, Offset, Retire};

use crate::serve;
use crate::site::Site;

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
    pub(crate) offset: Offset,
    /// Certificates with variables in their names.
    pub(crate) certificates: CertificateCache<Arc<weir_tls::ServerConfig>>,
    pub(crate) open: Rc<OpenSessions>,
    retiring: Cell<Option<Retire>>,
}

impl LoopState {
    /// The state of this thread's loop.
    pub fn new(
        handle: Handle,
        site: &'static Site,
        identity: Identity,
        metrics: Rc<Tally>,
    ) -> Rc<LoopState> {
        let event_loop = Rc::new(LoopState {
            resolvers: Resolvers::telling(&site.main_log),
            open: OpenSessions::new(&metrics),
            handle,
            site,
            identity,
            metrics,
            offset: Offset::default(),
            certificates: CertificateCache::default(),
            retiring: Cell::new(None),
        });
        if identity.index == 0 {
            let told = Rc::downgrade(&event_loop);
            let retiring = move || told.upgrade().is_none_or(|event_loop| event_loop.retiring());
            let looker = NameUpdater {
                handle: event_loop.handle.clone(),
                resolvers: event_loop.resolvers.clone(),
                log: site.main_log.clone(),
                retiring: Box::new(retiring),
            };
            dynamic::start(&site.upstreams, &Rc::new(looker));
        }
        event_loop
    }

    /// Takes an accepted socket (non-blocking) of the site's listening socket number `listen`.
    pub fn accepted(self: &Rc<Self>, fd: OwnedFd, peer: Address, listen: usize) {
        self.metrics.add(Metric::Accepted, 1);
        if let Ok(stream) = self.handle.stream(fd) {
            self.metrics.add(Metric::Handled, 1);
            self.handle.spawn(serve::accepted(self.clone(), stream, peer, listen));
        }
    }

    /// Takes over a connection for the site's listening socket number `listen`.
    pub fn take_over(self: &Rc<Self>, handed: HandedConnection, listen: usize) {
        self.handle.spawn(serve::handed(self.clone(), handed, listen));
    }

    /// Begins the end: sessions go on, and no new ones come.
    pub fn retire(&self, how: Retire) {
        self.retiring.set(Some(how));
    }

    /// Whether it has begun to end.
    pub fn retiring(&self) -> bool {
        self.retiring.get().is_some()
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
