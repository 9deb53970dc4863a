//! The directives of a proxying module: its own and the shared ones.

use crate::config::scope::Directive;
use crate::config::table::is_same;

/// The directives of a table that a module has.
#[derive(Clone, Copy)]
pub enum Part {
    /// All.
    All,
    /// All but these.
    Without(&'static [&'static str]),
    /// These.
    Only(&'static [&'static str]),
}

impl Part {
    const fn has(self, name: &str) -> bool {
        let (names, listed) = match self {
            Part::All => return true,
            Part::Without(names) => (names, false),
            Part::Only(names) => (names, true),
        };
        let mut i = 0;
        while i < names.len() {
            if is_same(names[i], name) {
                return listed;
            }
            i += 1;
        }
        !listed
    }

    /// The number of directives of a table. A name that the table lacks is a compile error.
    const fn count(self, table: &[Directive]) -> usize {
        let (mut n, mut at) = (0, 0);
        while at < table.len() {
            if self.has(table[at].name) {
                n += 1;
            }
            at += 1;
        }
        let expected = match self {
            Part::All => table.len(),
            Part::Without(names) => table.len() - names.len(),
            Part::Only(names) => names.len(),
        };
        assert!(n == expected, "a directive that is named here is not in the table");
        n
    }
}

/// The number of directives of all tables.
pub const fn count(tables: &[(&[Directive], Part)]) -> usize {
    let (mut n, mut i) = (0, 0);
    while i < tables.len() {
        n += tables[i].1.count(tables[i].0);
        i += 1;
    }
    n
}

/// Joins the tables, in their order.
pub const fn joined<const N: usize>(tables: &[(&[Directive], Part)]) -> [Directive; N] {
    let mut all = [tables[0].0[0]; N];
    let (mut n, mut i) = (0, 0);
    while i < tables.len() {
        let (table, part) = tables[i];
        let mut at = 0;
        while at < table.len() {
            if part.has(table[at].name) {
                all[n] = table[at];
                n += 1;
            }
            at += 1;
        }
        i += 1;
    }
    all
}

/// All directives of a module that passes requests on. `upstream_directives!(CONF, "scgi_": OWN; passing, store)` are
/// those of the table `OWN`, and two groups of shared ones under the prefix:
///
/// - `passing`: connections, time-outs, buffers, `..._next_upstream`;
/// - `store`: `..._store`;
/// - `cache`: `..._cache` and kin;
/// - `tls`: `..._ssl_...`;
/// - `params`: `..._param`.
///
/// Behind a group, `without("NAME")` and `only("NAME")` choose among its directives. `CONF` is the key of the module's
/// settings. They have a field `passing`, and `params` for that group.
macro_rules! upstream_directives {
    ($key:ident, $prefix:literal: $own:expr; $($group:ident $($part:ident($($name:literal),+ $(,)?))?),+ $(,)?) => {{
        use $crate::config::scope::Directive;
        use $crate::upstream::passing::{Part, count, group, joined, part};

        const TABLES: &[(&[Directive], Part)] = &[
            ($own, Part::All),
            $((group!($group, $key, $prefix), part!($prefix $($part $($name)+)?))),+
        ];
        const ALL: [Directive; count(TABLES)] = joined(TABLES);
        &ALL
    }};
}
pub(crate) use upstream_directives;

/// One group of shared directives.
macro_rules! group {
    (passing, $key:ident, $prefix:literal) => {
        $crate::upstream::passing::passing_directives!($key, $prefix)
    };
    (store, $key:ident, $prefix:literal) => {
        $crate::upstream::store::store_directives!($key, $prefix)
    };
    (cache, $key:ident, $prefix:literal) => {
        $crate::upstream::cache::cache_directives!($key, $prefix)
    };
    (tls, $key:ident, $prefix:literal) => {{
        use $crate::upstream::tls::{tls_directive, tls_directives};
        tls_directives!($key, $prefix)
    }};
    (params, $key:ident, $prefix:literal) => {
        $crate::upstream::cgi::param_directive!($key, $prefix)
    };
}
pub(crate) use group;

/// The directives of a group that a module has.
macro_rules! part {
    ($prefix:literal) => {
        Part::All
    };
    ($prefix:literal without $($name:literal)+) => {
        Part::Without(&[$(concat!($prefix, $name)),+])
    };
    ($prefix:literal only $($name:literal)+) => {
        Part::Only(&[$(concat!($prefix, $name)),+])
    };
}
pub(crate) use part;
