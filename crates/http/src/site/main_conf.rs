//! What a module makes of the `http` block as a whole. nginx: main configurations.
//!
//! A module declares a key, and the list of modules has the keys. The core knows slots by their numbers; the key has the
//! types of what it holds while the block is read, and of what stays.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_conf::Error;
use weir_upstream::config::InheritedSettings;
use weir_zone::Declarations;

/// What a module has read of the block so far.
pub trait MainDraft: Default + 'static {
    /// What it comes to.
    type MainConf: Send + Sync + 'static;

    /// The whole block was read.
    ///
    /// # Errors
    ///
    /// What only the whole block shows to be wrong.
    fn finish(self, end: &mut BlockEnd<'_>) -> Result<Self::MainConf, Error>;

    /// Gives what another site has, too, the numbers that it has there. Nothing was read yet.
    fn number_as(&mut self, _before: &Self::MainConf) {}

    /// How many numbers of that site nothing has, and how many there are.
    fn unused(_before: &Self::MainConf) -> (usize, usize) {
        (0, 0)
    }

    /// What a server uses from now on, until [`MainDraft::noted`], is noted. Only uses for which a module asks nobody but the draft
    /// itself need that: see [`MainDrafts::unnoted`].
    fn note(&mut self) {}

    /// What the server has used.
    fn noted(&mut self) -> Option<Uses> {
        None
    }

    /// Whether a server that has used that finds the same here.
    fn can_repeat(&self, _uses: &Uses) -> bool {
        true
    }

    /// A server of the site before, which is taken as it is, uses that again.
    fn repeat(&mut self, _uses: &Uses) {}
}

/// What a server uses of a draft; the module knows the type.
pub type Uses = Box<dyn Any + Send + Sync>;

/// What a server uses of all drafts.
pub struct DraftUses(Vec<Option<Uses>>);

/// What is known when the whole block was read.
pub struct BlockEnd<'a> {
    /// What the block says for groups of servers.
    pub around: &'a InheritedSettings,
    /// Shared memory that the configuration asks for.
    pub zones: &'a Declarations,
    /// What the process serves meanwhile: what has not changed may be taken from there.
    pub before: Option<&'a MainConfs>,
    /// What does not stop the start.
    pub warnings: &'a mut Vec<Error>,
    /// What the keys before this one in the list came to.
    pub made: &'a MainConfs,
}

/// All modules' keys, in the order in which their drafts are finished.
pub type MainKeys = &'static [&'static dyn AnyMainKey];

/// The drafts of all modules.
pub struct MainDrafts {
    keys: MainKeys,
    slots: Vec<Box<dyn Any>>,
    /// How often one was asked for, to be changed.
    changes: usize,
}

impl MainDrafts {
    /// Nothing was read yet.
    pub fn new(keys: MainKeys) -> MainDrafts {
        let drafts = keys.iter().enumerate().map(|(at, key)| {
            key.settle(at);
            key.draft()
        });
        MainDrafts { keys, slots: drafts.collect(), changes: 0 }
    }

    /// Gives what another site has, too, the numbers that it has there.
    pub fn number_as(&mut self, before: &MainConfs) {
        self.keys
            .iter()
            .zip(&mut self.slots)
            .for_each(|(key, slot)| key.number_as(&mut **slot, before));
    }

    /// Whether at most so many numbers of that site are unused, or half of them.
    pub fn has_few_unused(&self, before: &MainConfs, most: usize) -> bool {
        let mut all = self.keys.iter().map(|key| key.unused(before));
        all.all(|(unused, numbers)| unused <= most.max(numbers / 2))
    }

    /// What a server uses from now on is noted.
    pub fn note(&mut self) {
        self.keys.iter().zip(&mut self.slots).for_each(|(key, slot)| key.note(&mut **slot));
    }

    /// What it has used.
    pub fn noted(&mut self) -> DraftUses {
        let all = self.keys.iter().zip(&mut self.slots);
        DraftUses(all.map(|(key, slot)| key.noted(&mut **slot)).collect())
    }

    /// Whether a server that has used that finds the same here.
    pub fn can_repeat(&self, uses: &DraftUses) -> bool {
        let mut all = self.keys.iter().zip(&self.slots).zip(&uses.0);
        all.all(|((key, slot), uses)| {
            uses.as_ref().is_none_or(|uses| key.can_repeat(&**slot, uses))
        })
    }

    /// A server that has used that is taken as it is.
    pub fn repeat(&mut self, uses: &DraftUses) {
        for ((key, slot), uses) in self.keys.iter().zip(&mut self.slots).zip(&uses.0) {
            if let Some(uses) = uses {
                key.repeat(&mut **slot, uses);
            }
        }
    }

    /// How often a draft was asked for, to be changed.
    pub fn changes(&self) -> usize {
        self.changes
    }

    /// Does something that is noted elsewhere, and counts as no change.
    pub fn unnoted<T>(&mut self, f: impl FnOnce(&mut MainDrafts) -> T) -> T {
        let changes = self.changes;
        let value = f(self);
        self.changes = changes;
        value
    }

    /// The whole block was read.
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

/// What a slot holds when the block was read.
type Slot = Box<dyn Any + Send + Sync>;

/// What all modules made of the block.
#[derive(Debug, Default)]
pub struct MainConfs(Vec<Slot>);

/// The way to what a module makes of the block: declared once by the module, as a static.
pub struct MainKey<D> {
    /// The slot's number, which the list of modules gives; the same in each site.
    at: AtomicUsize,
    draft: PhantomData<fn() -> D>,
}

impl<D: MainDraft> MainKey<D> {
    /// A key without a number yet.
    pub const fn new() -> MainKey<D> {
        MainKey { at: AtomicUsize::new(usize::MAX), draft: PhantomData }
    }

    /// What the module has read so far, to be changed.
    pub fn draft<'a>(&self, drafts: &'a mut MainDrafts) -> &'a mut D {
        drafts.changes += 1;
        let slot = drafts.slots.get_mut(self.at.load(Ordering::Relaxed));
        slot.and_then(|slot| slot.downcast_mut()).unwrap_or_else(|| undeclared())
    }

    /// The same, which stays as it is.
    pub fn read_so_far<'a>(&self, drafts: &'a MainDrafts) -> &'a D {
        let slot = drafts.slots.get(self.at.load(Ordering::Relaxed));
        slot.and_then(|slot| slot.downcast_ref()).unwrap_or_else(|| undeclared())
    }

    /// What the module made of it.
    #[inline]
    pub fn of<'a>(&self, confs: &'a MainConfs) -> &'a D::MainConf {
        let slot = confs.0.get(self.at.load(Ordering::Relaxed));
        match slot.and_then(|slot| slot.downcast_ref()) {
            Some(conf) => conf,
            None => undeclared(),
        }
    }

    /// Puts something else in its place.
    pub fn replace(&self, confs: &mut MainConfs, conf: D::MainConf) {
        if let Some(slot) = confs.0.get_mut(self.at.load(Ordering::Relaxed)) {
            *slot = Box::new(conf);
        }
    }
}

/// A key is used without standing in the list of modules.
#[cold]
fn undeclared() -> ! {
    unreachable!("the list of modules lacks a key")
}

/// A key, whatever its types are.
pub trait AnyMainKey: Sync {
    /// Takes its number in the list.
    fn settle(&self, at: usize);
    /// Nothing was read yet.
    fn draft(&self) -> Box<dyn Any>;
    /// The whole block was read.
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
    fn settle(&self, at: usize) {
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
