//! Parses files of certificates and keys, with nginx's messages.

use std::path::Path;
use std::sync::Arc;

use weir_conf::Error;
use weir_tls::{Identity, KeyPairFile};

use crate::files::KeyFiles;
use crate::reader::NamedFile;

/// A certificate with its chain and key.
pub fn identity(
    files: &mut KeyFiles,
    certificate: &NamedFile,
    key: &NamedFile,
    passwords: &[Vec<u8>],
) -> Result<Identity, Error> {
    let chain = read(files, certificate, "certificate")?;
    let secret = read(files, key, "certificate key")?;
    Identity::load(&chain, &secret, passwords).map_err(|(what, text)| match what {
        KeyPairFile::Certificate => bad(files, certificate, "certificate", &text),
        KeyPairFile::Key if text == "key values mismatch" => {
            let name = files.shown(&key.name);
            key.at.error(format!("SSL_CTX_use_PrivateKey(\"{name}\") failed (SSL: {text})"))
        }
        KeyPairFile::Key => bad(files, key, "certificate key", &text),
    })
}

/// The same while serving: reads the files, which takes its time. The error is for the log.
pub fn identity_now(
    prefix: &Path,
    certificate: &[u8],
    key: &[u8],
    passwords: &[Vec<u8>],
) -> Result<Identity, String> {
    let mut files = KeyFiles::at(prefix);
    let mut contents = |what, name: &[u8]| {
        let read = files.read(name);
        read.map_err(|error| {
            cannot_load(&files, what, name, &format!("BIO_new_file() failed {error}"))
        })
    };
    let (chain, secret) =
        (contents("certificate", certificate)?, contents("certificate key", key)?);
    Identity::load(&chain, &secret, passwords).map_err(|(what, text)| {
        let text = format!("PEM_read_bio() failed (SSL: {text})");
        match what {
            KeyPairFile::Certificate => cannot_load(&files, "certificate", certificate, &text),
            KeyPairFile::Key => cannot_load(&files, "certificate key", key, &text),
        }
    })
}

/// The certificates in a file, in DER.
pub fn certificates(files: &mut KeyFiles, file: &NamedFile) -> Result<Vec<Vec<u8>>, Error> {
    let text = read(files, file, "certificate")?;
    let list = weir_tls::certificates(&text);
    let list = list.map_err(|text| bad(files, file, "certificate", &text))?;
    Ok(list.iter().map(|certificate| certificate.to_vec()).collect())
}

/// The revocation lists in a file, in DER.
pub fn revocation_lists(files: &mut KeyFiles, file: &NamedFile) -> Result<Vec<Vec<u8>>, Error> {
    let text = read(files, file, "CRL")?;
    let lists = weir_tls::revocation_lists(&text);
    lists.map_err(|text| bad(files, file, "CRL", &text))
}

fn read(files: &mut KeyFiles, file: &NamedFile, what: &str) -> Result<Arc<Vec<u8>>, Error> {
    let contents = files.read(&file.name);
    contents.map_err(|error| {
        let why = format!("BIO_new_file() failed {error}");
        file.at.error(cannot_load(files, what, &file.name, &why))
    })
}

fn bad(files: &KeyFiles, file: &NamedFile, what: &str, text: &str) -> Error {
    let why = format!("PEM_read_bio() failed (SSL: {text})");
    file.at.error(cannot_load(files, what, &file.name, &why))
}

fn cannot_load(files: &KeyFiles, what: &str, name: &[u8], why: &str) -> String {
    format!("cannot load {what} \"{}\": {why}", files.shown(name))
}
