//! Logging to a syslog server over UDP or a unix socket (RFC 3164).

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use weir_sys::localtime::local;

use crate::Level;

/// Facilities by their number.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "intern", "lpr", "news", "uucp", "clock", "authpriv",
    "ftp", "ntp", "audit", "alert", "cron", "local0", "local1", "local2", "local3", "local4",
    "local5", "local6", "local7",
];

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The port of a server that is named without one.
const PORT: u16 = 514;

/// Longest tag, by RFC 3164.
const TAG_MAX: usize = 32;

/// A syslog server and how to address it; connects at the first message.
#[derive(Debug)]
pub struct Syslog {
    name: String,
    server: SyslogServer,
    facility: u8,
    severity: Level,
    tag: String,
    hostname: Option<String>,
    socket: Mutex<Option<OwnedFd>>,
}

/// Why a message could not be sent.
#[derive(Debug)]
pub struct SendError {
    /// The call that failed.
    pub call: &'static str,
    /// Its error.
    pub error: io::Error,
}

impl SendError {
    /// The level at which the failure is logged. A syslog server that went away is not weir's fault.
    pub fn level(&self) -> Level {
        let gone = [
            Errno::CONNRESET,
            Errno::PIPE,
            Errno::NOTCONN,
            Errno::TIMEDOUT,
            Errno::CONNREFUSED,
            Errno::NETDOWN,
            Errno::NETUNREACH,
            Errno::HOSTDOWN,
            Errno::HOSTUNREACH,
        ];
        let is_gone = gone.iter().any(|e| self.error.raw_os_error() == Some(e.raw_os_error()));
        if self.call == "send()" && is_gone { Level::Error } else { Level::Alert }
    }
}

/// Why the parameters of a syslog server are refused; [`fmt::Display`] gives nginx's text.
#[derive(Debug)]
pub enum SyslogError {
    /// No `server=`.
    NoServer,
    /// The parameter of this name is given twice.
    Duplicate(&'static str),
    /// There is no such parameter.
    Parameter(String),
    /// There is no such facility.
    Facility(String),
    /// There is no such severity.
    Severity(String),
    /// The tag is longer than RFC 3164 allows.
    LongTag,
    /// The tag contains a byte that is not allowed.
    TagByte,
    /// The server is wrong, for this reason.
    Server(SyslogServerFault, String),
}

/// What is wrong with `server=` of a syslog server.
#[derive(Clone, Copy, Debug)]
pub enum SyslogServerFault {
    /// `unix:` alone.
    NoPath,
    /// The path is longer than a socket address allows.
    LongPath,
    /// The name is empty.
    NoHost,
    /// The port is not a number from 1 to 65535.
    Port,
    /// The name has no address.
    NotFound,
}

impl fmt::Display for SyslogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SyslogError::NoServer => f.write_str("no syslog server specified"),
            SyslogError::Duplicate(name) => write!(f, "duplicate syslog \"{name}\""),
            SyslogError::Parameter(text) => write!(f, "unknown syslog parameter \"{text}\""),
            SyslogError::Facility(name) => write!(f, "unknown syslog facility \"{name}\""),
            SyslogError::Severity(name) => write!(f, "unknown syslog severity \"{name}\""),
            SyslogError::LongTag => write!(f, "syslog tag length exceeds {TAG_MAX}"),
            SyslogError::TagByte => {
                f.write_str("syslog \"tag\" only allows alphanumeric characters and underscore")
            }
            SyslogError::Server(fault, text) => {
                let fault = match fault {
                    SyslogServerFault::NoPath => "no path in the unix domain socket",
                    SyslogServerFault::LongPath => "too long path in the unix domain socket",
                    SyslogServerFault::NoHost => "no host",
                    SyslogServerFault::Port => "invalid port",
                    SyslogServerFault::NotFound => "host not found",
                };
                write!(f, "{fault} in syslog server \"{text}\"")
            }
        }
    }
}

impl std::error::Error for SyslogError {}

#[derive(Debug)]
enum SyslogServer {
    Udp(SocketAddr),
    Unix(SocketAddrUnix),
}

/// The parameters as given, before defaults.
#[derive(Default)]
struct SyslogParameters {
    server: Option<(String, SyslogServer)>,
    facility: Option<u8>,
    severity: Option<Level>,
    tag: Option<String>,
    nohostname: bool,
}

impl Syslog {
    /// Reads what follows `syslog:` in a directive, such as `server=127.0.0.1,tag=x`.
    ///
    /// The default tag is `nginx`, as in nginx, so that filters on the receiving side go on working.
    pub fn parse(parameters: &str) -> Result<Syslog, SyslogError> {
        let mut said = SyslogParameters::default();
        for parameter in parameters.split(',') {
            said.take(parameter)?;
        }
        let (name, server) = said.server.ok_or(SyslogError::NoServer)?;
        let hostname = (!said.nohostname)
            .then(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
        Ok(Syslog {
            name,
            server,
            facility: said.facility.unwrap_or(23),
            severity: said.severity.unwrap_or(Level::Info),
            tag: said.tag.unwrap_or_else(|| "nginx".to_owned()),
            hostname,
            socket: Mutex::new(None),
        })
    }

    /// The server as the configuration names it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The `severity=` of the parameters, `info` by default; access logs use it.
    pub fn severity(&self) -> Level {
        self.severity
    }

    /// Sends one message. Returns false if the socket is full: the message is dropped.
    ///
    /// # Errors
    ///
    /// The server cannot be reached. The next message connects again.
    #[allow(clippy::disallowed_methods, reason = "a line; nothing waits for it")]
    pub fn write(&self, severity: Level, text: &[u8]) -> Result<bool, SendError> {
        let mut message = self.head(severity).into_bytes();
        message.extend_from_slice(text);
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let fd = match socket.as_ref() {
            Some(fd) => fd,
            None => {
                let failed = |error| SendError { call: "connect()", error };
                socket.insert(self.connect().map_err(failed)?)
            }
        };
        match rustix::net::send(fd, &message, SendFlags::NOSIGNAL) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => {
                *socket = None;
                Err(SendError { call: "send()", error: errno.into() })
            }
        }
    }

    fn head(&self, severity: Level) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
        let t = local(now);
        let month = MONTHS.get(t.month as usize - 1).copied().unwrap_or("Jan");
        let priority = u32::from(self.facility) * 8 + u32::from(severity.severity());
        let time = format!("{month} {:>2} {:02}:{:02}:{:02}", t.day, t.hour, t.minute, t.second);
        match &self.hostname {
            Some(host) => format!("<{priority}>{time} {host} {}: ", self.tag),
            None => format!("<{priority}>{time} {}: ", self.tag),
        }
    }

    fn connect(&self) -> io::Result<OwnedFd> {
        let family = match &self.server {
            SyslogServer::Udp(SocketAddr::V4(_)) => AddressFamily::INET,
            SyslogServer::Udp(SocketAddr::V6(_)) => AddressFamily::INET6,
            SyslogServer::Unix(_) => AddressFamily::UNIX,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
        match &self.server {
            SyslogServer::Udp(to) => rustix::net::connect(&fd, to)?,
            SyslogServer::Unix(to) => rustix::net::connect(&fd, to)?,
        }
        Ok(fd)
    }
}

impl SyslogParameters {
    fn take(&mut self, parameter: &str) -> Result<(), SyslogError> {
        match parameter.split_once('=') {
            Some(("server", text)) => {
                once(&self.server, "server")?;
                self.server = Some((text.to_owned(), server(text)?));
            }
            Some(("facility", name)) => {
                once(&self.facility, "facility")?;
                let number = FACILITIES.iter().position(|f| *f == name);
                let number = number.ok_or_else(|| SyslogError::Facility(name.to_owned()))?;
                self.facility = Some(number as u8);
            }
            Some(("severity", name)) => {
                once(&self.severity, "severity")?;
                let level = Level::parse(name);
                self.severity = Some(level.ok_or_else(|| SyslogError::Severity(name.to_owned()))?);
            }
            Some(("tag", text)) => {
                once(&self.tag, "tag")?;
                self.tag = Some(tag(text)?);
            }
            None if parameter == "nohostname" => self.nohostname = true,
            _ => return Err(SyslogError::Parameter(parameter.to_owned())),
        }
        Ok(())
    }
}

fn once<T>(said: &Option<T>, name: &'static str) -> Result<(), SyslogError> {
    match said {
        Some(_) => Err(SyslogError::Duplicate(name)),
        None => Ok(()),
    }
}

fn tag(text: &str) -> Result<String, SyslogError> {
    if text.len() > TAG_MAX {
        return Err(SyslogError::LongTag);
    }
    if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(SyslogError::TagByte);
    }
    Ok(text.to_owned())
}

fn server(text: &str) -> Result<SyslogServer, SyslogError> {
    let failed = |fault| SyslogError::Server(fault, text.to_owned());
    if let Some(path) = text.strip_prefix("unix:") {
        if path.is_empty() {
            return Err(failed(SyslogServerFault::NoPath));
        }
        return SocketAddrUnix::new(path)
            .map(SyslogServer::Unix)
            .map_err(|_| failed(SyslogServerFault::LongPath));
    }
    if text.is_empty() {
        return Err(failed(SyslogServerFault::NoHost));
    }
    if let Ok(addr) = text.parse::<SocketAddr>() {
        let named = Some(addr).filter(|addr| addr.port() > 0).map(SyslogServer::Udp);
        return named.ok_or_else(|| failed(SyslogServerFault::Port));
    }
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let found = match bare.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => {
            let port = port.parse::<u16>().ok().filter(|p| *p > 0);
            address(host, port.ok_or_else(|| failed(SyslogServerFault::Port))?)
        }
        _ => address(bare, PORT),
    };
    found.map(SyslogServer::Udp).ok_or_else(|| failed(SyslogServerFault::NotFound))
}

/// The first address of a host.
fn address(host: &str, port: u16) -> Option<SocketAddr> {
    match ipv4(host) {
        Some(ip) => Some((ip, port).into()),
        None => (host, port).to_socket_addrs().ok()?.next(),
    }
}

/// Parses four decimal numbers. The system's resolver would take numbers with leading zeros as octal.
fn ipv4(host: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = host.split('.');
    for octet in &mut octets {
        let number = parts.next().filter(|part| part.bytes().all(|b| b.is_ascii_digit()))?;
        *octet = number.parse().ok()?;
    }
    parts.next().is_none().then(|| octets.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_zeros_of_an_address_mean_nothing() {
        for (text, host, port) in
            [("127.0.0.010", [127, 0, 0, 10], PORT), ("127.0.0.010:81", [127, 0, 0, 10], 81)]
        {
            let found = server(text).unwrap();
            assert!(matches!(found, SyslogServer::Udp(at) if at == (host, port).into()), "{text}");
        }
        assert!(
            ["127.0.0", "1.2.3.4.5", "1.2.3.+4", "1.2.3.256"].iter().all(|s| ipv4(s).is_none())
        );
    }
}
