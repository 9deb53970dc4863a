//! What stands in files of certificates and keys, with nginx's complaints.

use std::path::Path;
use std::sync::Arc;

use weir_conf::Error;
use weir_tls::{Identity, What};

use super::{Files, Named};
use crate::configure::Setup;

/// A certificate with its chain and key.
pub fn identity(
    setup: &mut Setup<'_>,
    certificate: &Named,
    key: &Named,
    passwords: &[Vec<u8>],
) -> Result<Identity, Error> {
    let chain = read(setup, certificate, "certificate")?;
    let secret = read(setup, key, "certificate key")?;
    Identity::load(&chain, &secret, passwords).map_err(|(what, text)| match what {
        What::Certificate => bad(certificate, "certificate", &text),
        What::Key if text == "key values mismatch" => {
            let name = shown(&key.name);
            key.at.error(format!("SSL_CTX_use_PrivateKey(\"{name}\") failed (SSL: {text})"))
        }
        What::Key => bad(key, "certificate key", &text),
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
        read.map_err(|error| cannot_load(what, name, &format!("BIO_new_file() failed {error}")))
    };
    let (chain, secret) =
        (contents("certificate", certificate)?, contents("certificate key", key)?);
    Identity::load(&chain, &secret, passwords).map_err(|(what, text)| {
        let text = format!("PEM_read_bio() failed (SSL: {text})");
        match what {
            What::Certificate => cannot_load("certificate", certificate, &text),
            What::Key => cannot_load("certificate key", key, &text),
        }
    })
}

/// The certificates in a file, in DER.
pub fn certificates(setup: &mut Setup<'_>, file: &Named) -> Result<Vec<Vec<u8>>, Error> {
    let text = read(setup, file, "certificate")?;
    let list = weir_tls::certificates(&text);
    let list = list.map_err(|text| bad(file, "certificate", &text))?;
    Ok(list.iter().map(|certificate| certificate.to_vec()).collect())
}

/// The revocation lists in a file, in DER.
pub fn revocation_lists(setup: &mut Setup<'_>, file: &Named) -> Result<Vec<Vec<u8>>, Error> {
    let text = read(setup, file, "CRL")?;
    weir_tls::revocation_lists(&text).map_err(|text| bad(file, "CRL", &text))
}

fn read(setup: &mut Setup<'_>, file: &Named, what: &str) -> Result<Arc<Vec<u8>>, Error> {
    let contents = setup.pem_files.read(setup.inputs.conf_prefix, &file.name);
    contents.map_err(|error| {
        file.at.error(cannot_load(what, &file.name, &format!("BIO_new_file() failed {error}")))
    })
}

fn bad(file: &Named, what: &str, text: &str) -> Error {
    file.at.error(cannot_load(what, &file.name, &format!("PEM_read_bio() failed (SSL: {text})")))
}

fn cannot_load(what: &str, name: &[u8], why: &str) -> String {
    format!("cannot load {what} \"{}\": {why}", shown(name))
}

/// A file's name; of contents given in its place, only that they are.
fn shown(name: &[u8]) -> String {
    match name.starts_with(b"data:") {
        true => "data:".to_owned(),
        false => String::from_utf8_lossy(name).into_owned(),
    }
}
