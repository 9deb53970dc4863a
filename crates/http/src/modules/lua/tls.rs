//! How scripts' sockets speak TLS: `lua_ssl_trusted_certificate` and `lua_ssl_verify_depth`.

use std::sync::Arc;

use weir_conf::{Directive as Line, Error};
use weir_ssl::load;
use weir_tls::{Authorities, Ciphers, Client, ClientSettings, Curves, Versions};

use crate::config::scope::Scope;

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
    /// How to speak TLS to a server, whose certificate must be for this name if it is to be verified.
    pub fn client(&self, name: Option<Vec<u8>>, verify: bool) -> Result<Client, String> {
        let trusted = self.trusted.as_ref().filter(|_| verify);
        if verify && trusted.is_none() {
            return Err("no lua_ssl_trusted_certificate for a handshake that verifies".to_owned());
        }
        let authorities = trusted.map(|trusted| {
            let depth = u32::try_from(self.depth).unwrap_or(u32::MAX - 2);
            Arc::new(Authorities { anchors: trusted.to_vec(), lists: Vec::new(), depth })
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
        let client = settings.build()?;
        Ok(client.named(&name.unwrap_or_default()))
    }
}

/// `lua_ssl_trusted_certificate`
pub fn trusted(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let Some(file) = weir_ssl::file(d)? else { return Ok(()) };
    let list = load::certificates(&mut s.setup.pem_files, &file)?;
    Scope::change(&mut s.location.lua).tls.trusted = Some(Arc::new(list));
    Ok(())
}

/// `lua_ssl_verify_depth`
pub fn depth(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    s.once(d)?;
    let depth = d.number()?;
    Scope::change(&mut s.location.lua).tls.depth = depth;
    Ok(())
}
