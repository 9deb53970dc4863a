//! Background tasks for servers and caches, on one loop of each worker or of all workers.

use std::rc::Rc;

use weir_upstream::config::dynamic::{self, NameUpdater};

use super::groups::GROUPS;
use super::{cache, health};
use crate::event_loop::{LoopKey, LoopPart, LoopState};

/// Has no state: tasks of the loop do the work.
pub struct Helpers;

/// Starts the tasks.
pub static HELPERS: LoopKey<Helpers> = LoopKey::new(|_| Helpers);

impl LoopPart for Helpers {
    fn init_process(&self, event_loop: &Rc<LoopState>) {
        let (site, identity) = (event_loop.site, event_loop.identity);
        if identity.index != 0 || identity.agent {
            return;
        }
        let known = Rc::downgrade(event_loop);
        let looker = NameUpdater {
            handle: event_loop.handle.clone(),
            resolvers: event_loop.resolvers.clone(),
            log: site.main.core.error_log.clone(),
            retiring: Box::new(move || {
                known.upgrade().is_none_or(|event_loop| event_loop.is_over())
            }),
        };
        dynamic::start(GROUPS.of(&site.main_confs), &Rc::new(looker));
        if identity.worker == 0 {
            cache::start(event_loop);
            health::start(event_loop);
        }
    }

    fn look(&self, event_loop: &LoopState) {
        let groups = GROUPS.of(&event_loop.site.main_confs);
        groups.all().for_each(|upstream| upstream.group.queue.wake_first());
    }
}
