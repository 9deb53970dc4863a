//! Parses files of certificates and keys, with nginx's messages.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use weir_conf::Error;
use weir_tls::x509::KnownList;
use weir_tls::{Identity, IdentityError, KeyError, PemError, TlsError};
use weir_values::Subject;

use crate::files::{KeyFileError, KeyFiles};
use crate::reader::{NamedFile, SslReader};

/// What a file must contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PemKind {
    /// Certificates.
    Certificate,
    /// A private key.
    Key,
    /// Revocation lists.
    Lists,
}

impl fmt::Display for PemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PemKind::Certificate => "certificate",
            PemKind::Key => "certificate key",
            PemKind::Lists => "CRL",
        })
    }
}

/// Why files of certificates and keys cannot be used, with nginx's messages.
#[derive(Debug)]
pub enum LoadError {
    /// The file of this name cannot be read.
    File(PemKind, String, KeyFileError),
    /// The file of this name holds none of the kind.
    Pem(PemKind, String, PemError),
    /// The file of this name holds no usable key, or one for another certificate.
    Key(String, KeyError),
    /// The variable that names the file is empty.
    Unnamed,
    /// rustls refuses the settings.
    Settings(TlsError),
    /// The file pool could not read the files.
    Pool(io::Error),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::File(kind, name, error) => {
                write!(f, "cannot load {kind} \"{name}\": BIO_new_file() failed {error}")
            }
            LoadError::Pem(kind, name, error) => {
                write!(f, "cannot load {kind} \"{name}\": PEM_read_bio() failed (SSL: {error})")
            }
            LoadError::Key(name, error) => {
                let kind = PemKind::Key;
                write!(f, "cannot load {kind} \"{name}\": PEM_read_bio() failed (SSL: {error})")
            }
            LoadError::Unnamed => {
                f.write_str("cannot load certificate: its variable is empty, there is none yet")
            }
            LoadError::Settings(error) => error.fmt(f),
            LoadError::Pool(error) => error.fmt(f),
        }
    }
}

/// How long before its end a certificate is warned of; health has the same time.
const NOTICE: Duration = Duration::from_millis(weir_health::CERTIFICATE_ENDS);

/// A certificate with its chain and key, while a configuration is read. `others` are keys of the
/// server's other certificates, in case `key` belongs to one of them.
pub fn identity<S: Subject>(
    reader: &mut SslReader<'_, '_, S>,
    certificate: &NamedFile,
    key: &NamedFile,
    others: &[NamedFile],
    passwords: &[Vec<u8>],
) -> Result<Identity, Error> {
    let files = &mut *reader.files;
    let chain = read(files, certificate, PemKind::Certificate)?;
    let secret = read(files, key, PemKind::Key)?;
    let more = others.iter().map(|other| read(files, other, PemKind::Key));
    let loaded = with_any(&chain, &secret, more, passwords)?;
    let identity = loaded.map_err(|error| match error {
        IdentityError::Certificate(error) => bad(files, certificate, PemKind::Certificate, error),
        IdentityError::Key(KeyError::Mismatch) => {
            let (name, why) = (files.shown(&key.name), KeyError::Mismatch);
            key.at.error(format!("SSL_CTX_use_PrivateKey(\"{name}\") failed (SSL: {why})"))
        }
        IdentityError::Key(error) => key.at.error(LoadError::Key(files.shown(&key.name), error)),
    })?;
    if files.note_certificate(&certificate.name, &identity)
        && let Some(why) = identity.out_of_date(NOTICE)
    {
        let text = format!("the certificate \"{}\" {why}", files.shown(&certificate.name));
        reader.warnings.push(certificate.at.warning(text));
    }
    Ok(identity)
}

/// A certificate with its chain and key, while serving. Blocks on the files, so it runs in the file
/// pool.
pub fn identity_now(
    prefix: &Path,
    certificate: &[u8],
    key: &[u8],
    others: &[&[u8]],
    passwords: &[Vec<u8>],
) -> Result<Identity, LoadError> {
    let mut files = KeyFiles::at(prefix);
    let chain = contents(&mut files, certificate, PemKind::Certificate)?;
    let secret = contents(&mut files, key, PemKind::Key)?;
    let more = others.iter().map(|other| contents(&mut files, other, PemKind::Key));
    let loaded = with_any(&chain, &secret, more, passwords)?;
    loaded.map_err(|error| match error {
        IdentityError::Certificate(error) => {
            LoadError::Pem(PemKind::Certificate, files.shown(certificate), error)
        }
        IdentityError::Key(error) => LoadError::Key(files.shown(key), error),
    })
}

/// A chain with its key, or else with the first of `others` that belongs to it. OpenSSL has a place
/// for each kind of key, so certificates and keys of two kinds may be configured in different
/// orders. The outer error is that of a file.
fn with_any<E>(
    chain: &[u8],
    key: &[u8],
    mut others: impl Iterator<Item = Result<Arc<Vec<u8>>, E>>,
    passwords: &[Vec<u8>],
) -> Result<Result<Identity, IdentityError>, E> {
    let own = Identity::load(chain, key, passwords);
    if !matches!(own, Err(IdentityError::Key(KeyError::Mismatch))) {
        return Ok(own);
    }
    let found = others.find_map(|other| match other {
        Ok(other) => Identity::load(chain, &other, passwords).ok().map(Ok),
        Err(error) => Some(Err(error)),
    });
    found.transpose().map(|found| found.map_or(own, Ok))
}

/// The certificates in a file, in DER.
pub fn certificates(files: &mut KeyFiles, file: &NamedFile) -> Result<Vec<Vec<u8>>, Error> {
    let text = read(files, file, PemKind::Certificate)?;
    let list = weir_tls::certificates(&text);
    let list = list.map_err(|error| bad(files, file, PemKind::Certificate, error))?;
    Ok(list.iter().map(|certificate| certificate.to_vec()).collect())
}

/// The revocation lists in a file.
pub fn revocation_lists(files: &mut KeyFiles, file: &NamedFile) -> Result<Vec<KnownList>, Error> {
    let text = read(files, file, PemKind::Lists)?;
    let lists = weir_tls::revocation_lists(&text);
    lists.map_err(|error| bad(files, file, PemKind::Lists, error))
}

fn read(files: &mut KeyFiles, file: &NamedFile, kind: PemKind) -> Result<Arc<Vec<u8>>, Error> {
    contents(files, &file.name, kind).map_err(|error| file.at.error(error))
}

fn contents(files: &mut KeyFiles, name: &[u8], kind: PemKind) -> Result<Arc<Vec<u8>>, LoadError> {
    let read = files.read(name);
    read.map_err(|error| LoadError::File(kind, files.shown(name), error))
}

fn bad(files: &KeyFiles, file: &NamedFile, kind: PemKind, error: PemError) -> Error {
    file.at.error(LoadError::Pem(kind, files.shown(&file.name), error))
}
