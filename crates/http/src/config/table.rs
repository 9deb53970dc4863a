//! Tables of directives that several modules have, each with its own prefix. Tables can be
//! combined.

use weir_conf::Error;

use crate::config::scope::{Directive, Scope};

/// Reads a value that needs the scope.
pub type Read<T> = fn(&mut Scope<'_, '_>, &weir_conf::Directive) -> Result<T, Error>;

/// A table of directives. A row says how the directive is read:
///
/// - `value(FIELD, READ)`: allowed once per block. The value is stored in a field of the settings.
/// - `scoped(FIELD, READ)`: the same for a value that needs the scope.
/// - `list(FIELD, READ)`: the value is added to a list. Each block begins its own list.
/// - `once(SET)`: allowed once per block.
/// - `line(SET)`: any other directive.
///
/// `settings` is a function that returns the module's settings in a scope.
macro_rules! table {
    ($prefix:literal, $settings:ident:
     $($name:literal: $kind:ident($($how:tt)*), $help:literal;)*) => {
        &[$($crate::config::scope::Directive {
            name: concat!($prefix, $name),
            help: $help,
            set: $crate::config::scope::Set::Simple($crate::config::table::setter!(
                $kind, $settings, $($how)*
            )),
        }),*]
    };
}
pub(crate) use table;

/// The implementation of a row.
macro_rules! setter {
    (value, $settings:ident, $($field:ident).+, $read:expr) => {
        |s, d| {
            s.once(d)?;
            let read: fn(&weir_conf::Directive) -> Result<_, weir_conf::Error> = $read;
            $settings(s).$($field).+ = read(d)?;
            Ok(())
        }
    };
    (scoped, $settings:ident, $field:ident, $read:expr) => {
        |s, d| {
            s.once(d)?;
            let read: $crate::config::table::Read<_> = $read;
            $settings(s).$field = read(s, d)?;
            Ok(())
        }
    };
    (list, $settings:ident, $field:ident, $read:expr) => {
        |s, d| {
            let first = s.first(d);
            let read: $crate::config::table::Read<_> = $read;
            let more = read(s, d)?;
            let list = &mut $settings(s).$field;
            if first {
                list.clear();
            }
            list.extend(more);
            Ok(())
        }
    };
    (once, $settings:ident, $set:expr) => {
        |s, d| {
            s.once(d)?;
            let set: $crate::config::scope::Setter = $set;
            set(s, d)
        }
    };
    (line, $settings:ident, $set:expr) => {
        $set
    };
}
pub(crate) use setter;

/// Concatenates two tables of directives.
pub const fn together<const N: usize>(a: &[Directive], b: &[Directive]) -> [Directive; N] {
    let mut all = [a[0]; N];
    let mut i = 0;
    while i < N {
        all[i] = if i < a.len() { a[i] } else { b[i - a.len()] };
        i += 1;
    }
    all
}

/// Whether two names are equal.
pub const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut i = 0;
    while a.len() == b.len() && i < a.len() && a[i] == b[i] {
        i += 1;
    }
    a.len() == b.len() && i == a.len()
}
