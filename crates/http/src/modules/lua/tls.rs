//! How scripts' sockets speak TLS: `lua_ssl_trusted_certificate` and `lua_ssl_verify_depth`.

use std::sync::Arc;

use weir_tls::{Authorities, Ciphers, ClientSettings, Curves, TlsClient, TlsError, Versions};

/// Settings.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The authorities that servers' certificates must lead to.
    pub trusted: Option<Arc<Vec<Vec<u8>>>>,
    /// How many authorities may stand between a certificate and the root.
    pub depth: u64,
}

impl Default for Tls {
    fn default() -> Self {
        Tls { trusted: None, depth: 1 }
    }
}

impl Tls {
    /// How to speak TLS to a server. If it is to be verified, its certificate must lead to an authority that is trusted,
    /// and be for this name; without a name it may be for any, as in the lua module of nginx.
    pub fn client(&self, name: Option<Vec<u8>>, verify: bool) -> Result<TlsClient, TlsError> {
        let authorities = verify.then(|| {
            let depth = u32::try_from(self.depth).unwrap_or(u32::MAX - 2);
            // Without `lua_ssl_trusted_certificate` no certificate is trusted.
            let anchors = self.trusted.as_deref().cloned().unwrap_or_default();
            Arc::new(Authorities { anchors, lists: Vec::new(), depth })
        });
        let settings = ClientSettings {
            versions: Versions::default(),
            ciphers: Ciphers::default(),
            curves: Curves::default(),
            identity: None,
            authorities,
            names: Arc::default(),
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
