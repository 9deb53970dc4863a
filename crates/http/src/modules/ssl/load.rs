//! What stands in files of certificates and keys, with nginx's complaints.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use weir_conf::Error;
use weir_tls::{Identity, What};

use super::files::is_foreign;
use super::{Files, Named};
use crate::config::Setup;

/// A certificate with its chain and key.
pub fn identity(
    setup: &mut Setup<'_>,
    certificate: &Named,
    key: &Named,
    passwords: &[Vec<u8>],
) -> Result<Identity, Error> {
    let chain = read(setup, certificate, "certificate")?;
    let secret = read(setup, key, "certificate key")?;
    let prefix = setup.inputs.conf_prefix;
    Identity::load(&chain, &secret, passwords).map_err(|(what, text)| match what {
        What::Certificate => bad(prefix, certificate, "certificate", &text),
        What::Key if text == "key values mismatch" => {
            let name = shown(prefix, &key.name);
            key.at.error(format!("SSL_CTX_use_PrivateKey(\"{name}\") failed (SSL: {text})"))
        }
        What::Key => bad(prefix, key, "certificate key", &text),
    })
}

/// The same while serving: reads the files, which takes its time. The error is for the log.
pub fn identity_now(
    prefix: &Path,
    certificate: &[u8],
    key: &[u8],
    passwords: &[Vec<u8>],
) -> Result<Identity, String> {
    let contents = |what, name: &[u8]| {
        let read = Files::default().read(prefix, name);
        read.map_err(|error| {
            cannot_load(prefix, what, name, &format!("BIO_new_file() failed {error}"))
        })
    };
    let (chain, secret) =
        (contents("certificate", certificate)?, contents("certificate key", key)?);
    Identity::load(&chain, &secret, passwords).map_err(|(what, text)| {
        let text = format!("PEM_read_bio() failed (SSL: {text})");
        match what {
            What::Certificate => cannot_load(prefix, "certificate", certificate, &text),
            What::Key => cannot_load(prefix, "certificate key", key, &text),
        }
    })
}

/// The certificates in a file, in DER.
pub fn certificates(setup: &mut Setup<'_>, file: &Named) -> Result<Vec<Vec<u8>>, Error> {
    let text = read(setup, file, "certificate")?;
    let list = weir_tls::certificates(&text);
    let list = list.map_err(|text| bad(setup.inputs.conf_prefix, file, "certificate", &text))?;
    Ok(list.iter().map(|certificate| certificate.to_vec()).collect())
}

/// The revocation lists in a file, in DER.
pub fn revocation_lists(setup: &mut Setup<'_>, file: &Named) -> Result<Vec<Vec<u8>>, Error> {
    let text = read(setup, file, "CRL")?;
    let lists = weir_tls::revocation_lists(&text);
    lists.map_err(|text| bad(setup.inputs.conf_prefix, file, "CRL", &text))
}

fn read(setup: &mut Setup<'_>, file: &Named, what: &str) -> Result<Arc<Vec<u8>>, Error> {
    let prefix = setup.inputs.conf_prefix;
    let contents = setup.pem_files.read(prefix, &file.name);
    contents.map_err(|error| {
        file.at.error(cannot_load(
            prefix,
            what,
            &file.name,
            &format!("BIO_new_file() failed {error}"),
        ))
    })
}

fn bad(prefix: &Path, file: &Named, what: &str, text: &str) -> Error {
    file.at.error(cannot_load(
        prefix,
        what,
        &file.name,
        &format!("PEM_read_bio() failed (SSL: {text})"),
    ))
}

fn cannot_load(prefix: &Path, what: &str, name: &[u8], why: &str) -> String {
    format!("cannot load {what} \"{}\": {why}", shown(prefix, name))
}

/// A file's name; of contents given in its place, only that they are.
pub fn shown(prefix: &Path, name: &[u8]) -> String {
    match name.starts_with(b"data:") {
        true => "data:".to_owned(),
        false if is_foreign(name) => String::from_utf8_lossy(name).into_owned(),
        false => prefix.join(OsStr::from_bytes(name)).to_string_lossy().into_owned(),
    }
}
