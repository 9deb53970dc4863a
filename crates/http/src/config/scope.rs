//! A block that is being read: what its directives may set, and what the block inside it inherits.

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

/// A directive of the `http` family that weir gives a meaning to. Its contexts and argument counts stand in
/// the tables of `weir-conf`.
#[derive(Debug, Clone, Copy)]
pub struct Directive {
    /// As written in a configuration.
    pub name: &'static str,
    /// One sentence for docs/directives.md.
    pub help: &'static str,
    /// Reads one use of it.
    pub set: Set,
}

/// How a directive is read.
#[derive(Debug, Clone, Copy)]
pub enum Set {
    /// A line that changes the settings of its block.
    Simple(Setter),
    /// A block with settings of its own: read when all lines around it are, since it inherits from them.
    Block(Setter),
    /// Both: seen in order with the lines (`if` is a step of the rewrite code), entered after them.
    Both(Setter, Setter),
}

/// Reads one use of a directive into the scope.
pub type Setter = fn(&mut Scope<'_, '_>, &weir_conf::Directive) -> Result<(), Error>;

/// One block while it is read.
pub struct Scope<'s, 'a> {
    /// What the whole `http` block shares: variables, upstreams, servers, locations.
    pub setup: &'s mut Setup<'a>,
    /// Where in the grammar this block stands.
    pub context: Contexts,
    /// Settings of the server, or of `http` for the servers in it.
    pub server: ServerConf,
    /// Settings of the location, or of the blocks around it.
    pub location: LocationConf,
    /// Kind and children of the location that this block becomes; `None` at `http`.
    pub place: Place,
    /// Blocks of `if` after their code was read, to be filled with their settings: where each
    /// stands.
    pub conditional_blocks: Vec<(Pos, LocationId)>,
    used: UsedDirectives,
}

impl<'s, 'a> Scope<'s, 'a> {
    /// A block with the settings that it inherits.
    pub fn new(
        setup: &'s mut Setup<'a>,
        context: Contexts,
        server: ServerConf,
        location: LocationConf,
        place: Place,
    ) -> Self {
        let (conditional_blocks, used) = (Vec::new(), UsedDirectives::default());
        Scope { setup, context, server, location, place, conditional_blocks, used }
    }

    /// Reads all directives of the block: first the lines, then the blocks inside, which inherit from them.
    pub fn read(&mut self, block: &[weir_conf::Directive]) -> Result<(), Error> {
        for d in block {
            match self.find(d).map(|known| known.set) {
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

    /// True the first time that this block uses the directive: the moment to drop an inherited list.
    pub fn first(&mut self, d: &weir_conf::Directive) -> bool {
        self.used.first(d)
    }

    /// The same for several directives that make one list.
    pub fn first_of(&mut self, names: &str) -> bool {
        self.used.first_of(names.as_bytes())
    }

    /// Whether this block has used a directive so far.
    pub fn has_seen(&self, name: &str) -> bool {
        self.used.contains(name)
    }

    /// For directives that may stand once in a block: nginx's `is duplicate`.
    pub fn once(&mut self, d: &weir_conf::Directive) -> Result<(), Error> {
        self.used.once(d)
    }

    /// The name of a variable that a directive defines; the built-in ones cannot be defined.
    pub fn new_variable(&mut self, d: &weir_conf::Directive, word: &Word) -> Result<String, Error> {
        self.setup.reading().new_variable(d, word)
    }

    /// A variable that a directive names with its `$`.
    pub fn refer_variable(
        &mut self,
        d: &weir_conf::Directive,
        word: &Word,
    ) -> Result<VariableId, Error> {
        self.setup.reading().refer_variable(d, word)
    }

    /// The block's content handler, in place of one that it has taken from the block around it.
    pub fn answer_with(&mut self, content: Content) {
        let core = Scope::change(&mut self.location.core);
        (core.content, core.names_content) = (Some(content), true);
    }

    /// The directive's reader. None for one that weir has not built: the check before has refused it, or
    /// warned of it where it only tunes.
    fn find(&self, d: &weir_conf::Directive) -> Option<&'static Directive> {
        self.setup.modules.directive(&d.name.lossy())
    }

    /// Settings of the core, to be changed: copied first if a parent shares them.
    pub fn change<T: Clone>(conf: &mut Arc<T>) -> &mut T {
        Arc::make_mut(conf)
    }
}

/// A directive that stands once in a block and sets one field of a module's settings.
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
