//! The state of one event loop for `mail` sessions.

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
    /// The configuration that it serves.
    pub site: &'static Site,
    /// Which loop this is.
    pub identity: Identity,
    /// This loop's counters.
    pub metrics: Rc<Tally>,
    /// Resolvers and their cached answers.
    pub resolvers: Rc<Resolvers>,
    pub(crate) offset: Offset,
    /// Server certificates whose file names have variables.
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
            let weak = Rc::downgrade(&event_loop);
            let retiring = move || weak.upgrade().is_none_or(|event_loop| event_loop.retiring());
            let updater = NameUpdater {
                handle: event_loop.handle.clone(),
                resolvers: event_loop.resolvers.clone(),
                log: site.main_log.clone(),
                retiring: Box::new(retiring),
            };
            dynamic::start(&site.upstreams, &Rc::new(updater));
        }
        event_loop
    }

    /// Serves an accepted, non-blocking socket of the listening socket number `listen`.
    pub fn accepted(self: &Rc<Self>, fd: OwnedFd, peer: Address, listen: usize) {
        self.metrics.add(Metric::Accepted, 1);
        if let Ok(stream) = self.handle.stream(fd) {
            self.metrics.add(Metric::Handled, 1);
            self.handle.spawn(serve::accepted(self.clone(), stream, peer, listen));
        }
    }

    /// Serves a connection that another listener's `pass` has given to the listening socket number
    /// `listen`.
    pub fn take_over(self: &Rc<Self>, handed: HandedConnection, listen: usize) {
        self.handle.spawn(serve::handed(self.clone(), handed, listen));
    }

    /// Marks the loop as shutting down. Its sessions go on; the caller gives it no new ones.
    pub fn retire(&self, how: Retire) {
        self.retiring.set(Some(how));
    }

    /// Whether the loop is shutting down.
    pub fn retiring(&self) -> bool {
        self.retiring.get().is_some()
    }

    /// Open client connections.
    pub fn connections(&self) -> usize {
        self.open.connections()
    }

    /// Sessions that have not yet reached their mail server.
    pub fn inflight(&self) -> usize {
        self.open.inflight()
    }
}
