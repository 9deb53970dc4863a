//! What a server's settings of TLS come to.

use std::path::Path;
use std::sync::Arc;

use weir_conf::Error;
use weir_tls::{Authorities, Identity, ServerConfig, ServerSettings, What};

use super::files::Files;
use super::{Conf, Named, Verify, commands, sessions};
use crate::scope::Scope;

/// What a client may send with its first flight.
const EARLY_DATA: u32 = 16 * 1024;

/// A server's TLS, ready to be used.
#[derive(Debug)]
pub struct Context {
    /// None where the server has no certificate: another one's is used, or the handshake is refused.
    pub config: Option<Arc<ServerConfig>>,
    /// `ssl_verify_client`
    pub verify: Verify,
    /// Who vouches for clients.
    pub authorities: Authorities,
    /// `ssl_reject_handshake`
    pub reject: bool,
    /// Signing takes so long that others should not wait for it.
    pub slow: bool,
}

/// Builds the server's TLS, if its settings ask for any.
pub fn build(s: &mut Scope<'_, '_>) -> Result<Option<Arc<Context>>, Error> {
    let conf = &s.location.ssl;
    if conf.certificates.is_empty() && !conf.reject_handshake {
        let (verify, reject) = (conf.verify, false);
        let authorities = Authorities::default();
        let bare = Context { config: None, verify, authorities, reject, slow: false };
        return Ok((verify != Verify::Off).then(|| Arc::new(bare)));
    }
    let mut conf = Conf::clone(conf);
    let prefix = s.setup.inputs.conf_prefix;
    if let Some(last) =
        conf.certificates.last().filter(|_| conf.keys.len() < conf.certificates.len())
    {
        let name = String::from_utf8_lossy(&last.name);
        let text = format!("no \"ssl_certificate_key\" is defined for certificate \"{name}\"");
        return Err(Error::emerg(text));
    }
    commands::apply(&mut conf)?;
    let files = &mut s.setup.pem_files;
    let identities = identities(&conf, files, prefix, &mut s.setup.warnings)?;
    let clients = clients(&conf, files, prefix)?;
    let settings = ServerSettings {
        identities,
        versions: conf.versions,
        ciphers: conf.ciphers.clone(),
        curves: conf.curves.clone(),
        prefer_server_ciphers: conf.prefer_server_ciphers,
        ask_client: (conf.verify != Verify::Off).then_some(clients.told),
        tickets: sessions::tickets(&conf, files, prefix)?,
        cache: conf.cache.clone(),
        session_timeout: conf.session_timeout,
        buffer_size: conf.buffer_size,
        early_data: if conf.early_data { EARLY_DATA } else { 0 },
        alpn: vec![b"http/1.1".to_vec(), b"http/1.0".to_vec(), b"http/0.9".to_vec()],
        context: Vec::new(),
    };
    let slow = settings.identities.iter().any(Identity::is_slow);
    let config = match settings.identities.is_empty() {
        true => None,
        false => Some(settings.build().map_err(Error::emerg)?),
    };
    let (verify, reject) = (conf.verify, conf.reject_handshake);
    Ok(Some(Arc::new(Context { config, verify, authorities: clients.authorities, reject, slow })))
}

fn identities(
    conf: &Conf,
    files: &mut Files,
    prefix: &Path,
    warnings: &mut Vec<Error>,
) -> Result<Vec<Identity>, Error> {
    let mut identities = Vec::new();
    for (certificate, key) in conf.certificates.iter().zip(&conf.keys) {
        let chain = read(files, prefix, certificate, "certificate")?;
        let secret = read(files, prefix, key, "certificate key")?;
        let identity = Identity::load(&chain, &secret, &conf.passwords);
        let mut identity = identity.map_err(|(what, text)| match what {
            What::Certificate => cannot_load(certificate, "certificate", &text),
            What::Key if text == "key values mismatch" => {
                let name = full(prefix, &key.name);
                key.at.error(format!("SSL_CTX_use_PrivateKey(\"{name}\") failed (SSL: {text})"))
            }
            What::Key => cannot_load(key, "certificate key", &text),
        })?;
        if identity.is_expired() {
            let name = full(prefix, &certificate.name);
            let warning = format!("the certificate \"{name}\" has expired");
            warnings.push(certificate.at.warning(warning));
        }
        staple(conf, files, prefix, &mut identity, warnings)?;
        identities.push(identity);
    }
    Ok(identities)
}

fn staple(
    conf: &Conf,
    files: &mut Files,
    prefix: &Path,
    identity: &mut Identity,
    warnings: &mut Vec<Error>,
) -> Result<(), Error> {
    if !conf.stapling {
        return Ok(());
    }
    let Some(file) = &conf.stapling_file else {
        let text = "\"ssl_stapling\" ignored: weir staples the response of an \
                    \"ssl_stapling_file\" only";
        if !warnings.iter().any(|w| w.message == text) {
            warnings.push(Error::warn(text));
        }
        return Ok(());
    };
    let name = full(prefix, &file.name);
    let response = files.read(prefix, &file.name);
    let response = response
        .map_err(|error| file.at.error(format!("BIO_new_file(\"{name}\") failed {error}")))?;
    identity.staple(response.to_vec());
    Ok(())
}

/// Who vouches for clients.
struct Clients {
    authorities: Authorities,
    /// Those whose names clients are told.
    told: Vec<Vec<u8>>,
}

fn clients(conf: &Conf, files: &mut Files, prefix: &Path) -> Result<Clients, Error> {
    let depth = u32::try_from(conf.verify_depth).unwrap_or(u32::MAX - 2);
    let mut clients =
        Clients { authorities: Authorities { depth, ..Authorities::default() }, told: Vec::new() };
    let known = conf.client_certificate.is_some() || conf.trusted_certificate.is_some();
    if !known && matches!(conf.verify, Verify::On | Verify::Optional) {
        return Err(Error::emerg(
            "no ssl_client_certificate or ssl_trusted_certificate for ssl_verify_client",
        ));
    }
    if let Some(file) = conf.client_certificate.as_ref().filter(|_| conf.verify != Verify::Off) {
        clients.told = certificates(files, prefix, file)?;
        clients.authorities.anchors.extend_from_slice(&clients.told);
    }
    if let Some(file) = &conf.trusted_certificate {
        clients.authorities.anchors.extend(certificates(files, prefix, file)?);
    }
    if let Some(file) = &conf.crl {
        clients.authorities.lists = revocation_lists(files, prefix, file)?;
    }
    Ok(clients)
}

/// The certificates in a file, in DER.
pub fn certificates(files: &mut Files, prefix: &Path, file: &Named) -> Result<Vec<Vec<u8>>, Error> {
    let text = read(files, prefix, file, "certificate")?;
    let list = weir_tls::certificates(&text);
    let list = list.map_err(|text| cannot_load(file, "certificate", &text))?;
    Ok(list.iter().map(|certificate| certificate.to_vec()).collect())
}

/// The revocation lists in a file, in DER.
pub fn revocation_lists(
    files: &mut Files,
    prefix: &Path,
    file: &Named,
) -> Result<Vec<Vec<u8>>, Error> {
    let text = read(files, prefix, file, "CRL")?;
    weir_tls::revocation_lists(&text).map_err(|text| cannot_load(file, "CRL", &text))
}

/// A file's contents.
pub fn read(
    files: &mut Files,
    prefix: &Path,
    file: &Named,
    what: &str,
) -> Result<Arc<Vec<u8>>, Error> {
    files.read(prefix, &file.name).map_err(|error| {
        let name = full(prefix, &file.name);
        file.at.error(format!("cannot load {what} \"{name}\": BIO_new_file() failed {error}"))
    })
}

fn cannot_load(file: &Named, what: &str, text: &str) -> Error {
    let name = String::from_utf8_lossy(&file.name);
    file.at.error(format!("cannot load {what} \"{name}\": PEM_read_bio() failed (SSL: {text})"))
}

fn full(prefix: &Path, name: &[u8]) -> String {
    use std::os::unix::ffi::OsStrExt;
    match name.starts_with(b"data:") {
        true => "data:".to_owned(),
        false => prefix.join(std::ffi::OsStr::from_bytes(name)).to_string_lossy().into_owned(),
    }
}
