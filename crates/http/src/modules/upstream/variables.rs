//! `$upstream_addr` and alike. They join the values of all attempts.

use std::time::Duration;

use crate::answer::output::write_number;
use crate::config::Setup;
use crate::request::Request;
use crate::request::passed::Attempt;

type One = fn(&Attempt, &mut Vec<u8>);

/// Names of variables, and their value for an attempt.
const TABLE: &[(&str, One)] = &[
    ("upstream_status", |a, out| match a.status {
        0 => out.push(b'-'),
        status => write_number(status.into(), out),
    }),
    ("upstream_connect_time", |a, out| time(a.connect, out)),
    ("upstream_header_time", |a, out| time(a.header, out)),
    ("upstream_response_time", |a, out| time(a.response, out)),
    ("upstream_response_length", |a, out| write_number(a.length, out)),
    ("upstream_bytes_received", |a, out| write_number(a.received, out)),
    ("upstream_bytes_sent", |a, out| write_number(a.sent, out)),
];

/// Defines the variables.
pub fn define(setup: &mut Setup<'_>) {
    for (name, one) in TABLE {
        let one = *one;
        setup.variables.define(name, move |r, out| join(r, out, one));
    }
    setup.variables.define("upstream_addr", |r, out| {
        join(r, out, |a, out| {
            if let Some(who) = &a.who {
                out.extend_from_slice(who.name().as_bytes());
            }
        })
    });
}

/// Joins attempts by commas, and groups of attempts by colons. A new group begins with an internal
/// redirect.
fn join(r: &mut Request, out: &mut Vec<u8>, one: One) -> bool {
    let attempts = &r.contexts.upstream.attempts;
    let mut separator: &[u8] = b"";
    for attempt in attempts {
        if attempt.who.is_none() {
            separator = b" : ";
            continue;
        }
        out.extend_from_slice(separator);
        one(attempt, out);
        separator = b", ";
    }
    !attempts.is_empty()
}

fn time(time: Option<Duration>, out: &mut Vec<u8>) {
    match time {
        None => out.push(b'-'),
        Some(time) => {
            let ms = time.as_millis() as u64;
            write_number(ms / 1000, out);
            out.push(b'.');
            let digits = |n: u64| b'0' + (n % 10) as u8;
            out.extend_from_slice(&[digits(ms / 100), digits(ms / 10), digits(ms)]);
        }
    }
}
