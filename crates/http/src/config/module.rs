//! A module, as the core sees it: its directives, settings, and handlers of phases.

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

/// A module, for the configuration and the phases.
#[derive(Debug, Clone, Copy)]
pub struct Module {
    /// nginx's name of the module, such as `http_rewrite`: the middle of `--with-..._module`.
    pub name: &'static str,
    /// The directives that the module implements.
    pub directives: &'static [Directive],
    /// Called once before the `http` block is read. Defines variables.
    pub init: fn(&mut Setup<'_>),
    /// Called when all lines of a block were read. Checks and completes its settings.
    pub finish: fn(&mut Scope<'_, '_>) -> Result<(), Error>,
}

impl Module {
    /// A module without directives, whose hooks do nothing. Modules override parts of it.
    pub const NEW: Module = Module { name: "", directives: &[], init: |_| {}, finish: |_| Ok(()) };
}

/// A handler or filter, with a test whether a location with such settings needs it. See `Plan`.
pub struct Entry<T: 'static> {
    /// The handler or filter.
    pub named: Named<T>,
    /// Whether a location with these settings needs it.
    pub wanted: fn(&LocationConf) -> bool,
}

/// The phases, in nginx's order. The handlers of a phase run in the order of its list.
pub struct Phases {
    /// The ClientHello was received. The plan of the address's default server is used.
    pub client_hello: &'static [Entry<HandshakeHandler>],
    /// A client wants to resume a TLS 1.2 session by its ID.
    pub session_fetch: &'static [Entry<HandshakeHandler>],
    /// A TLS 1.2 session has begun that can be resumed by its ID.
    pub session_store: &'static [Entry<HandshakeHandler>],
    /// A certificate is about to be sent.
    pub certificate: &'static [Entry<HandshakeHandler>],
    /// The request's head was read. `realip` changes the client's address here.
    pub post_read: &'static [Entry<Handler>],
    /// `rewrite` directives of the server, before a location is searched for.
    pub server_rewrite: &'static [Entry<Handler>],
    /// `rewrite` directives of the location.
    pub rewrite: &'static [Entry<Handler>],
    /// The rest of the rewrite phase. It uses the settings of the `if` block that those directives
    /// may have entered.
    pub rewritten: &'static [Entry<Handler>],
    /// Limits of rates and connections.
    pub preaccess: &'static [Entry<Handler>],
    /// Access rules. `satisfy` combines their results.
    pub access: &'static [Entry<Handler>],
    /// `try_files`, `mirror`.
    pub precontent: &'static [Entry<Handler>],
    /// The response, if the location has no content handler (`proxy_pass`, `stub_status`).
    pub content: &'static [Entry<Handler>],
    /// The request has ended.
    pub log: &'static [Entry<LogHandler>],
}

/// All modules.
pub struct Modules {
    /// The modules, in the order in which directives are looked up.
    pub list: &'static [&'static Module],
    /// Their settings in each location.
    pub settings: Slots,
    /// Their settings for the whole `http` block.
    pub main_keys: MainKeys,
    /// Their state in each loop.
    pub loop_keys: LoopKeys,
    /// Their handlers.
    pub phases: &'static Phases,
    /// Their header filters.
    pub header_filters: &'static [Entry<HeaderFilter>],
    /// Their trailer filters.
    pub trailer_filters: &'static [Entry<TrailerFilter>],
    /// Checks that need the settings of the whole `http` block.
    pub check: fn(&LocationConf) -> Result<(), Error>,
    /// Their directives by name. It is filled at the first look-up.
    pub by_name: DirectiveTable,
}

/// Directives by name, since a configuration may have a hundred thousand lines.
pub type DirectiveTable = OnceLock<HashMap<&'static str, &'static Directive>>;

impl Modules {
    /// The directive of this name, if a module has it.
    pub fn directive(&self, name: &str) -> Option<&'static Directive> {
        let by_name = self.by_name.get_or_init(|| {
            // Of two directives with one name, the first one counts.
            let all = self.list.iter().rev().flat_map(|m| m.directives.iter().rev());
            all.map(|d| (d.name, d)).collect()
        });
        by_name.get(name).copied()
    }

    /// The handlers and filters that a location with these settings needs. The others are not
    /// called there.
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
