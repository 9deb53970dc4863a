//! TLS to clients: its directives and its connections.

use std::sync::Arc;
use std::time::Duration;

use weir_conf::{Error, Spot};
use weir_tls::{Ciphers, Curves, ReplaceableIdentity, SessionCache, Versions};
use weir_zone::ZoneRef;

use crate::certificate_cache::CacheLimits;
use crate::commands::{Changed, ConfCommand};
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

pub use accept::{AcceptError, ClientRefusal, ClientVerdict, FileNames, Shown, choose};
pub use context::{Certificates, NO_QUIC, ServerContext, Spoken, build, check, no_certificate};
pub use decided::{Decided, Demand};
pub use directives::rows;
pub use handshake::Handshake;
pub use proof::proof;
pub use variables::{TlsSubject, define, define_more};

/// `ssl_verify_client`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verify {
    /// Clients are not asked for a certificate.
    #[default]
    Off,
    /// A script has requested a certificate. Its verdict is shown and refuses nothing.
    Shown,
    /// A client must send a certificate without a fault.
    On,
    /// A client may send none, but no faulty one.
    Optional,
    /// A client may send one that leads to no trusted authority.
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
    certificate_cache: Option<CacheLimits>,
    /// The certificate over QUIC, if the files' names depend on clients over TCP.
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

    /// Whether the server has certificates for handshakes, or refuses them.
    pub fn speaks_tls(&self) -> bool {
        self.has_certificates() || self.reject_handshake
    }

    /// Uses this certificate and key, as if the directives stood where `at` is.
    pub fn add_certificate(&mut self, certificate: &[u8], key: &[u8], at: Spot) {
        self.certificates.push(NamedFile { name: certificate.to_vec(), at });
        self.keys.push(NamedFile { name: key.to_vec(), at });
    }

    /// Whether this is the only certificate.
    pub fn has_only(&self, certificate: &[u8], key: &[u8]) -> bool {
        let is = |files: &[NamedFile], name| matches!(files, [file] if file.name == name);
        is(&self.certificates, certificate) && is(&self.keys, key)
    }

    /// The place where a certificate's file of this name is configured.
    pub fn names_file(&self, certificate: &[u8]) -> Option<Spot> {
        self.certificates.iter().find(|file| file.name == certificate).map(|file| file.at)
    }

    /// Drops the files of authorities and revocation lists if clients are not asked for a
    /// certificate. As in nginx, `mail` does not read them then, while `http` and `stream` do.
    pub fn forget_unused_authorities(&mut self) {
        if self.verify == Verify::Off {
            (self.trusted_certificate, self.crl) = (None, None);
        }
    }

    /// Caches loaded files unless `ssl_certificate_cache` is set: here, files of the same name
    /// never change.
    pub fn keep_files(&mut self) {
        self.certificate_cache.get_or_insert(CacheLimits::UNCHANGING_FILES);
    }

    /// Serves this certificate over QUIC, where no file is read for clients.
    pub fn serve_replaceable(&mut self, replaceable: Arc<ReplaceableIdentity>) {
        self.replaceable = Some(replaceable);
    }
}

/// Applies `ssl_conf_command`.
fn apply_commands(conf: &mut Conf) -> Result<(), Error> {
    if conf.commands.is_empty() {
        return Ok(());
    }
    let mut changed = Changed {
        // A certificate of the client is optional.
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
