//! The parameters of `listen`, and the socket that the server opens for it.

use std::time::Duration;

use weir_conf::{Directive, Error, Spot};

use crate::address::{self, Address};

/// A listening socket. The fields are parameters of nginx's `listen`.
#[derive(Debug, Clone, PartialEq)]
pub struct Listen {
    /// The address.
    pub address: Address,
    /// The length of the accept queue; 511 by default.
    pub backlog: u32,
    /// Each loop has a socket.
    pub reuseport: bool,
    /// Whether an IPv6 socket refuses IPv4.
    pub ipv6only: bool,
    /// Whether the kernel keeps a connection until its first bytes are there.
    pub deferred: Deferred,
    /// SO_RCVBUF
    pub rcvbuf: Option<u64>,
    /// SO_SNDBUF
    pub sndbuf: Option<u64>,
    /// The length of the TCP Fast Open queue.
    pub fastopen: Option<u32>,
    /// SO_KEEPALIVE
    pub so_keepalive: Option<Keepalive>,
    /// Use MPTCP.
    pub multipath: bool,
    /// The socket is bound separately, even beside a wildcard of the same port.
    pub bind: bool,
    /// It receives datagrams.
    pub udp: bool,
    /// The datagrams are QUIC's.
    pub quic: bool,
}

impl Listen {
    /// The socket of a `listen` with an address alone.
    pub fn new(address: Address) -> Listen {
        Listen {
            address,
            backlog: 511,
            reuseport: false,
            ipv6only: true,
            deferred: Deferred::Adaptive,
            rcvbuf: None,
            sndbuf: None,
            fastopen: None,
            so_keepalive: None,
            multipath: false,
            bind: false,
            udp: false,
            quic: false,
        }
    }

    /// The key that differs between sockets: a UDP port is not the TCP port.
    pub fn place(&self) -> (&Address, bool) {
        (&self.address, self.udp)
    }
}

/// `deferred` (TCP_DEFER_ACCEPT): whether the kernel holds a connection back until its first bytes
/// have arrived, for a second at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Deferred {
    /// While a loop accepts many connections whose first bytes arrive at once.
    #[default]
    Adaptive,
    /// Always.
    On,
    /// Never.
    Off,
}

/// `so_keepalive=`
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Keepalive {
    /// False for `so_keepalive=off`.
    pub on: bool,
    /// TCP_KEEPIDLE
    pub idle: Option<Duration>,
    /// TCP_KEEPINTVL
    pub interval: Option<Duration>,
    /// TCP_KEEPCNT
    pub count: Option<u32>,
}

/// The protocols on an address around HTTP/1. They are parameters of `listen` that any line may
/// add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Protocols {
    /// `proxy_protocol`: each connection begins with a PROXY header.
    pub proxy_protocol: bool,
    /// `ssl`
    pub ssl: bool,
    /// `http2`
    pub http2: bool,
    /// `quic`: QUIC connections over datagrams.
    pub quic: bool,
}

impl Protocols {
    /// The protocols of two lines together.
    pub fn or(self, other: Protocols) -> Protocols {
        Protocols {
            proxy_protocol: self.proxy_protocol | other.proxy_protocol,
            ssl: self.ssl | other.ssl,
            http2: self.http2 | other.http2,
            quic: self.quic | other.quic,
        }
    }
}

/// One address of a `listen` line, with its parameters.
#[derive(Debug, Clone)]
pub struct ListenLine {
    /// The socket.
    pub listen: Listen,
    /// `default_server`
    pub default_server: bool,
    /// It has parameters of the socket. Only one line for an address may have them.
    pub options: bool,
    /// The protocols around HTTP/1.
    pub protocols: Protocols,
    /// For error messages.
    pub at: Spot,
}

/// Reads `listen ADDRESS [parameter]...`. A host name may have several addresses. A session's
/// `listen` (not `of_http`) has other parameters, and must name a port.
pub fn parse(
    d: &Directive,
    of_http: bool,
    warnings: &mut Vec<Error>,
) -> Result<Vec<ListenLine>, Error> {
    let Some(first) = d.args.first() else { return Ok(Vec::new()) };
    let text = first.lossy();
    let wrong =
        |what: &str| d.error_at(first, format!("{what} in \"{text}\" of the \"listen\" directive"));
    let addresses = address::listening(&text).map_err(wrong)?;
    if !of_http && !address::has_port(&text) {
        return Err(wrong("no port"));
    }
    let mut line = ListenLine {
        listen: Listen::new(Address::Unknown),
        default_server: false,
        options: false,
        protocols: Protocols::default(),
        at: Spot::new(d, first),
    };
    for word in d.args.iter().skip(1) {
        parameter(&mut line, d, word, of_http, warnings)?;
    }
    if line.listen.udp {
        let of_tcp = [
            (line.listen.deferred != Deferred::default(), "deferred"),
            (line.listen.fastopen.is_some(), "fastopen"),
            (line.listen.so_keepalive.is_some(), "so_keepalive"),
            (line.protocols.ssl, "ssl"),
            (line.protocols.http2, "http2"),
            (line.protocols.proxy_protocol, "proxy_protocol"),
            (line.listen.multipath, "multipath"),
            (has_backlog(d), "backlog"),
        ];
        apart(d, &of_tcp, if of_http { "quic" } else { "udp" })?;
    }
    let each = |address| {
        let mut line = line.clone();
        line.listen.address = address;
        line
    };
    Ok(addresses.into_iter().map(each).collect())
}

fn parameter(
    line: &mut ListenLine,
    d: &Directive,
    word: &weir_conf::Word,
    of_http: bool,
    warnings: &mut Vec<Error>,
) -> Result<(), Error> {
    let text = word.lossy();
    let bad = || d.error_at(word, format!("invalid parameter \"{text}\""));
    let (name, value) = text.split_once('=').map_or((&*text, None), |(n, v)| (n, Some(v)));
    let invalid = || d.error_at(word, format!("invalid {name} \"{text}\""));
    let number = |zero: bool| {
        let n = value.and_then(|v| v.parse::<u32>().ok()).filter(|n| zero || *n > 0);
        n.ok_or_else(invalid)
    };
    let size = || value.and_then(|v| weir_conf::values::size(v.as_bytes())).ok_or_else(invalid);
    let listen = &mut line.listen;
    match (name, value) {
        ("udp", None) if !of_http => {
            listen.udp = true;
            return Ok(());
        }
        ("default_server", None) => {
            line.default_server = true;
            return Ok(());
        }
        ("default", None) if of_http => {
            line.default_server = true;
            return Ok(());
        }
        ("accept_filter", Some(_)) => {
            let text = "are not supported on this platform, ignored";
            warnings.push(d.warning(format!("accept filters \"{}\" {text}", word.lossy())));
            return Ok(());
        }
        ("proxy_protocol", None) => {
            line.protocols.proxy_protocol = true;
            return Ok(());
        }
        ("ssl", None) => {
            line.protocols.ssl = true;
            return Ok(());
        }
        ("http2", None) if of_http => {
            let text = "the \"listen ... http2\" directive is deprecated, use the \"http2\" \
                        directive instead";
            warnings.push(d.warning(text).mark(word.pos));
            line.protocols.http2 = true;
            return Ok(());
        }
        ("quic", None) if of_http => {
            (listen.udp, listen.quic, line.protocols.quic) = (true, true, true);
            return Ok(());
        }
        ("bind", None) => {}
        ("reuseport", None) => listen.reuseport = true,
        ("deferred", None | Some("on")) => listen.deferred = Deferred::On,
        ("deferred", Some("off")) => listen.deferred = Deferred::Off,
        ("multipath", None) => listen.multipath = true,
        ("ipv6only", Some("on")) => listen.ipv6only = true,
        ("ipv6only", Some("off")) => listen.ipv6only = false,
        ("ipv6only", Some(value)) if value.starts_with('o') => {
            return Err(d.error_at(word, format!("invalid ipv6only flags \"{value}\"")));
        }
        ("backlog", Some(_)) => listen.backlog = number(false)?,
        ("rcvbuf", Some(_)) => listen.rcvbuf = Some(size()?),
        ("sndbuf", Some(_)) => listen.sndbuf = Some(size()?),
        ("fastopen", Some(_)) => listen.fastopen = Some(number(true)?),
        ("so_keepalive", Some(value)) => {
            let bad = || d.error_at(word, format!("invalid so_keepalive value: \"{value}\""));
            listen.so_keepalive = Some(keepalive(value).ok_or_else(bad)?);
        }
        _ => return Err(bad()),
    }
    (line.options, listen.bind) = (true, true);
    Ok(())
}

/// `on`, `off`, or `idle:interval:count`, each of which may be left out or 0.
fn keepalive(value: &str) -> Option<Keepalive> {
    match value {
        "on" => return Some(Keepalive { on: true, ..Keepalive::default() }),
        "off" => return Some(Keepalive::default()),
        _ => {}
    }
    let mut parts = value.splitn(3, ':');
    let mut time = || match parts.next() {
        None | Some("") => Some(None),
        Some(text) => {
            let time = Duration::from_secs(weir_conf::values::sec(text.as_bytes())?);
            Some((!time.is_zero()).then_some(time))
        }
    };
    let (idle, interval) = (time()?, time()?);
    let count = match parts.next() {
        None | Some("") => None,
        Some(text) => Some(text.parse().ok()?).filter(|count| *count > 0),
    };
    let said = idle.is_some() || interval.is_some() || count.is_some();
    said.then_some(Keepalive { on: true, idle, interval, count })
}

/// Whether `backlog` is set: datagrams have no accept queue.
fn has_backlog(d: &Directive) -> bool {
    d.args.iter().any(|word| word.bytes.starts_with(b"backlog="))
}

/// An error if one of these parameters is set, since none of them is compatible with `other`.
fn apart(d: &Directive, said: &[(bool, &str)], other: &str) -> Result<(), Error> {
    match said.iter().find(|(said, _)| *said) {
        Some((_, name)) => {
            let text = format!("\"{name}\" parameter is incompatible with \"{other}\"");
            Err(d.problem(&text))
        }
        None => Ok(()),
    }
}
