//! Files of certificates and keys, each read once while a configuration is read.

#![expect(clippy::disallowed_methods, reason = "certificates are the configuration's")]

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_log::Cause;

/// What was read so far.
#[derive(Debug, Default)]
pub struct Files {
    known: HashMap<PathBuf, Arc<Vec<u8>>>,
}

impl Files {
    /// The contents of a file; a relative name begins at `prefix`. `data:` is followed by the contents
    /// themselves.
    pub fn read(&mut self, prefix: &Path, name: &[u8]) -> Result<Arc<Vec<u8>>, String> {
        if let Some(data) = name.strip_prefix(b"data:") {
            return Ok(Arc::new(data.to_vec()));
        }
        if is_foreign(name) {
            return Err("(engines and stores are OpenSSL's, which weir does not use)".to_owned());
        }
        let path = prefix.join(OsStr::from_bytes(name));
        if let Some(known) = self.known.get(&path) {
            return Ok(known.clone());
        }
        let bytes = Arc::new(std::fs::read(&path).map_err(|error| text(&error))?);
        self.known.insert(path, bytes.clone());
        Ok(bytes)
    }
}

/// Names a key that only OpenSSL could fetch.
pub fn is_foreign(name: &[u8]) -> bool {
    name.starts_with(b"engine:") || name.starts_with(b"store:")
}

fn text(error: &io::Error) -> String {
    Cause(error).to_string()
}
