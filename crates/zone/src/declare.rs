//! The zones that a configuration declares, and how they pass to the next configuration. nginx:
//! ngx_shared_memory_add().

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};

use crate::Zone;

/// The purpose of a zone. Zones of different purposes do not share memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// The module that it belongs to, as in messages: `limit_req`.
    pub tag: &'static str,
    /// The block whose configuration has it (`stream`), if modules of several blocks have zones of
    /// this tag. They do not share them.
    pub block: &'static str,
    /// Words of value for each key, at most 5.
    pub values: usize,
    /// The expression of its keys, as configured. Empty if the configuration has none.
    pub key: String,
    /// For a cache, whose key is its path: the levels of its directories.
    pub levels: Option<Vec<usize>>,
}

impl Use {
    /// A zone of this module with this many words of value, and nothing else that matters.
    pub const fn of(tag: &'static str, values: usize) -> Use {
        Use { tag, block: "", values, key: String::new(), levels: None }
    }
}

/// A declared zone. It is open once the configuration is in use.
#[derive(Debug, Clone)]
pub struct ZoneRef(Arc<DeclaredZone>);

#[derive(Debug)]
struct DeclaredZone {
    name: String,
    size: u64,
    purpose: Use,
    zone: OnceLock<Arc<Zone>>,
}

/// The open zones.
#[derive(Debug, Clone, Default)]
pub struct Zones(Vec<Arc<Zone>>);

/// The zones that a configuration declares.
#[derive(Debug, Default)]
pub struct Declarations {
    list: RefCell<Vec<ZoneRef>>,
    lines: Cell<usize>,
}

/// Why a zone cannot be had. It is shown in nginx's words.
#[derive(Debug)]
pub enum ZoneError {
    /// It is declared with another size.
    OtherSize {
        /// Its name.
        name: String,
        /// The requested size.
        size: u64,
        /// The declared size.
        declared: u64,
    },
    /// The zone of this name belongs to another module.
    OtherUse(String),
    /// No zone of this name is declared.
    Undeclared(String),
    /// The previous configuration used it with another key.
    OtherKey {
        /// The module that it belongs to.
        tag: &'static str,
        /// Its name.
        name: String,
        /// The requested key.
        key: String,
        /// The previous key.
        previous: String,
    },
    /// The previous configuration used it for a cache in another directory.
    OtherPath {
        /// Its name.
        name: String,
        /// The requested path of the cache.
        path: String,
        /// The previous path.
        previous: String,
    },
    /// The previous configuration used it for a cache with other levels of directories.
    OtherLevels(String),
    /// No memory could be mapped.
    Memory {
        /// Its name.
        name: String,
        /// Its size.
        size: u64,
        /// The error of mmap(2).
        error: io::Error,
    },
}

impl fmt::Display for ZoneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ZoneError::OtherSize { name, size, declared } => write!(
                f,
                "the size {size} of shared memory zone \"{name}\" conflicts with already declared size {declared}"
            ),
            ZoneError::OtherUse(name) => write!(
                f,
                "the shared memory zone \"{name}\" is already declared for a different use"
            ),
            ZoneError::Undeclared(name) => write!(f, "zero size shared memory zone \"{name}\""),
            ZoneError::OtherKey { tag, name, key, previous } => write!(
                f,
                "{tag} \"{name}\" uses the \"{key}\" key while previously it used the \"{previous}\" key"
            ),
            ZoneError::OtherPath { name, path, previous } => write!(
                f,
                "cache \"{name}\" uses the \"{path}\" cache path while previously it used the \"{previous}\" cache path"
            ),
            ZoneError::OtherLevels(name) => {
                write!(f, "cache \"{name}\" had previously different levels")
            }
            ZoneError::Memory { name, size, error } => {
                write!(f, "mmap({size}) of zone \"{name}\" failed: {error}")
            }
        }
    }
}

impl std::error::Error for ZoneError {}

impl ZoneRef {
    /// The zone. None before the configuration is in use.
    pub fn get(&self) -> Option<&Zone> {
        self.0.zone.get().map(|zone| &**zone)
    }

    /// The purpose of the zone.
    pub fn purpose(&self) -> &Use {
        &self.0.purpose
    }

    /// The size in bytes, as configured.
    pub fn size(&self) -> u64 {
        self.0.size
    }

    /// The zone's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }
}

impl Zones {
    /// All open zones.
    pub fn iter(&self) -> impl Iterator<Item = &Zone> {
        self.0.iter().map(|zone| &**zone)
    }

    /// Whether all zones are also in `others`.
    pub fn are_of(&self, others: &Zones) -> bool {
        self.0.iter().all(|zone| others.0.iter().any(|other| Arc::ptr_eq(zone, other)))
    }
}

impl Declarations {
    /// Declares a zone. The same zone may be declared several times with the same size and module.
    ///
    /// # Errors
    ///
    /// [`ZoneError::OtherSize`] or [`ZoneError::OtherUse`], if they differ.
    pub fn declare(&self, name: &str, size: u64, purpose: Use) -> Result<ZoneRef, ZoneError> {
        self.lines.set(self.lines.get() + 1);
        let mut list = self.list.borrow_mut();
        let Some(known) = list.iter().find(|z| z.0.name == name) else {
            let slot = DeclaredZone { name: name.to_owned(), size, purpose, zone: OnceLock::new() };
            let zone = ZoneRef(Arc::new(slot));
            list.push(zone.clone());
            return Ok(zone);
        };
        differs(known, (purpose.tag, purpose.block))?;
        if known.0.size != size {
            let (name, declared) = (name.to_owned(), known.0.size);
            return Err(ZoneError::OtherSize { name, size, declared });
        }
        Ok(known.clone())
    }

    /// How many declarations there were so far, repeated ones included.
    pub fn lines(&self) -> usize {
        self.lines.get()
    }

    /// Finds a zone by name, for code that uses but does not declare it.
    ///
    /// # Errors
    ///
    /// [`ZoneError::Undeclared`] if there is no such zone, [`ZoneError::OtherUse`] if it belongs to
    /// another module.
    pub fn find(&self, name: &str, tag: &str) -> Result<ZoneRef, ZoneError> {
        self.find_in("", name, tag)
    }

    /// The same for a zone of one block: see [`Use::block`].
    ///
    /// # Errors
    ///
    /// Those of [`Declarations::find`].
    pub fn find_in(&self, block: &str, name: &str, tag: &str) -> Result<ZoneRef, ZoneError> {
        let list = self.list.borrow();
        let known = list.iter().find(|z| z.0.name == name);
        let known = known.ok_or_else(|| ZoneError::Undeclared(name.to_owned()))?;
        differs(known, (tag, block)).map(|()| known.clone())
    }

    /// Checks that no other module has declared a zone of this name so far.
    ///
    /// # Errors
    ///
    /// [`ZoneError::OtherUse`] if one has.
    pub fn is_free_for(&self, name: &str, tag: &str) -> Result<(), ZoneError> {
        self.is_free_in("", name, tag)
    }

    /// The same for a zone of one block: see [`Use::block`].
    ///
    /// # Errors
    ///
    /// Those of [`Declarations::is_free_for`].
    pub fn is_free_in(&self, block: &str, name: &str, tag: &str) -> Result<(), ZoneError> {
        let list = self.list.borrow();
        list.iter().find(|z| z.0.name == name).map_or(Ok(()), |known| differs(known, (tag, block)))
    }

    /// Opens all zones, before workers are forked. A zone takes over the memory of one of `old`
    /// with the same name, size and purpose. Other zones get new memory.
    ///
    /// # Errors
    ///
    /// [`ZoneError::OtherKey`], [`ZoneError::OtherPath`] or [`ZoneError::OtherLevels`] if a zone is
    /// to have other keys or files, or [`ZoneError::Memory`].
    pub fn open(&self, old: &Zones) -> Result<Zones, ZoneError> {
        let list = self.list.borrow();
        let open: Result<Vec<_>, _> = list.iter().map(|z| z.0.open(old)).collect();
        open.map(Zones)
    }
}

impl DeclaredZone {
    fn open(&self, old: &Zones) -> Result<Arc<Zone>, ZoneError> {
        let name = || self.name.clone();
        let zone = match old.0.iter().find(|z| self.is(z)) {
            Some(old) => {
                self.agrees_with(&old.purpose)?;
                old.clone()
            }
            None => {
                let zone = Zone::new(&self.name, self.size, self.purpose.clone());
                let failed = |error| ZoneError::Memory { name: name(), size: self.size, error };
                Arc::new(zone.map_err(failed)?)
            }
        };
        Ok(self.zone.get_or_init(|| zone).clone())
    }

    /// Checks that the content of the old memory is usable for this configuration.
    fn agrees_with(&self, old: &Use) -> Result<(), ZoneError> {
        let Use { tag, key, levels, .. } = &self.purpose;
        let (name, key, previous) = (self.name.clone(), key.clone(), old.key.clone());
        if key != previous {
            return Err(match levels {
                Some(_) => ZoneError::OtherPath { name, path: key, previous },
                None => ZoneError::OtherKey { tag, name, key, previous },
            });
        }
        if *levels != old.levels {
            return Err(ZoneError::OtherLevels(name));
        }
        Ok(())
    }

    fn is(&self, zone: &Zone) -> bool {
        let (mine, theirs) = (&self.purpose, &zone.purpose);
        zone.name == self.name
            && zone.size == self.size
            && (theirs.tag, theirs.block, theirs.values) == (mine.tag, mine.block, mine.values)
    }
}

fn differs(known: &ZoneRef, of: (&str, &str)) -> Result<(), ZoneError> {
    let purpose = known.purpose();
    if (purpose.tag, purpose.block) == of {
        return Ok(());
    }
    Err(ZoneError::OtherUse(known.name().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn purpose(tag: &'static str, key: &str) -> Use {
        Use { key: key.to_owned(), ..Use::of(tag, 1) }
    }

    #[test]
    fn says_what_does_not_agree() {
        let all = Declarations::default();
        all.declare("one", 65536, purpose("a", "$x")).unwrap();
        assert_eq!(
            all.declare("one", 32768, purpose("a", "$x")).unwrap_err().to_string(),
            "the size 32768 of shared memory zone \"one\" conflicts with already declared size 65536"
        );
        let other = "the shared memory zone \"one\" is already declared for a different use";
        assert_eq!(all.declare("one", 65536, purpose("b", "$x")).unwrap_err().to_string(), other);
        assert_eq!(all.find("one", "b").unwrap_err().to_string(), other);
        assert_eq!(
            all.find("two", "b").unwrap_err().to_string(),
            "zero size shared memory zone \"two\""
        );
        assert!(all.find("one", "a").is_ok_and(|z| z.get().is_none()));
        let elsewhere = Use { block: "stream", ..purpose("a", "$x") };
        assert_eq!(all.declare("one", 65536, elsewhere).unwrap_err().to_string(), other);
        assert_eq!(all.find_in("stream", "one", "a").unwrap_err().to_string(), other);
    }

    #[test]
    fn memory_passes_on_where_all_is_the_same() {
        let open = |size, tag, key, old: &Zones| {
            let all = Declarations::default();
            let zone = all.declare("one", size, purpose(tag, key)).unwrap();
            all.open(old).map(|open| (zone, open))
        };
        let (first, zones) = open(65536, "a", "$x", &Zones::default()).unwrap();
        first.get().unwrap().lock().add(b"mine").unwrap();
        let has = |zone: &ZoneRef| zone.get().unwrap().lock().find(b"mine").is_some();

        let (same, _) = open(65536, "a", "$x", &zones).unwrap();
        assert!(has(&same));
        let (larger, _) = open(131_072, "a", "$x", &zones).unwrap();
        assert!(!has(&larger));
        let (other, _) = open(65536, "b", "$x", &zones).unwrap();
        assert!(!has(&other));
        assert_eq!(
            open(65536, "a", "$y", &zones).unwrap_err().to_string(),
            "a \"one\" uses the \"$y\" key while previously it used the \"$x\" key"
        );
    }
}
