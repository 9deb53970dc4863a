//! The settings of a location. Those of the core are fields. Those of modules are in slots with
//! types that the modules know.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::site::core::Conf;
use crate::site::location::Kind;

/// The type-erased settings of a module.
type Slot = Arc<dyn Any + Send + Sync>;

/// The settings of a module in a location.
pub trait Settings: Clone + Default + Send + Sync + 'static {
    /// Called when a block of this kind begins inside. Drops the settings that it does not inherit.
    fn enter(_conf: &mut Arc<Self>, _block: &Kind) {}
}

/// The keys of all modules, in the order of the list of modules.
pub type Slots = &'static [&'static dyn AnyKey];

/// The settings of a location. A nested block begins with those of the outer block.
#[derive(Debug, Clone)]
pub struct LocationConf {
    /// The settings of the core, which each request uses.
    pub core: Arc<Conf>,
    declared: Slots,
    slots: Vec<Slot>,
}

impl LocationConf {
    /// The defaults.
    pub fn new(declared: Slots) -> LocationConf {
        let slots = declared.iter().enumerate().map(|(at, key)| {
            key.set_index(at);
            key.default_slot()
        });
        LocationConf { core: Arc::default(), declared, slots: slots.collect() }
    }

    /// The settings that a nested block of this kind begins with.
    pub fn inherited(&self, block: &Kind) -> Self {
        let mut child = self.clone();
        Arc::make_mut(&mut child.core).enter(block);
        for (key, slot) in child.declared.iter().zip(&mut child.slots) {
            key.enter(slot, block);
        }
        child
    }
}

/// The key to a module's settings. The module declares it as a static.
pub struct Key<T> {
    /// The slot's index, which follows from the list of modules. It is the same in each site.
    at: AtomicUsize,
    settings: PhantomData<fn() -> T>,
}

impl<T: Settings> Key<T> {
    /// A key without an index.
    pub const fn new() -> Key<T> {
        Key { at: AtomicUsize::new(usize::MAX), settings: PhantomData }
    }

    /// The module's settings.
    #[inline]
    pub fn of<'a>(&self, conf: &'a LocationConf) -> &'a T {
        let slot = conf.slots.get(self.at.load(Ordering::Relaxed));
        match slot.and_then(|slot| slot.downcast_ref()) {
            Some(settings) => settings,
            None => undeclared(),
        }
    }

    /// Whether this block has changed the settings. If not, the outer block has finished them.
    pub fn is_own(&self, conf: &mut LocationConf) -> bool {
        let slot = conf.slots.get_mut(self.at.load(Ordering::Relaxed));
        slot.is_some_and(|slot| Arc::get_mut(slot).is_some())
    }

    /// The settings, to be changed. They are copied first if the outer block shares them.
    pub fn change<'a>(&self, conf: &'a mut LocationConf) -> &'a mut T {
        let at = self.at.load(Ordering::Relaxed);
        if conf.slots.get_mut(at).is_some_and(|slot| Arc::get_mut(slot).is_none()) {
            let copy = self.of(conf).clone();
            conf.slots[at] = Arc::new(copy);
        }
        let slot = conf.slots.get_mut(at).and_then(Arc::get_mut);
        match slot.and_then(|slot| slot.downcast_mut()) {
            Some(settings) => settings,
            None => undeclared(),
        }
    }
}

/// The list of modules lacks a key that is used.
#[cold]
fn undeclared() -> ! {
    unreachable!("the list of modules lacks a key")
}

/// A key of any type.
pub trait AnyKey: Sync {
    /// Sets the index.
    fn set_index(&self, at: usize);
    /// The defaults.
    fn default_slot(&self) -> Slot;
    /// Called when a block begins inside.
    fn enter(&self, slot: &mut Slot, block: &Kind);
}

impl<T: Settings> AnyKey for Key<T> {
    fn set_index(&self, at: usize) {
        self.at.store(at, Ordering::Relaxed);
    }

    fn default_slot(&self) -> Slot {
        Arc::new(T::default())
    }

    fn enter(&self, slot: &mut Slot, block: &Kind) {
        if let Ok(mut settings) = slot.clone().downcast::<T>() {
            T::enter(&mut settings, block);
            *slot = settings;
        }
    }
}

impl std::fmt::Debug for dyn AnyKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AnyKey")
    }
}
