//! Blocks of directives. Clones share a block and the results that were computed for it.

use std::fmt;
use std::ops::{BitOr, Deref};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};

use crate::context::Contexts;
use crate::tree::Directive;

/// The directives between braces. A clone is the same block, and shares its cached results.
#[derive(Clone, Default)]
pub struct Block(Arc<Inner>);

#[derive(Default)]
struct Inner {
    list: Vec<Directive>,
    digest: OnceLock<[u8; 32]>,
    inside: OnceLock<Inside>,
    /// The contexts in which the check reports nothing.
    clean_in: AtomicU16,
}

/// The clone is going to be edited, so it has none of the cached results.
impl Clone for Inner {
    fn clone(&self) -> Inner {
        Inner { list: self.list.clone(), ..Inner::default() }
    }
}

impl Block {
    /// With these directives.
    pub fn new(list: Vec<Directive>) -> Block {
        Block(Arc::new(Inner { list, ..Inner::default() }))
    }

    /// Whether this is the same block, not only an equal one.
    pub fn is_same(&self, other: &Block) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// A number that differs between blocks that exist at the same time.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// The directives, to be edited. Other clones keep theirs.
    pub fn edit(&mut self) -> &mut Vec<Directive> {
        let inner = Arc::make_mut(&mut self.0);
        *inner = Inner { list: std::mem::take(&mut inner.list), ..Inner::default() };
        &mut inner.list
    }

    /// The digest that `make` computes. It is computed once, so `make` must always be the same
    /// function.
    pub fn digest(&self, make: impl FnOnce(&[Directive]) -> [u8; 32]) -> [u8; 32] {
        *self.0.digest.get_or_init(|| make(&self.0.list))
    }

    /// The kinds of directives in this block and in those inside.
    pub fn inside(&self) -> Inside {
        *self.0.inside.get_or_init(|| Inside::of(&self.0.list))
    }

    /// Whether the block was checked in this context without a finding.
    pub(crate) fn is_clean_in(&self, place: Contexts) -> bool {
        let known = self.0.clean_in.load(Ordering::Relaxed);
        known & place.bits() == place.bits()
    }

    pub(crate) fn note_clean_in(&self, place: Contexts) {
        self.0.clean_in.fetch_or(place.bits(), Ordering::Relaxed);
    }
}

impl Deref for Block {
    type Target = [Directive];

    fn deref(&self) -> &[Directive] {
        &self.0.list
    }
}

impl From<Vec<Directive>> for Block {
    fn from(list: Vec<Directive>) -> Block {
        Block::new(list)
    }
}

impl PartialEq for Block {
    fn eq(&self, other: &Block) -> bool {
        self.is_same(other) || self.0.list == other.0.list
    }
}

impl Eq for Block {}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.list.fmt(f)
    }
}

/// Kinds of directives in a list, at any depth. Their names tell them apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    /// Scripts, or settings of scripts.
    pub scripts: bool,
    /// weir's own directives.
    pub own: bool,
    /// Local addresses of connections (`..._bind`).
    pub binds: bool,
}

/// A part of the name of each directive with a script.
const BY_LUA: &[u8] = b"_by_lua";

impl Inside {
    /// The kinds in a list and in all blocks inside.
    pub fn of(list: &[Directive]) -> Inside {
        list.iter().map(Inside::of_directive).fold(Inside::default(), BitOr::bitor)
    }

    fn of_directive(directive: &Directive) -> Inside {
        let name = directive.name.bytes.as_slice();
        let by_lua = || name.windows(BY_LUA.len()).any(|part| part == BY_LUA);
        let own = Inside {
            scripts: name.starts_with(b"lua_") || by_lua(),
            own: name.starts_with(b"weir_"),
            binds: name.ends_with(b"_bind"),
        };
        own | directive.shared_block().map(Block::inside).unwrap_or_default()
    }
}

impl BitOr for Inside {
    type Output = Inside;

    fn bitor(self, other: Inside) -> Inside {
        Inside {
            scripts: self.scripts | other.scripts,
            own: self.own | other.own,
            binds: self.binds | other.binds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check, read_text};
    use std::path::Path;

    fn block(text: &str) -> Block {
        let tree = read_text(Path::new("/t"), text.as_bytes());
        assert!(tree.broken.is_none());
        Block::new(tree.main)
    }

    #[test]
    fn an_edit_leaves_clones_alone_and_drops_cached_results() {
        let mut one = block("server { weir_status on; }");
        one.digest(|_| [1; 32]);
        assert!(one.inside().own);
        let other = one.clone();
        one.edit().clear();
        assert_eq!((one.len(), other.len()), (0, 1));
        assert!(!one.inside().own && other.inside().own);
        assert_eq!(one.digest(|_| [2; 32]), [2; 32]);
        assert_eq!(other.digest(|_| [2; 32]), [1; 32]);
        // An edit also drops the results of a block without clones.
        one.note_clean_in(Contexts::HTTP);
        one.edit();
        assert!(!one.is_clean_in(Contexts::HTTP));
    }

    #[test]
    fn kinds_are_found_at_any_depth() {
        let of = |text: &str| block(text).inside();
        assert_eq!(of("a { b { c; } }"), Inside::default());
        assert!(of("a { b { content_by_lua_block { x } } }").scripts);
        assert!(of("a { b { lua_code_cache off; } }").scripts);
        assert!(of("a { b { proxy_bind off; } }").binds);
    }

    #[test]
    fn errors_are_reported_each_time() {
        let built = |known: &crate::KnownDirective, _| known.name != "perl_modules";
        let http = |inside: &str| format!("events {{ }} http {{ {inside} }}");
        let tree = |text: &str| read_text(Path::new("/t"), text.as_bytes());
        let wrong = tree(&http("server { servr; }"));
        let odd = tree(&http("server { listen 80; }"));
        for _ in 0..3 {
            assert!(check(&wrong, &built).is_err());
            assert_eq!(check(&odd, &built).unwrap(), []);
        }
        // In another context the same block is checked again.
        let inside = odd.main[1].block()[0].shared_block().unwrap();
        assert!(inside.is_clean_in(Contexts::SERVER));
        assert!(!inside.is_clean_in(Contexts::STREAM_SERVER));
    }
}
