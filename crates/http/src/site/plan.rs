//! Which handlers and filters a location needs: what is not configured there is not even asked.

use crate::modules::{HEADER_FILTERS, LocationConf, PHASES};
use crate::phases::Handler;
use crate::site::module::{Entry, HeaderFilter, LogHandler, Named};

/// The handlers of each phase, and the header filters, that a location's settings call for; in the one
/// order of `modules/mod.rs`.
#[derive(Debug, Default)]
pub struct Plan {
    /// See [`crate::modules::Phases::post_read`]; asked of the server's own settings.
    pub post_read: Box<[Named<Handler>]>,
    /// See [`crate::modules::Phases::server_rewrite`]; asked of the server's own settings.
    pub server_rewrite: Box<[Named<Handler>]>,
    /// See [`crate::modules::Phases::rewrite`].
    pub rewrite: Box<[Named<Handler>]>,
    /// See [`crate::modules::Phases::rewritten`].
    pub rewritten: Box<[Named<Handler>]>,
    /// See [`crate::modules::Phases::preaccess`].
    pub preaccess: Box<[Named<Handler>]>,
    /// See [`crate::modules::Phases::access`].
    pub access: Box<[Named<Handler>]>,
    /// See [`crate::modules::Phases::precontent`].
    pub precontent: Box<[Named<Handler>]>,
    /// See [`crate::modules::Phases::content`].
    pub content: Box<[Named<Handler>]>,
    /// See [`crate::modules::Phases::log`].
    pub log: Box<[Named<LogHandler>]>,
    /// What sees the response before its head is written.
    pub header_filters: Box<[Named<HeaderFilter>]>,
}

impl Plan {
    /// The plan of a location with these settings.
    pub fn new(conf: &LocationConf) -> Plan {
        Plan {
            post_read: needed(PHASES.post_read, conf),
            server_rewrite: needed(PHASES.server_rewrite, conf),
            rewrite: needed(PHASES.rewrite, conf),
            rewritten: needed(PHASES.rewritten, conf),
            preaccess: needed(PHASES.preaccess, conf),
            access: needed(PHASES.access, conf),
            precontent: needed(PHASES.precontent, conf),
            content: needed(PHASES.content, conf),
            log: needed(PHASES.log, conf),
            header_filters: needed(HEADER_FILTERS, conf),
        }
    }
}

fn needed<T: Copy>(all: &[Entry<T>], conf: &LocationConf) -> Box<[Named<T>]> {
    all.iter().filter(|entry| (entry.wanted)(conf)).map(|entry| entry.named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_without_settings_asks_only_those_that_any_request_may_need() {
        let plan = Plan::new(&LocationConf::default());
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
