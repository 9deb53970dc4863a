//! The properties of a directive that are known before a module reads it.

use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

use crate::context::Contexts;
use crate::tables::FAMILIES;

/// One directive of one module. A name may belong to several, such as `server`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownDirective {
    /// The directive's name.
    pub name: &'static str,
    /// nginx's name of the module that owns it; weir's own directives belong to `weir`.
    pub module: &'static str,
    /// Where it may stand.
    pub contexts: Contexts,
    /// How many arguments it takes.
    pub args: Args,
    /// What follows the arguments.
    pub shape: DirectiveForm,
    /// A second one in the same block is refused as a duplicate. Where this is false the module
    /// itself may still refuse some repetitions.
    pub once: bool,
    /// What happens as long as weir has not built it.
    pub effect: Effect,
}

/// How many arguments, and what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Args {
    /// The fewest arguments.
    pub min: u8,
    /// The most arguments; 255 is any number.
    pub max: u8,
    /// The kind of all arguments.
    pub value: ArgumentKind,
}

/// The kind of an argument that nginx reads with one of its general functions. If a module reads
/// the argument itself, this is [`ArgumentKind::Any`] and the module checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentKind {
    /// Not checked here.
    Any,
    /// `on` or `off`.
    Flag,
    /// A number from `low` to `high`; `u64::MAX` is no upper bound.
    Number {
        /// The smallest valid number.
        low: u64,
        /// The largest valid number.
        high: u64,
    },
    /// A [`size`](crate::values::size).
    Size,
    /// A [`size`](crate::values::size), unless variables occur in it.
    SizeOrVariable,
    /// An [`offset`](crate::values::offset).
    Offset,
    /// A time in [milliseconds](crate::values::msec).
    Msec,
    /// A time in [seconds](crate::values::sec).
    Sec,
    /// A number and a size, neither 0.
    Buffers,
    /// One of these words, in any case.
    OneOf(&'static [&'static str]),
    /// Any of these words, in any case.
    AnyOf(&'static [&'static str]),
}

impl Args {
    /// Whether this number of arguments is valid.
    pub fn allow(self, count: usize) -> bool {
        count >= usize::from(self.min) && (self.max == u8::MAX || count <= usize::from(self.max))
    }
}

impl fmt::Display for Args {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            ArgumentKind::Any => {}
            ArgumentKind::Flag => return f.write_str("on or off"),
            ArgumentKind::Number { low: 0, high: u64::MAX } => return f.write_str("number"),
            ArgumentKind::Number { low, high } => return write!(f, "number from {low} to {high}"),
            ArgumentKind::Size | ArgumentKind::Offset => return f.write_str("size"),
            ArgumentKind::SizeOrVariable => return f.write_str("size or variable"),
            ArgumentKind::Msec | ArgumentKind::Sec => return f.write_str("time"),
            ArgumentKind::Buffers => return f.write_str("number, size"),
            ArgumentKind::OneOf(words) => return write!(f, "one of: {}", words.join(", ")),
            ArgumentKind::AnyOf(words) => return write!(f, "any of: {}", words.join(", ")),
        }
        match (self.min, self.max) {
            (0, 0) => f.write_str("none"),
            (min, u8::MAX) => write!(f, "{min} or more"),
            (min, max) if min == max => write!(f, "{min}"),
            (min, max) => write!(f, "{min} to {max}"),
        }
    }
}

/// What follows the arguments of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectiveForm {
    /// A semicolon.
    Statement,
    /// Braces with directives.
    Block,
    /// Braces with lines of a form of their own, as in `map`.
    Lines,
    /// Braces with a program.
    Raw,
}

/// What happens to a configuration that uses a directive which weir has not built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It is refused: ignoring the directive would change which clients get in or what they get.
    Emerg,
    /// It is refused unless the only argument is this one, which asks for what weir does anyway.
    EmergUnless(&'static str),
    /// It is accepted with a warning: the directive only tunes.
    Warn,
}

/// The directives with this name, in all contexts and modules.
pub fn known(name: &[u8]) -> impl Iterator<Item = &'static KnownDirective> {
    static BY_NAME: OnceLock<HashMap<&'static [u8], Vec<&'static KnownDirective>>> =
        OnceLock::new();
    let by_name = BY_NAME.get_or_init(|| {
        let mut map: HashMap<&[u8], Vec<&KnownDirective>> = HashMap::new();
        for known in all_known() {
            map.entry(known.name.as_bytes()).or_default().push(known);
        }
        map
    });
    by_name.get(name).into_iter().flatten().copied()
}

/// All directives, family by family.
pub fn all_known() -> impl Iterator<Item = &'static KnownDirective> {
    FAMILIES.iter().copied().flatten()
}

/// The context inside the braces of a directive in the context `around`. `None` if the braces hold
/// no directives.
pub(crate) fn inside(known: &KnownDirective, around: Contexts) -> Option<Contexts> {
    if known.shape != DirectiveForm::Block {
        return None;
    }
    Some(match known.name {
        "events" => Contexts::EVENTS,
        "http" => Contexts::HTTP,
        "stream" => Contexts::STREAM,
        "mail" => Contexts::MAIL,
        "server" if around == Contexts::STREAM => Contexts::STREAM_SERVER,
        "server" if around == Contexts::MAIL => Contexts::MAIL_SERVER,
        "server" => Contexts::SERVER,
        "upstream" if around == Contexts::STREAM => Contexts::STREAM_UPSTREAM,
        "upstream" => Contexts::UPSTREAM,
        "if" if around == Contexts::SERVER => Contexts::IF_SERVER,
        "if" => Contexts::IF_LOCATION,
        "limit_except" => Contexts::LIMIT_EXCEPT,
        _ => Contexts::LOCATION,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_occurs_once_in_each_context() {
        for known in all_known() {
            let twins = all_known().filter(|k| k.name == known.name);
            let same = twins.filter(|k| k.contexts.meets(known.contexts)).count();
            assert_eq!(same, 1, "{}", known.name);
        }
    }

    #[test]
    fn rows_are_sound() {
        assert!(all_known().count() > 784);
        for known in all_known() {
            assert!(known.contexts != Contexts::NONE, "{}", known.name);
            assert!(known.args.min <= known.args.max, "{}", known.name);
            assert_eq!(known.shape == DirectiveForm::Raw, known.name.ends_with("_by_lua_block"));
        }
    }

    #[test]
    fn one_name_in_several_places() {
        let modules: Vec<_> = known(b"server").map(|k| k.module).collect();
        for module in ["ngx_http_core_module", "ngx_stream_core_module", "ngx_mail_core_module"] {
            assert!(modules.contains(&module), "{module}");
        }
        assert_eq!(known(b"servr").count(), 0);
    }
}
