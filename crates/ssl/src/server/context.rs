//! A server's compiled TLS settings.

use std::sync::Arc;

use weir_conf::{Error, Level};
use weir_tls::{Authorities, Identity, ServerConfig, ServerSettings, TicketSecret};

use weir_values::Subject;

use super::computed::{self, Computed};
use super::{Conf, Verify, apply_commands, sessions};
use crate::files::KeyFiles;
use crate::load;
use crate::ocsp::{self, LookUp, OcspMode, Responder, staple};
use crate::reader::{NamedFile, SslReader};

/// The most early data that is accepted.
const EARLY_DATA: u32 = 16 * 1024;

/// A server's TLS, compiled.
#[derive(Debug)]
pub struct ServerContext {
    /// The certificates over TCP.
    pub certificates: Certificates,
    /// The certificates over QUIC, if the server listens with `quic`.
    pub quic: Certificates,
    /// `ssl_verify_client`
    pub verify: Verify,
    /// The authorities that certificates of clients must lead to.
    pub authorities: Arc<Authorities>,
    /// The OCSP settings for clients' certificates.
    pub ocsp: Option<ocsp::ClientOcsp>,
    /// `ssl_reject_handshake`
    pub reject: bool,
    /// Signing takes so long that a thread of the file pool does it.
    pub slow: bool,
    /// The settings that scripts may change in a handshake, if there are any scripts.
    pub(super) open: Option<Box<ServerSettings>>,
    /// Keeps the keys of session tickets while there is no certificate yet, so that a server with
    /// one that a change adds has the keys that all workers share.
    pub(super) _tickets: Option<TicketSecret>,
}

/// A server's certificates.
#[derive(Debug)]
pub enum Certificates {
    /// None: another server's certificates are used, or the handshake is refused.
    None,
    /// Known once the configuration is read.
    Fixed(Arc<ServerConfig>),
    /// Known once a client connects.
    Computed(Box<Computed>),
}

impl ServerContext {
    /// Whether there is a certificate.
    pub fn has_certificates(&self) -> bool {
        !matches!(self.certificates, Certificates::None)
    }

    /// The server has certificates but none for QUIC, since `ssl_protocols` leaves out TLS 1.3.
    pub fn lacks_quic(&self) -> bool {
        self.has_certificates() && matches!(self.quic, Certificates::None)
    }

    /// Clients are asked for a certificate.
    pub fn asks_client(&self) -> bool {
        self.verify != Verify::Off
    }

    /// Whether the verdict of these settings on a certificate also holds for others.
    pub fn judges_like(&self, other: &ServerContext) -> bool {
        std::ptr::eq(self, other)
            || self.verify == Verify::Off
            || (self.authorities == other.authorities && other.ocsp.is_none())
    }
}

/// The ALPN protocols, the preferred first.
#[derive(Debug, Default)]
pub struct Spoken {
    /// Over TCP.
    pub tcp: Vec<Vec<u8>>,
    /// Over QUIC, where the server listens with `quic`.
    pub quic: Option<Vec<Vec<u8>>>,
    /// Scripts may change the settings in a handshake.
    pub scripted: bool,
}

/// Compiles a server's TLS, if its settings have any. `sessions` distinguishes session contexts:
/// servers with different values do not resume each other's sessions.
pub fn build<S: Subject>(
    conf: &Conf,
    reader: &mut SslReader<'_, '_, S>,
    look_up: LookUp,
    spoken: Spoken,
    sessions: &[u8],
) -> Result<Option<Arc<ServerContext>>, Error> {
    if conf.certificates.is_empty() && !conf.reject_handshake {
        return Ok(build_without_certificates(conf, reader));
    }
    let mut conf = conf.clone();
    if let Some(last) =
        conf.certificates.last().filter(|_| conf.keys.len() < conf.certificates.len())
    {
        let name = String::from_utf8_lossy(&last.name);
        let text = format!("no \"ssl_certificate_key\" is defined for certificate \"{name}\"");
        return Err(Error::emerg(text));
    }
    apply_commands(&mut conf)?;
    if let Some(file) = &conf.dhparam {
        check_dhparam(file, reader.files)?;
    }
    let computed = computed::is_computed(&conf);
    let clients = clients(&conf, reader.files)?;
    let authorities = Arc::new(clients.authorities);
    let identities = match computed {
        true => Vec::new(),
        false => identities(&conf, reader, &authorities, &look_up)?,
    };
    let settings = ServerSettings {
        identities,
        versions: conf.versions,
        ciphers: conf.ciphers.clone()?,
        curves: conf.curves.clone()?,
        prefer_server_ciphers: conf.prefer_server_ciphers,
        ask_client: (conf.verify != Verify::Off).then_some(clients.hints),
        tickets: sessions::tickets(&conf, reader.files)?,
        cache: sessions::session_cache(&conf),
        session_timeout: conf.session_timeout,
        buffer_size: conf.buffer_size,
        early_data: if conf.early_data { EARLY_DATA } else { 0 },
        alpn: spoken.tcp,
        compress: conf.compress,
        context: sessions.to_vec(),
        replaceable: None,
    };
    let replaceable = conf.replaceable.clone().filter(|_| computed);
    let open = spoken.scripted.then(|| Box::new(settings.clone()));
    let slow = computed || settings.identities.iter().any(Identity::is_slow);
    let quic = match spoken.quic.filter(|_| !settings.identities.is_empty() || computed) {
        // No client can connect to this server by QUIC.
        Some(_) if !conf.versions.tls13 => Certificates::None,
        Some(alpn) if computed && replaceable.is_none() => {
            let computed = Computed::new(&conf, reader, settings.clone(), Some(alpn))?;
            Certificates::Computed(Box::new(computed))
        }
        Some(alpn) => {
            let settings = ServerSettings { replaceable, ..settings.clone() };
            Certificates::Fixed(settings.build_for_quic(alpn).map_err(Error::emerg)?)
        }
        None => Certificates::None,
    };
    let tickets = settings.tickets.clone();
    let certificates = if computed {
        Certificates::Computed(Box::new(Computed::new(&conf, reader, settings, None)?))
    } else if settings.identities.is_empty() {
        Certificates::None
    } else {
        Certificates::Fixed(settings.build().map_err(Error::emerg)?)
    };
    let (verify, reject) = (conf.verify, conf.reject_handshake);
    Ok(Some(Arc::new(ServerContext {
        certificates,
        quic,
        verify,
        authorities,
        ocsp: ocsp(&conf, look_up)?,
        reject,
        slow,
        open,
        _tickets: tickets,
    })))
}

/// Checks the file of `ssl_dhparam`, which is not used otherwise. nginx names no line.
fn check_dhparam(file: &NamedFile, files: &mut KeyFiles) -> Result<(), Error> {
    let (read, name) = (files.read(&file.name), files.shown(&file.name));
    let text =
        read.map_err(|error| Error::emerg(format!("BIO_new_file(\"{name}\") failed {error}")))?;
    let bits = weir_tls::dh_parameter_bits(&text).map_err(|error| {
        Error::emerg(format!("PEM_read_bio_DHparams(\"{name}\") failed (SSL: {error})"))
    })?;
    if bits < LEAST_DH_BITS {
        let text = format!("SSL_CTX_set_tmp_dh(\"{name}\") failed (SSL: dh key too small)");
        return Err(Error::emerg(text));
    }
    Ok(())
}

/// The bits that OpenSSL 3 demands of the prime at every security level.
const LEAST_DH_BITS: usize = 1024;

/// Compiles a server without certificates. Its handshakes use another server's, but its settings
/// may verify clients. Most such servers have no TLS, so an unreadable file is only a warning; then
/// no authority is trusted.
fn build_without_certificates<S: Subject>(
    conf: &Conf,
    reader: &mut SslReader<'_, '_, S>,
) -> Option<Arc<ServerContext>> {
    let (certificates, verify) = (Certificates::None, conf.verify);
    if verify == Verify::Off {
        return None;
    }
    let known = conf.client_certificate.is_some() || conf.trusted_certificate.is_some();
    let clients = known.then(|| clients(conf, reader.files)).transpose().unwrap_or_else(|error| {
        reader.warnings.push(Error { level: Level::Warn, ..error });
        None
    });
    let authorities = clients.map(|clients| Arc::new(clients.authorities)).unwrap_or_default();
    let (quic, ocsp, reject, slow) = (Certificates::None, None, false, false);
    Some(Arc::new(ServerContext {
        certificates,
        quic,
        verify,
        authorities,
        ocsp,
        reject,
        slow,
        open: None,
        _tickets: None,
    }))
}

fn identities<S: Subject>(
    conf: &Conf,
    reader: &mut SslReader<'_, '_, S>,
    authorities: &Arc<Authorities>,
    look_up: &LookUp,
) -> Result<Vec<Identity>, Error> {
    let mut identities = Vec::new();
    for (certificate, key) in conf.certificates.iter().zip(&conf.keys) {
        let mut identity = load::identity(reader, certificate, key, &conf.keys, &conf.passwords)?;
        let name = reader.files.shown(&certificate.name);
        match &conf.stapling_file {
            _ if !conf.stapling => {}
            Some(file) => staple(file, reader.files, &mut identity)?,
            None => {
                let (responder, verify) = (conf.stapling_responder.as_ref(), conf.stapling_verify);
                let wanted = staple::StapleSettings { responder, verify, authorities, look_up };
                let added = staple::add(&wanted, reader, name, &mut identity);
                reader.warnings.extend(added.err());
            }
        }
        identities.push(identity);
    }
    Ok(identities)
}

fn staple(file: &NamedFile, files: &mut KeyFiles, identity: &mut Identity) -> Result<(), Error> {
    let (response, name) = (files.read(&file.name), files.shown(&file.name));
    let response = response
        .map_err(|error| file.at.error(format!("BIO_new_file(\"{name}\") failed {error}")))?;
    if !weir_tls::is_response(&response) {
        let text = format!("d2i_OCSP_RESPONSE_bio(\"{name}\") failed (SSL: bad response)");
        return Err(file.at.error(text));
    }
    identity.staple(response.to_vec());
    Ok(())
}

/// The settings of OCSP for clients' certificates, if it is on.
fn ocsp(conf: &Conf, look_up: LookUp) -> Result<Option<ocsp::ClientOcsp>, Error> {
    if conf.ocsp == OcspMode::Off {
        return Ok(None);
    }
    if conf.verify == Verify::OptionalNoCa {
        let text = "\"ssl_ocsp\" is incompatible with \"ssl_verify_client optional_no_ca\"";
        return Err(Error::emerg(text));
    }
    let responder = conf.ocsp_responder.as_ref().map(|named| {
        let responder = Responder::new(&named.name, look_up.resolver.is_none());
        responder.map_err(|why| named.at.error(format!("{why} in \"ssl_ocsp_responder\"")))
    });
    let cache = conf.ocsp_cache.clone();
    Ok(Some(ocsp::ClientOcsp::new(conf.ocsp, responder.transpose()?, cache, look_up)))
}

/// The authorities for certificates of clients.
struct ClientAuthorities {
    authorities: Authorities,
    /// Certificates of the authorities whose names clients are sent.
    hints: Vec<Vec<u8>>,
}

fn clients(conf: &Conf, files: &mut KeyFiles) -> Result<ClientAuthorities, Error> {
    let depth = u32::try_from(conf.verify_depth).unwrap_or(u32::MAX - 2);
    let mut clients = ClientAuthorities {
        authorities: Authorities { depth, ..Authorities::default() },
        hints: Vec::new(),
    };
    let known = conf.client_certificate.is_some() || conf.trusted_certificate.is_some();
    if !known && matches!(conf.verify, Verify::On | Verify::Optional) {
        return Err(Error::emerg(
            "no ssl_client_certificate or ssl_trusted_certificate for ssl_verify_client",
        ));
    }
    if let Some(file) = conf.client_certificate.as_ref().filter(|_| conf.verify != Verify::Off) {
        clients.hints = load::certificates(files, file)?;
        clients.authorities.anchors.extend_from_slice(&clients.hints);
    }
    if let Some(file) = &conf.trusted_certificate {
        clients.authorities.anchors.extend(load::certificates(files, file)?);
    }
    if let Some(file) = &conf.crl {
        clients.authorities.lists = load::revocation_lists(files, file)?;
    }
    Ok(clients)
}

/// The message for a server with TLS and without a certificate; `parameter` is that of `listen`.
pub fn no_certificate(parameter: &str) -> String {
    format!("no \"ssl_certificate\" is defined for the \"listen ... {parameter}\" directive")
}

/// The message for a server that listens with `quic` and [lacks it](ServerContext::lacks_quic).
pub const NO_QUIC: &str =
    "\"ssl_protocols\" must enable TLSv1.3 for the \"listen ... quic\" directive";

/// A server with TLS must have a certificate: the default server, or each server if the default
/// refuses handshakes. Returns the first that has none.
pub fn check<T>(
    default: Option<T>,
    all: impl IntoIterator<Item = T>,
    context: impl Fn(&T) -> Option<&'_ ServerContext>,
) -> Option<T> {
    let state =
        |server: &T| context(server).map_or((false, false), |c| (c.has_certificates(), c.reject));
    match default.as_ref().map(&state) {
        None | Some((true, _)) => None,
        Some((false, false)) => default,
        Some((false, true)) => all.into_iter().find(|server| state(server) == (false, false)),
    }
}
