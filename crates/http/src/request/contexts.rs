//! State of a request that lives from one phase to another. The core has fields for it, modules have slots.

use std::any::Any;
use std::path::PathBuf;

use rustix::io::Errno;

use weir_ssl::server::Handshake;

use crate::address::Address;
use crate::request::passed::UpstreamContext;

/// The contexts of a request. Modules add to them. An ordinary request has none.
#[derive(Default)]
pub struct Contexts {
    /// Set if this is no client's request, but stands for a connection during its handshake.
    pub handshake: Option<Box<Handshake>>,
    /// The client's address, if realip has replaced that of the connection.
    pub realip: Option<Box<Address>>,
    /// `$realpath_root`, if a thread of the file pool resolved it.
    pub realpath: Option<Box<KnownRoot>>,
    /// Values are computed ahead of their use, so errors are not logged.
    pub is_silent: bool,
    /// Bytes into a compressor, and out of it.
    pub gzip_ratio: Option<(u64, u64)>,
    /// The facts about servers that the request was passed to.
    pub upstream: UpstreamContext,
    slots: Vec<Slot>,
}

/// A root without symbolic links.
#[derive(Debug)]
pub struct KnownRoot {
    /// As it is configured.
    pub root: PathBuf,
    /// The root without links, or the error of resolving it.
    pub real: Result<PathBuf, Errno>,
}

/// The context of a module.
struct Slot {
    key: &'static dyn Declared,
    value: Box<dyn Any>,
}

/// Copies a context for a subrequest, if the module wants that.
type Copied = fn(&dyn Declared, &dyn Any) -> Option<Box<dyn Any>>;

/// Contexts that are copied to a subrequest.
pub struct Along(Vec<Slot>);

impl Contexts {
    /// The contexts of a new subrequest: the client's address, and copies that modules make.
    pub fn for_subrequest(&self) -> Self {
        let slots = self.copied(|key, value| key.for_subrequest(value));
        Contexts { realip: self.realip.clone(), slots, ..Contexts::default() }
    }

    /// Copies that modules make for a subrequest that updates the cache in the background.
    pub fn for_update(&self) -> Along {
        Along(self.copied(|key, value| key.for_update(value)))
    }

    /// Adds copied contexts.
    pub fn add(&mut self, along: Along) {
        self.slots.extend(along.0);
    }

    fn copied(&self, copy: Copied) -> Vec<Slot> {
        let copied = |slot: &Slot| {
            let value = copy(slot.key, &*slot.value)?;
            Some(Slot { key: slot.key, value })
        };
        self.slots.iter().filter_map(copied).collect()
    }

    /// Clears all contexts for the connection's next request. Only allocated memory stays. `give_back` gets the buffer of a
    /// server's head. Each field is cleared in place, since assigning a new value would copy it.
    pub fn renew(&mut self, give_back: impl FnOnce(Vec<u8>)) {
        let Contexts { handshake, realip, realpath, is_silent: _, gzip_ratio, upstream, slots } =
            self;
        *handshake = None;
        (*realip, *realpath, *gzip_ratio) = (None, None, None);
        upstream.renew(give_back);
        slots.clear();
    }

    /// Clears contexts at an internal redirect. The client's address and the facts about servers stay, and contexts that modules
    /// declare to survive.
    pub fn redirected(&mut self) {
        (self.realpath, self.gzip_ratio) = (None, None);
        self.upstream.redirected();
        self.slots.retain(|slot| slot.key.survives_redirect());
    }
}

/// The key of a module's context, which the module declares as a static.
pub struct ContextKey<T: 'static> {
    /// Copies the context for a subrequest, if set.
    pub for_subrequest: Option<fn(&T) -> T>,
    /// Copies the context for a subrequest that updates the cache in the background, if set.
    pub for_update: Option<fn(&T) -> T>,
    /// The context survives an internal redirect.
    pub survives_redirect: bool,
}

impl<T: 'static> ContextKey<T> {
    /// A key of a context that ends with an internal redirect, and that subrequests do not get.
    pub const fn passing() -> ContextKey<T> {
        ContextKey { for_subrequest: None, for_update: None, survives_redirect: false }
    }

    /// The context, if it was set.
    pub fn of<'a>(&'static self, contexts: &'a Contexts) -> Option<&'a T> {
        let slot = contexts.slots.iter().find(|slot| std::ptr::addr_eq(slot.key, self))?;
        slot.value.downcast_ref()
    }

    /// The same, to be changed.
    pub fn change<'a>(&'static self, contexts: &'a mut Contexts) -> Option<&'a mut T> {
        let slot = contexts.slots.iter_mut().find(|slot| std::ptr::addr_eq(slot.key, self))?;
        slot.value.downcast_mut()
    }

    /// Sets the context.
    pub fn set(&'static self, contexts: &mut Contexts, value: T) {
        match self.change(contexts) {
            Some(old) => *old = value,
            None => contexts.slots.push(Slot { key: self, value: Box::new(value) }),
        }
    }

    /// Removes and returns the context.
    pub fn take(&'static self, contexts: &mut Contexts) -> Option<T> {
        let at = contexts.slots.iter().position(|slot| std::ptr::addr_eq(slot.key, self))?;
        contexts.slots.swap_remove(at).value.downcast().ok().map(|value| *value)
    }

    /// The context. It is set first if there is none.
    pub fn or_insert_with<'a>(
        &'static self,
        contexts: &'a mut Contexts,
        value: impl FnOnce() -> T,
    ) -> &'a mut T {
        let found = contexts.slots.iter().position(|slot| std::ptr::addr_eq(slot.key, self));
        let at = found.unwrap_or_else(|| {
            contexts.slots.push(Slot { key: self, value: Box::new(value()) });
            contexts.slots.len() - 1
        });
        match contexts.slots[at].value.downcast_mut() {
            Some(value) => value,
            None => unreachable!("a key's slot holds the key's type"),
        }
    }
}

/// A key without its type.
trait Declared: Sync {
    fn for_subrequest(&self, value: &dyn Any) -> Option<Box<dyn Any>>;
    fn for_update(&self, value: &dyn Any) -> Option<Box<dyn Any>>;
    fn survives_redirect(&self) -> bool;
}

impl<T: 'static> Declared for ContextKey<T> {
    fn for_subrequest(&self, value: &dyn Any) -> Option<Box<dyn Any>> {
        Some(Box::new(self.for_subrequest?(value.downcast_ref()?)))
    }

    fn for_update(&self, value: &dyn Any) -> Option<Box<dyn Any>> {
        Some(Box::new(self.for_update?(value.downcast_ref()?)))
    }

    fn survives_redirect(&self) -> bool {
        self.survives_redirect
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static PASSING: ContextKey<u8> = ContextKey::passing();
    static COPIED: ContextKey<u8> =
        ContextKey { for_subrequest: Some(|n| n + 1), ..ContextKey::passing() };
    static KEPT: ContextKey<u8> = ContextKey {
        for_update: Some(|n| n + 2),
        survives_redirect: true,
        ..ContextKey::passing()
    };

    fn all(contexts: &Contexts) -> [Option<u8>; 3] {
        [&PASSING, &COPIED, &KEPT].map(|key| key.of(contexts).copied())
    }

    #[test]
    fn modules_say_what_subrequests_and_redirects_keep() {
        let mut contexts = Contexts::default();
        assert_eq!(all(&contexts), [None; 3]);
        PASSING.set(&mut contexts, 1);
        *COPIED.or_insert_with(&mut contexts, || 1) += 1;
        KEPT.set(&mut contexts, 1);
        KEPT.set(&mut contexts, 3);
        assert_eq!(all(&contexts), [Some(1), Some(2), Some(3)]);
        assert_eq!(all(&contexts.for_subrequest()), [None, Some(3), None]);
        let mut update = Contexts::default();
        update.add(contexts.for_update());
        assert_eq!(all(&update), [None, None, Some(5)]);
        contexts.redirected();
        assert_eq!(all(&contexts), [None, None, Some(3)]);
        assert_eq!((KEPT.take(&mut contexts), KEPT.take(&mut contexts)), (Some(3), None));
        KEPT.set(&mut contexts, 1);
        contexts.renew(drop);
        assert_eq!(all(&contexts), [None; 3]);
    }
}
