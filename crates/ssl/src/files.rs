//! Files of certificates and keys, each read once while a configuration is read.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_log::Cause;
use weir_tls::Identity;

/// Why a file of certificates or keys cannot be read. Shown in parentheses, as nginx shows errors
/// of the system.
#[derive(Debug)]
pub enum KeyFileError {
    /// The name is one that only OpenSSL's engines or stores could load.
    Foreign,
    /// The system cannot read the file.
    Io(io::Error),
}

impl fmt::Display for KeyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyFileError::Foreign => {
                f.write_str("(engines and stores are OpenSSL's, which weir does not use)")
            }
            KeyFileError::Io(error) => Cause(error).fmt(f),
        }
    }
}

/// The prefix of contents that stand in place of a file's name.
const DATA: &[u8] = b"data:";

/// The files that were read so far.
#[derive(Debug)]
pub struct KeyFiles {
    prefix: PathBuf,
    known: HashMap<PathBuf, Arc<Vec<u8>>>,
    /// The certificates that peers are sent.
    pub certificates: BTreeSet<CertificateFacts>,
    /// How many files were read.
    reads: usize,
    /// Addresses of contents of an earlier configuration that were compared and found unchanged.
    /// Many servers have the same certificate.
    held: HashSet<usize>,
    noted: Option<KeyFileUses>,
}

/// The files of certificates and keys that a part of a configuration uses: see [`KeyFiles::note`].
#[derive(Debug, Default)]
pub struct KeyFileUses {
    files: Vec<(Vec<u8>, Arc<Vec<u8>>)>,
    certificates: Vec<CertificateFacts>,
}

/// The properties of a certificate that status pages show.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CertificateFacts {
    /// Its file.
    pub file: String,
    /// The first of its names.
    pub name: String,
    /// The last second of its validity, since 1970.
    pub not_after: i64,
}

impl KeyFiles {
    /// No files yet. Relative names begin at `prefix`.
    pub fn at(prefix: &Path) -> KeyFiles {
        KeyFiles {
            prefix: prefix.to_owned(),
            known: HashMap::new(),
            certificates: BTreeSet::new(),
            reads: 0,
            held: HashSet::new(),
            noted: None,
        }
    }

    /// How many files were read so far.
    pub fn reads(&self) -> usize {
        self.reads
    }

    /// Records the files that are used from now on, until [`KeyFiles::noted`].
    pub fn note(&mut self) {
        self.noted = Some(KeyFileUses::default());
    }

    /// The files that were used since [`KeyFiles::note`].
    pub fn noted(&mut self) -> KeyFileUses {
        self.noted.take().unwrap_or_default()
    }

    /// Whether the files of `uses` are unchanged. If so, its certificates are added to this. `uses`
    /// must outlive this.
    pub fn repeat(&mut self, uses: &KeyFileUses) -> bool {
        let is_same = |(name, held): &(Vec<u8>, Arc<Vec<u8>>)| {
            let place = Arc::as_ptr(held).addr();
            if self.held.contains(&place) {
                return true;
            }
            let same = self.read(name).is_ok_and(|holds| holds == *held);
            if same && !name.starts_with(DATA) {
                self.held.insert(place);
            }
            same
        };
        let all = uses.files.iter().all(is_same);
        for facts in uses.certificates.iter().filter(|_| all) {
            if !self.certificates.contains(facts) {
                self.certificates.insert(facts.clone());
            }
        }
        all
    }

    /// Records a certificate that peers are sent. False if it was recorded before.
    pub fn note_certificate(&mut self, file: &[u8], identity: &Identity) -> bool {
        let Some((name, not_after)) = identity.validity() else { return false };
        let facts = CertificateFacts { file: self.shown(file), name, not_after };
        if let Some(uses) = &mut self.noted {
            uses.certificates.push(facts.clone());
        }
        self.certificates.insert(facts)
    }

    /// The directory where relative names begin.
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// The contents of a file. A name that begins with `data:` is followed by the contents
    /// themselves.
    pub fn read(&mut self, name: &[u8]) -> Result<Arc<Vec<u8>>, KeyFileError> {
        if let Some(data) = name.strip_prefix(DATA) {
            return Ok(Arc::new(data.to_vec()));
        }
        if is_foreign(name) {
            return Err(KeyFileError::Foreign);
        }
        let path = self.prefix.join(OsStr::from_bytes(name));
        let bytes = match self.known.get(&path) {
            Some(known) => known.clone(),
            None => {
                self.reads += 1;
                let bytes = Arc::new(weir_conf::read_file(&path).map_err(KeyFileError::Io)?);
                self.known.insert(path, bytes.clone());
                bytes
            }
        };
        if let Some(uses) = &mut self.noted {
            uses.files.push((name.to_vec(), bytes.clone()));
        }
        Ok(bytes)
    }

    /// A file's name for messages. Contents that stand in its place are not shown.
    pub fn shown(&self, name: &[u8]) -> String {
        match name.starts_with(DATA) {
            true => "data:".to_owned(),
            false if is_foreign(name) => String::from_utf8_lossy(name).into_owned(),
            false => self.prefix.join(OsStr::from_bytes(name)).to_string_lossy().into_owned(),
        }
    }
}

/// Whether only OpenSSL could load a file of this name.
fn is_foreign(name: &[u8]) -> bool {
    name.starts_with(b"engine:") || name.starts_with(b"store:")
}
