//! Listening addresses, the state directory, and the head of all configurations.

use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::QuickError;

/// The number of ports to try, from the default on.
const TRIES: u16 = 20;

/// The default port of the panel.
const PANEL: u16 = 8090;

/// Where a server listens: one address, or all addresses of both families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenAt {
    /// The address. With `also`, it is that of IPv4.
    address: SocketAddr,
    /// The address of IPv6.
    also: Option<SocketAddr>,
}

impl ListenAt {
    fn one(address: impl Into<SocketAddr>) -> ListenAt {
        ListenAt { address: address.into(), also: None }
    }

    /// The port.
    pub fn port(self) -> u16 {
        self.address.port()
    }

    /// Whether this receives connections to the address.
    pub fn covers(self, address: SocketAddr) -> bool {
        let fits = |own: SocketAddr| {
            let (own, other) = (own.ip(), address.ip());
            own == other || own.is_unspecified() && own.is_ipv4() == other.is_ipv4()
        };
        self.port() == address.port() && (fits(self.address) || self.also.is_some_and(fits))
    }

    /// The `listen` directives, each with these parameters.
    pub fn lines(self, parameters: &str) -> String {
        let space = if parameters.is_empty() { "" } else { " " };
        let line = |address| format!("        listen {address}{space}{parameters};\n");
        line(self.address) + &self.also.map_or(String::new(), line)
    }

    /// The address for the URL of a browser.
    pub fn shown(self) -> String {
        let port = self.port();
        match self.address.ip() {
            // Not localhost, which is resolved to ::1 first, where another program may listen.
            IpAddr::V4(ip) if ip.is_unspecified() => format!("127.0.0.1:{port}"),
            IpAddr::V6(ip) if ip.is_unspecified() => format!("[::1]:{port}"),
            _ => self.address.to_string(),
        }
    }

    /// Checks that the port is free, unless the address is only to be shown. Without IPv6, only
    /// IPv4 is used.
    fn if_free(mut self, show: bool) -> Result<ListenAt, QuickError> {
        let taken = |address: SocketAddr, e| QuickError::Taken(address.to_string(), e);
        let is_fine =
            |kind| show && matches!(kind, ErrorKind::AddrInUse | ErrorKind::PermissionDenied);
        match TcpListener::bind(self.address) {
            Err(e) if !is_fine(e.kind()) => return Err(taken(self.address, e)),
            _ => {}
        }
        if let Some(also) = self.also {
            match TcpListener::bind(also) {
                Err(e) if is_fine(e.kind()) => {}
                Err(e) if e.kind() == ErrorKind::AddrInUse => return Err(taken(also, e)),
                Err(_) => self.also = None,
                Ok(_) => {}
            }
        }
        Ok(self)
    }
}

/// The address of `--listen`, or the first free port on loopback from `usual` on that is not in
/// `others`. An address that is only shown may be in use, for example by a server that was started
/// with the same arguments.
pub fn address(
    listen: Option<&str>,
    usual: u16,
    others: &[u16],
    show: bool,
) -> Result<ListenAt, QuickError> {
    let Some(word) = listen else { return free(usual, others) };
    let address = parse(word).ok_or_else(|| {
        let what = "is no address to listen on: PORT (on loopback), :PORT (on all addresses), or ADDRESS:PORT";
        QuickError::Word(word.to_owned(), what)
    })?;
    address.if_free(show)
}

/// The address of `--panel`, or a free port on loopback. The ports in `others` are not bound yet,
/// so they look free.
pub fn panel(wanted: Option<&str>, others: &[u16], show: bool) -> Result<ListenAt, QuickError> {
    let panel = address(wanted, PANEL, others, show)?;
    match others.contains(&panel.port()) {
        true => free(panel.port().saturating_add(1), others),
        false => Ok(panel),
    }
}

fn parse(word: &str) -> Option<ListenAt> {
    let port = |word: &str| word.parse().ok().filter(|port| *port != 0);
    if let Some(port) = port(word) {
        return Some(ListenAt::one((Ipv4Addr::LOCALHOST, port)));
    }
    let (host, number) = word.rsplit_once(':')?;
    let port = port(number)?;
    let host: IpAddr = match host {
        "" | "*" => {
            let also = Some((Ipv6Addr::UNSPECIFIED, port).into());
            return Some(ListenAt { address: (Ipv4Addr::UNSPECIFIED, port).into(), also });
        }
        "localhost" => Ipv4Addr::LOCALHOST.into(),
        host => host.trim_start_matches('[').trim_end_matches(']').parse().ok()?,
    };
    Some(ListenAt::one((host, port)))
}

fn free(from: u16, others: &[u16]) -> Result<ListenAt, QuickError> {
    let last = from.saturating_add(TRIES - 1);
    let ports = (from..=last).filter(|port| !others.contains(port));
    let mut all = ports.map(|port| ListenAt::one((Ipv4Addr::LOCALHOST, port)));
    all.find_map(|at| at.if_free(false).ok()).ok_or(QuickError::NoPort(from, last))
}

/// The directory for certificates and temporary files. It is created if it is missing.
pub fn state() -> Result<PathBuf, QuickError> {
    let set = |name: &str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
    let path = match (set("XDG_STATE_HOME"), rustix::process::geteuid().is_root(), set("HOME")) {
        (Some(state), _, _) => Path::new(&state).join("weir"),
        // Root's workers run as the user nobody, which cannot enter root's home.
        (None, true, _) => PathBuf::from("/var/lib/weir"),
        (None, false, Some(home)) => Path::new(&home).join(".local/state/weir"),
        (None, false, None) => return Err(QuickError::NoHome),
    };
    let made = DirBuilder::new().recursive(true).mode(0o755).create(&path);
    made.map_err(|e| QuickError::File(path.clone(), e))?;
    Ok(path)
}

/// Quotes a path for the configuration. nginx.conf cannot express a `$` in a path.
pub fn quoted(path: &Path) -> Result<String, QuickError> {
    let unfit = || {
        let what =
            "cannot be written in an nginx.conf: it has a $, a control character, or is no UTF-8";
        QuickError::Word(path.display().to_string(), what)
    };
    let text = path.to_str().ok_or_else(unfit)?;
    if text.contains(|c: char| c == '$' || c.is_control()) {
        return Err(unfit());
    }
    Ok(format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")))
}

/// The directives before the site's `server`: process, logs and files.
pub fn head(state: &Path, name: &str, address: ListenAt) -> Result<String, QuickError> {
    let pid = quoted(&state.join(format!("{name}-{}.pid", address.port())))?;
    let body = quoted(&state.join("client_body_temp"))?;
    let log = match OpenOptions::new().append(true).open("/dev/stdout") {
        Ok(_) => "/dev/stdout terminal",
        // Standard output may be a socket, or the terminal of another user.
        Err(_) => "off",
    };
    Ok(format!(
        "worker_threads auto;           # an event loop for each processor
daemon off;
pid {pid};
error_log stderr warn;

events {{ }}

http {{
    log_format terminal '$time_iso8601 $remote_addr \"$request\" $status $body_bytes_sent bytes $request_time s';
    access_log {log};
    client_body_temp_path {body};
"
    ))
}

/// The server of the panel, for loopback only.
pub fn panel_server(panel: ListenAt) -> String {
    let listen = panel.lines("");
    format!(
        "
    # The live panel, and metrics for Prometheus: for this machine alone.
    server {{
{listen}        access_log off;
        location = / {{ weir_dashboard; }}
        location = /metrics {{ weir_status; }}
    }}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let read = |word| {
            let lines = parse(word)?.lines("");
            Some(
                lines
                    .replace("listen", "")
                    .replace(';', "")
                    .split_whitespace()
                    .collect::<Vec<_>>()
                    .join(" "),
            )
        };
        assert_eq!(read("8080").unwrap(), "127.0.0.1:8080");
        assert_eq!(read(":8080").unwrap(), "0.0.0.0:8080 [::]:8080");
        assert_eq!(read("*:80").unwrap(), "0.0.0.0:80 [::]:80");
        assert_eq!(read("localhost:1").unwrap(), "127.0.0.1:1");
        assert_eq!(read("[::1]:8080").unwrap(), "[::1]:8080");
        assert_eq!(read("192.0.2.1:81").unwrap(), "192.0.2.1:81");
        for wrong in ["", "0", "x", "1.2.3.4", "a:1", "1.2.3.4:", "70000", "::"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_address_covers_the_addresses_it_listens_on() {
        let covers = |word, address: &str| parse(word).unwrap().covers(address.parse().unwrap());
        assert!(covers("80", "127.0.0.1:80") && covers(":80", "[::1]:80"));
        assert!(covers("0.0.0.0:80", "192.0.2.1:80") && !covers("0.0.0.0:80", "[::1]:80"));
        assert!(!covers("80", "127.0.0.1:81") && !covers("80", "127.0.0.2:80"));
    }

    #[test]
    fn paths_are_quoted_or_refused() {
        assert_eq!(quoted(Path::new("/a b;{}\"\\c")).unwrap(), "\"/a b;{}\\\"\\\\c\"");
        assert!(quoted(Path::new("/a$b")).is_err() && quoted(Path::new("/a\nb")).is_err());
    }
}
