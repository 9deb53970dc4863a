//! The environment of a single-threaded process. environ(7).

use std::ffi::{OsStr, OsString};
use std::io;

use crate::process::has_one_thread;

/// Replaces the whole environment by these variables, in this order.
///
/// # Errors
///
/// Refuses when the process has more than one thread, which could be reading the environment.
/// Pairs with an empty name, or with `=` in the name or a NUL anywhere, are refused too.
pub fn replace(variables: &[(OsString, OsString)]) -> io::Result<()> {
    if !has_one_thread()? {
        return Err(io::Error::other("the environment of a process with threads is fixed"));
    }
    if variables.iter().any(|(name, value)| !is_pair(name, value)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let old: Vec<OsString> = std::env::vars_os().map(|(name, _)| name).collect();
    for name in old {
        // SAFETY: this is the only thread, so no other one reads the environment meanwhile.
        unsafe { std::env::remove_var(name) };
    }
    for (name, value) in variables {
        // SAFETY: as above; names and values were checked, so this does not panic.
        unsafe { std::env::set_var(name, value) };
    }
    Ok(())
}

fn is_pair(name: &OsStr, value: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    !name.is_empty()
        && !name.contains(&b'=')
        && !name.contains(&0)
        && !value.as_encoded_bytes().contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_that_an_environment_cannot_hold_are_seen() {
        let pair = |n: &str, v: &str| is_pair(OsStr::new(n), OsStr::new(v));
        assert!(pair("A", "") && pair("A", "b=c"));
        assert!(!pair("", "x") && !pair("A=B", "x") && !pair("A\0", "x") && !pair("A", "\0"));
    }
}
