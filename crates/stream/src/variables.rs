//! The variables of sessions. nginx: ngx_stream_variables.c, which documents each name.

use std::sync::Arc;
use std::time::Duration;

use weir_values::builtin::{self, write_number, write_port, write_seconds};
use weir_values::{Get, Subject, Variables, geoip};

use crate::session::{Attempt, Session};
use crate::status::code;

type ReadValue = fn(&mut Session, &mut Vec<u8>) -> bool;

const TABLE: &[(&str, ReadValue)] = &[
    ("bytes_received", |s, out| number(out, s.bytes_received())),
    ("bytes_sent", |s, out| number(out, s.bytes_sent())),
    ("session_time", |s, out| {
        write_seconds(s.handle().now_or_later().saturating_duration_since(s.started), out);
        true
    }),
    ("status", |s, out| {
        out.extend_from_slice(format!("{:03}", s.outcome.map_or(0, code)).as_bytes());
        true
    }),
    ("protocol", |s, out| text(out, if s.wire().is_some() { b"TCP" } else { b"UDP" })),
    ("server_name", |s, out| {
        let name = s.server.names.first().map(|name| name.of_server());
        text(out, &name.unwrap_or_default())
    }),
    ("realip_remote_addr", |s, out| {
        s.connected.write_host(out);
        true
    }),
    ("realip_remote_port", |s, out| {
        write_port(s.connected.port(), out);
        true
    }),
    ("limit_conn_status", |s, out| s.held.write(out)),
    ("upstream_addr", |s, out| {
        each(s, out, |attempt, out| out.extend_from_slice(attempt.name.as_bytes()))
    }),
    ("upstream_bytes_sent", |s, out| each(s, out, |attempt, out| write_number(attempt.sent, out))),
    ("upstream_bytes_received", |s, out| {
        each(s, out, |attempt, out| write_number(attempt.received, out))
    }),
    ("upstream_connect_time", |s, out| each(s, out, |attempt, out| time(attempt.connect, out))),
    ("upstream_first_byte_time", |s, out| each(s, out, |attempt, out| time(attempt.first, out))),
    ("upstream_session_time", |s, out| each(s, out, |attempt, out| time(attempt.whole, out))),
    ("ssl_preread_protocol", |s, out| preread(s, out, |hello| hello.protocol().as_bytes())),
    ("ssl_preread_server_name", |s, out| preread(s, out, |hello| &hello.server_name)),
    ("ssl_preread_alpn_protocols", |s, out| preread(s, out, |hello| &hello.alpn)),
];

/// The names of all built-in variables.
pub fn names() -> Vec<String> {
    Variables::<Session>::new().names().collect()
}

/// Defines the built-in variables.
pub fn define(variables: &mut Variables<Session>) {
    builtin::define(variables);
    weir_ssl::server::define(variables);
    for (name, read) in TABLE {
        variables.define(name, *read);
    }
}

/// `$proxy_protocol_tlv_x`: a field of the PROXY header. And variables of databases that the
/// configuration lacks.
pub fn prefixed(name: &[u8]) -> Option<Get<Session>> {
    let Some(field) = name.strip_prefix(b"proxy_protocol_tlv_").map(<[u8]>::to_vec) else {
        return geoip::without_database(name);
    };
    Some(Arc::new(move |s, out| builtin::tlv(s, &field, out)))
}

fn number(out: &mut Vec<u8>, n: u64) -> bool {
    write_number(n, out);
    true
}

fn text(out: &mut Vec<u8>, text: &[u8]) -> bool {
    out.extend_from_slice(text);
    true
}

fn time(time: Option<Duration>, out: &mut Vec<u8>) {
    match time {
        Some(time) => write_seconds(time, out),
        None => out.push(b'-'),
    }
}

/// Writes a value of each attempt. False if there was no attempt.
fn each(s: &Session, out: &mut Vec<u8>, write: impl Fn(&Attempt, &mut Vec<u8>)) -> bool {
    for (i, attempt) in s.attempts.iter().enumerate() {
        if i > 0 {
            out.extend_from_slice(b", ");
        }
        write(attempt, out);
    }
    !s.attempts.is_empty()
}

fn preread<'s>(
    s: &'s Session,
    out: &mut Vec<u8>,
    read: impl FnOnce(&'s weir_proto::client_hello::Hello) -> &'s [u8],
) -> bool {
    match &s.hello {
        Some(hello) => text(out, read(hello)),
        // Part of a ClientHello has arrived: the value is empty, but defined.
        None => s.may_be_hello,
    }
}
