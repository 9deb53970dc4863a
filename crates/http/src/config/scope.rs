//! A block that is being read: the settings that its directives change and that inner blocks
//! inherit.

use std::sync::Arc;

pub use weir_conf::Spot;
use weir_conf::{Contexts, Error, Pos, Word};

use crate::config::Setup;
use crate::config::place::Place;
use crate::site::content::Content;
use crate::site::location::LocationId;
use crate::site::server::ServerConf;
use crate::site::settings::LocationConf;
use crate::variables::VariableId;
use weir_values::UsedDirectives;

/// A directive of the `http` family that weir implements. The tables of `weir-conf` have its
/// contexts and argument counts.
#[derive(Debug, Clone, Copy)]
pub struct Directive {
    /// The name.
    pub name: &'static str,
    /// One sentence for docs/directives.md.
    pub help: &'static str,
    /// Reads a use of the directive.
    pub set: Set,
}

/// How a directive is read.
#[derive(Debug, Clone, Copy)]
pub enum Set {
    /// The settings of the current block change.
    Simple(Setter),
    /// A block with its own settings. It is read after the lines around it, since it inherits from
    /// them.
    Block(Setter),
    /// Both: `if` is compiled in order with the lines, and its settings are read after them.
    Both(Setter, Setter),
}

/// Reads a use of a directive into the scope.
pub type Setter = fn(&mut Scope<'_, '_>, &weir_conf::Directive) -> Result<(), Error>;

/// A block that is being read.
pub struct Scope<'s, 'a> {
    /// The state of the whole `http` block: variables, upstreams, servers, locations.
    pub setup: &'s mut Setup<'a>,
    /// The context of the block.
    pub context: Contexts,
    /// Settings of the server, or those of `http` that servers inherit.
    pub server: ServerConf,
    /// Settings of the location, or those of an outer block that locations inherit.
    pub location: LocationConf,
    /// The location that this block becomes. In `http` it is not used.
    pub place: Place,
    /// The `if` blocks that were compiled and whose settings are read later, by position.
    pub conditional_blocks: Vec<(Pos, LocationId)>,
    /// Whether blocks inside inherit the settings.
    pub has_blocks: bool,
    used: UsedDirectives,
}

impl<'s, 'a> Scope<'s, 'a> {
    /// A block with inherited settings.
    pub fn new(
        setup: &'s mut Setup<'a>,
        context: Contexts,
        server: ServerConf,
        location: LocationConf,
        place: Place,
    ) -> Self {
        let (conditional_blocks, used) = (Vec::new(), UsedDirectives::default());
        let has_blocks = false;
        Scope { setup, context, server, location, place, conditional_blocks, has_blocks, used }
    }

    /// Reads all directives of the block: first the lines, then the inner blocks, which inherit
    /// from them.
    pub fn read(&mut self, block: &[weir_conf::Directive]) -> Result<(), Error> {
        for d in block {
            let set = self.find(d).map(|known| known.set);
            self.has_blocks |= matches!(set, Some(Set::Block(_) | Set::Both(..)));
            match set {
                Some(Set::Simple(set) | Set::Both(set, _)) => set(self, d)?,
                Some(Set::Block(_)) | None => {}
            }
        }
        self.setup.modules.list.iter().try_for_each(|module| (module.finish)(self))?;
        for d in block {
            if let Some(Set::Block(set) | Set::Both(_, set)) = self.find(d).map(|known| known.set) {
                set(self, d)?;
            }
        }
        Ok(())
    }

    /// Whether this is the first use of the directive in the block. An inherited list is then
    /// replaced.
    pub fn first(&mut self, d: &weir_conf::Directive) -> bool {
        self.used.first(d)
    }

    /// The same for several directives with one list.
    pub fn first_of(&mut self, names: &str) -> bool {
        self.used.first_of(names.as_bytes())
    }

    /// Whether this block has used a directive so far.
    pub fn has_seen(&self, name: &str) -> bool {
        self.used.contains(name)
    }

    /// For directives that are allowed once per block. The error is nginx's `is duplicate`.
    pub fn once(&mut self, d: &weir_conf::Directive) -> Result<(), Error> {
        self.used.once(d)
    }

    /// The name of a variable that a directive defines. A built-in variable cannot be defined.
    pub fn new_variable(&mut self, d: &weir_conf::Directive, word: &Word) -> Result<String, Error> {
        self.setup.reading().new_variable(d, word)
    }

    /// A variable that a directive refers to, with its `$`.
    pub fn refer_variable(
        &mut self,
        d: &weir_conf::Directive,
        word: &Word,
    ) -> Result<VariableId, Error> {
        self.setup.reading().refer_variable(d, word)
    }

    /// Sets the block's content handler, which replaces an inherited one.
    pub fn answer_with(&mut self, content: Content) {
        let core = Scope::change(&mut self.location.core);
        (core.content, core.names_content) = (Some(content), true);
    }

    /// The implementation of a directive. `None` if weir does not have it: the check before has
    /// refused the directive, or warned if it has no effect on behaviour.
    fn find(&self, d: &weir_conf::Directive) -> Option<&'static Directive> {
        self.setup.modules.directive(&d.name.lossy())
    }

    /// Settings of the core, to be changed. They are copied first if the outer block shares them.
    pub fn change<T: Clone>(conf: &mut Arc<T>) -> &mut T {
        Arc::make_mut(conf)
    }
}

/// A directive that is allowed once per block and sets one field of a module's settings.
macro_rules! setting {
    ($name:literal, core $(. $field:ident)+, $read:expr, $help:literal) => {
        $crate::config::scope::setting!(@ $name, s,
            ($crate::config::scope::Scope::change(&mut s.location.core)) $(. $field)+, $read, $help)
    };
    ($name:literal, $key:ident $(. $field:ident)+, $read:expr, $help:literal) => {
        $crate::config::scope::setting!(@ $name, s,
            ($key.change(&mut s.location)) $(. $field)+, $read, $help)
    };
    (@ $name:literal, $s:ident, ($conf:expr) $(. $field:ident)+, $read:expr, $help:literal) => {
        $crate::config::scope::Directive {
            name: $name,
            help: $help,
            set: $crate::config::scope::Set::Simple(|$s, d| {
                $s.once(d)?;
                let value = $read(d)?;
                $conf $(. $field)+ = value;
                Ok(())
            }),
        }
    };
}
pub(crate) use setting;
