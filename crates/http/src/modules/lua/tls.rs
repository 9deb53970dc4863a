//! How scripts' sockets speak TLS: `lua_ssl_trusted_certificate` and `lua_ssl_verify_depth`.

use std::sync::Arc;

use weir_conf::{Directive as Line, Error};
use weir_ssl::load;
use weir_tls::{Authorities, Ciphers, ClientSettings, Curves, TlsClient, Versions};

use crate::config::scope::Scope;
use crate::modules::lua::CONF;

/// Settings.
#[derive(Debug, Clone)]
pub struct Tls {
    /// Who may vouch for servers.
    trusted: Option<Arc<Vec<Vec<u8>>>>,
    /// How many authorities may stand between a certificate and the root.
    depth: u64,
}

impl Default for Tls {
    fn default() -> Self {
        Tls { trusted: None, depth: 1 }
    }
}

impl Tls {
    /// How to speak TLS to a server. If it is to be verified, its certificate must lead to an authority that is trusted,
    /// and be for this name; without a name it may be for any, as in the lua module of nginx.
    pub fn client(&self, name: Option<Vec<u8>>, verify: bool) -> Result<TlsClient, String> {
        let authorities = verify.then(|| {
            let depth = u32::try_from(self.depth).unwrap_or(u32::MAX - 2);
            // Without `lua_ssl_trusted_certificate` there is none that could vouch for a server.
            let anchors = self.trusted.as_deref().cloned().unwrap_or_default();
            Arc::new(Authorities { anchors, lists: Vec::new(), depth })
        });
        let settings = ClientSettings {
            versions: Versions::default(),
            ciphers: Ciphers::default(),
            curves: Curves::default(),
            identity: None,
            authorities,
            send_name: name.is_some(),
            reuse: false,
            alpn: Vec::new(),
        };
        match name {
            Some(name) => settings.build().map(|client| client.named(&name)),
            None => settings.build_for_any_name(),
        }
    }
}

/// `lua_ssl_trusted_certificate`
pub fn trusted(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let Some(file) = weir_ssl::file(d)? else { return Ok(()) };
    let list = load::certificates(&mut s.setup.pem_files, &file)?;
    CONF.change(&mut s.location).tls.trusted = Some(Arc::new(list));
    Ok(())
}

/// `lua_ssl_verify_depth`
pub fn depth(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let depth = d.number()?;
    CONF.change(&mut s.location).tls.depth = depth;
    Ok(())
}
