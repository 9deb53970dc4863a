//! How scripts' sockets speak TLS: `lua_ssl_*`.

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
    /// The block has said something: it gets a `made` of its own.
    changed: bool,
    made: Arc<Made>,
}

/// What the settings amount to.
#[derive(Debug, Default)]
struct Made {
    /// With the authorities that are trusted.
    settings: Option<ClientSettings>,
    /// For servers with a name and without one: whose certificate is not checked, and is. Sessions are resumed among copies of one
    /// of these.
    clients: [[OnceLock<TlsClient>; 2]; 2],
}

impl Tls {
    /// How to speak TLS to a server. If it is to be verified, its certificate must lead to an authority that is trusted,
    /// and be for this name; without a name it may be for any, as in the lua module of nginx. `own` is a certificate to show
    /// instead of the configuration's.
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
            // Without `lua_ssl_trusted_certificate` no certificate is trusted.
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

/// Reads the files of a block that has said something of TLS.
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

/// The directives that TLS to servers has everywhere.
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

/// Those whose files have no variables in their names here.
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
