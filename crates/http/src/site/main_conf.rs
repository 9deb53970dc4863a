//! The settings of modules for the whole `http` block. nginx: main configurations.
//!
//! A module declares a key, and the list of modules includes it. The core has slots by number. The
//! key has the types of the draft, which exists while the block is read, and of the settings that
//! it becomes.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_conf::Error;
use weir_upstream::config::InheritedSettings;
use weir_zone::Declarations;

/// The draft of a module's settings for the `http` block.
pub trait MainDraft: Default + 'static {
    /// The finished settings.
    type MainConf: Send + Sync + 'static;

    /// Called when the whole block was read.
    ///
    /// # Errors
    ///
    /// An error that only the whole block shows.
    fn finish(self, end: &mut BlockEnd<'_>) -> Result<Self::MainConf, Error>;

    /// Takes over the numbers of things that the previous site has as well. Called before the block
    /// is read.
    fn number_as(&mut self, _before: &Self::MainConf) {}

    /// The number of unused numbers of the previous site, and of all numbers.
    fn unused(_before: &Self::MainConf) -> (usize, usize) {
        (0, 0)
    }

    /// Starts to note the uses of the draft by a server, until [`MainDraft::noted`]. Needed only
    /// for accesses by [`MainDrafts::unnoted`]: after any other access, the server is not reusable.
    fn note(&mut self) {}

    /// The uses of the server since [`MainDraft::note`].
    fn noted(&mut self) -> Option<Uses> {
        None
    }

    /// Whether a reused server finds here what it uses.
    fn can_repeat(&self, _uses: &Uses) -> bool {
        true
    }

    /// Repeats the uses of a reused server.
    fn repeat(&mut self, _uses: &Uses) {}
}

/// The uses of a draft by a server. The module knows the type.
pub type Uses = Box<dyn Any + Send + Sync>;

/// The uses of all drafts by a server.
pub struct DraftUses(Vec<Option<Uses>>);

/// The state at the end of the block.
pub struct BlockEnd<'a> {
    /// Settings of the block that groups of servers inherit.
    pub around: &'a InheritedSettings,
    /// The declared zones.
    pub zones: &'a Declarations,
    /// The settings of the running site. Unchanged parts may be taken over.
    pub before: Option<&'a MainConfs>,
    /// Warnings.
    pub warnings: &'a mut Vec<Error>,
    /// The settings that previous keys of the list became.
    pub made: &'a MainConfs,
}

/// The keys of all modules, in the order in which their drafts are finished.
pub type MainKeys = &'static [&'static dyn AnyMainKey];

/// The drafts of all modules.
pub struct MainDrafts {
    keys: MainKeys,
    slots: Vec<Box<dyn Any>>,
    /// How often a draft was accessed for a change.
    changes: usize,
}

impl MainDrafts {
    /// Empty drafts.
    pub fn new(keys: MainKeys) -> MainDrafts {
        let drafts = keys.iter().enumerate().map(|(at, key)| {
            key.set_index(at);
            key.draft()
        });
        MainDrafts { keys, slots: drafts.collect(), changes: 0 }
    }

    /// See [`MainDraft::number_as`].
    pub fn number_as(&mut self, before: &MainConfs) {
        self.keys
            .iter()
            .zip(&mut self.slots)
            .for_each(|(key, slot)| key.number_as(&mut **slot, before));
    }

    /// Whether the number of unused numbers of the previous site is at most `most`, or half of all.
    pub fn has_few_unused(&self, before: &MainConfs, most: usize) -> bool {
        let mut all = self.keys.iter().map(|key| key.unused(before));
        all.all(|(unused, numbers)| unused <= most.max(numbers / 2))
    }

    /// See [`MainDraft::note`].
    pub fn note(&mut self) {
        self.keys.iter().zip(&mut self.slots).for_each(|(key, slot)| key.note(&mut **slot));
    }

    /// See [`MainDraft::noted`].
    pub fn noted(&mut self) -> DraftUses {
        let all = self.keys.iter().zip(&mut self.slots);
        DraftUses(all.map(|(key, slot)| key.noted(&mut **slot)).collect())
    }

    /// See [`MainDraft::can_repeat`].
    pub fn can_repeat(&self, uses: &DraftUses) -> bool {
        let mut all = self.keys.iter().zip(&self.slots).zip(&uses.0);
        all.all(|((key, slot), uses)| {
            uses.as_ref().is_none_or(|uses| key.can_repeat(&**slot, uses))
        })
    }

    /// See [`MainDraft::repeat`].
    pub fn repeat(&mut self, uses: &DraftUses) {
        for ((key, slot), uses) in self.keys.iter().zip(&mut self.slots).zip(&uses.0) {
            if let Some(uses) = uses {
                key.repeat(&mut **slot, uses);
            }
        }
    }

    /// How often a draft was accessed for a change.
    pub fn changes(&self) -> usize {
        self.changes
    }

    /// Runs an access that is noted elsewhere, so that it does not count as a change.
    pub fn unnoted<T>(&mut self, f: impl FnOnce(&mut MainDrafts) -> T) -> T {
        let changes = self.changes;
        let value = f(self);
        self.changes = changes;
        value
    }

    /// Finishes all drafts.
    pub fn finish(
        self,
        keys: MainKeys,
        (around, zones, before): (&InheritedSettings, &Declarations, Option<&MainConfs>),
        warnings: &mut Vec<Error>,
    ) -> Result<MainConfs, Error> {
        let mut made = MainConfs::default();
        for (key, draft) in keys.iter().zip(self.slots) {
            let end = &mut BlockEnd { around, zones, before, warnings, made: &made };
            let conf = key.finish(draft, end)?;
            made.0.push(conf);
        }
        Ok(made)
    }
}

/// The type-erased settings of a key.
type Slot = Box<dyn Any + Send + Sync>;

/// The settings of all modules for the `http` block.
#[derive(Debug, Default)]
pub struct MainConfs(Vec<Slot>);

/// The key to a module's settings for the `http` block. The module declares it as a static.
pub struct MainKey<D> {
    /// The slot's index, which follows from the list of modules. It is the same in each site.
    at: AtomicUsize,
    draft: PhantomData<fn() -> D>,
}

impl<D: MainDraft> MainKey<D> {
    /// A key without an index.
    pub const fn new() -> MainKey<D> {
        MainKey { at: AtomicUsize::new(usize::MAX), draft: PhantomData }
    }

    /// The module's draft, to be changed.
    pub fn draft<'a>(&self, drafts: &'a mut MainDrafts) -> &'a mut D {
        drafts.changes += 1;
        let slot = drafts.slots.get_mut(self.at.load(Ordering::Relaxed));
        slot.and_then(|slot| slot.downcast_mut()).unwrap_or_else(|| undeclared())
    }

    /// The module's draft.
    pub fn read_so_far<'a>(&self, drafts: &'a MainDrafts) -> &'a D {
        let slot = drafts.slots.get(self.at.load(Ordering::Relaxed));
        slot.and_then(|slot| slot.downcast_ref()).unwrap_or_else(|| undeclared())
    }

    /// The module's settings.
    #[inline]
    pub fn of<'a>(&self, confs: &'a MainConfs) -> &'a D::MainConf {
        let slot = confs.0.get(self.at.load(Ordering::Relaxed));
        match slot.and_then(|slot| slot.downcast_ref()) {
            Some(conf) => conf,
            None => undeclared(),
        }
    }

    /// Replaces the module's settings.
    pub fn replace(&self, confs: &mut MainConfs, conf: D::MainConf) {
        if let Some(slot) = confs.0.get_mut(self.at.load(Ordering::Relaxed)) {
            *slot = Box::new(conf);
        }
    }
}

/// The list of modules lacks a key that is used.
#[cold]
fn undeclared() -> ! {
    unreachable!("the list of modules lacks a key")
}

/// A key of any type.
pub trait AnyMainKey: Sync {
    /// Sets the index.
    fn set_index(&self, at: usize);
    /// An empty draft.
    fn draft(&self) -> Box<dyn Any>;
    /// Finishes a draft.
    fn finish(&self, draft: Box<dyn Any>, end: &mut BlockEnd<'_>) -> Result<Slot, Error>;
    /// See [`MainDraft::number_as`].
    fn number_as(&self, draft: &mut dyn Any, before: &MainConfs);
    /// See [`MainDraft::unused`].
    fn unused(&self, before: &MainConfs) -> (usize, usize);
    /// See [`MainDraft::note`].
    fn note(&self, draft: &mut dyn Any);
    /// See [`MainDraft::noted`].
    fn noted(&self, draft: &mut dyn Any) -> Option<Uses>;
    /// See [`MainDraft::can_repeat`].
    fn can_repeat(&self, draft: &dyn Any, uses: &Uses) -> bool;
    /// See [`MainDraft::repeat`].
    fn repeat(&self, draft: &mut dyn Any, uses: &Uses);
}

impl<D: MainDraft> AnyMainKey for MainKey<D> {
    fn set_index(&self, at: usize) {
        self.at.store(at, Ordering::Relaxed);
    }

    fn draft(&self) -> Box<dyn Any> {
        Box::new(D::default())
    }

    fn finish(&self, draft: Box<dyn Any>, end: &mut BlockEnd<'_>) -> Result<Slot, Error> {
        let draft = draft.downcast::<D>().unwrap_or_else(|_| undeclared());
        Ok(Box::new(draft.finish(end)?))
    }

    fn number_as(&self, draft: &mut dyn Any, before: &MainConfs) {
        if let Some(draft) = draft.downcast_mut::<D>() {
            draft.number_as(self.of(before));
        }
    }

    fn unused(&self, before: &MainConfs) -> (usize, usize) {
        D::unused(self.of(before))
    }

    fn note(&self, draft: &mut dyn Any) {
        if let Some(draft) = draft.downcast_mut::<D>() {
            draft.note();
        }
    }

    fn noted(&self, draft: &mut dyn Any) -> Option<Uses> {
        draft.downcast_mut::<D>()?.noted()
    }

    fn can_repeat(&self, draft: &dyn Any, uses: &Uses) -> bool {
        draft.downcast_ref::<D>().is_some_and(|draft| draft.can_repeat(uses))
    }

    fn repeat(&self, draft: &mut dyn Any, uses: &Uses) {
        if let Some(draft) = draft.downcast_mut::<D>() {
            draft.repeat(uses);
        }
    }
}
