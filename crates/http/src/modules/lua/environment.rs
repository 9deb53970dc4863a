//! The environment with which the server was started. Workers have what `env` says. As in nginx, where the master runs it,
//! `init_by_lua` sees all of it, and `LUA_PATH` and `LUA_CPATH` of it say where modules are.

use std::env::vars_os;
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;

static FIRST: OnceLock<Vec<(Vec<u8>, Vec<u8>)>> = OnceLock::new();

/// The configuration is read: workers know what the process that reads it has.
pub fn remember() {
    FIRST.get_or_init(|| {
        vars_os().map(|(name, value)| (name.into_vec(), value.into_vec())).collect()
    });
}

/// The value of a variable.
pub fn first(name: &[u8]) -> Option<&'static [u8]> {
    let (_, value) = FIRST.get()?.iter().find(|(known, _)| known == name)?;
    Some(value)
}
