//! The variables of both ends of a connection, of this server and of the clock, which requests and
//! sessions share. nginx documents each name.

use weir_proto::date;
use weir_proto::proxy_protocol::{ProxyHeader, TlvError};

use crate::subject::{Subject, binary};
use crate::variables::Variables;

/// Appends a number in decimal digits.
pub fn write_number(mut n: u64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends a port, or nothing if there is none.
pub fn write_port(port: Option<u16>, out: &mut Vec<u8>) {
    match port.unwrap_or(0) {
        0 => {}
        port => write_number(u64::from(port), out),
    }
}

/// Appends seconds with milliseconds.
pub fn write_seconds(time: std::time::Duration, out: &mut Vec<u8>) {
    write_number(time.as_secs(), out);
    let millis = time.subsec_millis();
    let digits = [millis / 100, millis / 10 % 10, millis % 10].map(|d| b'0' + d as u8);
    out.push(b'.');
    out.extend_from_slice(&digits);
}

type ReadVariable<S> = fn(&mut S, &mut Vec<u8>) -> bool;

/// Defines these variables.
pub fn define<S: Subject>(variables: &mut Variables<S>) {
    for (name, read) in table::<S>() {
        variables.define(name, read);
    }
    let host = hostname();
    // nginx does not have `$loop`, so a configuration may define it itself.
    variables.define_changeable("loop", false, |r, out| number(out, u64::from(r.identity().index)));
    variables.define("hostname", move |_, out| {
        out.extend_from_slice(&host);
        true
    });
}

/// The machine's name in lower case.
pub fn hostname() -> Vec<u8> {
    rustix::system::uname().nodename().to_bytes().to_ascii_lowercase()
}

fn number(out: &mut Vec<u8>, n: u64) -> bool {
    write_number(n, out);
    true
}

fn text(out: &mut Vec<u8>, text: &[u8]) -> bool {
    out.extend_from_slice(text);
    true
}

fn port(out: &mut Vec<u8>, port: Option<u16>) -> bool {
    write_port(port, out);
    true
}

fn proxy<S: Subject>(r: &S, read: impl FnOnce(&ProxyHeader) -> bool) -> bool {
    r.proxy().is_some_and(read)
}

fn table<S: Subject>() -> [(&'static str, ReadVariable<S>); 15] {
    [
        ("remote_addr", |r, out| {
            r.peer().write_host(out);
            true
        }),
        ("remote_port", |r, out| port(out, r.peer().port())),
        ("binary_remote_addr", |r, out| {
            binary(r.peer(), out);
            true
        }),
        ("server_addr", |r, out| {
            r.local().write_host(out);
            true
        }),
        ("server_port", |r, out| port(out, r.local().port())),
        ("connection", |r, out| number(out, r.number())),
        ("pid", |r, out| number(out, u64::from(r.identity().pid))),
        ("nginx_version", |_, out| text(out, crate::NGINX_VERSION.as_bytes())),
        ("proxy_protocol_addr", |r, out| proxy(r, |header| text(out, &header.source))),
        ("proxy_protocol_port", |r, out| proxy(r, |h| port(out, Some(h.source_port)))),
        ("proxy_protocol_server_addr", |r, out| proxy(r, |h| text(out, &h.destination))),
        ("proxy_protocol_server_port", |r, out| {
            proxy(r, |header| port(out, Some(header.destination_port)))
        }),
        ("msec", |r, out| {
            let wall = r.handle().wall();
            text(out, format!("{}.{:03}", wall.secs, wall.msec).as_bytes())
        }),
        ("time_local", |r, out| {
            let (secs, offset) = r.local_time();
            text(out, &date::access_log(secs, offset))
        }),
        ("time_iso8601", |r, out| {
            let (secs, offset) = r.local_time();
            text(out, &date::iso8601(secs, offset))
        }),
    ]
}

/// `$proxy_protocol_tlv_x`: a TLV of the PROXY header.
pub fn tlv<S: Subject>(r: &S, name: &[u8], out: &mut Vec<u8>) -> bool {
    let Some(header) = r.proxy() else { return false };
    let (what, named) = match header.tlv(name) {
        Ok(Some(value)) => return text(out, &value),
        Ok(None) => return false,
        Err(TlvError::Invalid) => ("invalid", true),
        Err(TlvError::Unknown) => ("unknown", true),
        Err(TlvError::Broken) => ("broken", false),
    };
    let shown =
        if named { format!(" \"{}\"", String::from_utf8_lossy(name)) } else { String::new() };
    r.log(weir_log::Level::Error, format_args!("{what} PROXY protocol TLV{shown}"));
    false
}
