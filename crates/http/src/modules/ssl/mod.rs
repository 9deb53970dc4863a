//! TLS for clients. nginx: ngx_http_ssl_module.

use std::sync::Arc;
use std::time::Duration;

use weir_conf::{Context as Place, Error};
use weir_tls::{Ciphers, Curves, SessionCache, Versions};
use weir_zone::ZoneRef;

use crate::config::Setup;
use crate::config::scope::{Scope, Spot};
use crate::modules::{Module, Settings};
use weir_values::Template;

mod check;
pub mod commands;
mod computed;
mod context;
mod directives;
mod files;
mod handshake;
pub mod kept;
pub mod load;
pub mod ocsp;
pub mod read;
mod sessions;
mod variables;

pub use check::check;
pub use context::Context;
pub use files::Files;
pub use handshake::{Secure, handshake};
pub use kept::Loaded;

/// The module.
pub const MODULE: Module =
    Module { name: "http_ssl", directives: directives::DIRECTIVES, init: variables::define };

/// A file that a directive names.
#[derive(Debug, Clone)]
pub struct Named {
    /// As written.
    pub name: Vec<u8>,
    /// For error messages.
    pub at: Spot,
}

impl Named {
    /// The name, which may hold variables.
    pub fn template(&self, setup: &mut Setup<'_>) -> Result<Template, Error> {
        Template::new(&mut setup.variables, &self.name).map_err(|text| self.at.error(text))
    }
}

/// `ssl_verify_client`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verify {
    /// Clients are not asked.
    #[default]
    Off,
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
    certificates: Vec<Named>,
    keys: Vec<Named>,
    passwords: Arc<Vec<Vec<u8>>>,
    versions: Versions,
    ciphers: Ciphers,
    curves: Curves,
    prefer_server_ciphers: bool,
    buffer_size: u64,
    verify: Verify,
    verify_depth: u64,
    client_certificate: Option<Named>,
    trusted_certificate: Option<Named>,
    crl: Option<Named>,
    cache: Option<Arc<SessionCache>>,
    tickets: bool,
    ticket_keys: Vec<Named>,
    session_timeout: Duration,
    early_data: bool,
    compress: bool,
    reject_handshake: bool,
    stapling: bool,
    stapling_file: Option<Named>,
    stapling_responder: Option<Named>,
    stapling_verify: bool,
    ocsp: ocsp::Which,
    ocsp_responder: Option<Named>,
    ocsp_cache: Option<ZoneRef>,
    certificate_cache: Option<kept::Keep>,
    commands: Vec<commands::Command>,
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            certificates: Vec::new(),
            keys: Vec::new(),
            passwords: Arc::default(),
            versions: Versions::default(),
            ciphers: Ciphers::default(),
            curves: Curves::default(),
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
            session_timeout: Duration::from_secs(300),
            early_data: false,
            compress: false,
            reject_handshake: false,
            stapling: false,
            stapling_file: None,
            stapling_responder: None,
            stapling_verify: false,
            ocsp: ocsp::Which::Off,
            ocsp_responder: None,
            ocsp_cache: None,
            certificate_cache: None,
            commands: Vec::new(),
        }
    }
}

impl Settings for Conf {
    fn finish(scope: &mut Scope<'_, '_>) -> Result<(), Error> {
        if scope.context == Place::SERVER {
            scope.server.ssl = context::build(scope)?;
        }
        Ok(())
    }
}
