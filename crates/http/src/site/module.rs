//! What a module is to the core: its directives, its settings, and its handlers in the phases.

use std::sync::Arc;

use crate::config::Setup;
use crate::config::scope::{Directive, Scope};
use crate::request::Request;
use crate::request::step::{Handler, Step};
use crate::site::location::Kind;
use crate::site::settings::{LocationConf, Slots};

/// What a module is to the rest of the house.
#[derive(Debug, Clone, Copy)]
pub struct Module {
    /// nginx's name of it, such as `http_rewrite`: the middle of `--with-..._module`.
    pub name: &'static str,
    /// The directives that it gives a meaning to.
    pub directives: &'static [Directive],
    /// Called once before the `http` block is read: registers variables.
    pub init: fn(&mut Setup<'_>),
}

/// What the settings of a module do when blocks nest. Both hooks default to nothing.
pub trait Settings: Clone + Default + Send + Sync + 'static {
    /// A block of this kind begins inside: drop what it does not inherit.
    fn enter(_conf: &mut Arc<Self>, _block: &Kind) {}
    /// The simple directives of a block were all read.
    fn finish(_scope: &mut Scope<'_, '_>) -> Result<(), weir_conf::Error> {
        Ok(())
    }
}

/// A handler or filter, and whose it is: a module that holds its loop up is named.
#[derive(Debug, Clone, Copy)]
pub struct Named<T> {
    /// nginx's name of the module, without `ngx_http_` and `_module`; empty for what cannot take long.
    pub module: &'static str,
    /// What runs.
    pub run: T,
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
    /// A request's head was read: `realip` changes who asked.
    pub post_read: &'static [Entry<Handler>],
    /// `rewrite` directives of the server, before a location is looked for.
    pub server_rewrite: &'static [Entry<Handler>],
    /// `rewrite` directives of the location.
    pub rewrite: &'static [Entry<Handler>],
    /// The rest of the rewrite phase, of the block that those directives have led to: an `if` has settings of its own.
    pub rewritten: &'static [Entry<Handler>],
    /// Limits.
    pub preaccess: &'static [Entry<Handler>],
    /// Who may; `satisfy` says how their answers add up.
    pub access: &'static [Entry<Handler>],
    /// `try_files`, `mirror`.
    pub precontent: &'static [Entry<Handler>],
    /// Who answers, where the location names no handler of its own (`proxy_pass`, `stub_status`).
    pub content: &'static [Entry<Handler>],
    /// The request is over.
    pub log: &'static [Entry<LogHandler>],
}

/// A handler of the log phase: nothing can be changed any more.
pub type LogHandler = fn(&mut Request);

/// A header filter: sees the response before its head is written, and may put a body filter in its way.
pub type HeaderFilter = fn(&mut Request) -> Result<(), Step>;

/// All modules, as the one list of them has them.
pub struct Modules {
    /// In the order in which their directives are looked up.
    pub list: &'static [&'static Module],
    /// The settings that they have in each location.
    pub settings: Slots,
    /// Their handlers.
    pub phases: &'static Phases,
    /// Their header filters.
    pub header_filters: &'static [Entry<HeaderFilter>],
    /// Checks what only the whole `http` block shows, whose settings these are.
    pub check: fn(&LocationConf) -> Result<(), weir_conf::Error>,
}

impl Modules {
    /// The directive of this name, if a module has it.
    pub fn directive(&self, name: &str) -> Option<&'static Directive> {
        self.list.iter().flat_map(|m| m.directives).find(|d| d.name == name)
    }
}
