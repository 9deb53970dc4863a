//! The application that `weir proxy` forwards to.

use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::QuickError;
use crate::place::ListenAt;

/// Timeout of the check whether the application listens.
const LOOK: Duration = Duration::from_millis(300);

/// The address of the application, as the `server` directive of an `upstream` has it.
pub struct Target(String);

impl Target {
    /// Parses `3000`, `:3000`, `host:3000`, `http://host:3000` or `unix:/path`.
    pub fn parse(word: &str) -> Result<Target, QuickError> {
        let wrong = |what| Err(QuickError::Word(word.to_owned(), what));
        if word.starts_with("https://") {
            return wrong("speaks TLS, which needs a configuration: docs/upstream.md has one");
        }
        if let Some(path) = word.strip_prefix("unix:") {
            let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@".contains(c);
            return match path.starts_with('/') && path.chars().all(plain) {
                true => Ok(Target(word.to_owned())),
                false => wrong("is no path of a socket: unix:/path, of letters, digits and /._-+@"),
            };
        }
        let plain = word.strip_prefix("http://");
        let rest = plain.unwrap_or(word);
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains('/') {
            return wrong("has a path: weir proxy passes all paths as they are");
        }
        let port = |word: &str| word.parse::<u16>().is_ok_and(|port| port != 0);
        let (host, number) = match rest.rsplit_once(':') {
            Some(parts) => parts,
            None if port(rest) => ("", rest),
            // The default port of http.
            None if plain.is_some() => (rest, "80"),
            None => return wrong("names no port: 3000, host:3000, http://host:3000 or unix:/path"),
        };
        let host = if host.is_empty() { "127.0.0.1" } else { host };
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = match inner {
            Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
            None => host.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)),
        };
        match is_host && port(number) {
            true => Ok(Target(format!("{host}:{number}"))),
            false => wrong("is no target: 3000, host:3000, http://host:3000 or unix:/path"),
        }
    }

    /// The address for the `server` directive.
    pub fn server(&self) -> &str {
        &self.0
    }

    /// Its addresses on this machine.
    pub fn own_addresses(&self) -> Vec<SocketAddr> {
        if self.0.starts_with("unix:") {
            return Vec::new();
        }
        let addresses = self.0.to_socket_addrs().into_iter().flatten();
        addresses.filter(|address| TcpListener::bind((address.ip(), 0)).is_ok()).collect()
    }

    /// Checks that weir does not listen at the application's own address, since requests would
    /// loop.
    pub fn check_apart(&self, listens: impl Iterator<Item = ListenAt>) -> Result<(), QuickError> {
        let own = self.own_addresses();
        let mut all = listens.flat_map(|listen| own.iter().map(move |own| listen.covers(*own)));
        match all.any(|covers| covers) {
            true => Err(QuickError::Word(
                self.0.clone(),
                "is where weir proxy is to listen: --listen, or --http, names another address for it",
            )),
            false => Ok(()),
        }
    }

    /// Whether the application listens now.
    pub fn is_there(&self) -> bool {
        if let Some(path) = self.0.strip_prefix("unix:") {
            return UnixStream::connect(path).is_ok();
        }
        let mut addresses = self.0.to_socket_addrs().into_iter().flatten();
        addresses.any(|address| TcpStream::connect_timeout(&address, LOOK).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_people_write_them() {
        let read = |word| Target::parse(word).map(|target| target.0).unwrap();
        for word in ["3000", ":3000", "127.0.0.1:3000", "http://127.0.0.1:3000", "http://:3000/"] {
            assert_eq!(read(word), "127.0.0.1:3000", "{word}");
        }
        assert_eq!(read("http://app.example"), "app.example:80");
        assert_eq!(read("[::1]:3000"), "[::1]:3000");
        assert_eq!(read("unix:/run/app.sock"), "unix:/run/app.sock");
    }

    proptest::proptest! {
        #[test]
        fn no_target_leaves_its_directive(word in "[a-z0-9:/.;{}\"'$ \\\\\\[\\]\n]{0,20}") {
            if let Ok(target) = Target::parse(&word) {
                let ends = [';', '{', '}', '"', '\'', '$', ' ', '\\', '\n'];
                proptest::prop_assert!(!target.0.contains(ends));
            }
        }
    }

    #[test]
    fn wrong_targets_are_refused() {
        for word in [
            "",
            "app",
            "0",
            ":",
            "70000",
            "https://a:1",
            "http://a:1/x",
            "unix:app",
            "a;b:1",
            "[x]:1",
        ] {
            assert!(Target::parse(word).is_err(), "{word}");
        }
    }
}
