//! Variables of the time.

use std::time::Duration;

use crate::request::Request;
use crate::variables::value::ReadVariable;

pub const TABLE: &[(&str, ReadVariable)] = &[
    ("request_time", |r, out| seconds(out, since(r, r.started))),
    ("connection_time", |r, out| seconds(out, since(r, r.conn.started))),
];

fn since(r: &Request, start: std::time::Instant) -> Duration {
    r.event_loop.handle.now_or_later().saturating_duration_since(start)
}

fn seconds(out: &mut Vec<u8>, time: Duration) -> bool {
    weir_values::builtin::write_seconds(time, out);
    true
}
