//! The settings of one location: those of the core as fields, those of modules in slots with types
//! that the modules know.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::site::core::Conf;
use crate::site::location::Kind;

/// What a slot holds.
type Slot = Arc<dyn Any + Send + Sync>;

/// What the settings of a module do when blocks nest.
pub trait Settings: Clone + Default + Send + Sync + 'static {
    /// A block of this kind begins inside: drop what it does not inherit.
    fn enter(_conf: &mut Arc<Self>, _block: &Kind) {}
}

/// The slots of all modules, in the order of the list of modules.
pub type Slots = &'static [&'static dyn Declared];

/// One location's settings; a block inside begins with its parent's.
#[derive(Debug, Clone)]
pub struct LocationConf {
    /// Settings that each request touches.
    pub core: Arc<Conf>,
    declared: Slots,
    slots: Vec<Slot>,
}

impl LocationConf {
    /// The settings of a block that says nothing.
    pub fn new(declared: Slots) -> LocationConf {
        let slots = declared.iter().enumerate().map(|(at, key)| {
            key.settle(at);
            key.usual()
        });
        LocationConf { core: Arc::default(), declared, slots: slots.collect() }
    }

    /// The settings that a block of this kind begins with inside this one: all but what it does not inherit.
    pub fn inherited(&self, block: &Kind) -> Self {
        let mut child = self.clone();
        Arc::make_mut(&mut child.core).enter(block);
        for (key, slot) in child.declared.iter().zip(&mut child.slots) {
            key.enter(slot, block);
        }
        child
    }
}

/// The way to a module's settings: declared once by the module, as a static.
pub struct Key<T> {
    /// The slot's number, which the list of modules gives; the same in each site.
    at: AtomicUsize,
    settings: PhantomData<fn() -> T>,
}

impl<T: Settings> Key<T> {
    /// A key without a number yet.
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

    /// Whether a line of the block has changed them. If not, they are those of the block around it, which were finished there.
    pub fn is_own(&self, conf: &mut LocationConf) -> bool {
        let slot = conf.slots.get_mut(self.at.load(Ordering::Relaxed));
        slot.is_some_and(|slot| Arc::get_mut(slot).is_some())
    }

    /// The same, to be changed: copied first if a parent shares them.
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

/// A key is used without standing in the list of modules.
#[cold]
fn undeclared() -> ! {
    unreachable!("the list of modules lacks a key")
}

/// A key, whatever the type of its settings is.
pub trait Declared: Sync {
    /// Takes its number in the list.
    fn settle(&self, at: usize);
    /// The settings of a block that says nothing.
    fn usual(&self) -> Slot;
    /// A block begins inside.
    fn enter(&self, slot: &mut Slot, block: &Kind);
}

impl<T: Settings> Declared for Key<T> {
    fn settle(&self, at: usize) {
        self.at.store(at, Ordering::Relaxed);
    }

    fn usual(&self) -> Slot {
        Arc::new(T::default())
    }

    fn enter(&self, slot: &mut Slot, block: &Kind) {
        if let Ok(mut settings) = slot.clone().downcast::<T>() {
            T::enter(&mut settings, block);
            *slot = settings;
        }
    }
}

impl std::fmt::Debug for dyn Declared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Declared")
    }
}
