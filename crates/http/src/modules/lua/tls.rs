//! TLS of scripts' sockets: `lua_ssl_*`.

use std::sync::{Arc, OnceLock};

use weir_conf::Error;
use weir_ssl::client::Settings as Said;
use weir_ssl::{DirectiveUse, SetDirective};
use weir_tls::{Authorities, ClientSettings, Identity, TlsClient, TlsError};

use super::conf::CONF;
use crate::config::scope::{Directive, Scope, Set};
use crate::request::Request;
use crate::upstream::passing::Part;

/// Settings of a block.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    said: Arc<Said>,
    /// Whether the block has directives of its own, so that it needs a `made` of its own.
    changed: bool,
    made: Arc<Made>,
}

/// What the directives make.
#[derive(Debug, Default)]
struct Made {
    /// The settings, with the trusted authorities.
    settings: Option<ClientSettings>,
    /// Clients for servers with and without a name, with and without verification. Sessions are
    /// resumed among the clones of one client.
    clients: [[OnceLock<TlsClient>; 2]; 2],
}

impl Tls {
    /// The TLS client for a server. With `verify`, the certificate must lead to a trusted authority
    /// and be for this name. Without a name it may be for any, as in lua-nginx-module. `own` is a
    /// client certificate that replaces the configuration's.
    pub fn client(
        &self,
        name: Option<Vec<u8>>,
        verify: bool,
        own: Option<Identity>,
    ) -> Result<TlsClient, TlsError> {
        let client = match own {
            Some(own) => {
                let settings = self.settings(name.is_some(), verify);
                build(&ClientSettings { identity: Some(own), ..settings })?
            }
            None => {
                let known = &self.made.clients[usize::from(name.is_some())][usize::from(verify)];
                match known.get() {
                    Some(known) => known.clone(),
                    None => {
                        let made = build(&self.settings(name.is_some(), verify))?;
                        known.get_or_init(|| made).clone()
                    }
                }
            }
        };
        Ok(match name {
            Some(name) => client.named(&name),
            None => client,
        })
    }

    fn settings(&self, named: bool, verify: bool) -> ClientSettings {
        let said = &self.said;
        let settings = self.made.settings.clone().unwrap_or_else(|| ClientSettings {
            versions: said.versions,
            ciphers: said.ciphers.clone().unwrap_or_default(),
            curves: Default::default(),
            identity: None,
            authorities: None,
            names: Arc::default(),
            send_name: false,
            reuse: false,
            alpn: Vec::new(),
        });
        let authorities = settings.authorities.clone().or_else(|| {
            // Without `lua_ssl_trusted_certificate`, no certificate is trusted.
            Some(Arc::new(Authorities { depth: depth(said), ..Authorities::default() }))
        });
        ClientSettings { authorities: authorities.filter(|_| verify), send_name: named, ..settings }
    }
}

fn depth(said: &Said) -> u32 {
    u32::try_from(said.depth).unwrap_or(u32::MAX - 2)
}

fn build(settings: &ClientSettings) -> Result<TlsClient, TlsError> {
    match settings.send_name {
        true => settings.build(),
        false => settings.build_for_any_name(),
    }
}

/// Reads the files of a block that has `lua_ssl_*` directives.
pub fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    if !CONF.of(&s.location).tls.changed {
        return Ok(());
    }
    let tls = &mut CONF.change(&mut s.location).tls;
    let said = Arc::make_mut(&mut tls.said);
    said.verify = said.trusted.is_some();
    let mut read = said.clone();
    let settings = read.read(&mut s.setup.tls(), "lua")?;
    (tls.changed, tls.made) =
        (false, Arc::new(Made { settings: Some(settings), ..Made::default() }));
    Ok(())
}

/// A row of the tables below.
macro_rules! row {
    (settings, $name:expr, $help:literal, $set:expr) => {
        Directive {
            name: $name,
            help: $help,
            set: Set::Simple(|s, d| {
                let set: SetDirective<Request, Said> = $set;
                let said = DirectiveUse { line: d, first: s.first(d) };
                let tls = &mut CONF.change(&mut s.location).tls;
                tls.changed = true;
                set(Arc::make_mut(&mut tls.said), said, &mut s.setup.tls())
            }),
        }
    };
}

/// The `lua_ssl_*` directives that all TLS to servers has.
pub const SHARED: (&[Directive], Part) = (
    weir_ssl::client_directives!("lua_", row, settings),
    Part::Only(&[
        "lua_ssl_protocols",
        "lua_ssl_ciphers",
        "lua_ssl_verify_depth",
        "lua_ssl_trusted_certificate",
        "lua_ssl_crl",
        "lua_ssl_conf_command",
    ]),
);

/// Directives whose files cannot have variables in their names here.
pub const OWN: (&[Directive], Part) = (
    &[
        row!(
            settings,
            "lua_ssl_certificate",
            "The certificate that servers are shown.",
            |c, d, _| d.set(&mut c.certificate, weir_ssl::file)
        ),
        row!(settings, "lua_ssl_certificate_key", "The key of that certificate.", |c, d, _| d
            .set(&mut c.key, weir_ssl::file)),
    ],
    Part::All,
);
