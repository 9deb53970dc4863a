//! What the clock says.

use std::time::Duration;

use weir_proto::date;

use super::{Read, put};
use crate::request::Request;

pub const TABLE: &[(&str, Read)] = &[
    ("msec", |r, out| {
        let wall = r.worker.handle.wall();
        put(out, format!("{}.{:03}", wall.secs, wall.msec).as_bytes())
    }),
    ("time_local", |r, out| {
        let (secs, offset) = r.worker.local_time();
        put(out, &date::access_log(secs, offset))
    }),
    ("time_iso8601", |r, out| {
        let (secs, offset) = r.worker.local_time();
        put(out, &date::iso8601(secs, offset))
    }),
    ("request_time", |r, out| seconds(out, since(r, r.started))),
    ("connection_time", |r, out| seconds(out, since(r, r.conn.started))),
];

fn since(r: &Request, start: std::time::Instant) -> Duration {
    r.worker.handle.now().saturating_duration_since(start)
}

fn seconds(out: &mut Vec<u8>, time: Duration) -> bool {
    crate::answer::output::write_number(time.as_secs(), out);
    let millis = time.subsec_millis();
    let digits = [millis / 100, millis / 10 % 10, millis % 10].map(|d| b'0' + d as u8);
    out.push(b'.');
    put(out, &digits)
}
