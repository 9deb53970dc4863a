//! What a module is to the core: its directives, its settings, and its handlers in the phases.

use std::collections::HashMap;
use std::sync::OnceLock;

use weir_conf::Error;

use crate::config::Setup;
use crate::config::scope::{Directive, Scope};
use crate::event_loop::LoopKeys;
use crate::request::step::{
    Handler, HandshakeHandler, HeaderFilter, LogHandler, Named, TrailerFilter,
};
use crate::site::main_conf::MainKeys;
use crate::site::plan::Plan;
use crate::site::settings::{LocationConf, Slots};

/// What the configuration and the phases know of a module.
#[derive(Debug, Clone, Copy)]
pub struct Module {
    /// nginx's name of it, such as `http_rewrite`: the middle of `--with-..._module`.
    pub name: &'static str,
    /// The directives that it gives a meaning to.
    pub directives: &'static [Directive],
    /// Called once before the `http` block is read: registers variables.
    pub init: fn(&mut Setup<'_>),
    /// The lines of a block were read: checks and completes what only the whole shows.
    pub finish: fn(&mut Scope<'_, '_>) -> Result<(), Error>,
}

impl Module {
    /// A module without a directive, with hooks that do nothing. A module names what it has and
    /// takes the rest from here.
    pub const NEW: Module = Module { name: "", directives: &[], init: |_| {}, finish: |_| Ok(()) };
}

/// A handler or filter, and whether a location with such settings needs it. See `Plan`.
pub struct Entry<T: 'static> {
    /// What runs.
    pub named: Named<T>,
    /// Whether it has anything to do there.
    pub wanted: fn(&LocationConf) -> bool,
}

/// The phases, in nginx's order; the handlers of each run in the order written here.
pub struct Phases {
    /// A client's first message of TLS is there; asked of the default server of the address.
    pub client_hello: &'static [Entry<HandshakeHandler>],
    /// A client may resume a session of TLS 1.2 by its id.
    pub session_fetch: &'static [Entry<HandshakeHandler>],
    /// A session of TLS 1.2 has begun that can be resumed by its id.
    pub session_store: &'static [Entry<HandshakeHandler>],
    /// A certificate would be shown.
    pub certificate: &'static [Entry<HandshakeHandler>],
    /// A request's head was read: `realip` changes the client's address.
    pub post_read: &'static [Entry<Handler>],
    /// `rewrite` directives of the server, before a location is looked for.
    pub server_rewrite: &'static [Entry<Handler>],
    /// `rewrite` directives of the location.
    pub rewrite: &'static [Entry<Handler>],
    /// The rest of the rewrite phase, of the block that those directives have led to: an `if` has settings of its own.
    pub rewritten: &'static [Entry<Handler>],
    /// Limits.
    pub preaccess: &'static [Entry<Handler>],
    /// Access rules; `satisfy` says how their answers add up.
    pub access: &'static [Entry<Handler>],
    /// `try_files`, `mirror`.
    pub precontent: &'static [Entry<Handler>],
    /// The answer, where the location names no handler of its own (`proxy_pass`, `stub_status`).
    pub content: &'static [Entry<Handler>],
    /// The request is over.
    pub log: &'static [Entry<LogHandler>],
}

/// All modules, as the one list of them has them.
pub struct Modules {
    /// In the order in which their directives are looked up.
    pub list: &'static [&'static Module],
    /// The settings that they have in each location.
    pub settings: Slots,
    /// What they make of the whole `http` block.
    pub main_keys: MainKeys,
    /// What they keep in each loop.
    pub loop_keys: LoopKeys,
    /// Their handlers.
    pub phases: &'static Phases,
    /// Their header filters.
    pub header_filters: &'static [Entry<HeaderFilter>],
    /// Their trailer filters.
    pub trailer_filters: &'static [Entry<TrailerFilter>],
    /// Checks what only the settings of the whole `http` block show.
    pub check: fn(&LocationConf) -> Result<(), Error>,
    /// Their directives, found when the first one is looked up.
    pub by_name: DirectiveTable,
}

/// Directives by name: a configuration may have a hundred thousand lines.
pub type DirectiveTable = OnceLock<HashMap<&'static str, &'static Directive>>;

impl Modules {
    /// The directive of this name, if a module has it.
    pub fn directive(&self, name: &str) -> Option<&'static Directive> {
        let by_name = self.by_name.get_or_init(|| {
            // The first of two with one name.
            let all = self.list.iter().rev().flat_map(|m| m.directives.iter().rev());
            all.map(|d| (d.name, d)).collect()
        });
        by_name.get(name).copied()
    }

    /// Which handlers and filters a location with these settings needs: the others are not even asked there.
    pub fn plan(&self, conf: &LocationConf) -> Plan {
        let phases = self.phases;
        Plan {
            client_hello: needed(phases.client_hello, conf),
            session_fetch: needed(phases.session_fetch, conf),
            session_store: needed(phases.session_store, conf),
            certificate: needed(phases.certificate, conf),
            post_read: needed(phases.post_read, conf),
            server_rewrite: needed(phases.server_rewrite, conf),
            rewrite: needed(phases.rewrite, conf),
            rewritten: needed(phases.rewritten, conf),
            preaccess: needed(phases.preaccess, conf),
            access: needed(phases.access, conf),
            precontent: needed(phases.precontent, conf),
            content: needed(phases.content, conf),
            log: needed(phases.log, conf),
            header_filters: needed(self.header_filters, conf),
            trailer_filters: needed(self.trailer_filters, conf),
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
    fn a_location_without_settings_has_only_the_common_handlers() {
        let plan = MODULES.plan(&LocationConf::new(MODULES.settings));
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
