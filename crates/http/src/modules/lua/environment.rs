//! The environment with which the server was started. Workers keep only the variables that `env`
//! names. As in nginx, whose master runs it, `init_by_lua` sees all of them. `LUA_PATH` and
//! `LUA_CPATH` of the full environment apply, too.

use std::env::vars_os;
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;

static ENVIRONMENT: OnceLock<Vec<(Vec<u8>, Vec<u8>)>> = OnceLock::new();

/// Remembers the environment of the process that reads the configuration, for the workers that it
/// forks.
pub fn remember() {
    ENVIRONMENT.get_or_init(|| {
        vars_os().map(|(name, value)| (name.into_vec(), value.into_vec())).collect()
    });
}

/// The value of a variable in the environment of the start.
pub fn at_start(name: &[u8]) -> Option<&'static [u8]> {
    let (_, value) = ENVIRONMENT.get()?.iter().find(|(known, _)| known == name)?;
    Some(value)
}
