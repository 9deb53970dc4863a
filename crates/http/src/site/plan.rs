//! Which handlers and filters a location needs: what is not configured there is not even asked.

use crate::phases::Handler;
use crate::site::module::{Entry, HeaderFilter, LogHandler, Modules, Named};
use crate::site::settings::LocationConf;

/// The handlers of each phase, and the header filters, that a location's settings call for; in the one
/// order of the list of modules.
#[derive(Debug, Default)]
pub struct Plan {
    /// See [`crate::site::module::Phases::post_read`]; asked of the server's own settings.
    pub post_read: Box<[Named<Handler>]>,
    /// See [`crate::site::module::Phases::server_rewrite`]; asked of the server's own settings.
    pub server_rewrite: Box<[Named<Handler>]>,
    /// See [`crate::site::module::Phases::rewrite`].
    pub rewrite: Box<[Named<Handler>]>,
    /// See [`crate::site::module::Phases::rewritten`].
    pub rewritten: Box<[Named<Handler>]>,
    /// See [`crate::site::module::Phases::preaccess`].
    pub preaccess: Box<[Named<Handler>]>,
    /// See [`crate::site::module::Phases::access`].
    pub access: Box<[Named<Handler>]>,
    /// See [`crate::site::module::Phases::precontent`].
    pub precontent: Box<[Named<Handler>]>,
    /// See [`crate::site::module::Phases::content`].
    pub content: Box<[Named<Handler>]>,
    /// See [`crate::site::module::Phases::log`].
    pub log: Box<[Named<LogHandler>]>,
    /// What sees the response before its head is written.
    pub header_filters: Box<[Named<HeaderFilter>]>,
}

impl Plan {
    /// The plan of a location with these settings.
    pub fn new(conf: &LocationConf, modules: &Modules) -> Plan {
        let phases = modules.phases;
        Plan {
            post_read: needed(phases.post_read, conf),
            server_rewrite: needed(phases.server_rewrite, conf),
            rewrite: needed(phases.rewrite, conf),
            rewritten: needed(phases.rewritten, conf),
            preaccess: needed(phases.preaccess, conf),
            access: needed(phases.access, conf),
            precontent: needed(phases.precontent, conf),
            content: needed(phases.content, conf),
            log: needed(phases.log, conf),
            header_filters: needed(modules.header_filters, conf),
        }
    }
}

fn needed<T: Copy>(all: &[Entry<T>], conf: &LocationConf) -> Box<[Named<T>]> {
    all.iter().filter(|entry| (entry.wanted)(conf)).map(|entry| entry.named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::MODULES;

    #[test]
    fn a_location_without_settings_asks_only_those_that_any_request_may_need() {
        let plan = Plan::new(&LocationConf::new(MODULES.settings), &MODULES);
        assert_eq!(plan.preaccess.len() + plan.access.len() + plan.precontent.len(), 0);
        assert_eq!(
            plan.rewrite.len()
                + plan.rewritten.len()
                + plan.server_rewrite.len()
                + plan.post_read.len(),
            0
        );
        assert_eq!(plan.content.len(), 2, "index and static");
        assert!(plan.header_filters.len() <= 4);
    }
}
