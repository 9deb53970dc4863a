//! What a module makes of the `http` block as a whole. nginx: main configurations.
//!
//! A module declares a key, and the list of modules has the keys. The core knows slots by their numbers; the key has the
//! types of what it holds while the block is read, and of what stays.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_conf::Error;
use weir_upstream::config::Around;
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
}

/// What is known when the whole block was read.
pub struct BlockEnd<'a> {
    /// What the block says for groups of servers.
    pub around: &'a Around,
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
pub struct MainDrafts(Vec<Box<dyn Any>>);

impl MainDrafts {
    /// Nothing was read yet.
    pub fn new(keys: MainKeys) -> MainDrafts {
        let drafts = keys.iter().enumerate().map(|(at, key)| {
            key.settle(at);
            key.draft()
        });
        MainDrafts(drafts.collect())
    }

    /// The whole block was read.
    pub fn finish(
        self,
        keys: MainKeys,
        (around, zones, before): (&Around, &Declarations, Option<&MainConfs>),
        warnings: &mut Vec<Error>,
    ) -> Result<MainConfs, Error> {
        let mut made = MainConfs::default();
        for (key, draft) in keys.iter().zip(self.0) {
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

    /// What the module has read so far.
    pub fn draft<'a>(&self, drafts: &'a mut MainDrafts) -> &'a mut D {
        let slot = drafts.0.get_mut(self.at.load(Ordering::Relaxed));
        slot.and_then(|slot| slot.downcast_mut()).unwrap_or_else(|| undeclared())
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
}
