//! Reads values of directives that servers and clients share.

use std::sync::Arc;

use weir_conf::{Directive as Line, Error, Spot};
use weir_tls::{Chosen, Ciphers, Versions};
use weir_values::Subject;

use crate::files::KeyFiles;
use crate::reader::{NamedFile, SslReader};

/// The first argument of a directive, as a file's name.
pub fn named(d: &Line) -> Option<NamedFile> {
    let word = d.args.first()?;
    Some(NamedFile { name: word.bytes.clone(), at: Spot::new(d, word) })
}

/// As [`named`]; an empty name is none.
pub fn file(d: &Line) -> Result<Option<NamedFile>, Error> {
    Ok(named(d).filter(|file| !file.name.is_empty()))
}

/// As [`file()`], for a name that may have variables. They must exist even if TLS is not used, as in
/// nginx.
pub fn file_for_each<S: Subject>(
    reader: &mut SslReader<'_, '_, S>,
    d: &Line,
) -> Result<Option<NamedFile>, Error> {
    let file = file(d)?;
    if let Some(file) = &file {
        file.template(reader.variables)?;
    }
    Ok(file)
}

/// nginx: NGX_SSL_PASSWORD_BUFFER_SIZE
const LONGEST_PASSWORD: usize = 4096;

/// `..._password_file`
pub fn passwords(files: &mut KeyFiles, d: &Line) -> Result<Arc<Vec<Vec<u8>>>, Error> {
    let Some(file) = named(d) else { return Ok(Arc::default()) };
    let text = files.read(&file.name);
    let text = text.map_err(|error| {
        let name = files.shown(&file.name);
        d.error(format!("open() \"{name}\" failed {error}"))
    })?;
    if text.split(|b| *b == b'\n').any(|line| line.len() >= LONGEST_PASSWORD) {
        return Err(d.error(format!("too long line in \"{}\"", files.shown(&file.name))));
    }
    Ok(Arc::new(weir_tls::passwords(&text)))
}

/// `..._protocols`. `before` are the versions of earlier lines in the same block.
pub fn versions(
    warnings: &mut Vec<Error>,
    d: &Line,
    before: Option<Versions>,
) -> Result<Versions, Error> {
    let mut versions = before.unwrap_or(Versions::NONE);
    let old: Vec<_> = d.args.iter().filter(|word| !versions.add(&word.bytes)).collect();
    let names = old.iter().map(|word| word.lossy()).collect::<Vec<_>>().join(" ");
    if versions == Versions::NONE {
        let why =
            "weir speaks TLSv1.2 and TLSv1.3: older protocols are broken, and rustls has none";
        return Err(d.error(format!("no protocol is left of \"{names}\"; {why}")));
    }
    if let Some(word) = old.first() {
        let text = format!("protocols older than TLSv1.2 are not spoken: \"{names}\"");
        warnings.push(d.warning(text).mark(word.pos));
    }
    Ok(versions)
}

/// The value of a list of OpenSSL's names, or its error, which counts only if TLS is used.
pub type Listed<T> = Result<T, Error>;

/// `..._ciphers`
pub fn ciphers(warnings: &mut Vec<Error>, d: &Line) -> Listed<Ciphers> {
    const HAS: &str = "weir has ECDHE with AES-GCM or ChaCha20-Poly1305 only";
    let mut ciphers = Ciphers::default();
    let Some(word) = d.args.first() else { return Ok(ciphers) };
    let list = word.lossy();
    match ciphers.set(&list) {
        Chosen::Some => {}
        Chosen::Foreign => {
            let text =
                format!("no cipher of TLSv1.2 is left of \"{list}\", only TLSv1.3 is: {HAS}");
            warnings.push(d.warning(text).mark(word.pos));
        }
        Chosen::Nothing => {
            let text =
                format!("SSL_CTX_set_cipher_list(\"{list}\") failed (SSL: no cipher match: {HAS})");
            return Err(d.error_at(word, text));
        }
    }
    Ok(ciphers)
}
