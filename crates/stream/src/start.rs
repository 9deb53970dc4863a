//! Makes a loop's state and starts its background tasks.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use weir_engine::Handle;
use weir_metrics::Tally;
use weir_metrics::subjects::{Cells, SubjectKind};
use weir_resolver::Resolvers;
use weir_ssl::CertificateCache;
use weir_upstream::config::dynamic::{self, NameUpdater};
use weir_upstream::counts::Counts;
use weir_upstream::health::{self, Watcher};
use weir_values::log::Writers;
use weir_values::presence::OpenSessions;
use weir_values::{Identity, Offset};

use crate::datagrams::Sessions;
use crate::event_loop::LoopState;
use crate::site::Site;

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
            open: OpenSessions::new(&metrics),
            handle,
            site,
            identity,
            metrics,
            resolvers: Resolvers::telling(&site.main_log),
            logs: Writers::new(&site.targets, &site.main_log),
            offset: Offset::default(),
            listener_lookup: RefCell::new(None),
            scripts: OnceCell::new(),
            certificates: CertificateCache::default(),
            upstream_certificates: CertificateCache::default(),
            datagrams: Sessions::default(),
            counts: Counts::new(cells, SubjectKind::StreamPeer),
            retiring: Cell::new(None),
        });
        if identity.index == 0 {
            let weak = Rc::downgrade(&event_loop);
            let retiring = move || weak.upgrade().is_none_or(|event_loop| event_loop.retiring());
            weir_ssl::ocsp::staple::start(&event_loop.handle, &site.staplings, retiring.clone());
            let updater = NameUpdater {
                handle: event_loop.handle.clone(),
                resolvers: event_loop.resolvers.clone(),
                log: site.main_log.clone(),
                retiring: Box::new(retiring),
            };
            dynamic::start(&site.upstreams, &Rc::new(updater));
            if identity.worker == 0 {
                start_checks(&event_loop);
            }
        }
        event_loop
    }
}

/// Starts the health checks of a configuration. They run on one loop of one worker.
fn start_checks(event_loop: &Rc<LoopState>) {
    let weak = Rc::downgrade(event_loop);
    let watcher = Rc::new(Watcher {
        handle: event_loop.handle.clone(),
        log: event_loop.site.main_log.clone(),
        retiring: Box::new(move || weak.upgrade().is_none_or(|event_loop| event_loop.retiring())),
    });
    for check in &event_loop.site.checks {
        if let Some(upstream) = event_loop.site.upstreams.get(check.group) {
            health::start(&watcher, Arc::clone(check), upstream.group.clone());
        }
    }
}
