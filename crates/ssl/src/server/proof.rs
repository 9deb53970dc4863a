//! The certificate that proves control of a name to an ACME server (TLS-ALPN-01, RFC 8737).

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use weir_engine::Handle;
use weir_tls::{ACME, Ciphers, Curves, ServerConfig, ServerSettings, Versions};

use crate::load;

/// A configuration with the first of these files that has a certificate and its key. It offers
/// `acme-tls/1` alone.
pub async fn proof(paths: Vec<PathBuf>, handle: &Handle) -> Option<Arc<ServerConfig>> {
    if paths.is_empty() {
        return None;
    }
    let read = move || paths.iter().find_map(|path| config(path));
    handle.files().run(read).await.ok().flatten()
}

fn config(path: &Path) -> Option<Arc<ServerConfig>> {
    let name = path.as_os_str().as_bytes();
    let identity = load::identity_now(Path::new("/"), name, name, &[], &[]).ok()?;
    let settings = ServerSettings {
        identities: vec![identity],
        versions: Versions::default(),
        ciphers: Ciphers::default(),
        curves: Curves::default(),
        prefer_server_ciphers: false,
        ask_client: None,
        tickets: None,
        cache: None,
        session_timeout: Duration::ZERO,
        buffer_size: 16 * 1024,
        early_data: 0,
        alpn: vec![ACME.to_vec()],
        compress: false,
        context: Vec::new(),
        replaceable: None,
    };
    settings.build().ok()
}
