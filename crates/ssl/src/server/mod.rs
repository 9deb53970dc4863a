//! TLS to clients: its directives, and the connections.

use std::sync::Arc;
use std::time::Duration;

use weir_conf::{Error, Spot};
use weir_tls::{Ciphers, Curves, ReplaceableIdentity, SessionCache, Versions};
use weir_zone::ZoneRef;

use crate::commands::{Changed, ConfCommand};
use crate::kept::Keep;
use crate::ocsp;
use crate::read::Listed;
use crate::reader::NamedFile;

mod accept;
mod computed;
mod context;
mod decided;
mod directives;
mod handshake;
mod proof;
mod sessions;
mod variables;

pub use accept::{AcceptError, ClientRefusal, FileNames, Judged, Shown, choose};
pub use context::{Certificates, NO_QUIC, ServerContext, Spoken, build, check, no_certificate};
pub use decided::{Decided, Demand};
pub use directives::rows;
pub use handshake::Handshake;
pub use proof::proof;
pub use variables::{TlsSubject, define, define_more};

/// `ssl_verify_client`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verify {
    /// Clients are not asked.
    #[default]
    Off,
    /// A script has asked for a certificate: what it is worth is shown, and decides nothing.
    Shown,
    /// A client must show a good certificate.
    On,
    /// It may show none, but no bad one.
    Optional,
    /// It may show one that no known authority vouches for.
    OptionalNoCa,
}

/// Settings.
#[derive(Debug, Clone)]
pub struct Conf {
    certificates: Vec<NamedFile>,
    keys: Vec<NamedFile>,
    passwords: Arc<Vec<Vec<u8>>>,
    versions: Versions,
    ciphers: Listed<Ciphers>,
    curves: Listed<Curves>,
    prefer_server_ciphers: bool,
    /// `ssl_buffer_size`, of HTTP.
    pub buffer_size: u64,
    verify: Verify,
    verify_depth: u64,
    client_certificate: Option<NamedFile>,
    trusted_certificate: Option<NamedFile>,
    crl: Option<NamedFile>,
    cache: Option<Arc<SessionCache>>,
    tickets: bool,
    ticket_keys: Vec<NamedFile>,
    dhparam: Option<NamedFile>,
    session_timeout: Duration,
    /// `ssl_early_data`, of HTTP.
    pub early_data: bool,
    compress: bool,
    reject_handshake: bool,
    stapling: bool,
    stapling_file: Option<NamedFile>,
    stapling_responder: Option<NamedFile>,
    stapling_verify: bool,
    ocsp: ocsp::OcspMode,
    ocsp_responder: Option<NamedFile>,
    ocsp_cache: Option<ZoneRef>,
    certificate_cache: Option<Keep>,
    /// The certificate over QUIC, where files are known to a client of TCP only.
    replaceable: Option<Arc<ReplaceableIdentity>>,
    commands: Vec<ConfCommand>,
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            certificates: Vec::new(),
            keys: Vec::new(),
            passwords: Arc::default(),
            versions: Versions::default(),
            ciphers: Ok(Ciphers::default()),
            curves: Ok(Curves::default()),
            prefer_server_ciphers: false,
            buffer_size: 16 * 1024,
            verify: Verify::Off,
            verify_depth: 1,
            client_certificate: None,
            trusted_certificate: None,
            crl: None,
            cache: None,
            tickets: true,
            ticket_keys: Vec::new(),
            dhparam: None,
            session_timeout: Duration::from_secs(300),
            early_data: false,
            compress: false,
            reject_handshake: false,
            stapling: false,
            stapling_file: None,
            stapling_responder: None,
            stapling_verify: false,
            ocsp: ocsp::OcspMode::Off,
            ocsp_responder: None,
            ocsp_cache: None,
            certificate_cache: None,
            replaceable: None,
            commands: Vec::new(),
        }
    }
}

impl Conf {
    /// Whether there is an `ssl_certificate`.
    pub fn has_certificates(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// Whether there is anything to go through handshakes with, or to refuse them with.
    pub fn speaks_tls(&self) -> bool {
        self.has_certificates() || self.reject_handshake
    }

    /// Uses this certificate and key, as if the directives stood where `at` is.
    pub fn add_certificate(&mut self, certificate: &[u8], key: &[u8], at: Spot) {
        self.certificates.push(NamedFile { name: certificate.to_vec(), at });
        self.keys.push(NamedFile { name: key.to_vec(), at });
    }

    /// Whether this is the one certificate.
    pub fn has_only(&self, certificate: &[u8], key: &[u8]) -> bool {
        let is = |files: &[NamedFile], name| matches!(files, [file] if file.name == name);
        is(&self.certificates, certificate) && is(&self.keys, key)
    }

    /// Where a certificate of this name is named.
    pub fn names_file(&self, certificate: &[u8]) -> Option<Spot> {
        self.certificates.iter().find(|file| file.name == certificate).map(|file| file.at)
    }

    /// Keeps what was loaded without an `ssl_certificate_cache`: a file with the same name is the same certificate.
    pub fn keep_files(&mut self) {
        self.certificate_cache.get_or_insert(Keep::FILES_THAT_STAY);
    }

    /// Over QUIC clients are shown what is put here, since no file is read for them.
    pub fn serve_replaceable(&mut self, replaceable: Arc<ReplaceableIdentity>) {
        self.replaceable = Some(replaceable);
    }
}

/// Changes the settings as its commands say.
fn apply_commands(conf: &mut Conf) -> Result<(), Error> {
    if conf.commands.is_empty() {
        return Ok(());
    }
    let mut changed = Changed {
        // Clients need not show any.
        verifies: false,
        versions: conf.versions,
        ciphers: conf.ciphers.clone()?,
        curves: conf.curves.clone()?,
        certificate: None,
        key: None,
        tickets: conf.tickets,
        prefer_server_ciphers: conf.prefer_server_ciphers,
    };
    changed.apply(std::mem::take(&mut conf.commands))?;
    let Changed { versions, ciphers, curves, tickets, prefer_server_ciphers, .. } = changed;
    (conf.versions, conf.ciphers, conf.curves) = (versions, Ok(ciphers), Ok(curves));
    (conf.tickets, conf.prefer_server_ciphers) = (tickets, prefer_server_ciphers);
    if let Some(certificate) = changed.certificate {
        conf.certificates = vec![certificate];
    }
    if let Some(key) = changed.key {
        conf.keys = vec![key];
    }
    Ok(())
}
