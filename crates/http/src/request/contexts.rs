//! What is remembered of one request, from one phase to another: by the core in fields, by modules in slots.

use std::any::Any;
use std::path::PathBuf;

use rustix::io::Errno;

use weir_ssl::server::Handshake;

use crate::address::Address;
use crate::request::passed::UpstreamContext;

/// What is remembered of a request. Modules add to it; an ordinary request has nothing in it.
#[derive(Default)]
pub struct Contexts {
    /// No request has come: this one stands for a connection in its handshake.
    pub handshake: Option<Box<Handshake>>,
    /// The client's address where another one than the connection's counts.
    pub realip: Option<Box<Address>>,
    /// `$realpath_root`, where a thread had to find it.
    pub realpath: Option<Box<KnownRoot>>,
    /// Values are computed before anything has asked for them: the error log is told nothing.
    pub is_silent: bool,
    /// Bytes into a compressor, and out of it.
    pub gzip_ratio: Option<(u64, u64)>,
    /// What is known of the servers that the request was passed to.
    pub upstream: UpstreamContext,
    slots: Vec<Slot>,
}

/// What a root was found to be without symbolic links.
#[derive(Debug)]
pub struct KnownRoot {
    /// As it is configured.
    pub root: PathBuf,
    /// Without links, or why that is not known.
    pub real: Result<PathBuf, Errno>,
}

/// What one module remembers.
struct Slot {
    key: &'static dyn Declared,
    value: Box<dyn Any>,
}

/// How a value is copied, if it is.
type Copied = fn(&dyn Declared, &dyn Any) -> Option<Box<dyn Any>>;

/// What a subrequest takes along.
pub struct Along(Vec<Slot>);

impl Contexts {
    /// What a subrequest begins with: it is the same client's, and modules say what else it takes along.
    pub fn for_subrequest(&self) -> Self {
        let slots = self.copied(|key, value| key.for_subrequest(value));
        Contexts { realip: self.realip.clone(), slots, ..Contexts::default() }
    }

    /// What modules have a subrequest take along that updates the cache in the background.
    pub fn for_update(&self) -> Along {
        Along(self.copied(|key, value| key.for_update(value)))
    }

    /// Takes this along.
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

    /// Makes ready for the connection's next request: only memory stays, and `give_back` gets a head that a server
    /// sent. Each part is set in its place, since a new value would be copied for each request.
    pub fn renew(&mut self, give_back: impl FnOnce(Vec<u8>)) {
        let Contexts { handshake, realip, realpath, is_silent: _, gzip_ratio, upstream, slots } =
            self;
        *handshake = None;
        (*realip, *realpath, *gzip_ratio) = (None, None, None);
        upstream.renew(give_back);
        slots.clear();
    }

    /// The request goes another way from within: what belonged to the old one is forgotten. The client and the
    /// attempts at other servers stay, and modules say what else does.
    pub fn redirected(&mut self) {
        (self.realpath, self.gzip_ratio) = (None, None);
        self.slots.retain(|slot| slot.key.survives_redirect());
    }
}

/// The way to what a module remembers: declared once by the module, as a static.
pub struct ContextKey<T: 'static> {
    /// What a subrequest takes along, if it does.
    pub for_subrequest: Option<fn(&T) -> T>,
    /// What a subrequest takes along that updates the cache in the background, if it does.
    pub for_update: Option<fn(&T) -> T>,
    /// It holds on another way from within, too.
    pub survives_redirect: bool,
}

impl<T: 'static> ContextKey<T> {
    /// Of a module with a memory that ends with the request's way, and that a subrequest knows
    /// nothing of.
    pub const fn passing() -> ContextKey<T> {
        ContextKey { for_subrequest: None, for_update: None, survives_redirect: false }
    }

    /// What is remembered, if anything is.
    pub fn of<'a>(&'static self, contexts: &'a Contexts) -> Option<&'a T> {
        let slot = contexts.slots.iter().find(|slot| std::ptr::addr_eq(slot.key, self))?;
        slot.value.downcast_ref()
    }

    /// The same, to be changed.
    pub fn change<'a>(&'static self, contexts: &'a mut Contexts) -> Option<&'a mut T> {
        let slot = contexts.slots.iter_mut().find(|slot| std::ptr::addr_eq(slot.key, self))?;
        slot.value.downcast_mut()
    }

    /// Remembers this, in place of what was remembered before.
    pub fn set(&'static self, contexts: &mut Contexts, value: T) {
        match self.change(contexts) {
            Some(old) => *old = value,
            None => contexts.slots.push(Slot { key: self, value: Box::new(value) }),
        }
    }

    /// Forgets, and says what was remembered.
    pub fn take(&'static self, contexts: &mut Contexts) -> Option<T> {
        let at = contexts.slots.iter().position(|slot| std::ptr::addr_eq(slot.key, self))?;
        contexts.slots.swap_remove(at).value.downcast().ok().map(|value| *value)
    }

    /// What is remembered; this, if nothing was.
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

/// A key, whatever the type behind it is.
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
