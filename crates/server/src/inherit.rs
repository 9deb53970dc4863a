//! Passes listening sockets from one program to the next: a binary upgrade.
//!
//! The old master leaves its sockets open over `execve` and names them in an environment variable.
//! The new one takes them over. The variable and its format are nginx's, so weir can take over from
//! nginx, and nginx from weir.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::io::{FdFlags, fcntl_setfd};
use weir_log::{Cause, Log, log};
use weir_sys::{descriptor, environment};

use crate::listen::Post;
use crate::listen::upgrade::{self, Passed};
use crate::sockets::Sockets;

/// The variable: the descriptor numbers, each followed by a semicolon.
pub const VARIABLE: &str = "NGINX";

/// Takes over the sockets of a predecessor. None if there is none.
pub fn take(log: &Log) -> Option<(Sockets, Post)> {
    let text = std::env::var(VARIABLE).ok()?;
    let quic = std::env::var(upgrade::VARIABLE).ok();
    let passed = quic.and_then(|text| Passed::read(&text)).unwrap_or_default();
    log!(log, Notice, None, "using inherited sockets from \"{text}\"");
    forget(log);
    let (numbers, wrong) = parse(&text);
    if let Some(wrong) = wrong {
        log!(
            log,
            Emerg,
            None,
            "invalid socket number \"{wrong}\" in {VARIABLE} environment variable, ignoring the \
             rest of the variable"
        );
    }
    // Descriptors can be taken over only once, so those of both variables are taken together.
    let all = descriptor::inherited_listeners(&numbers.union(&passed.numbers()).copied().collect());
    let is_listening = |fd: &OwnedFd| numbers.contains(&fd.as_raw_fd());
    let (listening, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_listening);
    let others: Vec<_> = others.into_iter().map(Arc::new).collect();
    Some((Sockets::inherited(listening, log), passed.post(&others)))
}

/// Removes the variables from the environment, once the sockets are taken over.
fn forget(log: &Log) {
    let rest: Vec<(OsString, OsString)> = std::env::vars_os()
        .filter(|(name, _)| name != VARIABLE && name != upgrade::VARIABLE)
        .collect();
    if let Err(e) = environment::replace(&rest) {
        log!(log, Alert, None, "the environment could not be set {}", Cause(&e));
    }
}

/// The numbers before the first invalid one, and that one. A number without a separator after it
/// may be truncated.
fn parse(text: &str) -> (BTreeSet<i32>, Option<&str>) {
    let mut numbers = BTreeSet::new();
    for word in text.split_inclusive([';', ':']) {
        let digits = word.trim_end_matches([';', ':']);
        match digits.parse() {
            Ok(number) if number >= 0 && digits.len() < word.len() => numbers.insert(number),
            _ => return (numbers, Some(digits)),
        };
    }
    (numbers, None)
}

/// Calls `start` with the value of [`VARIABLE`], while the sockets stay open over `execve`.
pub fn leave<T>(sockets: &Sockets, start: impl FnOnce(String) -> io::Result<T>) -> io::Result<T> {
    let all = || sockets.iter().flat_map(|socket| &socket.copies);
    let keep = |flags| all().try_for_each(|fd| fcntl_setfd(fd.as_fd(), flags));
    let text: String = all().map(|fd| format!("{};", fd.as_raw_fd())).collect();
    let started = keep(FdFlags::empty()).map_err(Into::into).and_then(|()| start(text));
    keep(FdFlags::CLOEXEC)?;
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_with_semicolons() {
        assert_eq!(parse("6;7;"), ([6, 7].into(), None));
        assert_eq!(parse("6:7"), ([6].into(), Some("7")));
        assert_eq!(parse(""), (BTreeSet::new(), None));
        assert_eq!(parse("6;x;7;"), ([6].into(), Some("x")));
        assert_eq!(parse("-1;"), (BTreeSet::new(), Some("-1")));
        assert_eq!(parse("6;99999999999;"), ([6].into(), Some("99999999999")));
    }
}
